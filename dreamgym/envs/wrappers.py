"""Wrappers that make states out of raw observations: memory, history, names, length.

    class Remembering(wrappers.RecentReplies):     # --env my_module:Remembering
        def __init__(self):
            super().__init__(MyEnv(), count=3)

Experience models and policies read the instruction, the present state and the last
actions. What decides must therefore stand in the state. Each wrapper adds or shortens
lines of the observation; tasks, expert and valid actions are those of the environment
that it wraps. Where several are combined, `SplitLines` comes first, around the
environment itself, then `RecentReplies`, because it records every line that is new to
it; then `KeepLines`, and `ShortPages` last.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, SupportsFloat

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.spaces import AnyText
from dreamgym.envs.tools.facts import is_result, messages_of, split_facts
from dreamgym.envs.tools.tool_env import ToolEnv
from worldmodel.data.records import State, Task

MAX_REPLY_CHARACTERS = 200
"""Characters of an action, and of its reply, that `RecentReplies` repeats at most."""

_FORWARDED = ("tasks", "expert", "valid_actions", "variations")
"""Methods of an environment that its wrappers have, too."""
_TRANSLATED = ("tasks", "expert", "valid_actions", "variations", "render_state")
"""Methods of an environment whose texts `JoinedNames` translates."""
_TEXTS_OF_INFO = ("instruction", "tools", "tool_schemas", "calls")
"""What `info` holds at a reset that the agent reads, or is compared with."""

Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]


def first_word(line: str) -> str:
    """Return the first word of a line, without the punctuation at its end."""
    return line.split(maxsplit=1)[0].rstrip(":,.") if line.strip() else ""


def _owner(wrapper: gymnasium.Wrapper, name: str, forwarded: Iterable[str]) -> Any:
    """Return the wrapped environment that has a method.

    Raises:
      AttributeError: none has it, or it is not forwarded.
    """
    owner = base.provider(wrapper.env, name) if name in forwarded else None
    if owner is None:
        raise AttributeError(f"{type(wrapper).__name__} has no attribute {name!r}")
    return owner


class _TextWrapper(gymnasium.Wrapper[str, str, str, str]):
    """Changes the observations of an environment; `begin` and `change` say how."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.observation_space = AnyText()  # the lines that are added need room

    def __getattr__(self, name: str) -> Any:
        """Return a capability of the environment: Gymnasium's wrappers forward none.

        Raises:
          AttributeError: the environment does not have it.
        """
        return getattr(_owner(self, name, _FORWARDED), name)

    def begin(self, lines: list[str]) -> list[str]:
        """Return the lines of the first state of an episode."""
        raise NotImplementedError

    def change(self, action: str, lines: list[str]) -> list[str]:
        """Return the lines of the state after an action."""
        raise NotImplementedError

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        """See gymnasium.Env."""
        obs, info = self.env.reset(**kwargs)
        lines = obs.splitlines()
        return self._state_text(lines, self.begin(lines)), info

    def render_state(self, state: State) -> str:
        """Return a state as text: the environment does not know the added lines."""
        return "\n".join(state)

    def step(self, action: str) -> Step:
        """See gymnasium.Env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lines = obs.splitlines()
        text = self._state_text(lines, self.change(action, lines))
        return text, reward, terminated, truncated, info

    def added(self, before: list[str], after: list[str]) -> list[str]:
        """Return the lines that this wrapper adds to a state."""
        return [line for line in after if line not in before]

    def _state_text(self, before: list[str], after: list[str]) -> str:
        """Return the text of a state; a `ToolEnv` lists values of the new lines too."""
        if isinstance(env := self.unwrapped, ToolEnv):
            instruction, lines = env.sight_texts()
            added = messages_of(self.added(before, after))
            env.replace_sight(instruction, [*lines, *added])
        return "\n".join(after)


class RecentReplies(_TextWrapper):
    """Adds the last actions with what the environment answered to each.

    For environments whose replies are read once and needed later, such as the value
    that a tool returned. The reply of a `ToolEnv` is all lines from its first line
    `result ...` on, that of other environments the lines that were not there before
    the action.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        count: int = 4,
        is_reply: Callable[[str], bool] | None = None,
    ):
        """Wrap an environment.

        Args:
          count: the actions that are repeated, the newest last.
          is_reply: says of a line whether it is a reply, whether or not it stood there
            before.

        Raises:
          ValueError: `count` is below 1.
        """
        super().__init__(env)
        if count < 1:
            raise ValueError(f"count must be >= 1, got {count}")
        self.count, self.is_reply = count, is_reply
        self._before: list[str] = []
        self._replies: list[tuple[str, str]] = []
        self._repeated: list[str] = []

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        self._before, self._replies, self._repeated = lines, [], []
        return lines

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        if self.is_reply is not None:
            new = [line for line in lines if self.is_reply(line)]
        elif isinstance(self.unwrapped, ToolEnv):  # its results stand last
            new = list(itertools.dropwhile(lambda line: not is_result(line), lines))
        else:
            new = [line for line in lines if line not in self._before]
        earlier = [f"earlier {done}: {reply}" for done, reply in self._replies]
        self._repeated = [x for _, reply in self._replies for x in reply.split("; ")]
        texts = (" ".join(action.split()), "; ".join(new) or "nothing new")
        done, reply = (text[:MAX_REPLY_CHARACTERS] for text in texts)
        self._before = lines
        self._replies = [*self._replies, (done, reply)][-self.count :]
        return [*earlier, *lines]

    def added(self, before: list[str], after: list[str]) -> list[str]:
        """Return the replies that are repeated, without their actions."""
        del before, after
        return self._repeated


class KeepLines(_TextWrapper):
    """Keeps lines that were seen before, until a line with the same name comes.

    For environments that show only what is near: what was seen elsewhere stands on as
    `last seen LINE`. The name of a line is by default its first word.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        name_of: Callable[[str], str] = first_word,
        names: Iterable[str] | None = None,
    ):
        """Wrap an environment.

        Args:
          name_of: returns the name of a line; of several lines with one name, also of
            one state, the last one is kept.
          names: the names of the lines that are kept (None: all).

        Raises:
          ValueError: `names` is one text.
        """
        super().__init__(env)
        if isinstance(names, str):
            raise ValueError(f"names must be a list of texts, got {names!r}")
        self.name_of, self.names = name_of, None if names is None else frozenset(names)
        self._seen: dict[str, str] = {}

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        self._seen = {}
        return self.change("", lines)

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        del action
        present = {self.name_of(line): line for line in lines}
        absent = [x for name, x in self._seen.items() if name not in present]
        self._seen |= {
            name: line
            for name, line in present.items()
            if name and (self.names is None or name in self.names)
        }
        return [*(f"last seen {line}" for line in absent), *lines]


class ShortPages(_TextWrapper):
    """Cuts long observations to their first, their last and their new lines.

    For pages of which most stays as it is. What is left out is counted in its place.
    """

    def __init__(self, env: gymnasium.Env, lines: int = 40, last: int = 3):
        """Wrap an environment; observations of up to `lines` lines stay as they are.

        Args:
          last: lines at the end that are always shown, where the place and the reply to
            an action usually stand. They count among the `lines`.

        Raises:
          ValueError: `last` is negative, or `lines` not larger than `last` + 1.
        """
        super().__init__(env)
        if last < 0 or lines < last + 2:
            raise ValueError(
                f"last must be >= 0 and lines >= last + 2, got {last} and {lines}"
            )
        self.lines, self.last = lines, last
        self._before: frozenset[str] = frozenset()

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        self._before = frozenset()
        return self.change("", lines)

    def added(self, before: list[str], after: list[str]) -> list[str]:
        """Return nothing: counts of lines are no values."""
        del before, after
        return []

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        del action
        before, self._before = self._before, frozenset(lines)
        if len(lines) <= self.lines:
            return lines
        end = len(lines) - self.last
        top = (self.lines - self.last) // 2
        new = [i for i in range(top, end) if lines[i] not in before]
        indices = [*range(top), *new][: self.lines - self.last]
        indices += range(end, len(lines))
        out: list[str] = []
        for i, following in zip(indices, [*indices[1:], len(lines)], strict=True):
            out.append(lines[i])
            left = lines[i + 1 : following]
            if len(left) == 1:  # its count would be no shorter
                out += left
            elif left:
                out.append(f"({len(left)} lines left out)")
        return out


class SplitLines(_TextWrapper):
    """Writes one fact a line: sentences of prose, and values of JSON as `key: value`.

    For observations of one long line. Models write the lines that change and copy the
    others, so of a line that holds a whole page much is written at every step. Each
    sentence of the result of a `ToolEnv` begins with `result`, as `RecentReplies`
    expects.
    """

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        return [fact for line in lines for fact in split_facts(line)]

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        del action
        return self.begin(lines)


class JoinedNames(gymnasium.Wrapper[str, str, str, str]):
    """Writes names of several words as one word, `living_room` for `living room`.

    Models then copy a name as one thing. Actions are translated back.
    """

    def __init__(self, env: gymnasium.Env, names: Iterable[str]):
        """Wrap an environment.

        Args:
          names: the names of several words, separated by single spaces.

        Raises:
          ValueError: a name has fewer than two words, or holds an underscore.
        """
        super().__init__(env)
        self.names = sorted(set(names), key=len, reverse=True)  # the longest first
        for name in self.names:
            if len(name.split()) < 2 or "_" in name:
                raise ValueError(
                    f"a name must have two words and no underscore, got {name!r}"
                )

    def join(self, text: str) -> str:
        """Return a text with joined names."""
        for name in self.names:
            text = _replace(text, name, name.replace(" ", "_"))
        return text

    def split(self, text: str) -> str:
        """Return a text with the names as the environment writes them."""
        for name in self.names:
            text = _replace(text, name.replace(" ", "_"), name)
        return text

    def reset(self, *, seed=None, options=None) -> tuple[str, dict[str, Any]]:
        """See gymnasium.Env."""
        given = dict(options or {})
        if isinstance(task := given.get("task"), Task):
            given["task"] = _with_texts(task, self.split)
        obs, info = self.env.reset(seed=seed, options=given or options)
        texts = {k: info[k] for k in _TEXTS_OF_INFO if k in info}
        self._join_sight()
        return self.join(obs), info | _translated(texts, self.join)

    def step(self, action: str) -> Step:
        """See gymnasium.Env."""
        obs, reward, terminated, truncated, info = self.env.step(self.split(action))
        self._join_sight()
        return self.join(obs), reward, terminated, truncated, info

    def _join_sight(self) -> None:
        """Let a `ToolEnv` list values with joined names."""
        if isinstance(env := self.unwrapped, ToolEnv):
            instruction, lines = env.sight_texts()
            env.replace_sight(self.join(instruction), list(map(self.join, lines)))

    def __getattr__(self, name: str) -> Any:
        """Return the capability of the environment, with joined names.

        Raises:
          AttributeError: the environment does not have it.
        """
        method = getattr(_owner(self, name, _TRANSLATED), name)
        if name in ("expert", "valid_actions"):
            return lambda: self._joined(method())
        if name == "render_state":
            return lambda state: method(tuple(map(self.split, state)))
        if name == "tasks":
            return lambda split: self._joined_tasks(method(split))
        return lambda task, rng: self._joined_tasks(
            method(_with_texts(task, self.split), rng)
        )

    def _joined(self, actions: Any) -> Any:
        """Return a list of actions with joined names, other things as they are."""
        if isinstance(actions, str) or not isinstance(actions, Iterable):
            return actions  # a mistake, which `dreamgym check` names
        return [self.join(a) if isinstance(a, str) else a for a in actions]

    def _joined_tasks(self, tasks: Iterable[Task]) -> list[Task]:
        return [_with_texts(task, self.join) for task in tasks]


def _replace(text: str, old: str, new: str) -> str:
    """Replace a name where it is no part of a longer word."""
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, text)


def _translated(value: Any, translate: Callable[[str], str]) -> Any:
    """Return plain data with all its texts but the keys translated."""
    if isinstance(value, str):
        return translate(value)
    if isinstance(value, dict):
        return {k: _translated(x, translate) for k, x in value.items()}
    if isinstance(value, list | tuple):
        return [_translated(x, translate) for x in value]
    return value


def _with_texts(task: Task, translate: Callable[[str], str]) -> Task:
    """Return a task whose instruction and first state are translated."""
    return dataclasses.replace(
        task,
        instruction=translate(task.instruction),
        initial_state=tuple(map(translate, task.initial_state)),
    )
