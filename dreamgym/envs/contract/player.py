"""Plays an environment for its check: guards every call and checks every result.

A call that raises, or a result of the wrong type, becomes a finding with the call, the
line that raised and what was expected; the episode ends there, and the check goes on.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import Findings, difference
from dreamgym.envs.contract.results import can_be_read, read_text, warn_of_empty_state
from dreamgym.envs.failures import USUAL_DEADLINES, EnvironmentTimeout, deadlines_of
from dreamgym.envs.tools.tool_env import ToolEnv
from worldmodel.data.records import Task

MAX_TIMEOUTS = 3
"""Calls that exceed their deadline after which nothing more is called."""

CHECK_CALLS = 12
"""Resets and steps that Gymnasium's own check makes, at most."""

NONSENSE = "frobnicate the <|dg_end|> moon\u2603"
"""An action that no environment takes."""

_CURES = {
    "step": "mend the line; report an action that cannot be taken in the next state",
    "expert": "mend the line; return [] for a task that it has no plan for",
    "reset": "mend the line; options['task'] is a dreamgym.Task",
}
"""What to do where a call raises."""

_SIGNATURES = {
    "step": "write def step(self, action)",
    "reset": "write def reset(self, *, seed=None, options=None)",
    "tasks": "write def tasks(self, split)",
    "variations": "write def variations(self, task, rng)",
    "expert": "write def expert(self)",
    "valid_actions": "write def valid_actions(self)",
    "render_state": "write def render_state(self, state)",
}
"""What to do where a method does not take the arguments of its call."""

_STEP = "step must return (obs, reward, terminated, truncated, info)"
_RESET = "reset must return (obs, info)"
_NOTHING = {
    "step": (_STEP, "return five values (it returned None)"),
    "reset": (_RESET, "return a text and a dict (it returned None)"),
    "tasks": ("tasks() must return a list of Tasks, got None", "return the list"),
    "variations": ("variations() must return Tasks, got None", "return a list"),
    "expert": (
        "expert() must return a list of actions, got None",
        "return the list; [] for a task that it has no plan for",
    ),
    "valid_actions": (
        "valid_actions() must return a list of actions, got None",
        "return the list; [] where nothing can be done",
    ),
    "render_state": ("render_state() must return a text, got None", "return the text"),
}
"""What is wrong, and what to do, where a method returns None."""


class Played(NamedTuple):
    """One step: the action and its result. Step 0 is the reset, without an action."""

    action: str
    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    invalid: bool | None = None
    reveals: bool | None = None


@dataclasses.dataclass(frozen=True)
class Trace:
    """The steps of one episode; `broken` if it ended with a fault.

    `seed` is that of the reset, where the task has none; `instruction` is what the
    agent reads, where that was asked.
    """

    task: Task
    steps: tuple[Played, ...]
    broken: bool = False
    seed: int | None = None
    instruction: str = ""

    @property
    def length(self) -> int:
        """The number of actions taken."""
        return len(self.steps) - 1

    @property
    def last(self) -> Played:
        """The last step."""
        return self.steps[-1]

    @property
    def ended(self) -> bool:
        """Whether the environment ended it."""
        return self.last.terminated or self.last.truncated

    @property
    def actions(self) -> list[str]:
        """The actions taken."""
        return [step.action for step in self.steps[1:]]

    @property
    def won(self) -> bool:
        """Whether it succeeded: as `info` says, else terminated with return > 0."""
        if self.last.success is not None:
            return self.last.success
        return self.last.terminated and sum(s.reward for s in self.steps) > 0


def first_difference(first: Trace, second: Trace) -> str | None:
    """Return where two episodes differ first, with both texts; None if they do not."""
    pairs = zip(first.steps, second.steps, strict=False)
    differ = [(i, a, b) for i, (a, b) in enumerate(pairs) if a != b]
    if not differ and first.length == second.length:
        return None
    number, a, b = differ[0] if differ else (first.length, first.last, second.last)
    texts = difference(a.observation, b.observation)
    if a.observation == b.observation:
        names = "reward, terminated, truncated, success, invalid, reveals"
        texts = f"{a[2:]} and then {b[2:]} ({names})"
    moment = f"step {number}, action {a.action!r:.60}" if number else "reset"
    return f"{moment}: {texts}"


class Player:
    """Plays one environment and adds to the findings of its check."""

    def __init__(self, env: gymnasium.Env, findings: Findings):
        self.env, self.findings = env, findings
        self.steps = self.resets = 0
        self.observation = self.instruction = ""  # what the agent reads now
        self.seconds = self.reset_seconds = 0.0  # of all steps, of all resets
        self.timeouts = 0
        self.listed: set[str] = set()  # all that valid_actions() has listed
        try:
            self.deadlines = deadlines_of(env)
        except ValueError as error:
            self.deadlines = USUAL_DEADLINES
            cure = "declare seconds as a number, or None for no deadline"
            findings.fault(str(error), "reset_seconds, step_seconds", cure)

    def call(self, name: str, where: str, method: Callable[[], Any]) -> Any:
        """Return what a method returns; None, with a fault, where it returns nothing.

        It returns nothing where it raises, and where it forgets to return. After
        MAX_TIMEOUTS it is not called any more: the check of an environment that hangs
        would take minutes.
        """
        if self.timeouts >= MAX_TIMEOUTS:
            return None
        start = time.monotonic()
        declared = name if name in ("reset", "step") else ""
        deadline = getattr(self.deadlines, declared or "other")
        handler, handlers = signal.getsignal(signal.SIGINT), []

        def observed() -> Any:
            try:
                return method()
            finally:
                handlers.append(signal.getsignal(signal.SIGINT))

        result = guarded(
            self.env, observed, seconds=deadline, method="" if declared else name
        )
        if name == "step":
            self.seconds += time.monotonic() - start
        if name == "reset":
            self.reset_seconds += time.monotonic() - start
        if handlers and handlers[0] is not handler:
            self._warn_of_handler(where)
        if result is None:
            what, cure = _NOTHING.get(name, (f"{name} returned None", "return a value"))
            self.findings.fault(what, where, cure)
        if not isinstance(result, EnvironmentFailure):
            return result
        if name == "reset" and (broken := self._broken_plan()):
            self.findings.fault(broken[0], where, broken[1])
            return None
        place, cure = result.place, _CURES.get(name, "mend the line")
        if isinstance(result.error, NotImplementedError) and self._lacks(name):
            cure = f"the class has no method {name}: {_SIGNATURES[name]}"
        if isinstance(result.error, dataclasses.FrozenInstanceError):
            cure = "a Task cannot change: dataclasses.replace(task, ...) makes another"
        if isinstance(result.error, EnvironmentTimeout):
            self.timeouts += 1
            cure = (
                f"a run waits {deadline:g} s for it: answer sooner, or declare "
                f"`{declared or 'reset'}_seconds` in the class (0: no deadline)"
            )
        elif definition := self._refused_call(name, result.error):
            place, cure = definition, _SIGNATURES[name]
        what = f"{name} raised {result.reason} ({place})"
        self.findings.fault(what, where, cure)
        return None

    def _warn_of_handler(self, where: str) -> None:
        self.findings.warn(
            "the environment replaces the handler of Ctrl-C (SIGINT)",
            where,
            "leave it as it is, as with a library's install_signal_handlers=False: a "
            "run, which Ctrl-C must end, puts its own back after each call",
        )

    @property
    def deadline(self) -> float:
        """Seconds of CHECK_CALLS resets and steps, 0 for no deadline."""
        seconds = self.deadlines.reset, self.deadlines.step
        return 0.0 if 0.0 in seconds else CHECK_CALLS * sum(seconds)

    def _broken_plan(self) -> tuple[str, str] | None:
        """Return what is wrong with the expert's plan, and the cure, or None.

        A ToolEnv asks for the plan when it starts a task, so that it breaks the reset.
        """
        expert = base.as_expert(self.env)
        if expert is None or not isinstance(self.env.unwrapped, ToolEnv):
            return None
        plan = guarded(self.env, expert.expert)
        if not isinstance(plan, EnvironmentFailure | Iterable):
            what = f"expert() must return a list of actions, got {plan!r:.40}"
            return what, _NOTHING["expert"][1]
        if not isinstance(plan, EnvironmentFailure):
            plan = guarded(self.env, functools.partial(list, plan))  # a generator runs
        if isinstance(plan, EnvironmentFailure):
            return f"expert raised {plan.reason} ({plan.place})", _CURES["expert"]
        if wrong := [x for x in plan if not isinstance(x, str)]:
            what = f"expert() must return texts, got a {type(wrong[0]).__name__}"
            return what, "write a call as self.call('tool', argument=value)"
        return None

    def _lacks(self, name: str) -> bool:
        """Return whether a method is only that of gymnasium.Env, which raises."""
        method = getattr(type(self.env.unwrapped), name, None)
        return name in _SIGNATURES and method is getattr(gymnasium.Env, name, ())

    def _refused_call(self, name: str, error: Exception) -> str | None:
        """Return where a method is defined that does not take its arguments, or None.

        Python raises at the caller then, which is the checker.
        """
        owner = base.provider(self.env, name) or self.env.unwrapped
        method = inspect.unwrap(getattr(type(owner), name, lambda: None))
        code = getattr(method, "__code__", None)
        mistaken = isinstance(error, TypeError) and name in _SIGNATURES
        if not mistaken or code is None:
            return None
        if not str(error).startswith(f"{method.__qualname__}() "):
            return None
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"

    def reset(
        self, task: Task, seed: int | None = None
    ) -> tuple[str, dict[str, Any]] | None:
        """Reset to a task as a run does; None with a fault where that is no start.

        A seed among the task's options counts more than `seed`.
        """
        where, fault = f"task {task.id!r}", self.findings.fault
        if not is_json(task.options):
            fault(
                "a task's options are no JSON",
                f"{where}: {dict(task.options)!r:.100}",
                "use numbers, texts, lists and dicts with text keys",
            )
        try:
            task_copy = base.with_own_options(task)
        except RecursionError:
            fault(
                "a task's options are nested too deeply to be copied",
                where,
                "nest lists and dicts a few levels deep: every reset gets a copy",
            )
            return None
        self.resets += 1
        task_seed = base.seed_of(task)
        seed = seed if task_seed is None else task_seed
        result = self.call(
            "reset",
            where,
            lambda: self.env.reset(seed=seed, options={"task": task_copy}),
        )
        if result is None:
            return None
        if not (isinstance(result, tuple) and len(result) == 2) or not isinstance(
            result[1], dict
        ):
            fault(
                _RESET,
                where,
                f"return a text and a dict; it returned {result!r:.100}",
            )
            return None
        info = result[1]
        obs = read_text(self.findings, self.env, result[0], "reset", where)
        if obs is None:
            return None
        instruction = info.get("instruction", "")
        if not isinstance(instruction, str):
            kind = type(instruction).__name__
            fault(
                f"info['instruction'] must be a text, got {kind}",
                where,
                f"it is {instruction!r:.60}",
            )
        if not obs.strip():
            fault(
                "a task starts with an empty state",
                where,
                "return at least one line of text",
            )
            return None
        self.observation, self.instruction = obs, instruction_of(task, info)
        return obs, info

    def play(
        self, task: Task, actions: Iterable[Any], limit: int, seed: int | None = None
    ) -> Trace | None:
        """Play actions from the start of a task, until they or the episode end.

        An action may also be a function, which is called when it is its turn.
        """
        start = self.reset(task, seed)
        if start is None:
            return None
        trace = self.play_on(task, start[0], itertools.islice(actions, limit))
        instruction = instruction_of(task, start[1])
        return dataclasses.replace(trace, seed=seed, instruction=instruction)

    def play_on(self, task: Task, observation: str, actions: Iterable[Any]) -> Trace:
        """Play actions after a reset that led to `observation`; see `play`."""
        steps = [Played("", observation)]
        for number, action in enumerate(actions, start=1):
            text: Any = action() if callable(action) else action
            step = None if text is None else self.step(task, text, number)
            if step is None:
                return Trace(task, tuple(steps), broken=True)
            steps.append(step)
            if step.terminated or step.truncated:
                break
        return Trace(task, tuple(steps))

    def add_counts(self, other: "Player") -> None:
        """Add the real steps and resets of another player to the own ones."""
        self.steps += other.steps
        self.resets += other.resets

    def step(self, task: Task, action: str, number: int) -> Played | None:
        """Take one action; None with a fault where the answer is not one."""
        where = f"task {task.id!r}, step {number}, action {action!r:.80}"
        self.steps += 1
        result = self.call("step", where, lambda: self.env.step(action))
        if result is None:
            return None
        if not (isinstance(result, tuple) and len(result) == 5):
            count = len(result) if isinstance(result, tuple) else f"{result!r:.60}"
            apart = ": terminated and truncated apart" if count == 4 else ""
            cure = f"return five values (it returned {count}){apart}"
            self.findings.fault(_STEP, where, cure)
            return None
        reward, terminated, truncated, info = result[1:]
        obs = read_text(self.findings, self.env, result[0], "step", where)
        if obs is None:
            return None
        if not can_be_read(self.findings, where, result[1:]):
            return None
        if not terminated:  # of an end nobody reads the state
            warn_of_empty_state(self.findings, obs, where)
        self.observation = obs
        flags = (info.get(name) for name in ("success", "invalid", "reveals"))
        return Played(
            action,
            obs,
            float(reward),
            bool(terminated),
            bool(truncated),
            *(None if flag is None else bool(flag) for flag in flags),
        )


def instruction_of(task: Task, info: dict[str, Any]) -> str:
    """Return the instruction of a task, or else the one of its reset."""
    return task.instruction or str(info.get("instruction", ""))


def is_json(value: Any) -> bool:
    """Return whether a value can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
