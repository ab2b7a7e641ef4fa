"""The contract checker over how it plays: at random, with nonsense, with lots."""

import dataclasses
import re
import signal
import sys

import pytest

from dreamgym.envs import base, wrappers
from dreamgym.envs.base import TextEnv
from dreamgym.envs.contract import checker
from dreamgym.envs.interrupts import interrupt_handler
from tests import doubles
from tests.dreamgym.envs.contract.common import checked, named
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task


class OwnHandler(doubles.Corridor):
    def reset(self, **kwargs):
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        return super().reset(**kwargs)


def test_an_environment_that_handles_ctrl_c_itself_is_warned_of_once():
    with interrupt_handler():
        ours = signal.getsignal(signal.SIGINT)
        (warning,) = checked(OwnHandler).warnings
        assert "handler of Ctrl-C" in warning.what
        assert signal.getsignal(signal.SIGINT) is ours
        assert checked(doubles.Corridor).warnings == ()


class Silent(doubles.Corridor):
    """It moves on after any action, and says nothing of those that it does not know."""

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return f"{obs}\nclock 0", info

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        info = {"success": info["success"]}
        return f"{obs}\nclock {self.steps}", reward, terminated, truncated, info


class Saying(Silent):
    def step(self, action):
        obs, *rest, info = super().step(action)
        return (obs, *rest, info | {"invalid": action not in self.valid_actions()})


def test_nonsense_that_nothing_tells_from_an_action_is_a_warning():
    finding = named(checked(Silent).warnings, "take nonsense for valid")
    assert "clock 1" in finding.where
    assert checked(Saying).warnings == ()


class Deadline(TextEnv):
    """Lists no actions, and ends as lost after four steps, whatever they are."""

    def tasks(self, split):
        first = 100 * base.SPLITS.index(split)
        return [
            Task(id=f"t{n}", instruction=f"water plant {n} or wait", split=split)
            for n in range(first, first + 5)
        ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.steps, self.over = 0, False
        return f"{task.id}\nday 0", {"instruction": task.instruction}

    def step(self, action):
        if self.over:
            raise RuntimeError("the episode is over")
        self.steps += 1
        self.over = self.steps == 4
        invalid = action.split()[0] not in ("water", "wait")
        info = {"success": False, "invalid": invalid}
        text = f"day {self.steps}\nsaid {'no' if invalid else action}"
        return text, -1.0, self.over, False, info


def test_a_deadline_is_told_from_bad_actions_where_no_actions_are_listed():
    report = checked(Deadline)
    assert named(report.warnings, "the number of steps alone ends an episode")
    assert not [w for w in report.warnings if "cannot be taken" in w.what]


class Unflagged(Deadline):
    """It does not say which actions it refused, so what was taken is a guess."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"success": False}


def test_without_flags_a_deadline_is_not_told_from_bad_actions():
    report = checked(Unflagged)
    assert named(report.warnings, "actions that cannot be taken end the episode")


class OneLine(doubles.Corridor):
    """A corridor in one long line of prose."""

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return self.prose(obs), info

    def step(self, action):
        obs, *rest = super().step(action)
        return (self.prose(obs), *rest)

    def prose(self, obs):
        padding = "It is dark and cold here, and you hear water. " * 2
        return padding + ". ".join(obs.splitlines())


def test_states_of_one_long_line_name_the_wrapper_that_splits_them():
    finding = named(checked(OneLine).warnings, "every state is one long line")
    assert "SplitLines" in finding.cure

    def split():
        return wrappers.SplitLines(OneLine())

    report = checker.check(split(), limit=30, make=split)
    assert not [w for w in report.warnings if "one long line" in w.what]


class Writing(doubles.Corridor):
    """It writes into the options of its task."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if task := (options or {}).get("task"):
            task.options.clear()
        return result


def test_an_episode_may_write_into_the_options_of_its_task():
    report = checked(Writing)
    assert (report.faults, report.warnings) == ((), ())


class Rare(doubles.Corridor):
    """No expert, and one of six tasks can be won."""

    expert = None

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        won = info["success"] and content_seed(0, self.task.id) % 6 == 0
        info = {"success": won, "invalid": info["invalid"]}
        return obs, float(won), terminated, truncated, info

    def reset(self, *, seed=None, options=None):
        self.task = (options or {}).get("task") or self.tasks("train")[0]
        return super().reset(seed=seed, options=options)


class Never(Rare):
    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 0.0, terminated, truncated, info | {"success": False}


def test_more_tasks_are_played_at_random_until_one_is_won():
    assert not [w for w in checked(Rare).warnings if "no random play won" in w.what]
    finding = named(checked(Never).warnings, "no random play won")
    assert re.match(r"random play won 0 of 3\d tasks", finding.where)


def test_random_play_of_every_task_draws_anew():
    report = []

    class Logged(doubles.Corridor):
        def step(self, action):
            report[-1].append(action)
            return super().step(action)

        def reset(self, **kwargs):
            report.append([])
            return super().reset(**kwargs)

        expert = None

    checker.check(Logged(), limit=30)
    random = {tuple(a) for a in report if a and checker.NONSENSE not in a}
    assert len({a[:3] for a in random if len(a) > 2}) > 1


class Lucky(doubles.Corridor):
    """Lots are drawn; dev tasks begin as train tasks do, but are other tasks."""

    deterministic = False

    def tasks(self, split):
        shown = super().tasks("train")[:12]
        options = [{**t.options, "target": f"{split}-{i}"} for i, t in enumerate(shown)]
        return [
            dataclasses.replace(t, id=f"{split}-{i}", split=split, options=o)
            for i, (t, o) in enumerate(zip(shown, options, strict=True))
        ]


def test_starts_that_lots_make_equal_are_no_twins():
    assert not [w for w in checked(Lucky).warnings if "first state" in w.what]

    class Fixed(Lucky):
        deterministic = True

    assert [w for w in checked(Fixed).warnings if "first state" in w.what]


class Long(doubles.Corridor):
    """Its expert waits before it goes."""

    def __init__(self):
        super().__init__(max_steps=100)

    def expert(self):
        return ["wait"] * 40 + super().expert()

    def step(self, action):
        obs, *rest, info = super().step(action)
        return (obs, *rest, info | {"invalid": action not in self.valid_actions()})

    def valid_actions(self):
        return ["wait", *super().valid_actions()]


def test_a_plan_may_be_longer_than_the_other_play_of_the_check():
    report = checker.check(Long(), limit=30)
    assert not [f for f in report.faults if "does not win" in f.what]
    won, played = report.won["the expert"]
    assert won == played


class HeldOut(doubles.Corridor):
    """It remembers the split that is played."""

    def reset(self, *, seed=None, options=None):
        task = (options or {}).get("task")
        self.split = "train" if task is None else task.split
        return super().reset(seed=seed, options=options)


class BreaksInTest(HeldOut):
    def step(self, action):
        if self.split == "test":
            raise KeyError("rooms_test")
        return super().step(action)


class LostInDev(HeldOut):
    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, info | {"success": False} if self.split == "dev" else info)


class BreaksUnplanned(BreaksInTest):
    expert = None


@pytest.mark.parametrize("environment", [BreaksInTest, BreaksUnplanned])
def test_a_step_that_fails_in_test_tasks_alone_is_a_fault(environment):
    fault = named(checked(environment).faults, "step raised KeyError")
    assert f"task {doubles.tasks('test')[0].id!r}, step 1" in fault.where


def test_tasks_of_a_split_that_no_plan_wins_are_warned_of():
    warnings = checked(LostInDev).warnings
    assert "3 tasks of dev" in named(warnings, "and none of dev").where


class LostAtFirst(doubles.Corridor):
    """Draws lots: the plans that are played first are lost, and later ones are won."""

    deterministic = False
    plans = 0

    def expert(self):
        self.plans += 1
        return super().expert()

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        won = terminated and self.plans > 6  # two are asked for of each of three tasks
        info = {"success": won, "invalid": info["invalid"]}
        return obs, float(won), terminated, truncated, info


def test_an_expert_of_lots_is_judged_by_all_its_plans():
    report = checker.check(LostAtFirst(), limit=30)
    assert report.won["the expert"] == (30, 30)
    assert not [w for w in report.warnings if "no plan of the expert won" in w.what]


class Unpaid(doubles.Corridor):
    """It is won, and nothing pays."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        del info["rewards"]
        return obs, 0.0, terminated, truncated, info


def test_wins_that_never_pay_are_warned_of():
    (warning,) = checked(Unpaid).warnings
    assert warning.what.startswith("no rewarded transition")
    assert "no step paid" in warning.where
