"""Steps whose result does not follow from what the models read.

recorded episodes -> steps with equal task, last actions, state and action -> the share
of them whose result is another one than the commonest. No model can be right about
these: what decides is hidden.
"""

from collections import Counter
from collections.abc import Iterable

from worldmodel.data.outcomes import number_text, outcome_of
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode
from worldmodel.text.prompts import last_actions


def hidden_state(episodes: Iterable[Episode], *, history: int) -> Rate:
    """Return the share of the repeated steps that contradict what their equals show.

    Repeated are steps that were recorded more than once with the same task, the same
    last `history` actions, the same state and the same action. Where transitions are
    random, chance contradicts as well.
    """
    results: dict[tuple, Counter[tuple]] = {}
    for e in episodes:
        actions = [t.action for t in e.transitions]
        for i, t in enumerate(e.transitions):
            past = last_actions(actions[:i], history)
            result = t.next_state, number_text(t.reward), outcome_of(t)
            question = e.task.id, past, t.state, t.action
            results.setdefault(question, Counter())[result] += 1
    repeated = [counts for counts in results.values() if counts.total() > 1]
    contradicting = sum(c.total() - max(c.values()) for c in repeated)
    return Rate.of(contradicting, sum(c.total() for c in repeated))
