"""Environments whose actions are tool calls: methods with type hints become tools.

methods under `@tool` -> signatures in the task's instruction; an action -> a call, read
and checked against the signature -> the method's answer, or what is wrong with the
call, as the next state:
  the lines of `observation()`, which the agent always sees, then
  result MESSAGE
A call that cannot be read, has wrong arguments, or at which the method raises
ValueError or LookupError changes nothing but the message; every other exception is a
mistake in the environment. A single question is the case without tools: the action is
an answer, `answer(text)` grades it, and `max_episode_steps` is 1.
"""

import copy
import hashlib
import inspect
import itertools
import json
import random
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from dreamgym.envs.base import AnyText, TextEnv, as_tasks
from worldmodel.data.records import Task
from worldmodel.text.tool_calls import read_call, write_call

MAX_ACTION = 4000
"""Characters of an action, at most: arguments may be long texts."""

MAX_VALUES = 12
"""Values that `valid_actions` tries for one argument, at most."""

MAX_CALLS = 64
"""Calls that `valid_actions` returns, at most."""

Method = TypeVar("Method", bound=Callable[..., Any])


def tool(method: Method) -> Method:
    """Mark a method of a ToolEnv as a tool: every argument needs a type hint."""
    method._is_tool = True  # type: ignore[attr-defined]
    return method


class ToolEnv(TextEnv):
    """A base class for environments behind tools.

    A subclass defines `start(task)`, its tools, and as every environment `tasks(split)`
    and, where it is known, `expert()`. A tool returns its message; it ends the episode
    by `finish(success)` and pays by `add_reward(amount)`.
    """

    max_episode_steps: int = 16
    tools: ClassVar[Mapping[str, "Signature"]] = {}
    _task: Task | None = None
    _open = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = [name for base in reversed(cls.__mro__) for name in vars(base)]
        methods: dict[str, Any] = {name: getattr(cls, name, None) for name in names}
        cls.tools = {
            name: Signature(method)
            for name, method in methods.items()
            if getattr(method, "_is_tool", False)
        }

    def __init__(self) -> None:
        super().__init__()
        self.action_space = AnyText(MAX_ACTION)

    # --- what a subclass defines ---

    def start(self, task: Task) -> str:
        """Set up the episode of a task; return the first message."""
        raise NotImplementedError(f"{type(self).__name__} must define start(task)")

    def observation(self) -> str | Sequence[str]:
        """Return the lines that the agent always sees, as text or as a list."""
        return ""

    def answer(self, text: str) -> str:
        """Answer an action that is no call; return the message. By default an error."""
        del text
        raise ValueError(f"expected a call, such as {self._example()}")

    # --- what its tools call ---

    def finish(self, success: bool, reward: float | None = None) -> None:
        """End the episode; without a reward it pays 1 for success and 0 otherwise."""
        self._success = bool(success)
        self.add_reward(float(success) if reward is None else reward)

    def add_reward(self, amount: float) -> None:
        """Add to the reward of the present step."""
        self._reward += float(amount)

    @staticmethod
    def call(tool: str, /, **arguments: Any) -> str:
        """Return a call as text, for `expert` and `valid_actions`."""
        return write_call(tool, arguments)

    # --- Gymnasium's interface ---

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or the first train task."""
        super().reset(seed=seed)
        task = (options or {}).get("task") or self._first_task()
        self._task, self._steps, self._open = task, 0, True
        self._success, self._reward = None, 0.0
        self._message = self.start(task) or "ready"
        signatures = "; ".join(map(str, self.tools.values()))
        info = {"tools": f"tools: {signatures}"} if signatures else {}
        return self._text(), {"instruction": task.instruction, **info}

    def _first_task(self) -> Task:
        lister = as_tasks(self)
        tasks = [] if lister is None else lister.tasks("train")
        return tasks[0] if tasks else Task(id="task", instruction="")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action: a call in any form that `read_call` reads, or an answer.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        self._steps, self._reward, invalid = self._steps + 1, 0.0, False
        try:
            self._message = self._run(action) or "ok"
        except (ValueError, LookupError) as error:
            message = str(error.args[0]) if error.args else type(error).__name__
            self._message, invalid = f"error: {message}", True
        terminated = self._success is not None
        truncated = not terminated and self._steps >= self.max_episode_steps
        self._open = not (terminated or truncated)
        info = {
            "rewards": {"task": self._reward},
            "success": bool(self._success),
            "invalid": invalid,
        }
        return self._text(), self._reward, terminated, truncated, info

    def _run(self, action: str) -> str:
        call = read_call(action)
        if call is None:
            return self.answer(action)
        if call.tool not in self.tools:
            if not self.tools:
                return self.answer(action)
            raise ValueError(f"no tool {call.tool!r}; have {', '.join(self.tools)}")
        if not call.valid_json:
            raise ValueError(f"the arguments of {call.tool} are no JSON object")
        self.tools[call.tool].check(call.arguments)
        return str(getattr(self, call.tool)(**call.arguments))

    def _text(self) -> str:
        lines = self.observation()
        visible_lines = [lines] if isinstance(lines, str) else lines
        return "\n".join(
            part for part in (*visible_lines, f"result {self._message}") if part
        )

    # --- capabilities ---

    def fork(self) -> "ToolEnv":
        """Return a deep copy that continues from this moment.

        A subclass that holds what cannot be copied (a connection) sets `fork = None`.
        """
        return copy.deepcopy(self)

    def valid_actions(self) -> list[str]:
        """Return calls that the signatures allow, of words and numbers in sight.

        Values are taken from the instruction and the present state. Whether the tool
        can use them is not tried: a subclass that knows better overrides this.
        """
        instruction = "" if self._task is None else self._task.instruction
        text = f"{self._text()}\n{instruction}" if self._open else instruction
        calls = [c for s in self.tools.values() for c in s.candidates(text)]
        if len(calls) <= MAX_CALLS:
            return calls
        # Drawn by the text, and not by hash(): processes differ in that.
        draw = random.Random(hashlib.sha256(text.encode()).hexdigest())
        return draw.sample(calls, MAX_CALLS)

    def _example(self) -> str:
        for signature in self.tools.values():
            return write_call(signature.name, dict.fromkeys(signature.hints, "..."))
        return "none: this environment has no tools, define answer(text)"


class Signature:
    """A tool's name, its arguments' types, and what it does."""

    def __init__(self, method: Callable[..., Any]):
        self.name = method.__name__
        doc = inspect.getdoc(method) or ""
        self.description = doc.split("\n")[0].rstrip(".")
        self.parameters = dict(list(inspect.signature(method).parameters.items())[1:])
        hints = typing.get_type_hints(method)
        for name, parameter in self.parameters.items():
            if name not in hints:
                raise TypeError(f"tool {self.name}: argument {name!r} needs a type")
            if parameter.kind not in (
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.KEYWORD_ONLY,
            ):
                raise TypeError(f"tool {self.name}: *args and **kwargs have no names")
        self.hints = {name: hints[name] for name in self.parameters}
        for name, hint in self.hints.items():
            try:
                hint_text(hint)
            except TypeError as error:
                raise TypeError(f"tool {self.name}: {name}: {error}") from None

    def __str__(self) -> str:
        parts = [
            f"{name}: {hint_text(self.hints[name])}"
            + ("" if p.default is p.empty else f" = {json.dumps(p.default)}")
            for name, p in self.parameters.items()
        ]
        return f"{self.name}({', '.join(parts)}) {self.description}".strip()

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise a ValueError that names the first argument which does not fit."""
        for name in arguments:
            if name not in self.hints:
                names = ", ".join(self.hints) or "none"
                raise ValueError(f"{self.name} has no argument {name!r}; have {names}")
        for name, parameter in self.parameters.items():
            if name not in arguments:
                if parameter.default is parameter.empty:
                    raise ValueError(f"{self.name} needs the argument {name!r}")
            elif not fits(arguments[name], self.hints[name]):
                value = json.dumps(arguments[name], ensure_ascii=False)
                want = hint_text(self.hints[name])
                raise ValueError(f"{name} must be {want}, got {value:.80}")

    def candidates(self, text: str) -> list[str]:
        """Return calls whose required arguments are words and numbers of a text."""
        required = {
            name: list(itertools.islice(_values(self.hints[name], text), MAX_VALUES))
            for name, p in self.parameters.items()
            if p.default is p.empty
        }
        product = itertools.islice(itertools.product(*required.values()), 1000)
        return [
            write_call(self.name, dict(zip(required, values, strict=True)))
            for values in product
        ]


_SIMPLE = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def hint_text(hint: Any) -> str:
    """Return a type hint as an agent reads it: int, "a" | "b", list[str], dict.

    Raises:
      TypeError: JSON has no such values.
    """
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in parts)
    if _is_union(hint):
        return " | ".join(map(hint_text, parts))
    if hint in (list, dict) or origin in (list, dict):
        inner = ", ".join(map(hint_text, parts))
        return f"{(origin or hint).__name__}{f'[{inner}]' if inner else ''}"
    supported = "str, int, float, bool, None, Literal, list, dict and unions of these"
    raise TypeError(f"expected a type of {supported}, got {hint}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value is of a type; an int is a float, a bool is no int."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return any(type(value) is type(p) and value == p for p in parts)
    if _is_union(hint):
        return any(fits(value, part) for part in parts)
    if hint in (int, float):
        kinds = (int,) if hint is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    if not isinstance(value, origin or hint):
        return False
    if origin is list:
        return all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return all(fits(item, parts[1]) for item in value.values())
    return True


_WORD = re.compile(r"[^\W_][\w.:/@-]*[\w/]|[^\W_]")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")


def _values(hint: Any, text: str) -> Iterable[Any]:
    """Return values of a type that stand in a text, each once, the first ones first."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return parts
    if _is_union(hint):
        return itertools.chain(*(_values(part, text) for part in parts))
    if hint is bool:
        return (False, True)
    if hint is str:
        return dict.fromkeys(_WORD.findall(text))
    if hint in (int, float):
        numbers = (float(n) for n in _NUMBER.findall(text))
        valid_numbers = (n for n in numbers if hint is float or n.is_integer())
        return dict.fromkeys(hint(n) for n in valid_numbers)
    return (None,) if hint is type(None) else ()
