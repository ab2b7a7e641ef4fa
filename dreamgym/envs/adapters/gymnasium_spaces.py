"""Values of Gymnasium spaces as text: observations as lines, actions as one line each.

Discrete(16), 3                           observation 3
Tuple(Discrete, Discrete), (14, 10)       observation 14 10
Dict(agent=Box(2), door=Discrete), ...    agent 0 3
                                          door 1
Box(2, 3)                                 observation 0 0.5 1
                                          observation 1 0 0
Text                                      its own lines

Numbers have four digits, and more where more stand before the point.
"""

import enum
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MAX_ACTIONS = 200
"""Actions of a space, at most: each one is a valid action."""
MAX_NUMBERS = 400
"""Numbers of a part of an observation, at most."""
LARGE = 1e15
"""Numbers from which on all digits would say nothing."""

OBSERVATION = "observation"


def unsupported_observation(space: spaces.Space) -> spaces.Space | None:
    """Return the part of an observation space that is no text; None if all is."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = map(unsupported_observation, _parts(space).values())
        return next((part for part in parts if part is not None), None)
    if is_text(space):
        return None
    listed = _is_count(space) or isinstance(space, spaces.Box)
    return None if listed and math.prod(space.shape or ()) <= MAX_NUMBERS else space


def is_text(space: spaces.Space) -> bool:
    """Return whether the values of a space are texts, as those of Text are.

    Other packages have spaces of their own for texts.
    """
    if isinstance(space, spaces.Text):
        return True
    if type(space).__module__.startswith("gymnasium."):
        return False
    try:
        return isinstance(space.sample(), str)
    except NotImplementedError:
        return False


def observation_lines(
    space: spaces.Space, value: Any, name: str = OBSERVATION
) -> list[str]:
    """Return an observation as lines that begin with the name of a part."""
    if is_text(space):
        lines = str(value).splitlines()
        return lines if name == OBSERVATION else _named(name, lines)
    if isinstance(space, spaces.Dict):
        prefix = "" if name == OBSERVATION else f"{name} "
        return [
            line
            for key, part in space.spaces.items()
            for line in observation_lines(part, value[key], f"{prefix}{key}")
        ]
    if isinstance(space, spaces.Tuple) and not all(map(_is_count, space.spaces)):
        return [
            line
            for i, part in enumerate(space.spaces)
            for line in observation_lines(part, value[i], f"{name} {i}")
        ]
    if isinstance(space, spaces.Box) and len(space.shape) > 1:
        rows = np.reshape(value, (space.shape[0], -1))
        return [f"{name} {_numbers(row)}" for row in rows]
    return [f"{name} {_numbers(value)}"]


def instruction_in(space: spaces.Space, value: Any) -> str:
    """Return the part of an observation that says what is to be done, or "".

    It is a text that is named `mission`, `instruction` or `goal`.
    """
    if isinstance(space, spaces.Dict):
        for key in ("mission", "instruction", "goal"):
            if key in space.spaces and is_text(space[key]):
                return str(value[key])
    return ""


def action_texts(env: gymnasium.Env) -> dict[str, Any] | None:
    """Return the text of each action of an environment, and what step() takes for it.

    None where actions are texts themselves. The actions of a Discrete space have the
    names that the environment gives them: `get_action_meanings()`, an Enum `actions`,
    or the list under "Action Space" in its documentation; else they are `action N`.

    Raises:
      ValueError: the space has other actions, or more than MAX_ACTIONS.
    """
    space = env.action_space
    if is_text(space):
        return None
    count = _action_count(space)
    if count is None or count > MAX_ACTIONS:
        raise ValueError(
            f"expected texts or at most {MAX_ACTIONS} actions of Discrete, "
            f"MultiDiscrete, MultiBinary, or a Dict or Tuple of these, got {space}"
        )
    if isinstance(space, spaces.Discrete):
        numbers = list(_counts(space)[0])
        names = _action_names(env, numbers) or [f"action {n}" for n in numbers]
        return dict(zip(names, numbers, strict=True))
    prefix = "" if isinstance(space, spaces.Dict) else "action "
    return {f"{prefix}{text}": value for text, value in _action_values(space)}


def _parts(space: spaces.Tuple | spaces.Dict) -> dict[Any, spaces.Space]:
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces))


def _named(name: str, lines: list[str]) -> list[str]:
    return [f"{name} {line}".rstrip() for line in lines or [""]]


def _numbers(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_numbers, value))
    array = np.ravel(np.asarray(value))
    if array.dtype.kind in "iub":
        return " ".join(str(int(n)) for n in array)
    return " ".join(map(_real, map(float, array)))


def _real(number: float) -> str:
    """Return a number with four digits, and all of those before the point; no -0."""
    if not abs(number) < LARGE:
        return f"{number:.4g}"
    if number.is_integer():
        return f"{number + 0.0:.0f}"
    return f"{number:.1f}" if abs(number) >= 1000 else f"{number:.4g}"


def _is_count(space: spaces.Space) -> bool:
    """Return whether the values of a space are whole numbers from small ranges."""
    if isinstance(space, spaces.Tuple):
        return all(map(_is_count, space.spaces))
    kinds = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return isinstance(space, kinds)


def _counts(space: spaces.Space) -> list[range]:
    """Return the numbers that each element of a space of counts may be."""
    if isinstance(space, spaces.Discrete):
        return [range(int(space.start), int(space.start) + int(space.n))]
    if isinstance(space, spaces.MultiBinary):
        return [range(2)] * math.prod(space.shape or ())
    assert isinstance(space, spaces.MultiDiscrete)
    pairs = zip(np.ravel(space.start), np.ravel(space.nvec), strict=True)
    return [range(int(a), int(a) + int(n)) for a, n in pairs]


def _action_count(space: spaces.Space) -> int | None:
    """Return the number of actions of a space; None where they cannot be counted."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        counts = [_action_count(part) for part in _parts(space).values()]
        finite = [count for count in counts if count is not None]
        return None if len(finite) < len(counts) else math.prod(finite)
    if not _is_count(space):
        return None
    return math.prod(len(r) for r in _counts(space))


def _action_values(space: spaces.Space) -> Iterator[tuple[str, Any]]:
    """Yield each action of a space as text, and what step() takes for it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(_parts(space))
        parts = [list(_action_values(part)) for part in _parts(space).values()]
        for combination in itertools.product(*parts):
            texts, values = zip(*combination, strict=True)
            if isinstance(space, spaces.Dict):
                pairs = zip(keys, texts, strict=True)
                named = " ".join(f"{key} {text}" for key, text in pairs)
                yield named, dict(zip(keys, values, strict=True))
            else:
                yield " ".join(texts), tuple(values)
        return
    for numbers in itertools.product(*_counts(space)):
        value: Any = numbers[0]
        if not isinstance(space, spaces.Discrete):
            value = np.array(numbers, space.dtype).reshape(space.shape or (-1,))
        yield " ".join(map(str, numbers)), value


# --- names of actions ---

_SECTION = re.compile(r"##\s*Action Space(.*?)(?:\n\s*##\s|\Z)", re.S)
_ENTRY = re.compile(r"^\s*[-*]\s*(\d+)\s*:\s*(.+?)\s*$", re.M)


def _action_names(env: gymnasium.Env, numbers: list[int]) -> list[str] | None:
    """Return names for all numbers of a Discrete space, each of one action."""
    base: Any = env.unwrapped
    actions: dict[int, str] = {}
    if hasattr(base, "get_action_meanings"):
        actions = dict(enumerate(base.get_action_meanings()))
    elif isinstance(kinds := getattr(base, "actions", None), enum.EnumMeta):
        members: Iterator[Any] = iter(kinds)
        actions = {member.value: member.name for member in members}
    elif section := _SECTION.search(type(base).__doc__ or ""):
        actions = {int(n): name for n, name in _ENTRY.findall(section[1])}
    names = [_plain(str(actions.get(number, ""))) for number in numbers]
    complete = len(actions) == len(numbers) and all(names)
    return names if complete and len(set(names)) == len(names) else None


def _plain(name: str) -> str:
    """Return a name in small letters and with single spaces, without marks."""
    return " ".join(re.sub(r"[^\w\s'-]", " ", name.replace("_", " ")).lower().split())
