"""The contract checker over what is allowed and will hurt, and over copies."""

import dataclasses
import random
import re
import time

import pytest

from dreamgym.envs import base
from dreamgym.envs.contract import checker, texts
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from tests import doubles
from tests.dreamgym.envs.contract.common import SharedState
from worldmodel.data.records import Task


class Score(doubles.Corridor):
    """Its reward is the score so far: 1 for the first step to the right, then 2."""

    def reset(self, **kwargs):
        self.score = 0
        return super().reset(**kwargs)

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        self.score += action == "go right" or terminated
        info = {"success": info["success"]}
        return obs, float(self.score), terminated, truncated, info

    def tasks(self, split):
        return [t for t in super().tasks(split) if t.options["goal"] > t.options["at"]]


class Scored(Score):
    """The same as it should be: what the step earned."""

    def step(self, action):
        before = self.score
        obs, total, *rest = super().step(action)
        return obs, total - before, *rest


class LateEnd(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, False, info


class Copies(doubles.Corridor):
    """Its last test task is the 35th train task, under another id."""

    def tasks(self, split):
        tasks = super().tasks(split)
        if split != "test":
            return tasks
        copied = super().tasks("train")[34]
        return (*tasks, dataclasses.replace(copied, id="another", split="test"))


class LateTwins(doubles.Corridor):
    """Its test tasks are its last train tasks, under other ids and with a nonce."""

    def tasks(self, split):
        tasks = super().tasks("train" if split == "test" else split)
        if split != "test":
            return tasks
        copied = tasks[-20:]
        return tuple(
            dataclasses.replace(
                t, id=f"test-{t.id}", split="test", options={**t.options, "nonce": i}
            )
            for i, t in enumerate(copied)
        )


class DevIsTest(doubles.Corridor):
    """Its test tasks begin as its dev tasks do."""

    def tasks(self, split):
        if split != "test":
            return super().tasks(split)
        return tuple(
            dataclasses.replace(
                t, id=f"test-{t.id}", split="test", options={**t.options, "nonce": i}
            )
            for i, t in enumerate(super().tasks("dev"))
        )


class AlwaysWon(doubles.Corridor):
    def step(self, action):
        obs, *rest, info = super().step(action)
        return (obs, *rest, info | {"success": True})


class RunsOut(doubles.Corridor):
    """Lists no action after the first."""

    def reset(self, *, seed=None, options=None):
        self.taken = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.taken += 1
        return super().step(action)

    def valid_actions(self):
        return [] if self.taken else super().valid_actions()


class Twins(doubles.Corridor):
    """Its test tasks are the train tasks under other ids."""

    def tasks(self, split):
        return [
            dataclasses.replace(
                t,
                id=f"{split}-{i}",
                split=split,
                options={**t.options, "number": f"{split}-{i}"},  # nobody reads it
            )
            for i, t in enumerate(super().tasks("train"))
        ]


class Mute(doubles.Corridor):
    def tasks(self, split):
        return [dataclasses.replace(t, instruction="") for t in super().tasks(split)]

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], {}


class Wordy(doubles.Corridor):
    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return f"{obs}\n{'word ' * 1000}", info


class Growing(doubles.Corridor):
    """Its states hold all that was said."""

    def step(self, action):
        obs, *rest = super().step(action)
        said = "\n".join(["and so on"] * 200)
        return f"{obs}\n{said}", *rest


class Unplanned(doubles.Corridor):
    def expert(self):
        return []


class Guessed(doubles.Bare):
    """It takes no action that could be guessed."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(f"7-{action}")
        return obs, reward, terminated, truncated, info | {"invalid": True}


class Limited(doubles.Corridor):
    max_episode_steps = 1


class Slow(doubles.Corridor):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class NoWins(doubles.Corridor):
    """Nobody wins it by chance, and there is no expert."""

    expert = None

    def valid_actions(self):
        return ["dance"]


class Unsaid(doubles.Corridor):
    """Ends at a random move with a negative return, and misspells success."""

    expert = None

    def step(self, action):
        obs, _, _, _, info = super().step(action)
        self.open = False
        rewards = {name: -0.1 for name in info["rewards"]}
        info = {"rewards": rewards, "sucess": True, "invalid": False}
        return obs, sum(rewards.values()), True, False, info


class Listless(doubles.Corridor):
    def valid_actions(self):
        return []


class Hopeful(doubles.Corridor):
    """Lists as valid what it then refuses."""

    def valid_actions(self):
        return ["fly", "sing", "dance"]

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        invalid = action not in doubles.ACTIONS
        return obs, reward, terminated, truncated, {**info, "invalid": invalid}


class PlaysOn(doubles.Corridor):
    """Success is said, and the episode goes on to its limit."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        self.open = not truncated
        return obs, reward, False, truncated, info


class SomePlans(doubles.Corridor):
    """Its expert has no plan for some tasks, and says so."""

    def expert(self):
        plan = super().expert()
        return plan if len(plan) % 2 else []


class Graded(doubles.Corridor):
    """A grader with partial credit, which says nothing of success."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        if action == "dance":
            self.open, reward, terminated = False, 0.2, True
        return obs, reward, terminated, truncated and not terminated, {}

    def valid_actions(self):
        return ["dance"]


class Toolbox(ToolEnv):
    """Says with which tools, and not what for."""

    def tasks(self, split):
        first = 10 * base.SPLITS.index(split)
        return [
            Task(id=f"t{n}", instruction="", split=split)
            for n in range(first, first + 5)
        ]

    def start(self, task):
        return f"box {task.id}"

    @tool
    def open(self) -> str:
        """Open the box."""
        self.finish(True)
        return "open"

    def expert(self):
        return [self.call("open")]


class Crowded(doubles.Corridor):
    def valid_actions(self):
        return [f"go {i}" for i in range(501)]


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (Score, "look like a cumulative score"),
        (Twins, "of different splits have the same instruction and first state"),
        (Mute, "a task has no instruction"),
        (LateTwins, "have the same instruction and first state"),
        (DevIsTest, "have the same instruction and first state"),
        (Wordy, "a long state makes every step slow"),
        (Growing, "a long state makes every step slow"),
        (Unplanned, "the expert has no plan for any of the tasks that were played"),
        (Guessed, r"^(\d+) of \1 guessed actions were refused"),
        (Limited, "the expert's plan is longer than max_episode_steps = 1"),
        (Crowded, r"valid_actions\(\) returns 501 actions"),
        (NoWins, "no plan of an expert was played to its end, and no random play won"),
        (Listless, r"valid_actions\(\) lists nothing at the start"),
        (Hopeful, r"of valid_actions\(\) were refused"),
        (PlaysOn, "an episode goes on after its success"),
        (SomePlans, "the expert has no plan for some tasks"),
        (Graded, "ends with different rewards all count as won"),
        (Toolbox, "a task has no instruction beside its tools"),
        (LateEnd, "the number of steps alone ends an episode, as lost"),
        (Copies, "of test have the same instruction and options as tasks of train"),
        (AlwaysWon, "an episode of nonsense counts as won"),
        (RunsOut, r"valid_actions\(\) lists nothing in the middle of an episode"),
        (doubles.Bare, r"there is no valid_actions\(\)"),
    ],
)
def test_the_checker_warns(env, what):
    report = checker.check(env(), limit=30, make=env)
    assert report.faults == (), report.text("env")
    assert [w for w in report.warnings if re.search(what, w.what)], report.text("env")


@pytest.mark.parametrize(
    ("env", "pairs"),
    [
        (Twins, [("dev", "train"), ("test", "train"), ("test", "dev")]),
        (LateTwins, [("test", "train")]),
        (DevIsTest, [("test", "dev")]),
    ],
)
def test_one_warning_names_all_splits_that_begin_equally(env, pairs):
    warnings = checker.check(env(), limit=30).warnings
    (warning,) = [w for w in warnings if "same instruction and first state" in w.what]
    assert re.findall(r"' of (\w+) and '[^']*' of (\w+)", warning.where) == pairs


@pytest.mark.parametrize(("env", "said"), [(Unsaid, True), (NoWins, False)])
def test_ends_without_a_positive_return_need_to_say_success(env, said):
    report = checker.check(env(), limit=30)
    (warning,) = [w for w in report.warnings if "no random play won" in w.what]
    wanted = "terminated without it, and then only a positive return counts as won"
    assert (wanted in warning.cure) == said


def test_an_expert_that_plans_for_some_tasks_is_no_fault():
    report = checker.check(SomePlans(), limit=30, tasks=6)
    (warning,) = report.warnings
    assert "has no plan for some tasks" in warning.what
    assert "expert" in report.checks


def test_slow_steps_are_warned_of(monkeypatch):
    monkeypatch.setattr(texts, "SLOW_STEP", 0.001)
    (warning,) = checker.check(Slow(), limit=30).warnings
    assert warning.what == "a step takes 0.0 s"


def test_a_long_state_names_the_wrapper_that_shortens_it():
    (warning,) = (
        w for w in checker.check(Wordy(), limit=9).warnings if "long" in w.what
    )
    assert "ShortPages of dreamgym.envs.wrappers" in warning.cure


def test_rewards_that_are_no_scores_are_not_called_so():
    warnings = checker.check(Scored(), limit=30).warnings
    assert not [w for w in warnings if "cumulative" in w.what]


def test_a_planned_step_limit_is_compared_with_the_plans():
    report = checker.check(doubles.Corridor(), limit=30, max_steps=1)
    assert any("longer than max_episode_steps = 1" in w.what for w in report.warnings)
    assert checker.check(doubles.Corridor(), limit=30, max_steps=9).warnings == ()


class Hangs(doubles.Corridor):
    """Never answers a step, and after some resets no reset either."""

    max_episode_steps = 20
    reset_seconds = step_seconds = 0.05

    def reset(self, **kwargs):
        self.resets = getattr(self, "resets", 0) + 1
        if self.resets > 4:
            time.sleep(30)
        return super().reset(**kwargs)

    def step(self, action):
        time.sleep(30)
        return super().step(action)


def test_an_environment_that_hangs_is_given_up_after_some_calls():
    start = time.monotonic()
    report = checker.check(Hangs(), limit=30)
    assert time.monotonic() - start < 10
    assert any("EnvironmentTimeout" in f.what for f in report.faults)


class TooShort(doubles.Corridor):
    """No task can be solved within its limit."""

    max_episode_steps = 1

    def tasks(self, split):
        return [
            t
            for t in super().tasks(split)
            if abs(t.options["goal"] - t.options["at"]) > 2
        ]


def test_a_limit_that_no_plan_keeps_is_a_fault():
    report = checker.check(TooShort(), limit=30)
    (fault,) = report.faults
    assert fault.what == (
        "every plan of the expert is longer than max_episode_steps = 1"
    )
    assert "nobody could win any task" in fault.cure
    # It says why no plan was played to its end.
    assert not [w for w in report.warnings if "no plan of an expert" in w.what]


class RarelyBroken(doubles.Corridor):
    """Its expert returns a number for a task that the check does not play."""

    max_episode_steps = 20

    def reset(self, *, seed=None, options=None):
        self.broken = options["task"].id == self.tasks("train")[1].id
        return super().reset(seed=seed, options=options)

    def expert(self):
        return 5 if self.broken else super().expert()


def test_a_plan_that_is_no_list_is_a_fault_wherever_it_is_asked_for():
    report = checker.check(RarelyBroken(), limit=30)
    assert any("expert()" in f.what for f in report.faults), report.text("env")


class SeededMoves(doubles.Corridor):
    """The seed of `reset`, and not the task, decides which way is which."""

    def reset(self, *, seed=None, options=None):
        self.mirrored = random.Random(seed or 0).random() < 0.5
        return super().reset(seed=seed, options=options)

    def step(self, action):
        other = {"go left": "go right", "go right": "go left"}
        return super().step(other.get(action, action) if self.mirrored else action)

    def expert(self):
        return []


class SeededLots(SeededMoves):
    deterministic = False


def test_lots_by_the_seed_of_reset_are_no_determinism():
    # Each play of a run has another seed.
    report = checker.check(SeededMoves(), limit=30, tasks=6, make=SeededMoves)
    (fault,) = report.faults
    assert fault.what == "two plays of the same actions differ"
    assert "declare `deterministic = False`" in fault.cure
    assert "something of the first is left" not in fault.cure
    assert checker.check(SeededLots(), limit=30, tasks=6, make=SeededLots).faults == ()


def test_copies_that_share_their_state_are_caught():
    report = checker.check(SharedState(), limit=30, make=SharedState)
    assert [f.what for f in report.faults] == [
        "two copies of the environment disturb each other"
    ]
    assert checker.check(SharedState(), limit=30).faults == ()


class SharedSet(doubles.Corridor):
    """A corridor that shows where it was, from a set that all copies share."""

    rooms = set()  # noqa: RUF012 - the mistake that is looked for

    def reset(self, **kwargs):
        self.rooms.clear()
        return super().reset(**kwargs)

    def step(self, action):
        obs, *rest = super().step(action)
        self.rooms.add(action)
        return (f"{obs}\nso far {sorted(self.rooms)}", *rest)


def test_state_in_the_class_that_reset_clears_is_caught():
    report = checker.check(SharedSet(), limit=30, make=SharedSet)
    assert [f.what for f in report.faults] == [
        "two copies of the environment disturb each other"
    ]
    assert checker.check(SharedSet(), limit=30).faults == ()


def test_an_environment_that_may_be_made_once_is_made_once():
    class One(doubles.Corridor):
        max_copies = 1

    def make():
        raise AssertionError("a second copy")

    assert checker.check(One(), limit=30, make=make).faults == ()


def test_a_copy_that_needs_arguments_is_caught():
    class Named(doubles.Corridor):
        def __init__(self, name):
            super().__init__()
            self.name = name

    (fault,) = checker.check(Named("a"), limit=30, make=Named).faults
    assert fault.what.startswith("a second copy cannot be made: TypeError")
