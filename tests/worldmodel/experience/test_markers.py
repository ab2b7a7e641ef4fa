"""Markers: what they are for, shown on a world in which the instruction decides."""

import numpy as np
import pytest

from tests import helpers
from worldmodel import fidelity, reasoning
from worldmodel.backbone.model import create
from worldmodel.data.records import Episode, Task
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.examples import train_tokenizer, transition_examples
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.fitting import supervised
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.memory import ReplayMemory

ROOMS = ("studio", "vault", "attic", "sauna", "cellar", "office", "salon", "street")
CONFIG = ExperienceConfig(demonstrations=0, temperature=0.0)


def arrivals(count: int, seed: int) -> list[Episode]:
    """Moves to a room: the coin is there if, and only if, the instruction says so."""
    rng, out = np.random.default_rng(seed), []
    for i in range(count):
        named, box, other = rng.permutation(ROOMS)[:3]
        room = named if i % 2 else other
        task = Task(
            id=f"{seed}-{i}",
            instruction=f"bring the coin from {named} to {box}",
            family="delivery",
        )
        thing = "coin" if room == named else "nothing"
        after = (f"here {thing} at {room}",)
        step = helpers.transition((f"north {room}",), "move north", after)
        out.append(reasoning.annotate(helpers.episode(f"e{seed}-{i}", task, [step])))
    return out


def fitted(tok, episodes: list[Episode], directory, *, row_tokens: int):
    """Return a small experience model fitted to the transitions of some episodes."""
    # The layers of the models from scratch: a convolution, then attention.
    hybrid = helpers.HYBRID | {"conv_L_cache": 5}
    shape = helpers.config(
        tok.vocab_size, hidden_size=32, intermediate_size=64, **hybrid
    )
    model, _ = supervised.fit(
        create(shape, seed=0),
        transition_examples(tok, episodes, ReplayMemory(), CONFIG),
        supervised.FitConfig(
            steps=600,
            batch_rows=9,
            row_tokens=row_tokens,
            eval_every=600,
            optimizer=OptimizerConfig(learning_rate=0.01),
        ),
        seed=0,
        directory=directory,
    )
    return LocalExperienceModel(model, tok, ReplayMemory(), CONFIG)


@pytest.mark.slow
def test_with_markers_a_model_sees_what_the_instruction_says(tmp_path):
    train, dev = arrivals(160, seed=0), arrivals(60, seed=1)

    def exact(*, markers: bool) -> float:
        tok = train_tokenizer(train, 400, markers=markers)
        model = fitted(tok, train, tmp_path / f"{markers}", row_tokens=64)
        return fidelity.score(model, dev, limit=60)["exact"]["all"]["mean"]

    # 1.0 and 0.45 when this was written.
    assert exact(markers=True) >= exact(markers=False) + 0.3
