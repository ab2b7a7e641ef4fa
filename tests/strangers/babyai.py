"""MiniGrid's BabyAI as text (Farama Foundation, pip install minigrid)."""

import gymnasium

from tests.strangers.common import SeededEnv, Turn

ACTIONS = ("turn left", "turn right", "move forward")
FACING = (">", "v", "<", "^")
COLORS = {
    "r": "red",
    "g": "green",
    "b": "blue",
    "p": "purple",
    "y": "yellow",
    "e": "grey",
}


class GoToObject(SeededEnv):
    """Walk to the object that the mission names, in a room of six by six."""

    name, max_episode_steps, seeds = "babyai", 24, 300

    def begin(self, seed):
        import minigrid  # noqa: F401 - registers the environments

        self.env = gymnasium.make("BabyAI-GoToObj-v0").unwrapped
        self.env.reset(seed=seed)
        self.instruction = self.env.mission
        return self.text("ok")

    def text(self, message):
        grid, (x, y) = self.env.grid, map(int, self.env.agent_pos)
        rows = []
        for row in range(1, grid.height - 1):
            cells = []
            for col in range(1, grid.width - 1):
                thing = grid.get(col, row)
                cells.append("-" if thing is None else f"{thing.color}{thing.type}")
            if row == y:
                cells[x - 1] = FACING[self.env.agent_dir]
            rows.append(f"row {row} {' '.join(cells)}")
        ahead = grid.get(*map(int, self.env.front_pos))
        front = "nothing" if ahead is None else ahead.type
        rows.append(f"said {message} front {front} row {y} col {x}")
        return "\n".join(rows)

    def act(self, action):
        if action not in ACTIONS:
            return Turn(self.text("unknown action"), 0, invalid=True)
        _, reward, ended, _, _ = self.env.step(ACTIONS.index(action))
        return Turn(self.text("ok"), bool(reward > 0), bool(ended), bool(reward > 0))

    def expert(self):
        from minigrid.utils.baby_ai_bot import BabyAIBot

        twin = gymnasium.make("BabyAI-GoToObj-v0").unwrapped
        twin.reset(seed=self.seed)
        bot, plan, ended = BabyAIBot(twin), [], False
        while not ended and len(plan) < self.max_episode_steps:
            action = int(bot.replan())
            plan.append(ACTIONS[action])
            ended = twin.step(action)[2]
        return plan

    def valid_actions(self):
        return list(ACTIONS)
