"""The largest errors among held-out transitions: Theorem 1 asks for suprema."""

from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.fidelity.card import Doubting
from worldmodel.fidelity.rows import distinct


class Errors(NamedTuple):
    """Largest error of a reward, of the next state (1 - p of the real one), and of how
    many transitions; `span` is how far apart any rewards are that were seen."""

    reward: float
    moves: float
    transitions: int
    span: float


def largest_errors(
    model: ExperienceModel, episodes: Sequence[Episode], *, limit: int
) -> Errors | None:
    """Over at most `limit` transitions that reveal nothing.

    There the world draws no lots, so the total variation between its next state and the
    model's is what the model does not give to the real one. None where a backend cannot
    tell that, or nothing is left to ask.
    """
    asked = [r for r in distinct(episodes, limit) if r.kind != "reveal"]
    if not asked or not isinstance(model, Doubting):
        return None
    queries, real = [r.query for r in asked], [r.transition for r in asked]
    answers = model.predict(queries)
    missed = [abs(a.reward - t.reward) for a, t in zip(answers, real, strict=True)]
    mass = model.likelihood(queries, real)
    rewards = [t.reward for e in episodes for t in e.transitions]
    rewards += [a.reward for a in answers]
    return Errors(
        float(max(missed)), float(1.0 - min(mass)), len(asked),
        float(max(*rewards, 0.0) - min(*rewards, 0.0)),
    )  # fmt: skip
