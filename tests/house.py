"""A house in words: rooms in a row, a coin in the last, names that say nothing.

Which rooms stand where differs by task, and nothing depends on their names. `find`
is won by taking the coin, and `bring` by dropping it in the first room.
"""

import itertools

from dreamgym.envs.base import TextEnv
from tests.strangers.common import split_of
from worldmodel.data.records import Task

ROOMS = ("attic", "cellar", "hall", "kitchen", "pantry", "study")


def instructions(rooms: tuple[str, ...]) -> tuple[str, str]:
    return "find and take the coin", f"bring the coin to {rooms[0]} and drop it"


class House(TextEnv):
    deterministic = True
    max_episode_steps = 9

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(
                id=f"{text.split()[0]}-{'-'.join(rooms)}",
                instruction=text,
                family="house",
                split=split,
                options={"rooms": list(rooms)},
            )
            for rooms in itertools.permutations(ROOMS, 3)
            for text in instructions(rooms)
            if split_of(text + str(rooms)) == split
        ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.rooms, self.brings = task.options["rooms"], "bring" in task.instruction
        self.at, self.coin, self.steps = self.rooms[0], self.rooms[-1], 0
        return self._text("ok"), {}

    def _text(self, message: str) -> str:
        doors = [f"next to {a} is {b}" for a, b in itertools.pairwise(self.rooms)]
        carried = "the coin" if self.coin == "agent" else "nothing"
        here = "the coin" if self.coin == self.at else "nothing"
        said = f"said {message} carry {carried} here {here} at {self.at}"
        return "\n".join([*doors, said])

    def _near(self) -> list[str]:
        place = self.rooms.index(self.at)
        return [r for i, r in enumerate(self.rooms) if abs(i - place) == 1]

    def step(self, action: str):
        self.steps += 1
        verb, _, thing = action.partition(" ")
        won, invalid = False, False
        if verb == "move" and thing in self._near():
            self.at = thing
        elif action == "take coin" and self.coin == self.at:
            self.coin, won = "agent", not self.brings
        elif action == "drop coin" and self.coin == "agent":
            self.coin, won = self.at, self.brings and self.at == self.rooms[0]
        else:
            invalid = True
        info = {"success": won, "invalid": invalid, "reveals": False}
        text = self._text("no" if invalid else "ok")
        return text, float(won), won, self.steps >= self.max_episode_steps, info

    def expert(self) -> list[str]:
        plan = [*(f"move {room}" for room in self.rooms[1:]), "take coin"]
        back = [f"move {room}" for room in self.rooms[-2::-1]]
        return [*plan, *back, "drop coin"] if self.brings else plan

    def valid_actions(self) -> list[str]:
        moves = [f"move {room}" for room in self._near()]
        takes = ["take coin"] if self.coin == self.at else []
        return [*moves, *takes, *(["drop coin"] if self.coin == "agent" else [])]
