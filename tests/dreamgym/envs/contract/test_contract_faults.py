"""The contract checker over environments that break one rule each."""

import copy
import dataclasses
import itertools
import json
import math
import re
import sys
import time

import gymnasium
import numpy as np
import pytest

from dreamgym.envs import base
from dreamgym.envs.contract import checker
from dreamgym.envs.tools.tool_env import ToolEnv
from tests import doubles
from tests.dreamgym.envs.contract.common import checked, named
from worldmodel.data.records import Task


class Forgetful(doubles.Corridor):
    counter = itertools.count()

    def step(self, action):
        obs, *rest = super().step(action)
        return (f"{obs} {next(self.counter)}", *rest)


class Moody(doubles.Corridor):
    counter = itertools.count()

    def expert(self):
        return ["fly"] * (next(self.counter) % 3) + super().expert()


class Mistyped(doubles.Corridor):
    def step(self, action):
        if not self.open:
            raise NameError("name 'RuntimError' is not defined")
        return super().step(action)


class Endless(doubles.Corridor):
    def step(self, action):
        self.open = True
        return super().step(action)


class BadPlan(doubles.Corridor):
    def expert(self):
        return ["go right", "go left"]


class Falling(doubles.Corridor):
    def expert(self):
        return ["go left"] * 9


class Merged(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, truncated or terminated, truncated or terminated, info


class Lost(doubles.Corridor):
    def step(self, action):
        obs, reward, *rest, info = super().step(action)
        return (obs, reward - 0.5, *rest, info)


class Numbers(doubles.Corridor):
    def step(self, action):
        return (7, *super().step(action)[1:])


class Blank(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return " \n", super().reset(seed=seed, options=options)[1]


class NotText(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return {"text": "at 0"}, super().reset(seed=seed, options=options)[1]


class NoInfo(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], None


class Empty(doubles.Corridor):
    def tasks(self, split):
        return [] if split == "train" else super().tasks(split)


class NeedsATask(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"task": options["task"]})


class NoPlan(doubles.Corridor):
    def expert(self):
        return {}["plan"]


class OnlyWords(doubles.Corridor):
    def step(self, action):
        return super().step(json.loads(action))


class Unnamed(doubles.Corridor):
    def valid_actions(self):
        return ["go left", None]


def shared(one: str, other: str):
    class Shared(doubles.Corridor):
        def tasks(self, split):
            extra = list(doubles.tasks(one)[-1:]) if split == other else []
            return super().tasks(split) + extra

    return Shared


def varied(told, **changes):
    class Varied(doubles.Corridor):
        def variations(self, task, rng):
            del rng
            made = {
                "id": f"{task.id}-{told()}",
                "split": "generated",
                "lineage": (task.id,),
            } | changes
            return [dataclasses.replace(task, **made)]

    return Varied


def test_variations_that_keep_the_contract_pass():
    report = checker.check(varied(lambda: "more")(), limit=30)
    assert "variations" in report.checks
    assert report.faults == ()


class Reused(doubles.Corridor):
    def expert(self):
        return "go left"


class Spelled(doubles.Corridor):
    def valid_actions(self):
        return "go left"


class Lots(doubles.Corridor):
    """It draws lots, but only where `go right` is taken: nonsense shows nothing."""

    draws = np.random.default_rng(0)

    def step(self, action):
        obs, *rest = super().step(action)
        lot = self.draws.integers(10**6) if action == "go right" else 0
        return (f"{obs}\nlot {lot}", *rest)


class Unseeded(doubles.Corridor):
    """Its start is drawn from np_random; the tasks hold no seed."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return f"{obs}\ncolour {self.np_random.integers(10**6)}", info


class Tuples(doubles.Corridor):
    """Its starts are keys of a dict, which lists cannot be."""

    def tasks(self, split):
        return [
            dataclasses.replace(t, options={"way": tuple(t.options.values())})
            for t in super().tasks(split)
        ]

    def reset(self, *, seed=None, options=None):
        if not (options and "task" in options):
            return super().reset(seed=seed, options=options)
        task = options["task"]
        known = {(i, j, k): 1 for i in range(9) for j in range(9) for k in range(9)}
        assert known[task.options["way"]]
        names = ("at", "goal", "end")
        spelled = dict(zip(names, task.options["way"], strict=True))
        return super().reset(
            seed=seed, options={"task": dataclasses.replace(task, options=spelled)}
        )


class Names(doubles.Corridor):
    def tasks(self, split):
        del split
        return ["hall", "kitchen"]


class Untold(doubles.Corridor):
    def tasks(self, split):
        tasks = [copy.copy(t) for t in super().tasks(split)]
        for task in tasks:
            object.__setattr__(task, "instruction", None)
        return tasks


class Flood(doubles.Corridor):
    def step(self, action):
        obs, *rest = super().step(action)
        return (obs + "x" * base.MAX_CHARACTERS, *rest)


class Hangs(doubles.Corridor):
    step_seconds = 0.05

    def step(self, action):
        time.sleep(1.0)
        return super().step(action)


class NamedBadly(doubles.Corridor):
    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, info | {"rewards": {"coin": "1.0"}})


class PlainText(doubles.Corridor):
    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Text(1000)


class SaysNo(doubles.Corridor):
    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, info | {"success": "yes" if info["success"] else "no"})


class Quits(doubles.Corridor):
    def step(self, action):
        sys.exit(f"cannot {action}")


class Infinite(doubles.Corridor):
    def step(self, action):
        obs, _, terminated, truncated, _ = super().step(action)
        return obs, float("inf"), terminated, truncated, {}


class OldApi(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class NoDev(doubles.Corridor):
    def tasks(self, split):
        return [] if split == "dev" else super().tasks(split)


class Mislabelled(doubles.Corridor):
    def tasks(self, split):
        return [dataclasses.replace(t, split="train") for t in super().tasks(split)]


class Twice(doubles.Corridor):
    def tasks(self, split):
        return list(super().tasks(split)) * 2


class Toolless(ToolEnv):
    def tasks(self, split):
        first = 10 * base.SPLITS.index(split)
        names = [f"t{n}" for n in range(first, first + 5)]
        return [Task(id=n, instruction=f"do {n}", split=split) for n in names]

    def start(self, task):
        return f"box {task.id}"


class NoJson(doubles.Corridor):
    def tasks(self, split):
        tasks = super().tasks(split)
        options = [{**t.options, "x": {1, 2}} for t in tasks]
        return [
            dataclasses.replace(t, options=o)
            for t, o in zip(tasks, options, strict=True)
        ]


class Surrogate(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return f"{obs} \ud800", info


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (varied(itertools.count().__next__), "differ for the same generator"),
        (varied(str, id="corridor-0-0-2"), "hold the task itself"),
        (varied(str, split="train"), "must be of split 'generated'"),
        (varied(str, lineage=()), "must name their task in their lineage"),
        (NoPlan, r"^expert raised KeyError: 'plan' \(test_contract_faults.py:\d+\)$"),
        (OnlyWords, r"^step raised JSONDecodeError: .*test_contract_faults.py:"),
        (Unnamed, r"^valid_actions\(\) must return texts, none empty, got None$"),
        (Spelled, r"^valid_actions\(\) must return a list of actions, got a string$"),
        (Reused, r"^expert\(\) must return a list of actions, got a string$"),
        (Forgetful, "two plays of the same actions differ"),
        (Lots, "two plays of the same actions differ"),
        (Unseeded, "two plays of the same actions differ"),
        (Moody, "plan differs"),
        (Endless, "step after the end must raise$"),
        (Mistyped, r"end must raise one of RuntimeError, .*got NameError: .*py:\d+"),
        (BadPlan, "expert's plan does not win"),
        (Falling, "expert's plan does not win"),
        (Merged, "terminated and truncated must not merge"),
        (Lost, "must sum to the reward"),
        (Numbers, "step must return text, got int"),
        (Blank, "starts with an empty state"),
        (NotText, "reset must return text, got dict"),
        (NoInfo, r"reset must return \(obs, info\)"),
        (Empty, r"tasks\('train'\) is empty"),
        (NoDev, r"tasks\('dev'\) is empty"),
        (Mislabelled, r"tasks\('test'\) holds a task that says split 'train'"),
        (Twice, r"tasks\('dev'\) holds an id twice"),
        (Tuples, "begins otherwise when its options were written as JSON"),
        (Names, r"^tasks\('train'\) must return Tasks, got 'hall'$"),
        (Untold, r"^a task's instruction must be a text, got None$"),
        (Flood, "^step returned a text that is too long$"),
        (Hangs, r"^step raised EnvironmentTimeout: no answer within 0\.05 s"),
        (Toolless, "no tools, and no answer is graded: no action can do anything"),
        (NamedBadly, r"^info\['rewards'\] must be a dict of finite numbers by name$"),
        (SaysNo, r"^info\['success'\] must be a bool, got 'no'$"),
        (Quits, r"^step raised RuntimeError: it called sys.exit\('cannot go right'\)"),
        (PlainText, "is not within the observation space"),
        (Infinite, "a reward must be a finite number, got inf"),
        (OldApi, r"step must return \(obs, reward, terminated, truncated, info\)"),
        (NoJson, "options are no JSON"),
        (Surrogate, "UTF-8 cannot hold"),
        (NeedsATask, r"without seed and options.* raised TypeError: .*py:\d+"),
        (shared("train", "dev"), "splits train and dev share tasks"),
        (shared("train", "test"), "splits train and test share tasks"),
        (shared("dev", "test"), "splits dev and test share tasks"),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_the_checker_catches(broken, what):
    report = checker.check(broken(), limit=30)
    hits = [f for f in report.faults if re.search(what, f.what)]
    assert len(hits) == 1, report.text("env")
    assert hits[0].where
    assert hits[0].cure


def test_a_difference_names_the_step_the_two_texts_and_the_cure():
    (fault,) = checker.check(Lots(), limit=30).faults
    assert re.search(r"task 'corridor-.*', .* step \d+, action 'go right'", fault.where)
    assert re.search(r"lot \d+' and then '.*lot \d+", fault.where)
    assert "`deterministic = False`" in fault.cure


class IntegerEnds(doubles.Corridor):
    """Both flags are numbers."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), int(truncated), info


class TooLong(doubles.Corridor):
    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs + "x" * base.MAX_CHARACTERS, info


class Letters(doubles.Corridor):
    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs.encode(), info


class NoOptions(doubles.Corridor):
    def reset(self, seed=None):
        return super().reset(seed=seed)


class Unmade(doubles.Corridor):
    def tasks(self, split):
        return [Task(id=split, split=split)]


@pytest.mark.parametrize(
    ("env", "whats", "cure"),
    [
        (IntegerEnds, ["terminated must", "truncated must"], "return bool(terminated)"),
        (TooLong, ["reset returned a text that is too long"], "return at most"),
        (Letters, ["reset must return text, got bytes"], "return one str"),
        (OldApi, ["step must return (obs, reward"], "it returned"),
        (NoOptions, ["reset raised"], "options=None"),
        (Unmade, ["tasks raised TypeError"], "mend the line"),
        (
            Forgetful,
            ["two plays of the same actions differ"],
            "`deterministic = False`",
        ),
        (doubles.Corridor, [], ""),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_what_follows_from_a_fault_is_not_told_as_another_one(env, whats, cure):
    faults = checker.check(env(), limit=30, make=env).faults
    assert len(faults) == len(whats), faults
    for fault, what in zip(faults, whats, strict=True):
        assert fault.what.startswith(what)
    assert not faults or cure in faults[0].cure


def test_all_faults_are_named_at_once():
    class Many(Spelled, Numbers, NoDev):
        def expert(self):
            return ["go left", 3]

    text = checker.check(Many(), limit=30).text("mine:Many")
    assert text.startswith("mine:Many breaks the contract: 4 faults, no warnings (")
    for part in ("valid_actions()", "expert()", "step must", "tasks('dev')", "    do:"):
        assert part in text


@pytest.mark.parametrize(
    "costs", [{"time": None}, {"time": "1 s"}, 0.1, {"time": math.nan}, {"t": 10**400}]
)
def test_costs_that_are_no_numbers_are_a_fault(costs):
    class Costly(doubles.Corridor):
        def step(self, action):
            *values, info = super().step(action)
            return (*values, info | {"costs": costs})

    fault = named(checked(Costly).faults, r"info\['costs'\] must be a dict of finite")
    assert fault.cure == f"it is {costs!r:.60}"
    env = Costly()
    env.reset(options={"task": env.tasks("train")[0]})
    with pytest.raises((TypeError, FloatingPointError), match="costs"):
        base.take(env, "go left")


class Hanging(doubles.Corridor):
    """A step after the end never answers."""

    step_seconds = 0.5

    def step(self, action):
        if not self.open:
            time.sleep(60)
        return super().step(action)


@pytest.mark.medium
def test_a_step_after_the_end_that_hangs_is_a_fault():
    start = time.monotonic()
    what = "a step after the end must raise, and did not answer within 0.5 s"
    named(checked(Hanging).faults, what)
    assert time.monotonic() - start < 30


class Mute(doubles.Corridor):
    """Shows nothing after a step."""

    def step(self, action):
        _, *values = super().step(action)
        return (" \n\t\n", *values)


class Coloured(doubles.Corridor):
    """Shows its states as a terminal does."""

    def step(self, action):
        obs, *values = super().step(action)
        return (f"\x1b[1;31m{obs}\x1b[0m", *values)


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (Mute, "a state is empty after a step"),
        (Coloured, "step returned codes of a terminal"),
    ],
)
def test_states_that_teach_nothing_are_warned_of(env, what):
    named(checked(env).warnings, what)


class Listed(doubles.Corridor):
    """Its instruction is a list."""

    def reset(self, **settings):
        obs, info = super().reset(**settings)
        return obs, info | {"instruction": ["take", "the coin"]}


def test_an_instruction_that_is_no_text_is_a_fault():
    named(checked(Listed).faults, r"info\['instruction'\] must be a text, got list")


def test_a_class_without_a_step_is_told_to_have_one():
    stepless = type("Stepless", (doubles.Corridor,), {"step": gymnasium.Env.step})
    fault = named(checked(stepless).faults, "^step raised NotImplementedError")
    assert fault.cure == "the class has no method step: write def step(self, action)"
