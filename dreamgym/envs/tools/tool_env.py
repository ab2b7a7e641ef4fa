"""Environments whose actions are tool calls: methods with type hints become tools.

methods under `@tool` -> signatures in the task's instruction, schemas in its options;
an action -> its calls, read and checked against the signatures -> the methods' answers,
or what is wrong with a call, as the next state:
  the lines of `observation()`, which the agent always sees, then
  earlier results 3, so many that do not fit MAX_RESULTS, where there are any, then
  result MESSAGE, a line for each call
A call that cannot be read, has wrong arguments, or at which the method raises
ValueError or LookupError changes nothing but the message, besides what the method has
done before: a reward that it added counts, as a cost of trying does. Every other
exception is a mistake in the environment. An action that is no call is an answer, which
`answer(text)` grades. A single question is the case without tools, with a
`max_episode_steps` of 1.
"""

import copy
import dataclasses
import functools
import hashlib
import inspect
import json
import random
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from dreamgym.envs.base import AnyText, TextEnv, as_tasks
from dreamgym.envs.tools.lines import (
    error_text,
    first_newest,
    result_text,
    texts_of,
)
from dreamgym.envs.tools.signatures import Signature, place_of, refuse_static_tool
from dreamgym.envs.tools.values import Sight, fair_shares
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import (
    Call,
    calls_option,
    read_action,
    write_answer,
    write_call,
)

MAX_ACTION = 4000
"""Characters of an action, at most: arguments may be long texts."""

MAX_CALLS = 64
"""Calls that `valid_actions` returns, at most."""

MAX_RESULTS = 16_000
"""Characters of the results of one action before its last one, at most."""

_SURROGATES = re.compile("[\ud800-\udfff]")
HOOKS = (
    "deterministic",
    "expert",
    "max_copies",
    "plans_from_any_state",
    "render_state",
    "reset_seconds",
    "step_seconds",
    "tasks",
    "variations",
)
"""What others ask an environment for that a ToolEnv does not define itself."""

STATE = frozenset(
    "_left_out _messages _open _replaced_sight _reward _steps _success _task "
    "_visible_messages".split()
)
"""Attributes in which a ToolEnv holds its episode."""

Method = TypeVar("Method", bound=Callable[..., Any])


@overload
def tool(method: Method) -> Method:
    """Mark the method below `@tool`."""


@overload
def tool(method: None = None) -> Callable[[Method], Method]:
    """Mark the method below `@tool()`."""


def tool(method: Method | None = None) -> Method | Callable[[Method], Method]:
    """Mark a method of a ToolEnv as a tool: every argument needs a type hint.

    Write `@tool` or `@tool()` above the method.
    """
    if method is None:
        return tool
    method._is_tool = True  # type: ignore[attr-defined]
    return method


class ToolEnv(TextEnv):
    """A base class for environments behind tools.

    A subclass defines `start(task)`, its tools, and as every environment `tasks(split)`
    and, where it is known, `expert()`. A tool returns its message; it ends the episode
    by `finish(success)` and pays by `add_reward(amount)`.
    """

    max_episode_steps: int = 16
    step_reward: float | int = 0.0
    """What every step earns beside the rest, refused ones too: below 0 a cost."""
    invalid_reward: float | int = 0.0
    """What a step with a call or an answer that is refused earns besides, as the reward
    component `invalid`: below 0 a cost."""
    tools: Mapping[str, "Signature"] = types.MappingProxyType({})
    _task: Task | None = None
    _open = False
    _replaced_sight: tuple[str, Sequence[str]] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = [name for base in reversed(cls.__mro__) for name in vars(base)]
        methods: dict[str, Any] = {name: getattr(cls, name, None) for name in names}
        for name in names:
            refuse_static_tool(cls, name)
        tools = {k: m for k, m in methods.items() if getattr(m, "_is_tool", False)}
        for name in sorted(STATE & vars(cls).keys()):
            if callable(vars(cls)[name]) or isinstance(vars(cls)[name], property):
                raise TypeError(
                    f"{cls.__qualname__} ({cls.__module__}): a method cannot be named "
                    f"{name!r}, in which every ToolEnv holds its episode: give it "
                    "another name"
                )
        where = f"{cls.__qualname__} ({cls.__module__})"
        if "tools" in vars(cls):  # they are made from the methods, below
            _refuse_tools(where, vars(cls)["tools"])
        for name in ("step_reward", "invalid_reward", "max_episode_steps"):
            _refuse_text(f"{where}: {name} must be a number", getattr(cls, name))
        for name in (*HOOKS, "start", "observation", "answer", "valid_actions"):
            if inspect.iscoroutinefunction(methods.get(name)):
                raise TypeError(f"{where}: {name} cannot be async: nothing awaits it")
        for name, method in tools.items():
            if name in HOOKS or hasattr(ToolEnv, name):
                raise TypeError(
                    f"{place_of(method)}: a tool cannot be named {name!r}, which means "
                    "something else in every environment: give the method another name"
                )
        cls.tools = {
            name: Signature.of_method(method) for name, method in tools.items()
        }

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "tools" and not _are_signatures(value):
            _refuse_tools(type(self).__qualname__, value)
        super().__setattr__(name, value)

    @functools.cached_property
    def action_space(self) -> AnyText:
        """Texts, longer ones than those of other environments."""
        return AnyText(MAX_ACTION)

    # --- what a subclass defines ---

    def start(self, task: Task) -> str:
        """Set up the episode of a task; return the first message."""
        raise NotImplementedError(f"{type(self).__name__} must define start(task)")

    def observation(self) -> str | Sequence[str]:
        """Return the lines that the agent always sees, as text or as a list."""
        return ""

    def answer(self, text: str) -> str:
        """Grade the agent's answer; return the message. By default it is an error."""
        del text
        raise ValueError(f"expected a call, such as {self._example()}")

    # --- what its tools call ---

    def finish(self, success: bool, reward: float | int | None = None) -> None:
        """End the episode; without a reward it pays 1 for success and 0 otherwise.

        The reward is added to what the step has earned so far.

        Raises:
          TypeError: one of them is a text.
        """
        _refuse_text("finish() expected a bool", success)
        self._success = bool(success)
        self.add_reward(float(success) if reward is None else reward)

    def add_reward(self, amount: float | int) -> None:
        """Add to the reward of the present step.

        Raises:
          TypeError: the amount is a text.
        """
        _refuse_text("a reward must be a number", amount)
        self._reward += float(amount)

    @staticmethod
    def call(tool: str, /, **arguments: Any) -> str:
        """Return a call as text, for `expert` and `valid_actions`."""
        return write_call(tool, arguments)

    @staticmethod
    def write_answer(content: str) -> str:
        """Return an answer as text, as strictly written as a call."""
        return write_answer(content)

    # --- Gymnasium's interface ---

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or the first train task.

        `start` gets a copy, so that an episode may write to the options of its task.
        """
        super().reset(seed=seed)
        task = self._as_listed((options or {}).get("task") or self._first_task())
        self._task, self._steps, self._open = task, 0, True
        self._success, self._reward = None, 0.0
        self._messages, self._visible_messages = ["ready"], []
        self._left_out, self._replaced_sight = 0, None
        try:
            message = self.start(task)
        except BaseException:  # there is no episode, also not the one before
            self._task, self._open = None, False
            raise
        expected = {"_task": task, "_open": True, "_steps": 0}
        self._refuse_changed("start", expected if self._success is None else {})
        if message:
            self._messages, self._visible_messages = [message], [str(message)]
        info: dict[str, Any] = {"instruction": task.instruction}
        if self.tools:
            info |= {"tools": self._tools_text(), "tool_schemas": self._schemas()}
            info["calls"] = self._expected_calls()
        return self._text(), info

    def _refuse_changed(self, where: str, expected: Mapping[str, Any]) -> None:
        """Refuse an attribute of an environment that has the name of one of ours."""
        changed = [k for k, value in expected.items() if getattr(self, k) is not value]
        if changed:
            self._open = False
            raise TypeError(
                f"{type(self).__qualname__}: {where} has set self.{changed[0]}, in "
                "which every ToolEnv holds its episode: give it another name"
            )

    def _as_listed(self, task: Task) -> Task:
        """Return the task without the tools that a recorded one has.

        They end its instruction, and stand in its options. So `start` reads the same
        task whenever it is played.
        """
        options = copy.deepcopy(dict(task.options))
        if not self.tools:
            return dataclasses.replace(task, options=options)
        instruction = task.instruction.removesuffix(self._tools_text()).rstrip()
        if options.get("tools") == self._schemas():
            del options["tools"]
        return dataclasses.replace(task, instruction=instruction, options=options)

    def _schemas(self) -> list[dict[str, Any]]:
        return [signature.schema() for signature in self.tools.values()]

    def _tools_text(self) -> str:
        return f"tools: {'; '.join(map(str, self.tools.values()))}"

    def _expected_calls(self) -> list[Any] | None:
        """Return the calls of the expert's plan, or None where there is none."""
        expert = getattr(self, "expert", None)
        if expert is None:
            return None
        try:
            return calls_option(expert())
        except (ValueError, LookupError):  # it knows no plan for this task
            return None

    def _first_task(self) -> Task:
        lister = as_tasks(self)
        tasks = [] if lister is None else lister.tasks("train")
        return tasks[0] if tasks else Task(id="task", instruction="")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action: calls in any form that `read_action` reads, or an answer.

        Several calls are made in their order until one ends the episode.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        self._steps, self._reward = self._steps + 1, float(self.step_reward)
        self._replaced_sight = None
        expected = {"_task": self._task, "_open": True, "_steps": self._steps}
        calls, _ = read_action(action, self.tools)
        if calls and self.tools:
            results = []
            for call in calls:
                if self._success is None:
                    results.append(self._attempt(self._call, call))
        else:
            results = [self._attempt(self._grade, action)]
        self._refuse_changed("a tool or answer()", expected)
        rows = [f"result {message}" for message, _ in results]
        # The last one is always in sight: how long it may be the environment decides.
        self._left_out = first_newest(rows[:-1], MAX_RESULTS)
        in_sight = results[self._left_out :]
        self._messages = [message or "ok" for message, _ in in_sight]
        self._visible_messages = [str(m) for m, failed in in_sight if m and not failed]
        failures = [failed for _, failed in results]
        terminated = self._success is not None
        truncated = not terminated and self._steps >= self.max_episode_steps
        self._open = not (terminated or truncated)
        rewards = {"task": self._reward}
        if any(failures) and self.invalid_reward:
            rewards["invalid"] = float(self.invalid_reward)
        info = {
            "rewards": rewards,
            "success": bool(self._success),
            "invalid": all(failures),  # else the action did something
        }
        return self._text(), sum(rewards.values()), terminated, truncated, info

    def _attempt(self, run: Callable[[Any], str], what: Any) -> tuple[str, bool]:
        """Return the message of a call or an answer, and whether it was invalid."""
        try:
            return run(what), False
        except (ValueError, LookupError) as error:
            return f"error: {error_text(error, what)}", True

    def _call(self, call: Call) -> str:
        if call.tool not in self.tools:
            raise ValueError(f"no tool {call.tool!r}; have {', '.join(self.tools)}")
        if not call.valid_json:
            raise ValueError(f"the arguments of {call.tool} are no JSON object")
        if _SURROGATES.search(json.dumps(call.arguments, ensure_ascii=False)):
            raise ValueError(f"an argument of {call.tool} has half of a surrogate pair")
        self.tools[call.tool].check(call.arguments)
        return result_text(self.run_tool(call.tool, call.arguments))

    def run_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the message of a tool for checked arguments: calls its method."""
        return getattr(self, name)(**arguments)

    def _grade(self, action: str) -> str:
        # Without tools an action that looks like a call is an answer all the same.
        content = read_action(action, self.tools).answer
        text = action if content is None else content
        if _SURROGATES.search(text):
            raise ValueError("the answer has half of a surrogate pair")
        return self.answer(text)

    def _text(self) -> str:
        visible_lines = texts_of(self.observation())
        earlier = f"earlier results {self._left_out}" if self._left_out else ""
        results = [f"result {message}" for message in self._messages]
        return "\n".join(part for part in (*visible_lines, earlier, *results) if part)

    # --- capabilities ---

    def fork(self) -> "ToolEnv":
        """Return a deep copy that continues from this moment.

        A subclass that holds what cannot be copied (a connection) sets `fork = None`.
        """
        return copy.deepcopy(self)

    def valid_actions(self) -> list[str]:
        """Return calls that the signatures allow, of values in sight.

        Values are taken from the instruction and the present state, at most MAX_VALUES
        for an argument, names and numbers first (values.py). Each tool has an
        equal share of MAX_CALLS. Whether a tool can use the values is not tried: a
        subclass that knows better overrides this.
        """
        sight = self._sight()
        calls = [
            [(name, arguments) for arguments in signature.candidates(sight)]
            for name, signature in self.likely_tools(sight).items()
        ]
        # Drawn by the text, and not by hash(): processes differ in that.
        draw = random.Random(hashlib.sha256(sight.text.encode()).hexdigest())
        return [write_call(*call) for call in fair_shares(calls, MAX_CALLS, draw)]

    def likely_tools(self, sight: Sight) -> Mapping[str, Signature]:
        """Return the tools that `valid_actions` calls, by default all.

        A subclass that knows which values in sight an argument can have returns
        signatures with narrower hints, such as a Literal.
        """
        del sight
        return self.tools

    def _sight(self) -> Sight:
        return Sight(*self.sight_texts(), unlikely=self.tools)

    def sight_texts(self) -> tuple[str, Sequence[str]]:
        """Return the instruction and the lines from which `valid_actions` has values.

        These are without errors and without the tools.
        """
        instruction = "" if self._task is None else self._task.instruction
        if not self._open:
            return instruction, []
        if self._replaced_sight is not None:
            return self._replaced_sight
        return instruction, [*texts_of(self.observation()), *self._visible_messages]

    def replace_sight(self, instruction: str, lines: Sequence[str]) -> None:
        """Set what `sight_texts` returns until the next step, for wrappers."""
        self._replaced_sight = instruction, lines

    def _require_task(self, method: str) -> None:
        if self._task is None:
            raise RuntimeError(f"{method}() needs a task: call reset() first")

    def _example(self) -> str:
        for signature in self.tools.values():
            return write_call(signature.name, dict.fromkeys(signature.hints, "..."))
        return "none: this environment has no tools, define answer(text)"


def _refuse_text(expected: str, value: Any) -> None:
    """Raise TypeError for a text, which Python would read as true, or as a number."""
    if isinstance(value, str | bytes):
        raise TypeError(f"{expected}, got the text {value!r:.80}")


def _are_signatures(value: Any) -> bool:
    """Return whether these can be the tools of an environment."""
    return bool(
        isinstance(value, Mapping)
        and value
        and all(isinstance(signature, Signature) for signature in value.values())
    )


def _refuse_tools(where: str, value: Any) -> None:
    """Raise TypeError for `tools` that are something of the environment's own."""
    raise TypeError(
        f"{where}: `tools` holds the signatures of the tools in every ToolEnv, got "
        f"{value!r:.80}: give the attribute another name"
    )
