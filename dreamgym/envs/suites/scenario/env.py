"""Tool environments from a seed: "scenario:SEED", "scenario:SEED?depth=2&typos=0.2".

a seed -> a scenario (types of entities with fields and relations) -> functions over it,
the tools -> tasks, each with a store of its own, composed of calls of these functions
  the agent's calls, checked and executed; an answer ends the episode
  -> it is won where the store, and the answer to a question, are those of the reference
States are lines (`ToolEnv` adds the results of the last action):
  earlier calls 3            so many calls that no longer fit the state
  called CALL -> RESULT      the other calls so far that were made

Nothing is written by hand but the words: other seeds have other entities, fields,
tools and names of tools. The task family depthN has tasks whose reference solution has
N calls; those of depth0 can be answered without any.
"""

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dreamgym.envs.base import SPLITS
from dreamgym.envs.importing import named_settings
from dreamgym.envs.suites.scenario.assignments import (
    DONE,
    Assignment,
    draw_assignment,
    is_solved,
)
from dreamgym.envs.suites.scenario.entities import (
    Scenario,
    all_names,
    copy_store,
    draw_scenario,
)
from dreamgym.envs.suites.scenario.functions import (
    Function,
    functions_of,
    write_value,
)
from dreamgym.envs.suites.scenario.typos import misspell
from dreamgym.envs.tools.lines import newest_lines
from dreamgym.envs.tools.tool_env import MAX_CALLS, ToolEnv
from dreamgym.envs.tools.values import fair_shares
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import write_call

SIZES = {"train": 400, "dev": 80, "test": 120}
"""Tasks of a split that are drawn; equal instructions are listed once."""

GENERATED = "generated"
MAX_NUMBERS = 10**9
"""Numbers of generated tasks are below this, times the number of depths."""

VARIATIONS = 8
"""Variations of a task that are drawn at once."""

DEPTH, MAX_DEPTH = 3, 6
"""Calls of the longest reference solutions: by default, and at most."""

SPARE_STEPS = 2
"""Steps of an episode for each step of the longest reference solution."""

MAX_RESULTS = 6000
"""Characters of all calls and results that the agent sees, many times those of a
reference solution."""

MAX_ANSWERS = 12
"""Answers that `valid_actions` lists, at most."""

_NAME = re.compile(r"\b[A-Z][a-z]+\b")
_NUMBER = re.compile(r"\b\d+\b")


class Settings(NamedTuple):
    """What the name of an environment says."""

    seed: int = 0
    depth: int = DEPTH
    typos: float = 0.0
    """The share of words that are misspelt in half of the instructions."""


class ScenarioEnv(ToolEnv):
    """A store behind tools, with everything drawn from a seed."""

    settings: ClassVar[Settings] = Settings()
    deterministic = True
    max_episode_steps = SPARE_STEPS * (DEPTH + 1)

    def __init__(self) -> None:
        super().__init__()
        self._functions = _functions(self.settings.seed)
        self.tools = {name: f.signature for name, f in self._functions.items()}

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split, none of which is in an earlier one."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        numbers = _distinct(self.settings)[split]
        return [self._as_task(split, number) for number in numbers]

    def _as_task(self, split: str, number: int) -> Task:
        s = self.settings
        text, typos = _instruction(s, split, number)
        noise, kind = ({"typos": typos}, "typos-") if s.typos else ({}, "")
        place = {"scenario": s.seed, "depth": s.depth, "split": split}
        return Task(
            id=f"scenario-{s.seed}-{s.depth}-{kind}{split}-{number}",
            instruction=text,
            env=f"scenario:{s.seed}?depth={s.depth}",
            family=f"depth{_depth_of(s, number)}",
            split=split,
            options={**place, "number": number, **noise},
        )

    def variations(self, task: Task, rng: np.random.Generator) -> list[Task]:
        """Return VARIATIONS other tasks with as many calls as this one has."""
        s = self.settings
        held_out = {
            _assignment(s, split, number).instruction
            for split in ("dev", "test")
            for number in _distinct(s)[split]
        }
        depth, out = _depth_of(s, _place_of(s, task)[1]), dict[int, Task]()
        while len(out) < VARIATIONS:
            number = depth + (s.depth + 1) * int(rng.integers(MAX_NUMBERS))
            if _assignment(s, GENERATED, number).instruction not in held_out:
                other = self._as_task(GENERATED, number)
                lineage = (*task.lineage, task.id)
                out[number] = dataclasses.replace(other, lineage=lineage)
        return list(out.values())

    def start(self, task: Task) -> str:
        """Fill the store of a task.

        Raises:
          ValueError: the task's options name none.
        """
        place = _place_of(self.settings, task)
        self._assignment = _assignment(self.settings, *place)
        self._store = copy_store(self._assignment.store)
        self._calls, self._has_read = list[str](), False
        return ""

    def observation(self) -> list[str]:
        """Return the newest calls so far, with what they returned."""
        return newest_lines(self._calls, MAX_RESULTS)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action; what a tool reads out of the store is a reveal."""
        self._has_read = False
        text, reward, terminated, truncated, info = super().step(action)
        info["reveals"] = self._has_read
        return text, reward, terminated, truncated, info

    def run_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a function of the scenario, and record the call."""
        function = self._functions[name]
        result = function.run(self._store, arguments)
        self._has_read |= function.is_read
        call = write_call(name, dict(arguments))
        self._calls.append(f"called {call} -> {result or 'ok'}")
        return ""

    def answer(self, text: str) -> str:
        """End the episode: compare store and answer with those of the reference.

        Raises:
          ValueError: it is not of the type that is expected; the episode goes on.
        """
        given, expected = text.strip(), self._assignment.answer
        if expected is None and given.casefold() != DONE:
            raise ValueError(f"expected a call, or the answer {DONE}")
        if isinstance(expected, int) and not given.isdecimal():
            raise ValueError("expected a call, or a whole number as the answer")
        if isinstance(expected, str) and not _NAME.fullmatch(given):
            raise ValueError("expected a call, or a name as the answer")
        success = is_solved(self._assignment, self._functions, self._store, given)
        self.finish(success)
        return "right" if success else "wrong"

    def expert(self) -> list[str]:
        """Return the calls of the reference solution, and its answer.

        Raises:
          RuntimeError: nothing was started.
        """
        self._require_task("expert")
        expected = self._assignment.answer
        answer = DONE if expected is None else write_value(expected)
        return [
            *(write_call(c.tool, c.arguments) for c in self._assignment.calls),
            self.write_answer(answer),
        ]

    def valid_actions(self) -> list[str]:
        """Return calls of values in sight that can be made, and answers.

        Raises:
          RuntimeError: nothing was started.
        """
        self._require_task("valid_actions")
        sight = self._sight()
        words = list(dict.fromkeys(_NAME.findall(sight.text)))
        numbers = list(dict.fromkeys(map(int, _NUMBER.findall(sight.text))))
        calls = [
            list(itertools.islice(self._calls_of(f, words, numbers), MAX_CALLS))
            for f in self._functions.values()
        ]
        expected = self._assignment.answer
        values = words if isinstance(expected, str) else list(map(str, numbers or [0]))
        # What was read last is the likeliest answer.
        answers = [DONE] if expected is None else values[-MAX_ANSWERS:]
        draw = random.Random(content_seed(sight.text))
        shares = fair_shares(calls, MAX_CALLS - len(answers), draw)
        return [*shares, *map(self.write_answer, answers)]

    def _calls_of(
        self, function: Function, words: Sequence[str], numbers: Sequence[int]
    ) -> Iterator[str]:
        """Yield the calls of a function, with values in sight, that can be made."""
        values = [
            self._values_of(function, argument, words, numbers)
            for argument in function.signature.hints
        ]
        for combination in itertools.product(*values):
            arguments = dict(zip(function.signature.hints, combination, strict=True))
            try:
                function.run(copy_store(self._store), arguments)
            except (LookupError, ValueError):
                continue
            yield write_call(function.name, arguments)

    def _values_of(
        self,
        function: Function,
        argument: str,
        words: Sequence[str],
        numbers: Sequence[int],
    ) -> Sequence[Any]:
        hint = function.signature.hints[argument]
        if argument in function.row_types:
            rows = self._store[function.row_types[argument]]
            return [word for word in words if word in rows]
        if hint is str:  # the name of what is created
            present = all_names(self._store)
            return [word for word in words if word not in present]
        if hint is int:
            return numbers
        return (False, True) if hint is bool else hint.__args__


@functools.cache
def _scenario(seed: int) -> Scenario:
    return draw_scenario(seed)


@functools.cache
def _functions(seed: int) -> Mapping[str, Function]:
    return functions_of(_scenario(seed))


def _depth_of(settings: Settings, number: int) -> int:
    """Return the number of calls of a task: the depths come in turn."""
    return number % (settings.depth + 1)


@functools.lru_cache(4096)
def _assignment(settings: Settings, split: str, number: int) -> Assignment:
    s = settings
    seed = content_seed("assignment", s.seed, s.depth, split, number)
    return draw_assignment(
        _scenario(s.seed),
        _functions(s.seed),
        _depth_of(s, number),
        random.Random(seed),
    )


def _instruction(settings: Settings, split: str, number: int) -> tuple[str, int]:
    """Return the instruction of a task, and how many of its words are misspelt."""
    assignment = _assignment(settings, split, number)
    rng = random.Random(content_seed("typos", settings.seed, split, number))
    if not settings.typos or rng.random() < 0.5:
        return assignment.instruction, 0
    values = [v for call in assignment.calls for v in call.arguments.values()]
    keep = {DONE, *map(write_value, values)}
    return misspell(assignment.instruction, settings.typos, rng, keep=keep)


@functools.cache
def _distinct(settings: Settings) -> dict[str, list[int]]:
    """Return the numbers of different tasks of each split."""
    instructions, out = set[str](), dict[str, list[int]]()
    for split, size in SIZES.items():
        out[split] = []
        for number in range(size):
            text = _assignment(settings, split, number).instruction
            if text not in instructions:
                instructions.add(text)
                out[split].append(number)
    return out


def _place_of(settings: Settings, task: Task) -> tuple[str, int]:
    """Return the split and the number of a task.

    Raises:
      ValueError: its options name none, or it is a task of another scenario.
    """
    split, number = task.options.get("split"), task.options.get("number")
    origin = task.options.get("scenario"), task.options.get("depth")
    if origin != (settings.seed, settings.depth):
        raise ValueError(
            f"task {task.id!r} is of scenario:{origin[0]}?depth={origin[1]}, and this "
            f"environment is scenario:{settings.seed}?depth={settings.depth}"
        )
    limit = SIZES.get(str(split), MAX_NUMBERS * (MAX_DEPTH + 1))
    if split not in (*SIZES, GENERATED) or type(number) is not int:
        raise ValueError(
            f"task {task.id!r}: options must name a split of "
            f"{[*SIZES, GENERATED]} and a number, got {dict(task.options)}"
        )
    if not 0 <= number < limit:
        raise ValueError(f"task {task.id!r}: number must be in 0..{limit - 1}")
    return str(split), number


def one_scenario(name: str) -> type[ScenarioEnv]:
    """Return the environment of "SEED" or "SEED?depth=2&typos=0.2".

    Raises:
      ValueError: the seed is no whole number, or a setting is unknown, out of range, or
        there twice.
    """
    text, _, query = name.partition("?")
    values = named_settings(f"scenario:{name}", query)
    if unknown := values.keys() - {"depth", "typos"}:
        raise ValueError(
            f"scenario:{name}: expected the settings depth and typos, got "
            f"{sorted(unknown)}"
        )
    try:
        if not text.isdecimal() or not text.isascii():
            raise ValueError(text)
        settings = Settings(
            int(text), int(values.get("depth", DEPTH)), float(values.get("typos", 0))
        )
    except ValueError:
        settings = Settings(-1)
    if (
        settings.seed < 0
        or not 1 <= settings.depth <= MAX_DEPTH
        or not 0 <= settings.typos <= 1
    ):
        raise ValueError(
            f"scenario:{name}: expected a seed >= 0 after the colon, depth in "
            f"1..{MAX_DEPTH} and typos in [0, 1], as in scenario:7?depth=2&typos=0.2"
        )
    members = {
        "settings": settings,
        "max_episode_steps": SPARE_STEPS * (settings.depth + 1),
        "__doc__": ScenarioEnv.__doc__,
    }
    environment: Any = type("ScenarioEnv", (ScenarioEnv,), members)
    return environment
