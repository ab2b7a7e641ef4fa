"""Gymnasium environments with small discrete spaces as text, by a plain naming rule.

"gymnasium:ID" or "gymnasium:ID?name=value&..." (arguments of gymnasium.make):
  observation 314          a number of a Discrete space
  observation 14 10 0      the numbers of a Tuple or MultiDiscrete, in their order
  parts 3 0 3 2            what `decode` of the environment says of it, where it has one
  reward -1                of the last step
  action 2                 an action, as the agent writes it; several numbers likewise

A task is a seed. An episode succeeds where it terminates with the best reward that any
end has in the environment's own table of transitions `P` (Taxi, FrozenLake,
CliffWalking); without a table, where it terminates with a positive last reward. Where
the table draws no lots, a shortest way to such an end is the expert's plan.
"""

import hashlib
import itertools
import json
import math
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from dreamgym.envs.base import SPLITS, TextEnv
from worldmodel.data.records import Task

PREFIX = "gymnasium:"
SEEDS = 1000
"""Tasks of a split, at most; and seeds among which different starts are looked for."""

MAX_ACTIONS = 200
"""Actions of a space, at most: each one is a valid action."""

Table = Mapping[int, Mapping[int, list[Any]]]
"""P[state][action] -> (probability, next state, reward, terminated) of each outcome."""


class GymnasiumText(TextEnv):
    """A Gymnasium environment of discrete spaces, with text as its interface."""

    gym_id: ClassVar[str] = ""
    gym_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._env = gymnasium.make(self.gym_id, **self.gym_options)
        self._actions = _action_texts(self.gym_id, self._env.action_space)
        _number_list(self.gym_id, self._env.observation_space)
        self._table = _table_of(self._env)
        self._best_end = None if self._table is None else _best_end(self._table)
        self.deterministic = self._table is not None and not _draws(self._table)
        spec = self._env.spec
        self.max_episode_steps = None if spec is None else spec.max_episode_steps
        self._open = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the episode of a seed: the task's, or the one that is given."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        seed = seed if task is None else task.options.get("seed", seed)
        observation, _ = self._env.reset(seed=seed)
        self._observation, self._open, self._steps = observation, True, 0
        name = self.gym_id.split("/")[-1].rpartition("-v")[0] or self.gym_id
        return self._text(0.0), {"instruction": f"win {name}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, such as `action 2`.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        self._steps += 1
        late = self._steps >= (self.max_episode_steps or math.inf)
        if action not in self._actions:
            self._open = not late
            text = f"{self._text(0.0)}\nunknown action"
            return text, 0.0, False, late, {"success": False, "invalid": True}
        result = self._env.step(self._actions[action])
        self._observation, reward, terminated, truncated = result[:4]
        reward, terminated = float(reward), bool(terminated)
        truncated = (bool(truncated) or late) and not terminated
        self._open = not (terminated or truncated)
        good = reward > 0 if self._best_end is None else reward == self._best_end
        info = {"success": terminated and good, "invalid": False}
        return self._text(reward), reward, terminated, truncated, info

    def _text(self, reward: float) -> str:
        lines = [f"observation {_numbers(self._observation)}", f"reward {reward:g}"]
        decode: Any = getattr(self._env.unwrapped, "decode", None)
        if decode is not None:
            lines.insert(1, f"parts {' '.join(map(str, decode(self._observation)))}")
        return "\n".join(lines)

    def tasks(self, split: str) -> list[Task]:
        """Return seeds; where no lots are drawn, one of every start, each in one split.

        With fewer than 10 starts every split has seeds of its own, and all are alike.
        """
        starts: dict[str, int] = {}
        for seed in range(SEEDS if self.deterministic else 0):
            starts.setdefault(_numbers(self._env.reset(seed=seed)[0]), seed)
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

    def valid_actions(self) -> list[str]:
        """Return every action of the space."""
        return list(self._actions)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class GymnasiumTextWithExpert(GymnasiumText):
    """A Gymnasium environment whose table of transitions draws no lots.

    The expert is a class of its own, because an environment has one if it has the
    method (envs/base.py, HasExpert).
    """

    def expert(self) -> list[str]:
        """Return a shortest plan to a successful end; empty where there is none."""
        assert self._table is not None
        start = int(self._env.get_wrapper_attr("s"))
        plan = _shortest(self._table, start, self._best_end)
        texts = {value: text for text, value in self._actions.items()}
        return [texts[action] for action in plan]


def adapter(spec: str) -> type[GymnasiumText]:
    """Return the class of "gymnasium:ID?name=value", made anew without arguments.

    Raises:
      ValueError: Gymnasium does not know the id, or its spaces are not small.
    """
    gym_id, _, query = spec.removeprefix(PREFIX).partition("?")
    options = {k: _value(v) for k, v in urllib.parse.parse_qsl(query)}
    try:
        with warnings.catch_warnings():  # the error says it too
            warnings.simplefilter("ignore", DeprecationWarning)
            env = gymnasium.make(gym_id, **options)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise ValueError(f"environment {spec!r}: {error}") from error
    try:
        _action_texts(gym_id, env.action_space)
        _number_list(gym_id, env.observation_space)
        table = _table_of(env)
    finally:
        env.close()
    solvable = table is not None and not _draws(table)
    base = GymnasiumTextWithExpert if solvable else GymnasiumText
    members = {"gym_id": gym_id, "gym_options": options, "__doc__": spec}
    adapted: Any = type(base.__name__, (base,), members)
    return adapted


def _table_of(env: gymnasium.Env) -> Table | None:
    """Return the table of transitions that an environment has, if it has one."""
    return getattr(env.unwrapped, "P", None)


def _split_of(start: str) -> str:
    """Seven of ten starts are train, one is dev, two are test, by a hash."""
    place = int(hashlib.sha256(start.encode()).hexdigest(), 16) % 10
    return "train" if place < 7 else "dev" if place == 7 else "test"


def _value(text: str) -> Any:
    """A JSON value, such as false or 4; otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _numbers(value: Any) -> str:
    return " ".join(str(int(n)) for n in np.ravel(np.asarray(value)))


def _ranges(space: spaces.Space) -> list[range] | None:
    """Return the numbers that each part of a space may be; None where it has others."""
    if isinstance(space, spaces.Discrete):
        return [range(int(space.start), int(space.start) + int(space.n))]
    if isinstance(space, spaces.MultiBinary):
        return [range(2)] * int(np.prod(space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.ravel(space.start)
        pairs = zip(starts, np.ravel(space.nvec), strict=True)
        return [range(int(a), int(a) + int(n)) for a, n in pairs]
    if isinstance(space, spaces.Tuple):
        ranges: list[range] = []
        for part in space.spaces:
            numbers = _ranges(part)
            if numbers is None:
                return None
            ranges += numbers
        return ranges
    return None


def _number_list(gym_id: str, space: spaces.Space) -> list[range]:
    ranges = _ranges(space)
    if ranges is None:
        raise ValueError(
            f"{PREFIX}{gym_id}: expected spaces of Discrete, MultiDiscrete, "
            f"MultiBinary or a Tuple of these, got {space}; write an adapter, a "
            "dreamgym.TextEnv (docs/how-to/environments.md)"
        )
    return ranges


def _action_texts(gym_id: str, space: spaces.Space) -> dict[str, Any]:
    """Return the text of each action of a space, and what step() takes for it."""
    ranges = _number_list(gym_id, space)
    count = int(np.prod([len(r) for r in ranges]))
    if count > MAX_ACTIONS or isinstance(space, spaces.Tuple):
        raise ValueError(
            f"{PREFIX}{gym_id}: expected at most {MAX_ACTIONS} actions of one "
            f"Discrete, MultiDiscrete or MultiBinary, got {space}; write an adapter, "
            "a dreamgym.TextEnv (docs/how-to/environments.md)"
        )
    single = isinstance(space, spaces.Discrete)
    return {
        f"action {' '.join(map(str, values))}": (
            values[0] if single else np.array(values, space.dtype)
        )
        for values in itertools.product(*ranges)
    }


# --- tables of transitions ---


def _outcomes(table: Table) -> Iterator[Any]:
    for actions in table.values():
        for outcomes in actions.values():
            yield from outcomes


def _best_end(table: Table) -> float | None:
    """Return the best reward that an end pays; None where nothing ends."""
    return max((float(o[2]) for o in _outcomes(table) if o[3]), default=None)


def _draws(table: Table) -> bool:
    return any(
        len({o[1:] for o in outcomes if o[0] > 0}) > 1
        for actions in table.values()
        for outcomes in actions.values()
    )


def _shortest(table: Table, start: int, best: float | None) -> list[int]:
    """Return the fewest actions from a state to an end with this reward."""
    ways: dict[int, list[int]] = {start: []}
    queue = [start]  # breadth first: the first way to a state is a shortest one
    for state in queue:
        for action, outcomes in table[state].items():
            _, next_state, reward, terminated = outcomes[0]
            way = [*ways[state], int(action)]
            if terminated:
                if float(reward) == best:
                    return way
            elif next_state not in ways:
                ways[next_state] = way
                queue.append(next_state)
    return []
