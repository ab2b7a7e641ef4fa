"""What the adapters of the suite share: seeds as tasks, split by how they begin."""

import functools
import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from dreamgym import Task, TextEnv

SEEDS = 400


class Turn(NamedTuple):
    """What an action came to."""

    text: str
    reward: float = 0.0
    ended: bool = False
    success: bool = False
    invalid: bool = False


class SeededEnv(TextEnv):
    """An environment whose tasks are seeds: a subclass defines `begin` and `act`."""

    name, instruction, max_episode_steps, seeds = "", "", 16, SEEDS
    _open = False

    def begin(self, seed: int) -> str:
        """Start the episode of a seed; return the first state."""
        raise NotImplementedError

    def act(self, action: str) -> Turn:
        """Take an action."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        task = (options or {}).get("task")
        number = int(self.np_random.integers(SEEDS)) if seed is not None else 0
        number = number if task is None else task.options["seed"]
        self._steps, self._open, self.seed = 0, True, number
        return self.begin(number), {"instruction": self.instruction}

    def step(self, action: str):
        if not self._open:
            raise RuntimeError("call reset() first")
        self._steps += 1
        turn = self.act(action)
        truncated = not turn.ended and self._steps >= self.max_episode_steps
        self._open = not (turn.ended or truncated)
        info = {"success": turn.success, "invalid": turn.invalid}
        return turn.text, float(turn.reward), turn.ended, truncated, info

    def tasks(self, split: str) -> list[Task]:
        return list(_tasks(type(self), split))


@functools.cache
def _tasks(kind: type[SeededEnv], split: str) -> tuple[Task, ...]:
    env, starts = kind(), {}
    for seed in range(kind.seeds):
        starts.setdefault(env.begin(seed), seed)
    return tuple(
        Task(
            id=f"{kind.name}-{seed}",
            instruction=kind.instruction,
            env=kind.name,
            family=kind.name,
            split=split,
            options={"seed": seed},
        )
        for start, seed in starts.items()
        if split_of(start) == split
    )


def split_of(text: str) -> str:
    """Seven of ten texts are train, one is dev, two are test, by a hash."""
    place = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10
    return "train" if place < 7 else "dev" if place == 7 else "test"


def shortest(
    start: Hashable,
    moves: Callable[[Any], Iterable[tuple[str, Any]]],
    goal: Callable[[Any], bool],
) -> list[str]:
    """Return the fewest actions from a state to a goal, breadth first."""
    ways, queue = {start: []}, deque([start])
    while queue:
        state = queue.popleft()
        if goal(state):
            return ways[state]
        for action, following in moves(state):
            if following not in ways:
                ways[following] = [*ways[state], action]
                queue.append(following)
    return []
