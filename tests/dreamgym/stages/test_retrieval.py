"""What demonstrations and a policy's steps are found by: letters, or a model."""

import dataclasses

import jax
import numpy as np
import pytest

from dreamgym.build import experience as run_experience
from dreamgym.build import models as run_models
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.run.view import StageView
from dreamgym.stages.table import POLICIES, STAGES
from tests import doubles
from worldmodel.backbone.mesh import MeshConfig, make_mesh
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import write_episodes
from worldmodel.experience.local import LocalExperienceModel
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


@pytest.mark.medium
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


def test_what_rollouts_read_lies_on_their_devices(folder, tmp_path):
    settings = {"memory.encoder": "hidden_state"}
    mesh = make_mesh(MeshConfig())
    config = preset("tiny", settings, model=str(folder))
    run = Run(tmp_path / "run", config, rollout_mesh=mesh)
    for name in ("episodes", "dev"):
        write_episodes(run.path(f"{name}.jsonl"), TOLD)
    for stage in ("collect", "pretrain"):
        run.mark(stage, {})
    for place in ("experience", "policies/bc"):
        save_model(run.path(place), doubles.model(), doubles.tokenizer())
    for for_rollouts, where in ((True, mesh), (False, None)):
        experience = run_experience.load_experience(run, for_rollouts=for_rollouts)
        assert isinstance(experience, LocalExperienceModel)
        assert experience.model.mesh is where
    encoder = run_models.memory_encoder(run)
    assert isinstance(encoder, Hidden)
    layouts = {x.sharding for x in jax.tree.leaves(encoder._params)}
    assert {layout.mesh for layout in layouts} == {mesh}
    assert run_models.load_policy(run, "bc").model.mesh is None


def test_a_model_that_has_read_nothing_finds_nothing():
    for wrong, output in (("hidden_state", "has read something"), ("luck", "one of")):
        with pytest.raises(ValueError, match=output):
            preset("tiny", {"memory.encoder": wrong})


def remembering(root, **settings):
    settings = {"policy.memories": 2} | settings
    model = settings.pop("model", "nano")
    run = Run(root, preset("tiny", settings, model=model))
    write_episodes(run.path("episodes.jsonl"), TOLD)
    return run


@pytest.mark.parametrize("encoder", ["lexical", "hidden_state"])
def test_a_policy_of_the_run_remembers_its_collected_episodes(
    folder, tmp_path, encoder
):
    settings = {"memory.encoder": encoder, "model": str(folder)}
    run = remembering(tmp_path / "run", **settings)
    run_models.save_policy(run, "bc", doubles.policy())
    policy = run_models.load_policy(run, "bc")
    first = TOLD[0]
    (steps,) = policy.recall([(first.task, first.transitions[0].state)])
    assert len(steps) == 2
    others = {(t.state, t.action) for e in TOLD[1:] for t in e.transitions}
    assert {(s.state, s.action) for s in steps} <= others
    # It is read once for all policies of a run, and again when there are others.
    assert run_models.load_policy(run, "bc").memory is policy.memory
    write_episodes(run.path("episodes.jsonl"), TOLD[:1])
    again = run_models.load_policy(run, "bc")
    assert again.memory is not policy.memory
    assert again.recall([(first.task, first.transitions[0].state)]) == [()]


def test_without_memories_a_policy_has_none_and_without_episodes_it_is_refused(
    tmp_path,
):
    run = remembering(tmp_path / "plain", **{"policy.memories": 0})
    assert run_models.policy_memory(run) is None
    run = remembering(tmp_path / "empty")
    run.path("episodes.jsonl").write_text("")
    memory = run_models.policy_memory(run)
    assert memory is not None
    assert len(memory) == 0
    run.path("episodes.jsonl").unlink()
    with pytest.raises(RunError, match=r"policy\.memories = 2 read the collected"):
        run_models.policy_memory(run)


@pytest.mark.medium
def test_every_stage_that_uses_a_policy_may_read_its_memory(folder, tmp_path):
    settings = {"memory.encoder": "hidden_state", "model": str(folder)}
    run = remembering(tmp_path / "run", **settings)
    stages = {s.name for p in POLICIES for s in STAGES.closure([f"evaluate/{p}"])}
    users = [s for s in stages if "bc" in {x.name for x in STAGES.closure([s])}]
    users += ["off_policy"]
    assert {"bc", "shield", "branch", "warmstart", "train", "s2r"} < set(users)
    for name in users:
        run_models._MEMORIES.clear()
        assert run_models.policy_memory(StageView(run, STAGES[name], STAGES))
