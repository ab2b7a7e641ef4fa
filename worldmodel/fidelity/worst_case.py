"""The largest errors on held-out transitions: the suprema of DreamGym's Theorem 1."""

from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel, states_read
from worldmodel.fidelity.cases import sample_cases
from worldmodel.fidelity.scorecard import HasConfidenceSignals


class Errors(NamedTuple):
    """The largest error of a reward and of a next state (1 - p of the real one).

    `transitions` is the number of transitions they are taken over, `span` the largest
    difference between any two rewards.
    """

    reward: float
    moves: float
    transitions: int
    span: float


def largest_errors(
    model: ExperienceModel, episodes: Sequence[Episode], *, limit: int
) -> Errors | None:
    """Return the largest errors on at most `limit` predictable transitions.

    There the environment is deterministic, so that the total variation between its next
    state and the model's is the probability that the model does not give to the real
    one. None where a backend has no such probability, or there are no transitions.
    """
    sampled = [
        c
        for c in sample_cases(episodes, limit, states_read=states_read(model))
        if c.predictable
    ]
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
