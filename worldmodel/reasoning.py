"""Reasoning traces by rule: why this action in this state leads to the next one.

The explainer reads only the two states, the action and the outcome, so it works for
any environment whose states are lines.
"""

from worldmodel.text import edits
from worldmodel.text.prompts import number_text, outcome_of
from worldmodel.text.records import State, Transition


def reveals(state: State, action: str, instruction: str, after: State) -> set[str]:
    """Words of the next state found nowhere in task, state or action."""
    known = {w for text in (*state, action, instruction) for w in text.split()}
    return {w for line in after for w in line.split()} - known


def explain(transition: Transition) -> str:
    """Where, what is done, what it leads to, which lines change, what it earns.

    A few words of the first line and of the action are said again, next to each other,
    and then the new words of the first changed line: to look those up is what a small
    model finds hard, and meant to be easier from one place than from two.
    """
    t = transition
    script = edits.diff(t.state, t.next_state)
    if not script:
        what = "nothing changes"
    else:
        touched = [
            "new" if e.index is None else t.state[e.index].split()[0] for e in script
        ]
        what = " ".join([*_new_words(t, script[0]), "as", *dict.fromkeys(touched)])
        what += " change"
    where = t.state[0].split()[-4:] if t.state else []
    what = " ".join([*where, *t.action.split()[:6], what])
    if t.reward:
        what += f" earns {number_text(t.reward)}"
    end = {"go": "", "win": " and wins", "lose": " and loses"}[outcome_of(t)]
    return what + end


def _new_words(t: Transition, edit: edits.Edit, most: int = 2) -> list[str]:
    old = set() if edit.index is None else set(t.state[edit.index].split())
    new = [w for line in edit.lines for w in line.split() if w not in old]
    return new[:most] or ["nothing"]
