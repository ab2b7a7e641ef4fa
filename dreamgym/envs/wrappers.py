"""Wrappers that make states out of raw observations: memory, history, names, length.

    class Remembering(wrappers.RecentReplies):     # --env my_module:Remembering
        def __init__(self):
            super().__init__(MyEnv(), count=3)

An experience model predicts the next state from the present one, and a policy sees
nothing else but its last actions. What decides must therefore stand in the state. Each
wrapper adds or shortens lines of the observation; tasks, expert, valid actions and all
else are those of the environment that it wraps. They can be combined in any order.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsFloat

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.spaces import AnyText
from worldmodel.data.records import Task

MAX_REPLY_CHARACTERS = 200
"""Characters of a reply that `RecentReplies` repeats, at most."""

_TRANSLATED = ("tasks", "expert", "valid_actions", "variations")
"""Methods of an environment whose texts `JoinedNames` translates."""

Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]


def first_word(line: str) -> str:
    """Return the first word of a line, without the punctuation at its end."""
    return line.split(maxsplit=1)[0].rstrip(":,.") if line.strip() else ""


class _TextWrapper(gymnasium.Wrapper[str, str, str, str]):
    """Changes the observations of an environment; `begin` and `change` say how."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.observation_space = AnyText()  # the lines that are added need room

    def begin(self, lines: list[str]) -> list[str]:
        """Return the lines of the first state of an episode."""
        raise NotImplementedError

    def change(self, action: str, lines: list[str]) -> list[str]:
        """Return the lines of the state after an action."""
        raise NotImplementedError

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        """See gymnasium.Env."""
        obs, info = self.env.reset(**kwargs)
        return "\n".join(self.begin(obs.splitlines())), info

    def step(self, action: str) -> Step:
        """See gymnasium.Env."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        text = "\n".join(self.change(action, obs.splitlines()))
        return text, reward, terminated, truncated, info


class RecentReplies(_TextWrapper):
    """Adds the last actions with what the environment answered to each.

    For environments whose replies are read once and needed later, such as the value
    that a tool returned. A reply is the lines that were not there before the action.
    """

    def __init__(self, env: gymnasium.Env, count: int = 4):
        """Wrap an environment; `count` actions are repeated, the newest last.

        Raises:
          ValueError: `count` is below 1.
        """
        super().__init__(env)
        if count < 1:
            raise ValueError(f"count must be >= 1, got {count}")
        self.count = count
        self._before: list[str] = []
        self._replies: list[str] = []

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        self._before, self._replies = lines, []
        return lines

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        earlier = [f"earlier {reply}" for reply in self._replies[-self.count :]]
        new = [line for line in lines if line not in self._before]
        reply = f"{action}: {'; '.join(new) or 'nothing new'}".replace("\n", " ")
        self._before = lines
        self._replies = [*self._replies, reply[:MAX_REPLY_CHARACTERS]][-self.count :]
        return [*earlier, *lines]


class KeepLines(_TextWrapper):
    """Keeps lines that were seen before, until a line with the same head comes.

    For environments that show only what is near: what was seen elsewhere stands on as
    `last seen LINE`. A head is by default the first word of a line.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        head: Callable[[str], str] = first_word,
        heads: Iterable[str] | None = None,
    ):
        """Wrap an environment.

        Args:
          head: returns what names a line; lines of the same head replace each other.
          heads: the heads of the lines that are kept (None: all).
        """
        super().__init__(env)
        self.head, self.heads = head, None if heads is None else frozenset(heads)
        self._seen: dict[str, str] = {}

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        self._seen = {}
        return self.change("", lines)

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        del action
        present = {self.head(line): line for line in lines}
        kept = [x for name, x in self._seen.items() if name not in present]
        self._seen |= {
            name: line
            for name, line in present.items()
            if name and (self.heads is None or name in self.heads)
        }
        return [*(f"last seen {line}" for line in kept), *lines]


class ShortPages(_TextWrapper):
    """Cuts long observations to their first lines and to those that are new.

    For pages of which most stays as it is. What is left out is counted in its place.
    """

    def __init__(self, env: gymnasium.Env, lines: int = 40):
        """Wrap an environment; observations of up to `lines` lines stay as they are.

        Raises:
          ValueError: `lines` is below 2.
        """
        super().__init__(env)
        if lines < 2:
            raise ValueError(f"lines must be >= 2, got {lines}")
        self.lines = lines
        self._before: frozenset[str] = frozenset()

    def begin(self, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        self._before = frozenset()
        return self.change("", lines)

    def change(self, action: str, lines: list[str]) -> list[str]:
        """See _TextWrapper."""
        del action
        before, self._before = self._before, frozenset(lines)
        if len(lines) <= self.lines:
            return lines
        top = self.lines // 2
        new = [i for i in range(top, len(lines)) if lines[i] not in before]
        shown = [*range(top), *new][: self.lines]
        out: list[str] = []
        for i, following in zip(shown, [*shown[1:], len(lines)], strict=True):
            out.append(lines[i])
            if (left := following - i - 1) > 0:
                out.append(f"({left} lines left out)")
        return out


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
            text = text.replace(name, name.replace(" ", "_"))
        return text

    def split(self, text: str) -> str:
        """Return a text with the names as the environment writes them."""
        for name in self.names:
            text = text.replace(name.replace(" ", "_"), name)
        return text

    def reset(self, *, seed=None, options=None) -> tuple[str, dict[str, Any]]:
        """See gymnasium.Env."""
        given = dict(options or {})
        if isinstance(task := given.get("task"), Task):
            given["task"] = _with_texts(task, self.split)
        obs, info = self.env.reset(seed=seed, options=given or options)
        if isinstance(info.get("instruction"), str):
            info = info | {"instruction": self.join(info["instruction"])}
        return self.join(obs), info

    def step(self, action: str) -> Step:
        """See gymnasium.Env."""
        obs, reward, terminated, truncated, info = self.env.step(self.split(action))
        return self.join(obs), reward, terminated, truncated, info

    def __getattr__(self, name: str) -> Any:
        """Return the capability of the environment, with joined names.

        Raises:
          AttributeError: the environment does not have it.
        """
        owner = base.provider(self.env, name) if name in _TRANSLATED else None
        if owner is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        method = getattr(owner, name)
        if name in ("expert", "valid_actions"):
            return lambda: self._joined(method())
        if name == "tasks":
            return lambda split: self._joined_tasks(method(split))
        return lambda task, rng: self._joined_tasks(
            method(_with_texts(task, self.split), rng)
        )

    def _joined(self, actions: Sequence[str]) -> list[str]:
        return [self.join(action) for action in actions]

    def _joined_tasks(self, tasks: Iterable[Task]) -> list[Task]:
        return [_with_texts(task, self.join) for task in tasks]


def _with_texts(task: Task, translate: Callable[[str], str]) -> Task:
    """Return a task whose instruction and first state are translated."""
    return dataclasses.replace(
        task,
        instruction=translate(task.instruction),
        initial_state=tuple(map(translate, task.initial_state)),
    )
