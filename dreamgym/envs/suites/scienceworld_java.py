"""Games of ScienceWorld in one Java virtual machine of this process.

The package's Python class is not used: its `step` lists thousands of valid actions each
time, it starts a Java machine for each copy, and its port asks for no token.

Two things make ScienceWorld deterministic here. All its random draws come from one
generator of the whole machine, which is seeded anew before each call; and Java's
identity hashes, which order what a room lists, are constant.
"""

import importlib.util
import json
from pathlib import Path
from typing import NamedTuple

from dreamgym.envs.suites import java_machine
from dreamgym.envs.suites.scienceworld_text import Action

RANDOM, IDENTIFIERS = "scala.util.Random$", "util.UniqueIdentifier$"
"""Objects that all games of a machine share: random draws, and numbers of things."""


def jar_path() -> Path:
    """Return the path of the games in the `scienceworld` package.

    Raises:
      ImportError: the package is not installed.
    """
    spec = importlib.util.find_spec("scienceworld")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("ScienceWorld needs pip install 'dreamgym[scienceworld]'")
    return Path(spec.submodule_search_locations[0]) / "scienceworld.jar"


PROGRAM = java_machine.Program(
    name="ScienceWorld",
    jar=str(jar_path()),  # where it is missing, it is said before anything runs
    memory="1g",
    server_class="scienceworld.runtime.pythonapi.PythonInterface",
    options=("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
)


class Answer(NamedTuple):
    """What the game says after an action; the score is of 100 points."""

    message: str
    room: str
    inventory: str
    score: int
    completed: bool


class Game:
    """One game at a time, independent of the other games of the machine."""

    def __init__(self) -> None:
        self._server = java_machine.GameServer(java_machine.machine_of(PROGRAM))
        self._variation, self._steps, self._identifiers = 0, 0, 0

    @property
    def alive(self) -> bool:
        """Whether its machine runs."""
        return self._server.alive

    def load(
        self, task: str, variation: int, simplifications: str, gold: bool = False
    ) -> None:
        """Start a variation of a task; `gold` computes the gold path, which is slow."""
        self._variation, self._steps = variation, 0
        # It sets both shared objects to the beginning itself.
        self._server.call("load", task, variation, simplifications, gold)
        self._identifiers = self._server.call_singleton(IDENTIFIERS, "count")

    def gold_path(self) -> list[str]:
        """Return the actions by which the game itself solves what was loaded."""
        return list(self._server.call("getGoldActionSequence"))

    def variations(self, split: str) -> list[int]:
        """Return the variations of the loaded task in a split of the package."""
        return list(self._server.call(f"getVariations{split.capitalize()}"))

    def instruction(self) -> str:
        """Return the description of the task that was loaded."""
        return self._server.call("getTaskDescription")

    def step(self, action: str) -> Answer:
        """Take an action."""
        self._steps += 1
        self._restore_shared()
        message = self._server.call("step", action)
        self._identifiers = self._server.call_singleton(IDENTIFIERS, "count")
        return Answer(
            message,
            self._server.call("freeActionLook"),
            self._server.call("freeActionInventory"),
            round(100 * self._server.call("getScore")),
            self._server.call("getCompleted"),
        )

    def valid_actions(self) -> list[Action]:
        """Return every action that the game lists now, thousands in some rooms."""
        self._restore_shared()
        text = self._server.call("getValidActionObjectCombinationsJSON")
        return [
            Action(row["action"], tuple(row["obj_ids"]))
            for row in json.loads(text)["validActions"]
        ]

    def visible_things(self) -> list[int]:
        """Return the numbers of the things in the room that can be seen."""
        self._restore_shared()
        text = self._server.call("getPossibleObjectReferentLUTJSON")
        return list(map(int, json.loads(text)))

    def _restore_shared(self) -> None:
        seed = 1000 * self._variation + self._steps
        self._server.call_singleton(RANDOM, "setSeed", seed)
        self._server.call_singleton(IDENTIFIERS, "count_$eq", self._identifiers)
