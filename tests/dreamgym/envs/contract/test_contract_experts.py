"""The contract checker over experts of many tasks, forks, listings and odd pay."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from dreamgym.envs.contract.experts import PlannedEpisode
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.memory import check_names
from dreamgym.envs.contract.player import Played, Trace
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from tests import corridor, doubles
from tests.dreamgym.envs.contract.common import checked, named
from worldmodel.data.records import Task


class Forgetful(doubles.Corridor):
    """Its plan stops short of the coin in some tasks, not in the first ones."""

    def expert(self):
        plan = super().expert()
        return plan[:-1] if self.number in (8, 9, 10) else plan

    def reset(self, *, seed=None, options=None):
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.number = int(task.options["number"])
        return super().reset(seed=seed, options=options)

    def tasks(self, split):
        return [
            dataclasses.replace(t, options={**t.options, "number": i})
            for i, t in enumerate(super().tasks(split))
        ]


class ExpertSeesGoal(doubles.Corridor):
    """The agent does not see where the coin is; the expert does."""

    @staticmethod
    def hide(result):
        text, *rest = result
        lines = [line for line in text.splitlines() if "goal" not in line]
        return ("\n".join(lines), *rest)

    def reset(self, **kwargs):
        return self.hide(super().reset(**kwargs))

    def step(self, action):
        return self.hide(super().step(action))


class TruncatedLoss(doubles.Corridor):
    """Calls it a limit where going left at the start loses."""

    max_episode_steps = doubles.STEPS

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if action == "go left" and not terminated:
            self.open, truncated = False, True
        return obs, reward, terminated, truncated, info


class Paid(doubles.Corridor):
    """Pays for every step that is not the last: to walk about pays most."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        info = {"success": info["success"], "invalid": info["invalid"]}
        return obs, reward if terminated else 0.5, terminated, truncated, info


class Forked(doubles.Corridor):
    def fork(self):
        return copy.deepcopy(self)


class Kept(doubles.Corridor):
    """Keeps its position in a list, which a shallow copy shares."""

    def reset(self, **kwargs):
        self.walked = [0]
        obs, info = super().reset(**kwargs)
        return f"{obs}\n0 steps", info

    def step(self, action):
        self.walked[0] += 1
        obs, *rest = super().step(action)
        return (f"{obs}\n{self.walked[0]} steps", *rest)


class ShallowFork(Kept):
    def fork(self):
        return copy.copy(self)


class ForkOfTheStart(Kept):
    """Its fork forgets the steps that were taken."""

    def fork(self):
        other = copy.deepcopy(self)
        other.walked = [0]
        return other


class NoFork(Forked):
    def fork(self):
        copy.deepcopy(self)


class BrokenFork(Forked):
    def fork(self):
        raise TypeError("cannot pickle a socket")


class ShuffledTasks(doubles.Corridor):
    """Lists its tasks in another order at each call."""

    calls = 0

    def tasks(self, split):
        tasks = super().tasks(split)
        type(self).calls += split == "train"
        turn = self.calls % len(tasks)
        return [*tasks[turn:], *tasks[:turn]] if split == "train" else tasks


class UsedUpTasks(doubles.Corridor):
    """Hands out its tasks once."""

    calls = 0

    def tasks(self, split):
        type(self).calls += split == "train"
        tasks = super().tasks(split)
        return tasks[:40] if self.calls > 2 and split == "train" else tasks


class LitButton(doubles.Corridor):
    """A start that lots decide; its expert sees what the agent sees."""

    deterministic = False

    def reset(self, **kwargs):
        _, info = super().reset(**kwargs)
        self.lit = "go left" if self.np_random.random() < 0.5 else "go right"
        self.open = True
        return f"lit {self.lit}", info

    def step(self, action):
        if not self.open:
            raise RuntimeError("call reset() first")
        self.open = False
        won = action == self.lit
        return "done", float(won), True, False, {"success": won}

    def expert(self):
        return [self.lit]


class LeftOver(doubles.Corridor):
    """`reset` forgets the steps of the episode before."""

    count = 0

    def step(self, action):
        self.count += 1
        obs, *rest = super().step(action)
        return (f"{obs}\nstep {self.count}", *rest)


def test_a_sound_environment_has_no_warning_and_its_wins_are_counted():
    report = checked(Forked)
    assert (report.faults, report.warnings) == ((), ()), report.text("env")
    assert "fork" in report.checks
    won, played = report.won["the expert"]
    assert won == played > 10  # the tasks of the split, not three of them
    assert f"the expert {won} of {played}, random play" in report.text("env")
    assert report.json()["won"]["the expert"] == {"won": won, "played": played}


def test_plans_that_lose_a_few_tasks_among_many_are_found():
    report = checked(Forgetful)
    warning = named(report.warnings, "does not win some tasks")
    lost, _, played = warning.where.split()[:3]
    assert 1 <= int(lost) <= 3 < int(played)
    assert report.faults == ()


class FromTheStart(doubles.Corridor):
    """Declares what its expert does not do: it plans from the start alone."""

    plans_from_any_state = True


def test_an_expert_that_does_not_plan_from_any_state_is_found():
    fault = named(checked(FromTheStart).faults, "plan on the way does not win")
    assert fault.where.startswith("task 'corridor-")
    assert checked(corridor.PlansAnywhere).faults == ()


def test_an_expert_that_sees_more_than_the_agent_is_found():
    warning = named(
        checked(ExpertSeesGoal).warnings, "acts differently where the agent"
    )
    assert "'take coin' and 'go right'" in warning.where


def test_an_expert_of_random_starts_is_asked_and_played_after_one_reset():
    report = checked(LitButton)
    won, played = report.won["the expert"]
    assert won == played == 30
    assert not [w for w in report.warnings if "acts differently" in w.what]


def test_a_loss_that_is_called_a_limit_is_found():
    warning = named(checked(TruncatedLoss).warnings, "truncated before its limit")
    assert "max_episode_steps = " in warning.where


def test_without_a_declared_limit_the_longest_episode_is_compared():
    class Undeclared(TruncatedLoss):
        max_episode_steps = None

    warning = named(checked(Undeclared).warnings, "truncated before its limit")
    assert "another only after" in warning.where


def test_pay_that_can_be_had_without_winning_is_found():
    warning = named(checked(Paid).warnings, "pays more than the expert's")
    assert "let winning pay most" in warning.cure


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (ShallowFork, "^a fork changes the environment"),
        (ForkOfTheStart, "^a fork does not go on as its original"),
        (BrokenFork, "^fork raised TypeError"),
        (NoFork, "^fork must return an environment, got None"),
    ],
)
def test_forks_are_compared_with_their_originals(env, what):
    fault = named(checked(env).faults, what)
    assert "deepcopy" in fault.cure


@pytest.mark.parametrize("env", [ShuffledTasks, UsedUpTasks])
def test_tasks_that_are_listed_otherwise_at_each_call_are_a_fault(env):
    fault = named(checked(env).faults, "returns different tasks when")
    assert "fixed seed" in fault.cure


def test_a_state_that_hides_what_decides_is_found():
    class Locked(doubles.Corridor):
        """Each fourth step opens a door, and no text says how many were taken."""

        def step(self, action):
            obs, *rest = super().step(action)
            return (f"{obs}\ndoor {'shut' if self.steps % 4 else 'open'}", *rest)

    warning = named(checked(Locked).warnings, "does not show what decides")
    assert "RecentReplies" in warning.cure

    class Counted(Locked):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return f"{obs}\n0 steps", info

        def step(self, action):
            obs, *rest = super().step(action)
            return (f"{obs}\n{self.steps} steps", *rest)

    assert checked(Counted).warnings == ()


class Acting(doubles.Corridor):
    """Takes the first action of its plan while it plans."""

    def expert(self):
        plan = super().expert()
        self.step(plan[0])
        return plan


def test_an_expert_that_acts_on_the_episode_is_a_fault():
    fault = named(checked(Acting).faults, "changes the episode")
    assert "without and with a call of it" in fault.where
    assert len(checked(Acting).faults) == 1


class ActingOnACopy(doubles.Corridor):
    """Plans as `Acting` does, on a copy."""

    def expert(self):
        other = copy.deepcopy(self)
        plan = doubles.Corridor.expert(other)
        other.step(plan[0])
        return plan


def test_an_expert_may_act_on_a_copy():
    assert checked(ActingOnACopy).faults == ()


@pytest.mark.parametrize("limit", ["16", "many", 16.5, math.nan, 0, -3, True])
def test_a_limit_that_is_no_number_of_steps_is_a_fault(limit):
    game = type("Limited", (doubles.Corridor,), {"max_episode_steps": limit})
    faults = checked(game).faults
    assert repr(limit) in named(faults, "max_episode_steps must be").what


@pytest.mark.parametrize("limit", [None, doubles.STEPS, np.int64(doubles.STEPS)])
def test_a_limit_may_be_declared_or_not(limit):
    game = type("Limited", (doubles.Corridor,), {"max_episode_steps": limit})
    assert checked(game).faults == ()


def test_what_a_reset_leaves_over_is_told_from_lots():
    fault = named(checked(LeftOver).faults, "two plays of the same actions differ")
    assert "fresh copies play it equally" in fault.where
    assert "in reset" in fault.cure
    coin = type("Coin", (doubles.Corridor,), {"step": _with_a_coin})
    fault = named(checked(coin).faults, "two plays of the same actions differ")
    assert "fresh copies" not in fault.where
    drawing = type("Drawing", (doubles.Corridor,), {"step": _with_lots})
    fault = named(checked(drawing).faults, "two plays of the same actions differ")
    assert "deterministic = False" in fault.cure


def _with_a_coin(self, action):
    import random

    obs, *rest = doubles.Corridor.step(self, action)
    # Of a million sides, so that copies do not play equally by chance.
    return (f"{obs}\ncoin {random.randrange(10**6)}", *rest)


def _with_lots(self, action):
    import random

    obs, *rest = doubles.Corridor.step(self, action)
    return (f"{obs}\nlots {random.random()}", *rest)


@pytest.mark.parametrize(
    ("columns", "action", "unseen"),
    [
        ("a b c d", "b{}-c{}", False),
        ("a b d", "b{}-c{}", True),
        ("a b c d", "b{}-cc{}", True),
        ("a b c d", "c1{}", True),  # there is no such row
    ],
)
def test_a_cell_of_a_board_that_is_shown_is_no_unseen_name(columns, action, unseen):
    episodes = []
    for i in range(20, 40):
        move = action.format(i, i)
        steps = (Played("", f"{columns}\n{i} . x . .\n"), Played(move, "moved"))
        trace = Trace(doubles.task(0, 1, 2), steps)
        trace = dataclasses.replace(
            trace, task=dataclasses.replace(trace.task, id=f"t{i}")
        )
        episodes.append(PlannedEpisode("move", [move], trace))
    findings = Findings()
    check_names(findings, episodes)
    assert bool(findings.warnings) == unseen


class Refused(doubles.Corridor):
    """Its plan is longer than its limit, and no action of it is taken."""

    max_episode_steps = 4

    def expert(self):
        return ["Go Right!"] * 30

    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, {**info, "invalid": action not in self.valid_actions()})


def test_refused_actions_of_a_plan_are_named_though_the_limit_cuts_it():
    report = checked(Refused)
    named(report.faults, "every plan of the expert is longer")
    named(report.warnings, "an action of the expert's plan was refused: 'Go Right!'")


class Alias(doubles.Corridor):
    """Its expert writes actions otherwise than its list; both are taken."""

    def step(self, action):
        return super().step(action.removeprefix("please "))

    def expert(self):
        return [f"please {action}" for action in super().expert()]


def test_actions_of_plans_that_no_list_holds_are_warned_of():
    finding = named(checked(Alias).warnings, "lacks most actions of the expert's plans")
    assert "'please " in finding.where
    assert not [f for f in checked(doubles.Corridor).warnings if "lacks" in f.what]


class Guess(ToolEnv):
    """A secret number, which no state shows."""

    def tasks(self, split):
        return [
            Task(id=f"{split}-{n}", instruction="guess", split=split, options={"n": n})
            for n in range(3)
        ]

    def start(self, task):
        self.number = task.options["n"]
        return "think of a digit"

    @tool
    def hint(self) -> str:
        """Say whether it is even."""
        return "even" if self.number % 2 == 0 else "odd"

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        self.finish(number == self.number)
        return "a guess"

    def expert(self):
        return [self.call("guess", number=self.number)]


def test_a_tool_that_no_state_offers_values_for_is_warned_of():
    warnings = checked(Guess).warnings
    named(warnings, "never lists the tool 'guess'")
    assert not [f for f in warnings if "'hint'" in f.what or "lacks" in f.what]
