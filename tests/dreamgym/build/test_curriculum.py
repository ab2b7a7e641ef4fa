"""Who writes variations: the model, the environment's rule, a renaming, nobody."""

import dataclasses

import numpy as np
import pytest

from curriculum import generator
from curriculum.config import CurriculumConfig
from curriculum.pool import TaskPool
from dreamgym.build import curriculum as run_curriculum
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base
from dreamgym.envs.suites.textworld import express as textworld
from tests import doubles
from worldmodel.data.seed_tasks import seed_tasks

TASKS = doubles.tasks("train")[4:40:9]
RESETS = []


class Varying(doubles.Corridor):
    """A corridor that can vary its tasks: the coin stands one room further on."""

    def reset(self, *, seed=None, options=None):
        RESETS.append(options["task"].id)
        return super().reset(seed=seed, options=options)

    def variations(self, task, rng):
        del rng
        o = task.options
        goal = (o["goal"] + 1) % (o["end"] + 1)
        made = doubles.task(o["at"], goal, o["end"], split="generated")
        return [
            dataclasses.replace(
                made,
                id=f"varied-{made.id}",
                initial_state=(),
                instruction="",
                lineage=(task.id,),
            )
        ]


@pytest.fixture
def env(monkeypatch):
    """The name of a corridor that can vary its tasks."""
    monkeypatch.setattr(doubles, "Varying", Varying, raising=False)
    RESETS.clear()
    return "tests.doubles:Varying"


def extended(pool, kind, env="", **settings):
    config = CurriculumConfig(generator=kind, **settings)
    propose = run_curriculum.proposer(
        pool, config, doubles.RuleModel(), env=EnvConfig(id=env), seed=0
    )
    assert propose is not None
    rng = np.random.default_rng(0)
    return generator.extend(pool, propose, 3, rng, name=kind)


def test_the_model_writes_variations():
    pool = TaskPool(TASKS)
    assert extended(pool, "model") == {"accepted": 3}
    assert {e.task.id.split("-")[0] for e in pool.active(generated=True)} == {"dream"}
    assert pool.resets == 0


def test_the_environments_rule_costs_a_real_reset_each(env):
    pool = TaskPool(TASKS)
    assert extended(pool, "rule", env) == {"accepted": 3}
    made = [e.task for e in pool.active(generated=True)]
    assert pool.resets == len(RESETS) == 3
    for task in made:
        assert task.id.startswith("varied-")
        assert task.instruction == "take the coin"  # told by the environment
        o = task.options
        assert task.initial_state == doubles.start_state(o["at"], o["goal"], o["end"])
    # What is known already is not begun again.
    assert extended(pool, "rule", env).get("form", 0) > 0
    assert pool.resets == len(RESETS) < 6


def test_train_tasks_that_nobody_played_stand_in_for_invented_ones(env):
    listed = list(doubles.tasks("train"))
    pool = TaskPool(listed[:4])
    assert extended(pool, "train", env) == {"accepted": 3}
    chosen = [e.task for e in pool.active(generated=True)]
    assert {t.id for t in chosen} <= {t.id for t in listed[4:]}
    assert {t.family for t in chosen} <= {t.family for t in listed[:4]}
    assert sorted(t.id for t in chosen) == sorted(RESETS)
    assert all(t.initial_state for t in chosen)
    assert pool.resets == 3
    assert extended(TaskPool(listed), "train", env) == {"form": 3}  # there is no other
    with pytest.raises(ValueError, match="takes tasks of an --env"):
        extended(TaskPool(listed[:4]), "train")


def test_what_the_environment_began_is_of_good_form(env, monkeypatch):
    class Twice(Varying):
        def reset(self, *, seed=None, options=None):
            obs, info = super().reset(seed=seed, options=options)
            return f"{obs}\n{obs}", info

    monkeypatch.setattr(doubles, "Varying", Twice)
    assert extended(TaskPool(TASKS), "rule", env) == {"accepted": 3}


@pytest.mark.parametrize("env", ["", "tests.doubles:Corridor"])
def test_without_an_environment_that_varies_texts_are_renamed(env):
    pool = TaskPool(doubles.tasks("train")[::3])
    got = extended(pool, "rule", env)
    assert sum(got.values()) == 3
    made = [e.task for e in pool.active(generated=True)]
    assert made
    assert all(t.id.startswith("rule-") and t.lineage for t in made)
    assert pool.resets == 0


def test_proposals_are_a_function_of_the_update_and_the_tasks():
    def record(now):
        pool = TaskPool(doubles.tasks("train"))
        pool.next_update = now
        config = CurriculumConfig(generator="rule")
        propose = run_curriculum.proposer(
            pool, config, doubles.RuleModel(), env=EnvConfig(id=""), seed=0
        )
        assert propose is not None
        return propose(seed_tasks(doubles.tasks("train")[:8]))

    assert record(3) == record(3) != record(4)


class Failing(doubles.Corridor):
    """Begins none of its variations."""

    def variations(self, task, rng):
        del rng
        yield dataclasses.replace(task, id=f"{task.id}-v", options={})


def test_variations_that_fail_are_none_and_said(capsys):
    pool = TaskPool(TASKS)
    rng = np.random.default_rng(0)
    assert run_curriculum._varied(Failing(), pool, TASKS[0], rng) is None
    assert f"no variation of task {TASKS[0].id!r}: KeyError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings", [{"generator": "none"}, {"proposals_per_update": 0}]
)
def test_nobody_proposes(settings):
    config = CurriculumConfig(**settings)
    pool = TaskPool(TASKS)
    env = EnvConfig(id="")
    model = doubles.RuleModel()
    assert run_curriculum.proposer(pool, config, model, env=env, seed=0) is None


def test_text_worlds_variations_are_train_games_of_other_sizes():
    env = textworld.TextWorldExpress()
    for family in textworld.GAMES:
        task = textworld._task(family, 3, "train")
        rng = np.random.default_rng(0)
        made = env.variations(task, rng)
        assert len({t.id for t in made}) == textworld.VARIED
        for t in made:
            assert t.options["fold"] == "train"
            assert t.options["rooms"] in textworld.SIZES[family]
            usual = int(textworld.GAMES[family].split("numLocations=")[1].split(",")[0])
            assert usual not in textworld.SIZES[family]  # so in no split
            begun, _ = base.begin(env, t)
            assert begun.instruction
            for action in env.expert():
                _, _, done, _, info = env.step(action)
            assert done
            assert info["success"]
        with pytest.raises(ValueError, match="not of the train fold"):
            env.variations(textworld._task(family, 3, "test"), rng)
    # The usual game is loaded again after a varied one.
    usual, again = (base.begin(env, textworld._task("coin", 3, "train")) for _ in "ab")
    assert usual == again


def test_invented_tasks_are_new_and_come_from_tasks_that_were_won_now_and_then():
    tasks = doubles.tasks("train")[:12]
    episodes = [
        dataclasses.replace(doubles.expert(task), id=f"{task.id}-{i}", success=won)
        for n, task in enumerate(tasks)
        for i, won in enumerate((True, n >= 4))
    ]
    texts = {(t.instruction, t.initial_state) for t in tasks}

    def invented(count, seed=0):
        made = run_curriculum.invented_tasks(
            doubles.RuleModel(), episodes, count, seed=seed
        )
        assert len({(t.instruction, t.initial_state) for t in made} | texts) == (
            len(made) + len(texts)
        )
        return made

    few = invented(2)
    assert len(few) == 2
    # The first four were won and lost, so that they teach most.
    assert {t.lineage[0] for t in few} <= {t.id for t in tasks[:4]}
    assert invented(2) == few
    # The corridor's model moves each coin once: there are no more variations than that.
    assert 2 < len(invented(100)) <= 12


def test_four_times_as_many_proposals_are_made_from_however_few_tasks():
    asked = []

    class Silent(doubles.RuleModel):
        def vary(self, groups, *, key):
            del key
            asked.extend(groups)
            return [None] * len(groups)

    episodes = [doubles.expert(task) for task in doubles.tasks("train")[:5]]
    assert run_curriculum.invented_tasks(Silent(), episodes, 20, seed=0) == []
    assert 80 <= len(asked) < 80 + len(episodes)
    assert run_curriculum.invented_tasks(Silent(), [], 20, seed=0) == []
