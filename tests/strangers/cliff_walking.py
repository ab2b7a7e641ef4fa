"""Gymnasium's CliffWalking from other starts (toy_text/cliffwalking.py)."""

import gymnasium

from tests.strangers.common import SeededEnv, Turn, shortest

ACTIONS = ("up", "right", "down", "left")
ID = max(i for i in gymnasium.registry if i.startswith("CliffWalking-v"))


class CliffWalking(SeededEnv):
    """Costs only: 1 a step and 100 for the cliff, which throws you back to (3, 0)."""

    name, instruction, max_episode_steps = "cliff", "walk to row 3 col 11", 28

    def __init__(self):
        super().__init__()
        self.env = gymnasium.make(ID).unwrapped

    def begin(self, seed):
        self.env.reset(seed=seed)
        self.env.s = self.start = seed % 37  # the goal is 47, the cliff before it
        return self.text("ok")

    def text(self, message):
        row, col = divmod(int(self.env.s), 12)
        return f"cliff row 3 col 1 to 10\nsaid {message} row {row} col {col}"

    def act(self, action):
        if action not in ACTIONS:
            return Turn(self.text("unknown action"), -1, invalid=True)
        _, reward, ended, _, _ = self.env.step(ACTIONS.index(action))
        message = "you fall" if reward == -100 else "goal" if ended else "ok"
        return Turn(self.text(message), reward, bool(ended), bool(ended))

    def expert(self):
        def moves(state):
            for number, action in enumerate(ACTIONS):
                _, following, reward, ended = self.env.P[state][number][0]
                if reward > -100:
                    yield action, "won" if ended else following

        return shortest(self.start, moves, lambda state: state == "won")

    def valid_actions(self):
        return list(ACTIONS)
