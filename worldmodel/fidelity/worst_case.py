"""The largest errors among held-out transitions: Theorem 1 asks for suprema."""

from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.fidelity.cases import sample_cases
from worldmodel.fidelity.scorecard import HasConfidenceSignals


class Errors(NamedTuple):
    """The largest error of a reward and of a next state (1 - p of the real one).

    They are of `transitions` transitions; `span` is how far apart any rewards are that
    were seen.
    """

    reward: float
    moves: float
    transitions: int
    span: float


def largest_errors(
    model: ExperienceModel, episodes: Sequence[Episode], *, limit: int
) -> Errors | None:
    """Return the largest errors over at most `limit` transitions that reveal nothing.

    There the environment is deterministic, so the total variation between its next
    state and the model's is the probability that the model does not give to the real
    one. None where a backend cannot tell that, or no transition is left to ask.
    """
    sampled = [c for c in sample_cases(episodes, limit) if c.kind != "reveal"]
    if not sampled or not isinstance(model, HasConfidenceSignals):
        return None
    queries, real = [c.query for c in sampled], [c.transition for c in sampled]
    answers = model.predict(queries)
    reward_errors = [
        abs(a.reward - t.reward) for a, t in zip(answers, real, strict=True)
    ]
    probabilities = model.next_state_probability(queries, real)
    rewards = [t.reward for e in episodes for t in e.transitions]
    rewards += [a.reward for a in answers]
    return Errors(
        float(max(reward_errors)),
        float(1.0 - min(probabilities)),
        len(sampled),
        float(max(*rewards, 0.0) - min(*rewards, 0.0)),
    )
