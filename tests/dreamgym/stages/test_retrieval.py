"""What demonstrations are found by: letters, or what a model holds."""

import dataclasses

import numpy as np
import pytest

from dreamgym.build import experience as run_experience
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.backbone.weights import save_model
from worldmodel.memory import Hidden

TOLD = [
    dataclasses.replace(doubles.expert(t), id=f"e{i}")
    for i, t in enumerate(doubles.tasks("train")[:6])
]
ASKED = [(e.task.id, t.state, t.action) for e in TOLD for t in e.transitions]


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path / "model", doubles.model(), doubles.tokenizer())
    return tmp_path / "model"


def test_a_run_finds_by_the_model_it_starts_from(folder, tmp_path):
    config = preset("tiny", {"memory.encoder": "hidden_state"}, model=str(folder))
    run = Run(tmp_path / "run", config)
    memory = run_experience.replay_memory(run, TOLD)
    model = Hidden(doubles.model(), doubles.tokenizer())
    pairs = [pair for _, *pair in ASKED]
    vectors = model.encode([tuple(p) for p in pairs])
    for (task, *_), mine, item in zip(
        ASKED, vectors, memory.nearest(ASKED, 1), strict=True
    ):
        others = [v for (t, *_), v in zip(ASKED, vectors, strict=True) if t != task]
        np.testing.assert_allclose(item[-1][0], np.max(others @ mine), atol=1e-5)
    # Kept: the next stage reads the vectors again and does not encode what is stored.
    again = run_experience.replay_memory(run, [])
    assert again.nearest(ASKED, 2) == memory.nearest(ASKED, 2)
    plain = Run(tmp_path / "plain", preset("tiny", model=str(folder)))
    lexical = run_experience.replay_memory(plain, TOLD)
    assert not plain.path("memory").exists()
    scores = [[s for s, _ in f] for f in lexical.nearest(ASKED, 1)]
    assert scores != [[s for s, _ in f] for f in memory.nearest(ASKED, 1)]


def test_a_model_that_has_read_nothing_finds_nothing():
    for wrong, output in (("hidden_state", "has read something"), ("luck", "one of")):
        with pytest.raises(ValueError, match=output):
            preset("tiny", {"memory.encoder": wrong})
