"""The dream of a run in Gymnasium's registry, alone and as a batch."""

import math
import subprocess
import sys
import tomllib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import dreamgym
from dreamgym.envs.dream import DreamEnv
from dreamgym.gymnasium_ids import DREAM
from dreamgym.run.directory import RunError
from dreamgym.serving import dream as run_dream
from tests import doubles
from tests.dreamgym.serving.runs import fitted_run
from worldmodel.experience.base import Query
from worldmodel.memory import ReplayMemory

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return fitted_run(tmp_path_factory.mktemp("runs") / "a").root


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """A run whose dream knows the rules of the corridor."""
    monkeypatch.setattr(
        run_dream,
        "load_experience",
        lambda *_, **__: doubles.Known(memory()),
    )
    return fitted_run(tmp_path / "rules").root


def memory():
    episode = doubles.expert(doubles.tasks("train")[0])
    return ReplayMemory.from_episodes([episode], capacity=100)


@pytest.mark.parametrize(
    "order",
    [
        "import dreamgym, gymnasium",
        "import gymnasium, dreamgym",
        "import dreamgym; import gymnasium.spaces",
        "import gymnasium.envs.registration, dreamgym, gymnasium",
    ],
)
def test_importing_dreamgym_registers_the_id_in_any_order(order):
    code = f"{order}\nassert {DREAM!r} in gymnasium.registry\nimport dreamgym"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_dream_keeps_gymnasiums_contract(rules):
    check_env(gymnasium.make(DREAM, run=str(rules)).unwrapped)


@pytest.mark.medium
def test_the_dream_of_a_run_says_what_it_thinks(root):
    env = gymnasium.make(DREAM, run=str(root))
    assert isinstance(env.unwrapped, DreamEnv)
    first, info = env.reset(seed=7)
    assert env.observation_space.contains(first)
    again, _ = env.reset(seed=7)
    assert again == first
    assert info["instruction"] == "take the coin"
    *_, info = env.step("go right")
    assert isinstance(info["reasoning"], str)
    assert 0 <= info["confidence"] <= 1


def test_a_task_of_another_type_is_refused(rules):
    env = gymnasium.make_vec(DREAM, num_envs=2, run=str(rules)).unwrapped
    with pytest.raises(TypeError, match="expected a Task, the id of one"):
        env.reset(options={"tasks": [7, 7]})


def test_tasks_are_chosen_by_record_by_id_and_by_split(rules):
    env = gymnasium.make(DREAM, run=rules)
    task = doubles.tasks("train")[3]
    for chosen in (task, task.id):
        text, info = env.reset(options={"task": chosen})
        assert text.splitlines() == list(task.initial_state)
        assert (info["task"], info["split"]) == (task.id, "train")
    for action in doubles.plan(task.initial_state):
        _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    with pytest.raises(ValueError, match="no task 'nowhere' in this dream"):
        env.reset(options={"task": "nowhere"})
    splits = {env.reset(seed=n)[1]["split"] for n in range(12)}
    assert splits == {"train"}
    both = gymnasium.make(DREAM, run=rules, split="")
    splits = {both.reset(seed=n)[1]["split"] for n in range(30)}
    assert splits == {"train", "dev"}
    dev = gymnasium.make(DREAM, run=rules, split="dev")
    ids = {dev.reset(seed=n)[1]["task"] for n in range(12)}
    assert ids == {t.id for t in doubles.tasks("dev")[:2]}
    with pytest.raises(ValueError, match="no task of split 'test'"):
        gymnasium.make(DREAM, run=rules, split="test")


def test_the_models_of_a_run_are_loaded_by_its_directory(root):
    dream = dreamgym.load_dream(root)
    task = dream.tasks[0]
    queries = [Query(task, (), task.initial_state, "go right")]
    (answer,) = dream.model.predict(queries)
    env = gymnasium.make(DREAM, run=root)
    env.reset(options={"task": task.id})
    *_, info = env.step("go right")
    assert info["reasoning"] == answer.reasoning
    with pytest.raises(TypeError, match="a tuple of lines, got the text 'at 1'"):
        dream.model.predict([queries[0]._replace(state="at 1")])
    with pytest.raises(RunError, match="no policy 's2r' in this run; it has "):
        dreamgym.load_policy(root, "s2r")


def test_a_run_that_is_not_there_or_not_fitted_is_named(tmp_path):
    with pytest.raises(RunError, match="no run there"):
        gymnasium.make(DREAM, run=tmp_path / "nowhere")
    fitted = fitted_run(tmp_path / "bare")
    fitted.path("stages/pretrain.json").unlink()
    with pytest.raises(RunError, match="stage 'pretrain' has not been run"):
        gymnasium.make(DREAM, run=fitted.root)


def test_the_version_of_a_dream_is_that_of_its_weights_and_memory(tmp_path):
    one, two = fitted_run(tmp_path / "one"), fitted_run(tmp_path / "two")
    version = run_dream.model_version(one)
    assert run_dream.model_version(two) == version
    path = two.path("episodes.jsonl")
    path.write_text(path.read_text().replace("said ok", "said hm"))
    assert run_dream.model_version(two) != version
    three = fitted_run(tmp_path / "three", **{"experience.demonstrations": 0})
    assert run_dream.model_version(three) != version


# --- the batch ---------------------------------------------------------------


def batch(root, size=3, **options):
    return gymnasium.make_vec(DREAM, num_envs=size, run=root, **options)


def test_a_batch_answers_as_single_environments_do(root):
    envs = batch(root)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    texts, infos = envs.reset(seed=5)
    assert envs.observation_space.contains(texts)
    single = gymnasium.make(DREAM, run=root)
    for slot in range(3):
        text, info = single.reset(options={"task": infos["task"][slot]})
        assert text == texts[slot]
        assert info["instruction"] == infos["instruction"][slot]
    actions = ("go right", "go left", "take coin")
    after, rewards, terminated, truncated, more = envs.step(actions)
    for slot in range(3):
        single.reset(options={"task": infos["task"][slot]})
        step = single.step(actions[slot])
        batched = (after[slot], rewards[slot], terminated[slot], truncated[slot])
        assert batched == step[:4]
        assert more["reasoning"][slot] == step[4]["reasoning"]
        assert math.isclose(more["confidence"][slot], step[4]["confidence"])
    again, _ = envs.reset(seed=[5, 6, 7])
    assert again == texts


def test_the_queries_of_a_batch_are_asked_together(rules):
    envs = batch(rules, 4, split="train")
    envs.reset(seed=0)
    model = envs.unwrapped._batch.model._rules
    envs.step(["go right"] * 4)
    assert [len(q) for q in model.queries] == [4]


def test_a_slot_that_ended_begins_again_at_the_next_step(rules):
    envs = batch(rules, 2)
    task = doubles.tasks("train")[0]
    envs.reset(options={"tasks": [task, doubles.tasks("train")[5].id]})
    plan = doubles.plan(task.initial_state)
    for action in plan:
        _, rewards, terminated, *_ = envs.step([action, "fly"])
    assert (rewards[0], terminated[0], terminated[1]) == (1.0, True, False)
    texts, rewards, terminated, _, infos = envs.step(["ignored", "fly"])
    assert (rewards[0], terminated[0]) == (0.0, False)
    assert infos["_task"].tolist() == [True, False]
    assert texts[0].endswith("said ok")


def test_without_autoreset_the_caller_chooses(rules):
    envs = batch(rules, 2, autoreset_mode="Disabled")
    first, second = doubles.tasks("train")[:2]
    envs.reset(options={"tasks": [first, second]})
    for _ in range(4):  # the step limit of the run
        _, _, _, truncated, _ = envs.step(["fly", "fly"])
    assert truncated.all()
    with pytest.raises(RuntimeError, match=r"slots \[0, 1\] have no running episode"):
        envs.step(["fly", "fly"])
    mask = np.array([False, True])
    texts, infos = envs.reset(options={"reset_mask": mask, "tasks": [None, first.id]})
    assert texts[1].splitlines() == list(first.initial_state)
    assert infos["_task"].tolist() == [False, True]
    with pytest.raises(RuntimeError, match=r"slots \[0\]"):
        envs.step(["fly", "fly"])


def test_what_a_batch_cannot_do_is_said(rules):
    with pytest.raises(ValueError, match="autoreset_mode must be 'NextStep' or"):
        batch(rules, autoreset_mode="SameStep")
    envs = batch(rules)
    with pytest.raises(ValueError, match="entry for each of 3 slots, got 3 and 1"):
        envs.reset(options={"tasks": [None]})
    envs.reset(seed=1)
    with pytest.raises(ValueError, match="expected 3 actions, got 1"):
        envs.step(["fly"])
    with pytest.raises(ValueError, match="expected 3 seeds, got 2"):
        envs.reset(seed=[1, 2])


def test_the_page_is_part_of_the_package():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)["tool"]["setuptools"]["package-data"]
    assert data["dreamgym.serving"] == ["play.html"]
    assert dreamgym.__version__
