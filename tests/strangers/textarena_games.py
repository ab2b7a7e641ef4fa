"""Four single-player games of TextArena (Leon Guertler et al., pip install textarena).

A second invalid move in a row ends an episode: that is the games' own rule.
"""

import importlib
import itertools
import random

from tests.strangers.common import SeededEnv, Turn, shortest

WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class TextArenaGame(SeededEnv):
    """What the four share: reset by seed, the last message, the reward at the end."""

    game, settings = "", ()

    def begin(self, seed):
        module = importlib.import_module(f"textarena.envs.{self.game}.env")
        self.env = getattr(module, f"{self.game}Env")(
            max_turns=100, **dict(self.settings)
        )
        self.env.reset(num_players=1, seed=seed)
        self.board = self.env.state.game_state
        return f"{self.view()}\nsaid ok"

    def view(self):
        raise NotImplementedError

    def act(self, action):
        seen = len(self.env.state.observations[0])
        ended, _ = self.env.step(action)
        news = [str(o[1]) for o in self.env.state.observations[0][seen:]]
        invalid = any("invalid move" in text for text in news)
        reward = (self.env.state.rewards or {}).get(0, 0.0) if ended else 0.0
        message = "invalid move" if invalid else "ok"
        won = bool(ended) and reward == 1 and not invalid
        return Turn(f"{self.view()}\nsaid {message}", reward, bool(ended), won, invalid)


class TowerOfHanoi(TextArenaGame):
    """From a position that is a few random moves away from the start."""

    name, game, max_episode_steps = "hanoi", "TowerOfHanoi", 14
    instruction = "move all disks to C, such as [A C]"

    def begin(self, seed):
        super().begin(seed)
        rng, disks = random.Random(seed), (3, 2, 1)
        places = [rng.choice("ABC") for _ in disks]
        for tower in "ABC":
            pairs = zip(disks, places, strict=True)
            self.board["towers"][tower] = [d for d, place in pairs if place == tower]
        if places == ["C"] * 3:
            self.board["towers"] = {"A": [3, 2, 1], "B": [], "C": []}
        return f"{self.view()}\nsaid ok"

    def view(self):
        rows = self.board["towers"].items()
        return "\n".join(f"{t} {' '.join(map(str, d)) or 'empty'}" for t, d in rows)

    def state(self):
        return tuple(tuple(self.board["towers"][t]) for t in "ABC")

    def expert(self):
        def moves(state):
            for a, b in itertools.permutations(range(3), 2):
                if state[a] and (not state[b] or state[b][-1] > state[a][-1]):
                    after = list(state)
                    after[b], after[a] = (*after[b], after[a][-1]), after[a][:-1]
                    yield f"[{'ABC'[a]} {'ABC'[b]}]", tuple(after)

        return shortest(self.state(), moves, lambda s: s[2] == (3, 2, 1))

    def valid_actions(self):
        return [f"[{a} {b}]" for a, b in itertools.permutations("ABC", 2)]


class LightsOut(TextArenaGame):
    """Three by three lights."""

    name, game, settings = "lightsout", "LightsOut", (("size", 3),)
    instruction = "turn all lights off: O is on, [1 2] presses row 1 col 2"

    def view(self):
        rows = ("".join("O" if x else "-" for x in row) for row in self.board["grid"])
        return "\n".join(f"row {i} {' '.join(row)}" for i, row in enumerate(rows))

    def expert(self):
        cells = list(itertools.product(range(3), range(3)))
        lit = {(r, c) for r, c in cells if self.board["grid"][r][c]}
        for count in range(10):
            for presses in itertools.combinations(cells, count):
                state = set(lit)
                for r, c in presses:
                    near = [(r, c), (r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
                    state ^= {cell for cell in near if cell in cells}
                if not state:
                    return [f"[{r} {c}]" for r, c in presses]
        return []

    def valid_actions(self):
        return [f"[{r} {c}]" for r, c in itertools.product(range(3), range(3))]


class Mastermind(TextArenaGame):
    """A code of three numbers of 1 to 5; the expert guesses what is still possible."""

    name, game = "mastermind", "Mastermind"
    settings = (("code_length", 3), ("num_numbers", 5))
    instruction = "find the code of 3 different numbers of 1 to 5, such as [1 2 3]"

    def begin(self, seed):
        super().begin(seed)
        return f"{self.view()}\nsaid game {'abcdefghij'[seed % 10]} {seed // 10}"

    def view(self):
        rows = self.board["history"]
        lines = [
            f"tried {' '.join(map(str, r['guess']))} black {r['black']} white "
            f"{r['white']}"
            for r in rows
        ]
        return "\n".join(lines) or "tried nothing"

    def expert(self):
        codes = list(itertools.permutations(range(1, 6), 3))
        secret, plan = tuple(self.board["secret_code"]), []
        while True:
            guess = codes[0]
            plan.append(f"[{' '.join(map(str, guess))}]")
            if guess == secret:
                return plan
            answer = self.score(guess, secret)
            codes = [c for c in codes[1:] if self.score(guess, c) == answer]

    @staticmethod
    def score(guess, code):
        black = sum(a == b for a, b in zip(guess, code, strict=True))
        return black, len(set(guess) & set(code)) - black

    def valid_actions(self):
        tried = [r["guess"] for r in self.board["history"]]
        codes = itertools.permutations(range(1, 6), 3)
        return [f"[{' '.join(map(str, c))}]" for c in codes if list(c) not in tried]


class FrozenLakeOfTextArena(TextArenaGame):
    """Four by four with three holes."""

    name, game = "arenalake", "FrozenLake"
    instruction = "walk P to G and into no H: [up] [down] [left] [right]"

    def begin(self, seed):
        from textarena.envs.FrozenLake.env import FrozenLakeEnv

        self.env = FrozenLakeEnv()
        self.env.reset(num_players=1, seed=seed)
        self.board = self.env.state.game_state
        return f"{self.view()}\nsaid ok"

    def view(self):
        rows = [[c if c.strip() else "-" for c in row] for row in self.board["grid"]]
        row, col = self.board["player_pos"]
        rows[row][col] = "P"
        lines = [f"row {i} {' '.join(cells)}" for i, cells in enumerate(rows)]
        return "\n".join([*lines, f"at row {row} col {col}"])

    def expert(self):
        def moves(state):
            for name, (dr, dc) in WAYS.items():
                row, col = state[0] + dr, state[1] + dc
                if (
                    0 <= row < 4
                    and 0 <= col < 4
                    and self.board["grid"][row][col] != "H"
                ):
                    yield f"[{name}]", (row, col)

        goal = tuple(self.board["goal_pos"])
        return shortest(tuple(self.board["player_pos"]), moves, lambda s: s == goal)

    def valid_actions(self):
        return [f"[{way}]" for way in WAYS]
