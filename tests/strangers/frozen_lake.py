"""Gymnasium's FrozenLake on random maps, not slippery (toy_text/frozen_lake.py)."""

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from tests.strangers.common import SeededEnv, Turn, shortest

ACTIONS = ("left", "down", "right", "up")


class FrozenLake(SeededEnv):
    """Cross the ice to G; H is a hole, A is you. A new map for every seed."""

    name, instruction = "frozenlake", "walk to G and into no H"

    def begin(self, seed):
        rows = generate_random_map(size=4, p=0.75, seed=seed)
        made = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=False)
        self.env = made.unwrapped
        self.env.reset(seed=seed)
        return self.text("ok")

    def text(self, message):
        rows = [list("".join(c.decode() for c in row)) for row in self.env.desc]
        row, col = divmod(int(self.env.s), 4)
        rows[row][col] = "A"
        lines = [f"row {i} {' '.join(cells)}" for i, cells in enumerate(rows)]
        return "\n".join([*lines, f"said {message} row {row} col {col}"])

    def act(self, action):
        if action not in ACTIONS:
            return Turn(self.text("unknown action"), 0, invalid=True)
        _, reward, ended, _, _ = self.env.step(ACTIONS.index(action))
        message = "goal" if reward else "you fall" if ended else "ok"
        return Turn(self.text(message), reward, bool(ended), bool(reward))

    def expert(self):
        def moves(state):
            for number, action in enumerate(ACTIONS):
                _, following, reward, ended = self.env.P[state][number][0]
                if not ended or reward:
                    yield action, "won" if reward else following

        return shortest(0, moves, lambda state: state == "won")

    def valid_actions(self):
        return list(ACTIONS)
