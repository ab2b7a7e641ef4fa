"""Lake, a text adapter around an environment of Gymnasium.

It runs as it is. Put your own in its place:

- `reset` makes the environment of a task, `step` translates the action and its result;
- `text` writes an observation as lines, one fact a line, what changes last;
- `tasks`: the seeds or settings, apart for train, dev and test;
- `expert`: actions that win from the start (leave it out where you know none).
"""

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from dreamgym import Task, TextEnv

ACTIONS = ["left", "down", "right", "up"]
SEEDS = {"train": range(200), "dev": range(1000, 1060), "test": range(2000, 2100)}


class Lake(TextEnv):
    """FrozenLake of Gymnasium on random maps: cross the ice, avoid the holes."""

    max_episode_steps = 24

    def tasks(self, split: str) -> list[Task]:
        return [self.task(n, split) for n in SEEDS[split]]

    def task(self, n: int, split: str) -> Task:
        goal = "walk from A to G, H is a hole"
        return Task(id=f"lake-{n}", instruction=goal, split=split, options={"map": n})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        rows = generate_random_map(size=6, p=0.8, seed=task.options["map"])
        env = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=False)
        self.env, self.rules = env, env.get_wrapper_attr("P")
        self.position, _ = env.reset(seed=seed)
        self.map, self.steps, self.running = rows, 0, True
        return self.text("ok"), {}

    def text(self, message: str) -> str:
        row, col = divmod(int(self.position), 6)
        cells = [list(line) for line in self.map]
        cells[row][col] = "A"
        lines = [f"row {i} {' '.join(line)}" for i, line in enumerate(cells)]
        return "\n".join([*lines, f"said {message}", f"at row {row} col {col}"])

    def step(self, action: str):
        if not self.running:
            raise RuntimeError("call reset() first")
        self.steps += 1
        reward, ended, message = 0.0, False, "that is no direction"
        if valid := action in ACTIONS:
            number = ACTIONS.index(action)
            self.position, reward, ended, _, _ = self.env.step(number)
            message = "ok"
        truncated = not ended and self.steps >= self.max_episode_steps
        self.running = not (ended or truncated)
        info = {"success": bool(reward), "invalid": not valid}
        return self.text(message), float(reward), ended, truncated, info

    def expert(self) -> list[str]:
        plans = {0: []}  # the shortest way to each position
        for position in (queue := [0]):
            for number, action in enumerate(ACTIONS):
                _, following, reward, ended = self.rules[position][number][0]
                plan = [*plans[position], action]
                if reward:
                    return plan
                if not ended and following not in plans:
                    plans[following] = plan
                    queue.append(following)
        return []

    def valid_actions(self) -> list[str]:
        return ACTIONS
