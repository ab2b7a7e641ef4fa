"""A corridor that costs nothing: a game that needs no JAX and no model.

Rooms 0 to END in a row, a coin in room GOAL. `go right` and `go left` walk, and `take
coin` wins in the room of the coin and loses elsewhere.
"""

import functools
from typing import NamedTuple

from dreamgym.envs.base import TextEnv
from worldmodel.data.records import State, Task

ACTIONS = ("go left", "go right", "take coin")
STEPS = 14


class Outcome(NamedTuple):
    state: State
    reward: float
    terminated: bool
    success: bool
    invalid: bool


def start_state(at: int, goal: int, end: int) -> State:
    return (f"at {at}", f"goal {goal}", f"end {end}", "said ok")


def walk(state: State, action: str) -> Outcome:
    """One step of the corridor as a pure function of the state's lines."""
    at, goal, end = (int(line.split()[1]) for line in state[:3])

    def now(room: int, message: str) -> State:
        return (f"at {room}", *state[1:3], f"said {message}")

    if action == "go right":
        blocked = at == end
        message = "wall" if blocked else "ok"
        return Outcome(now(at + (not blocked), message), 0.0, False, False, False)
    if action == "go left":
        if at == 0:
            return Outcome(now(0, "you fall"), 0.0, True, False, False)
        return Outcome(now(at - 1, "ok"), 0.0, False, False, False)
    if action == "take coin" and at == goal:
        return Outcome(now(at, "taken"), 1.0, True, True, False)
    message = "no coin" if action == "take coin" else "unknown action"
    return Outcome(now(at, message), 0.0, False, False, action not in ACTIONS)


def plan(state: State) -> list[str]:
    """The shortest way to win from a state."""
    at, goal = (int(line.split()[1]) for line in state[:2])
    way = "go right" if goal > at else "go left"
    return [way] * abs(goal - at) + ["take coin"]


@functools.cache
def tasks(split: str) -> tuple[Task, ...]:
    """Every corridor of 3 to 7 rooms: each seventh is dev, each seventh test."""
    out = []
    rooms = range(7)
    rows = [(s, g, e) for s in rooms for g in rooms for e in rooms if e >= max(2, s, g)]
    for number, (at, goal, end) in enumerate(rows):
        where = {5: "dev", 6: "test"}.get(number % 7, "train")
        if where == split:
            out.append(task(at, goal, end, split=split))
    return tuple(out)


def task(at: int, goal: int, end: int, *, split: str = "train") -> Task:
    return Task(
        id=f"corridor-{at}-{goal}-{end}",
        instruction="take the coin",
        env="corridor",
        family="short" if end < 5 else "long",
        split=split,
        options={"at": at, "goal": goal, "end": end},
        initial_state=start_state(at, goal, end),
    )


class Corridor(TextEnv):
    """The corridor as a Gymnasium environment with every capability."""

    deterministic = True

    def __init__(self, max_steps: int = STEPS):
        super().__init__()
        self.max_steps, self.open = max_steps, False

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        chosen = (options or {}).get("task")
        if chosen is None:
            some = tasks("train")
            chosen = some[int(self.np_random.integers(len(some)))]
        o = chosen.options
        self.state = self.begin = start_state(o["at"], o["goal"], o["end"])
        self.steps, self.open = 0, True
        return "\n".join(self.state), {"instruction": "take the coin"}

    def step(self, action: str):
        if not self.open:
            raise RuntimeError("call reset() first")
        self.steps += 1
        got = walk(self.state, action)
        self.state = got.state
        truncated = not got.terminated and self.steps >= self.max_steps
        self.open = not (got.terminated or truncated)
        info = {
            "rewards": {"coin": got.reward},
            "success": got.success,
            "invalid": got.invalid,
            "reveals": False,
        }
        return "\n".join(self.state), got.reward, got.terminated, truncated, info

    def tasks(self, split: str) -> list[Task]:
        return list(tasks(split))

    def expert(self) -> list[str]:
        return plan(self.begin)

    def valid_actions(self) -> list[str]:
        return list(ACTIONS)


class PlansAnywhere(Corridor):
    """The corridor with an expert that plans from where the agent is."""

    plans_from_any_state = True

    def expert(self) -> list[str]:
        return plan(self.state)


class Bare(Corridor):
    """The corridor with nothing declared: no tasks, no expert, no valid actions.

    It tells neither success nor names of rewards; `seed` alone chooses the game.
    """

    tasks = expert = valid_actions = property()  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        del options
        obs, _ = super().reset(seed=seed)
        return obs, {}

    def step(self, action: str):
        return (*super().step(action)[:4], {})
