"""Gymnasium's Taxi as text (Farama Foundation, gymnasium/envs/toy_text/taxi.py)."""

import gymnasium

from tests.strangers.common import SeededEnv, Turn, shortest

PLACES = ("red", "green", "yellow", "blue")
ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
ID = max(i for i in gymnasium.registry if i.startswith("Taxi-v"))


class Taxi(SeededEnv):
    """A passenger is fetched and driven; every step costs 1, the delivery pays 20."""

    name, max_episode_steps = "taxi", 32
    instruction = "bring the passenger to the destination"

    def __init__(self):
        super().__init__()
        self.env = gymnasium.make(ID).unwrapped
        self.walls = self.env.desc

    def begin(self, seed):
        self.env.reset(seed=seed)
        self.start = int(self.env.s)
        return self.text("ok")

    def text(self, message):
        row, col, passenger, target = self.env.decode(self.env.s)
        where = "taxi" if passenger == 4 else PLACES[passenger]
        return (
            f"passenger {where} destination {PLACES[target]}\n{self.view(row, col)}\n"
            f"said {message} taxi row {row} col {col}"
        )

    def view(self, row, col):
        here = [
            p for p, at in zip(PLACES, self.env.locs, strict=True) if at == (row, col)
        ]
        east = self.walls[1 + row, 2 * col + 2] == b":"
        west = self.walls[1 + row, 2 * col] == b":"
        roads = [d for d, free in (("east", east), ("west", west)) if free]
        return f"place {(here or ['none'])[0]} roads {' '.join(roads) or 'none'}"

    def act(self, action):
        if action not in ACTIONS:
            return Turn(self.text("unknown action"), -1, invalid=True)
        before = int(self.env.s)
        _, reward, ended, _, _ = self.env.step(ACTIONS.index(action))
        same = before == int(self.env.s) and not ended
        text = self.text("nothing happens" if same else "ok")
        return Turn(text, reward, bool(ended), bool(ended), same)

    def expert(self):
        def moves(state):
            for number, action in enumerate(ACTIONS):
                _, following, _, ended = self.env.P[state][number][0]
                yield action, "won" if ended else following

        return shortest(self.start, moves, lambda state: state == "won")

    def valid_actions(self):
        return list(ACTIONS)
