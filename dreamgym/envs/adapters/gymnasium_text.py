"""Gymnasium environments as text, by a plain rule (gymnasium_spaces.py).

"gymnasium:ID", "gym:ID" or "gym:ID?name=value&..." (arguments of gymnasium.make):
  observation 314          a number; a Dict has a line for each part, by its name
  parts 3 0 3 2            what `decode` of the environment says of it, where it has one
  S F [F] F                its rendering, with render_mode=ansi
  reward -1                of the last step
  move east right          an action, by its name; without names `action 2`

A task is a seed. An episode succeeds where `info` says so (`success`, `is_success`);
else where it terminates with the best reward that any end has in the environment's own
table of transitions `P` (Taxi, FrozenLake, CliffWalking); without a table, where its
return reaches the environment's `reward_threshold`; and without one, where it
terminates with a positive last reward. Where the table draws no lots, a shortest way to
a successful end is the expert's plan.
"""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np

from dreamgym.envs.adapters.gymnasium_spaces import (
    action_texts,
    instruction_in,
    observation_lines,
    unsupported_observation,
)
from dreamgym.envs.adapters.gymnasium_tables import (
    Table,
    best_end,
    draws_lots,
    holds_in_play,
    is_transformed,
    place_in,
    shortest_plan,
    table_of,
)
from dreamgym.envs.base import SPLITS, TextEnv
from dreamgym.envs.importing import named_settings
from dreamgym.envs.limits import is_step_limit
from worldmodel.data.records import Task

PREFIX = "gymnasium:"
PREFIXES = (PREFIX, "gym:")
SEEDS = 1000
"""Tasks of a split, at most; and seeds among which different starts are looked for."""

LIMITS = ("max_episode_steps", "_max_episode_steps", "max_steps")
"""Attributes by which environments without a registered limit name theirs."""
_WORDS = {"True": True, "False": False, "None": None}


class GymnasiumText(TextEnv):
    """A Gymnasium environment with text as its interface."""

    gym_id: ClassVar[str] = ""
    gym_options: ClassVar[Mapping[str, Any]] = {}
    max_episode_steps: int | None = None
    has_true_table: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._env = gymnasium.make(self.gym_id, **self.gym_options)
        self._actions = action_texts(self._env)
        table = table_of(self._env)
        self._table = table if self.has_true_table else None
        self._best_end = None if self._table is None else best_end(self._table)
        # What a table does not say, as a passenger's change of mind, is drawn by lot.
        refuted = table is not None and not self.has_true_table
        self.deterministic = not refuted and _determinism(self._env, self._table)
        spec = self._env.spec
        self._threshold = None if spec is None else spec.reward_threshold
        self._mask: list[bool] | None = None
        self._open = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the episode of a seed: the task's, or the one that is given."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        seed = seed if task is None else task.options.get("seed", seed)
        observation, info = self._env.reset(seed=seed)
        self._observation, self._open, self._steps = observation, True, 0
        self._mask = _mask_of(info, self._env.action_space)
        self._return = 0.0
        name = re.split("[/:]", self.gym_id)[-1]
        name = name.rpartition("-v")[0] or name
        instruction = instruction_in(self._env.observation_space, observation)
        return self._text(0.0), {"instruction": instruction or f"win {name}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, such as `action 2`, or any text where actions are texts.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        self._steps += 1
        late = self._steps >= (self.max_episode_steps or math.inf)
        actions = self._env.action_space if self._actions is None else self._actions
        if action not in actions:
            self._open = not late
            text = f"{self._text(0.0)}\nunknown action"
            return text, 0.0, False, late, {"success": False, "invalid": True}
        masked = self._mask is not None and action not in self._possible()
        result = self._env.step(
            action if self._actions is None else self._actions[action]
        )
        self._observation, reward, terminated, truncated, info = result
        self._mask = _mask_of(info, self._env.action_space)
        reward, terminated = float(reward), bool(terminated)
        self._return += reward
        # Refused actions take steps, and cost nothing: an episode that they have cut
        # short has not reached its return.
        success = self._succeeded(reward, terminated, bool(truncated), info)
        truncated = (bool(truncated) or late) and not terminated
        self._open = not (terminated or truncated)
        step_info = {"success": success, "invalid": masked, **_flags(info)}
        return self._text(reward), reward, terminated, truncated, step_info

    def _possible(self) -> list[str]:
        """Return the actions of the space that no mask rules out."""
        assert self._actions is not None
        if self._mask is None:
            return list(self._actions)
        pairs = zip(self._actions, self._mask, strict=True)
        return [action for action, possible in pairs if possible]

    def _succeeded(
        self, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Any]
    ) -> bool:
        for name in ("success", "is_success"):
            if info.get(name) is not None:
                if isinstance(info[name], str):
                    raise TypeError(
                        f"info[{name!r}] must be a bool, got {info[name]!r}"
                    )
                return bool(info[name])
        if self._table is not None:
            return terminated and reward == self._best_end
        if self._threshold is not None:
            return (terminated or truncated) and self._return >= self._threshold
        return terminated and reward > 0

    def _text(self, reward: float) -> str:
        lines = self._lines()
        if isinstance(self._observation, int | np.integer):
            lines += _decoded(self._env, self._observation)
        if self._env.render_mode == "ansi":
            lines += _rendering(self._env.render())
        return "\n".join([*lines, f"reward {reward:g}"])

    def _lines(self) -> list[str]:
        return observation_lines(self._env.observation_space, self._observation)

    def tasks(self, split: str) -> list[Task]:
        """Return seeds; where no lots are drawn, one of every start, each in one split.

        With fewer than 10 starts every split has seeds of its own, and all are alike.
        """
        starts: dict[str, int] = {}
        for seed in range(SEEDS if self.deterministic else 0):
            self._observation = self._env.reset(seed=seed)[0]
            starts.setdefault("\n".join(self._lines()), seed)
        first = SEEDS * SPLITS.index(split)
        seeds = list(range(first, first + SEEDS))
        if len(starts) >= 10:
            seeds = [s for start, s in starts.items() if _split_of(start) == split]
        self._open = False
        return [
            Task(
                id=f"{self.gym_id}-{seed}",
                instruction="",
                env=PREFIX + self.gym_id,
                family=self.gym_id,
                split=split,
                options={"seed": seed},
            )
            for seed in seeds
        ]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class GymnasiumTextWithActions(GymnasiumText):
    """A Gymnasium environment whose actions can be listed.

    A class of its own, because an environment lists actions if it has the method
    (envs/base.py, HasValidActions).
    """

    def valid_actions(self) -> list[str]:
        """Return every action of the space; those of `info["action_mask"]`, if any."""
        return self._possible()


class GymnasiumTextWithExpert(GymnasiumTextWithActions):
    """A Gymnasium environment whose table of transitions draws no lots.

    It has an expert (envs/base.py, HasExpert).
    """

    plans_from_any_state = True

    def expert(self) -> list[str]:
        """Return a shortest plan to a successful end; empty where there is none."""
        assert self._table is not None
        assert self._actions is not None
        start = place_in(self._table, self._env)
        assert start is not None
        plan = shortest_plan(self._table, start, self._best_end)
        texts = {value: text for text, value in self._actions.items()}
        return [texts[action] for action in plan]


def adapter(spec: str) -> type[GymnasiumText]:
    """Return the class of "gymnasium:ID?name=value", made anew without arguments.

    Raises:
      ValueError: Gymnasium does not know the id, or its spaces are not text.
    """
    gym_id, _, query = spec.partition(":")[2].partition("?")
    options = {k: _value(spec, k, v) for k, v in named_settings(spec, query).items()}
    try:
        with warnings.catch_warnings():  # the error says it too
            warnings.simplefilter("ignore", DeprecationWarning)
            env = gymnasium.make(gym_id, **options)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise ValueError(f"environment {spec!r}: {error}") from error
    except Exception as error:  # whatever an environment's __init__ raises
        raise ValueError(
            f"environment {spec!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    try:
        _check_spaces(env)
        true_table = _true_table(env)
        base, limit = _class_of(env, true_table), _step_limit(env)
    except _NoTextError as error:
        raise ValueError(
            f"{spec}: {error}; write an adapter, a dreamgym.TextEnv "
            "(docs/how-to/environments.md)"
        ) from None
    except Exception as error:  # whatever its reset or step raises
        raise ValueError(
            f"environment {spec!r} cannot be played: {type(error).__name__}: {error}"
        ) from error
    finally:
        env.close()
    members = {
        "gym_id": gym_id,
        "gym_options": options,
        "max_episode_steps": limit,
        "has_true_table": true_table is not None,
        "__doc__": spec,
    }
    adapted: Any = type(base.__name__, (base,), members)
    return adapted


class _NoTextError(ValueError):
    """An environment whose observations or actions are no text."""


def _check_spaces(env: gymnasium.Env) -> None:
    """Raise an error where observations or actions are no text."""
    if (part := unsupported_observation(env.observation_space)) is not None:
        raise _NoTextError(
            "expected observations of Text, Discrete, MultiDiscrete, MultiBinary, a "
            f"small Box, or a Dict or Tuple of these, got {part}"
        )
    try:
        action_texts(env)
    except ValueError as error:
        raise _NoTextError(str(error)) from None


def _true_table(env: gymnasium.Env) -> Table | None:
    """Return the table of an environment that plays as it says, or None.

    Options may draw lots that `P` does not hold, as in Taxi with a fickle passenger.
    """
    table = table_of(env)
    return table if table is not None and holds_in_play(table, env) else None


def _class_of(env: gymnasium.Env, table: Table | None) -> type[GymnasiumText]:
    """Return the class for an environment with this true table."""
    if action_texts(env) is None:
        return GymnasiumText
    if table is None or draws_lots(table):
        return GymnasiumTextWithActions
    env.reset(seed=0)
    # Where the environment stands in its table has to be known, too.
    place = place_in(table, env)
    return GymnasiumTextWithActions if place is None else GymnasiumTextWithExpert


_MARKED = re.compile(r"\x1b\[4\d[;\d]*m(.+?)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[;\d]*m")


def _rendering(text: Any) -> list[str]:
    """Return a rendering as lines; what its colour of the ground marks has brackets."""
    plain = _ESCAPE.sub("", _MARKED.sub(r"[\1]", str(text)))
    return [line.rstrip() for line in plain.splitlines() if line.strip()]


def _decoded(env: gymnasium.Env, observation: Any) -> list[str]:
    """Return what `decode` of an environment says of its number, where it has one."""
    decode: Any = getattr(env.unwrapped, "decode", None)
    others = (gymnasium.RewardWrapper, gymnasium.ActionWrapper)
    if decode is None or is_transformed(env, besides=others):
        return []
    try:
        return [f"parts {' '.join(map(str, decode(observation)))}"]
    except Exception:  # another kind of decode
        return []


def _step_limit(env: gymnasium.Env) -> int | None:
    """Return the steps of an episode, by the id or the environment itself."""
    declared = None if env.spec is None else env.spec.max_episode_steps
    if is_step_limit(declared):
        return declared
    env.reset(seed=0)  # some know it only then
    for limit in (getattr(env.unwrapped, name, None) for name in LIMITS):
        if limit is not None and is_step_limit(limit):
            return int(limit)
    return None


def _mask_of(info: Mapping[str, Any], space: gymnasium.Space) -> list[bool] | None:
    """Return which actions are possible, where `info` has a mask of them all."""
    mask = info.get("action_mask")
    if not isinstance(space, gymnasium.spaces.Discrete):
        return None  # masks of other spaces have another form
    if mask is None or np.shape(mask) != (int(space.n),) or not np.any(mask):
        return None
    return [bool(flag) for flag in mask]


def _determinism(env: gymnasium.Env, table: Table | None) -> bool | None:
    """Return whether an environment draws no lots; None without a table or a word.

    Gymnasium has no such flag, so that only a bool counts as a word.
    """
    if table is not None:
        return not draws_lots(table)
    declared = getattr(env.unwrapped, "deterministic", None)
    return bool(declared) if isinstance(declared, bool | np.bool_) else None


def _flags(info: Mapping[str, Any]) -> dict[str, bool]:
    """Return what a step's `info` says in the words of this contract."""
    return {
        name: bool(info[name])
        for name in ("invalid", "reveals")
        if isinstance(info.get(name), bool | np.bool_)
    }


def _split_of(start: str) -> str:
    """Seven of ten starts are train, one is dev, two are test, by a hash."""
    place = int(hashlib.sha256(start.encode()).hexdigest(), 16) % 10
    return "train" if place < 7 else "dev" if place == 7 else "test"


def _value(spec: str, name: str, text: str) -> Any:
    """A JSON value or one of Python's words, such as false or 4; else the text itself.

    Raises:
      ValueError: there is no value.
    """
    if not text:
        raise ValueError(f"environment {spec!r}: expected {name}=value, got no value")
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
