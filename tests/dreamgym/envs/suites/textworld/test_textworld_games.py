"""The games of TextWorldExpress as raw text: plans, texts, splits, refusals."""

import pytest

from dreamgym.envs import base, registry
from dreamgym.envs.contract import checker
from dreamgym.envs.suites.textworld.express import GAMES, TextWorldExpress
from dreamgym.envs.suites.textworld.games import SETTINGS
from dreamgym.envs.vector import RealVectorEnv
from worldmodel.data.records import Task

RAW = sorted(SETTINGS)


def begun(game, number=2, split="train"):
    env = registry.make(f"textworld:{game}")
    task = Task(
        id="t", instruction="", options={"seed": number, "fold": split}, split=split
    )
    return env, *base.begin(env, task)


@pytest.mark.parametrize("game", RAW)
def test_the_plan_of_each_game_wins_and_none_of_it_is_refused(game):
    for number in range(4):
        env, task, state = begun(game, number)
        assert len(task.instruction.split()) > 4
        assert state[-1].startswith("said ")
        steps = [base.take(env, action) for action in env.expert()]
        assert not any(s.invalid for s in steps)
        assert (steps[-1].terminated, steps[-1].success) == (True, True)
        assert sum(sum(s.rewards.values()) for s in steps) == pytest.approx(1)
        with pytest.raises(RuntimeError):
            env.step("take it")


def test_what_was_read_stays_until_something_else_is():
    env, *_ = begun("arithmetic")
    base.take(env, "take math problem")
    read = [x for x in base.take(env, "read math problem").state if x[:5] == "read "]
    assert "math problem: " in read[0]
    assert base.take(env, "fly").state[-1].startswith("said Unknown action")
    later = base.take(env, env.expert()[2])
    assert [x for x in later.state if x[:5] == "read "] == read
    assert later.state[-1].startswith("said You take the ")
    assert begun("arithmetic")[2][-2:] == ("held nothing", "said ok")


def test_a_game_without_a_place_says_what_it_wants():
    env, _, state = begun("simonsays")
    assert state == (f"said Simon says, '{env.expert()[0]}'.",)
    wrong = next(a for a in env.valid_actions() if a != env.expert()[0])
    step = base.take(env, wrong)
    assert (step.terminated, step.success, step.state) == (
        True,
        False,
        ("said Incorrect!",),
    )


@pytest.mark.medium
@pytest.mark.parametrize("game", ["twc", "peckingorder"])
def test_games_of_the_splits_differ(game):
    env = registry.make(f"textworld:{game}")
    starts = {
        split: [base.begin(env, t)[1] for t in env.tasks(split)[:40]]
        for split in base.SPLITS
    }
    assert all(len(s) == 40 for s in starts.values())
    assert not set(starts["train"]) & set(starts["test"])
    assert {t.family for t in env.tasks("dev")} == {game}


def test_the_mapped_games_are_there_one_by_one():
    for game in GAMES:
        env = registry.make(f"textworld:{game}")
        assert isinstance(env, TextWorldExpress)
        assert {t.family for t in env.tasks("test")} == {game}
        env.reset(seed=1)
        assert env.expert()
    both = registry.make("textworld").tasks("train")
    assert {t.family for t in both} == set(GAMES)


@pytest.mark.medium
def test_settings_of_a_game_are_given_in_its_name():
    env = registry.make("textworld:twc?numItemsToPutAway=4")
    base.begin(env, env.tasks("train")[0])
    assert sum(action.startswith("take ") for action in env.expert()) == 4
    for spec, message in (
        ("twc?colour=3", "Unrecognized property name.*numItemsToPutAway"),
        ("twc?numLocations=two", "expected a whole number as numLocations"),
        ("coin?numLocations=3", "'coin' takes no settings"),
        ("chess", "unknown game.*'arithmetic', 'coin', 'cookingworld'"),
    ):
        with pytest.raises(ValueError, match=message):
            registry.make(f"textworld:{spec}")
    with pytest.raises(ValueError, match="seed and a fold"):
        base.begin(env, Task(id="t", instruction="", options={"seed": 1}))


def test_sorting_has_one_copy_because_two_disturb_each_other():
    envs = RealVectorEnv.growing(
        lambda: registry.make("textworld:sorting"), limit=4, max_steps=9
    )
    assert envs.size == 1
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("game", RAW)
def test_they_keep_the_contract(game):
    spec = f"textworld:{game}"
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert report.faults == report.warnings == (), report.text(spec)
