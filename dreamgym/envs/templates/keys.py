"""Keys, an environment over text.

It runs as it is. Put your own in its place, method by method:

- `tasks`: the goals, apart for train, dev and test; `options` holds what `reset` needs;
- `reset`, `step`: the rules; states are lines, one fact a line;
- `expert`: actions that win from the start (leave it out where you know none);
- `valid_actions`: what would be taken now.
"""

import random

from dreamgym import Task, TextEnv

ROOMS = ("hall", "kitchen", "cellar", "attic", "garden")
ACTIONS = ["go left", "go right", "take key"]


class Keys(TextEnv):
    """A row of rooms, one key. `go left`, `go right`, `take key`."""

    max_episode_steps = 12

    def tasks(self, split: str) -> list[Task]:
        pairs = [(start, key) for start in ROOMS for key in ROOMS]
        random.Random(0).shuffle(pairs)
        part = {"train": pairs[:16], "dev": pairs[16:20], "test": pairs[20:]}[split]
        return [self.task(start, key, split) for start, key in part]

    def task(self, start: str, key: str, split: str) -> Task:
        goal, options = f"find the key in the {key}", {"start": start, "key": key}
        return Task(id=f"{start}-{key}", instruction=goal, split=split, options=options)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.room, self.key = (ROOMS.index(task.options[k]) for k in ("start", "key"))
        self.steps, self.running = 0, True
        return self.text("ok"), {}

    def text(self, message: str) -> str:
        return f"rooms {' '.join(ROOMS)}\nsaid {message}\nat {ROOMS[self.room]}"

    def step(self, action: str):
        if not self.running:
            raise RuntimeError("call reset() first")
        self.steps += 1
        won = action == "take key" and self.room == self.key
        if action in ACTIONS[:2]:
            self.room = min(max(self.room + (1 if action == "go right" else -1), 0), 4)
        truncated = not won and self.steps >= self.max_episode_steps
        self.running = not (won or truncated)
        invalid = not won and action not in ACTIONS[:2]
        text = self.text("that is not possible" if invalid else "ok")
        return text, float(won), won, truncated, {"success": won, "invalid": invalid}

    def expert(self) -> list[str]:
        way = "go right" if self.key > self.room else "go left"
        return [way] * abs(self.key - self.room) + ["take key"]

    def valid_actions(self) -> list[str]:
        return ACTIONS if self.room == self.key else ACTIONS[:2]
