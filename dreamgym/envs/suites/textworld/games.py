"""The games of TextWorldExpress one by one, as raw text: `textworld:GAME`.

  You are in the kitchen.            each sentence of what is seen
  ...
  held a cookbook                    the inventory
  read dice the orange bell pepper   what was read last, until something else is
  said You take the cookbook.        the answer to the last action

`textworld:coin` and `textworld:mapreader` have the lines with a map of `textworld`
(express.py), which is easier to learn. Arguments of a game follow a question
mark: `textworld:cookingworld?numLocations=5&includeDoors=1`.
"""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from py4j.protocol import Py4JJavaError

from dreamgym.envs.base import TextEnv
from dreamgym.envs.importing import named_settings
from dreamgym.envs.suites.textworld.express import (
    FOLDS,
    GAMES,
    SEEDS,
    TextWorldExpress,
)
from dreamgym.envs.suites.textworld.java import GameServer, current_machine
from worldmodel.data.records import Task

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "arithmetic": {},
    "cookingworld": {
        "numLocations": "3",
        "numIngredients": "2",
        "numDistractorItems": "2",
        "includeDoors": "0",
        "limitInventorySize": "0",
    },
    "peckingorder": {},
    "simonsays": {},
    "sorting": {},
    "twc": {
        "numLocations": "1",
        "numItemsToPutAway": "2",
        "includeDoors": "0",
        "limitInventorySize": "0",
    },
}
"""The games with raw text, and what is chosen of their size."""
_NOT_PROGRESS = ("look around", "inventory", "task")
_UNKNOWN = "Unknown action"
_SENTENCE = re.compile(r"(?<=\.)\s+")


class TextWorldGame(TextEnv):
    """One game of TextWorldExpress, whose text is taken as it comes.

    It is deterministic: equal tasks and actions give equal texts. An action that the
    game does not know changes nothing but the message.
    """

    deterministic = True
    game: ClassVar[str] = "cookingworld"
    settings: ClassVar[Mapping[str, str]] = SETTINGS["cookingworld"]

    def __init__(self) -> None:
        """Start the game.

        Raises:
          ValueError: the game does not know a setting; the message lists those it does.
        """
        super().__init__()
        self._server: GameServer | None = _server(self.game, _items(self.settings))
        self._info: dict[str, Any] = {}
        self._plan: list[str] = []
        self._read: list[str] = []
        self._open = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a train game drawn by `seed`.

        Raises:
          ValueError: the task's options lack a seed or a fold.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            task = self._task(int(self.np_random.integers(SEEDS["train"])), "train")
        number, fold = task.options.get("seed"), task.options.get("fold")
        if fold not in FOLDS or not isinstance(number, int):
            raise ValueError(
                f"task {task.id!r}: options must name a seed and a fold of "
                f"{list(FOLDS)}, got {dict(task.options)}"
            )
        if self._server is None or not self._server.alive:
            self._server = _server(self.game, _items(self.settings))
        self._plan = _plan(self._server, number, fold)
        self._info = _begin(self._server, number, fold)
        self._read, self._open, self._score = [], True, 0.0
        instruction = _one_line(self._server.call("getTaskDescription"))
        message = "ok" if self._info["look"] else self._info["observation"]
        return self._text(message), {"instruction": instruction, "success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, given as free text.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open or self._server is None:
            raise RuntimeError("step() needs a running episode: call reset() first")
        self._info = json.loads(self._server.call("stepJSON", action))
        message = self._info["observation"].strip()
        invalid = message.startswith(_UNKNOWN)
        if action.startswith("read ") and not invalid:
            self._read = [line.strip() for line in message.splitlines()]
            message = "ok"
        reward = self._info["score"] - self._score
        self._score = self._info["score"]
        won = bool(self._info["tasksuccess"])
        terminated = won or bool(self._info["taskfailure"])
        self._open = not terminated
        info = {"success": won, "invalid": invalid}
        return self._text(message), float(reward), terminated, False, info

    def _text(self, message: str) -> str:
        sight = self._info["look"].replace("\n", " ").strip()
        items = self._info["inventory"].partition(":")[2].splitlines()
        items = [h.strip() for h in items if h.strip() and "currently empty" not in h]
        message = (
            "ok"
            if message == sight
            else next(iter(message.strip().splitlines()), "nothing")
        )
        lines = [line for line in _SENTENCE.split(sight) if line]
        lines += [f"held {' and '.join(items) or 'nothing'}"] if sight else []
        lines += [f"read {line}" for line in self._read if line]
        return "\n".join([*lines, f"said {message}"])

    def tasks(self, split: str) -> list[Task]:
        """Return games of a split that differ in what is seen first and in the plan."""
        if split not in FOLDS:
            raise ValueError(f"split must be one of {list(FOLDS)}, got {split!r}")
        numbers = _numbers(self.game, _items(self.settings))[split]
        return [self._task(number, split) for number in numbers]

    def _task(self, number: int, split: str) -> Task:
        return Task(
            id=f"{self.game}-{split}-{number}",
            instruction="",
            env=f"textworld:{self.game}",
            family=self.game,
            split=split,
            options={"seed": FOLDS[split] + number, "fold": split},
        )

    def expert(self) -> list[str]:
        """Return the game's own plan from the start.

        It is without looks around, and without what the game itself refuses.
        """
        return list(self._plan)

    def valid_actions(self) -> list[str]:
        """Return the actions that the game would take now, in a fixed order."""
        return sorted(set(self._info["validActions"]) - set(_NOT_PROGRESS))

    def close(self) -> None:
        """Release the game; the Java process is shared and ends with Python."""
        self._server, self._open = None, False


def one_game(name: str) -> type[TextEnv]:
    """Return the environment of "GAME" or "GAME?setting=value&...".

    Raises:
      ValueError: there is no such game; the message lists them.
    """
    game, _, query = name.partition("?")
    if game not in (*SETTINGS, *GAMES):
        raise ValueError(
            f"unknown game of TextWorldExpress {game!r}: expected one of "
            f"{sorted([*SETTINGS, *GAMES])}"
        )
    settings = named_settings(f"textworld:{name}", query)
    for key, value in settings.items():
        if not value.isdecimal():  # the game would leave it out without a word
            raise ValueError(
                f"game {game!r}: expected a whole number as {key}, got {value!r}"
            )
    if game in GAMES:
        if settings:
            raise ValueError(f"the game {game!r} takes no settings, got {query!r}")
        members: dict[str, Any] = {"families": (game,)}
        return type("TextWorldExpress", (TextWorldExpress,), members)
    members = {
        "game": game,
        "settings": {**SETTINGS[game], **settings},
        "__doc__": TextWorldGame.__doc__,
    }
    if game == "sorting":  # two in one Java machine take things from each other
        members["max_copies"] = 1
    environment: Any = type("TextWorldGame", (TextWorldGame,), members)
    return environment


Items = tuple[tuple[str, str], ...]


def _items(settings: Mapping[str, str]) -> Items:
    return tuple(settings.items())


def _server(game: str, settings: Items) -> GameServer:
    """Return a server with a game; raise a ValueError where it refuses a setting."""
    server = GameServer(current_machine())
    problem = server.call("load", game, ",".join(f"{k}={v}" for k, v in settings))
    if problem:
        raise ValueError(f"game {game!r}: {problem}")
    return server


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _begin(server: GameServer, number: int, fold: str) -> dict[str, Any]:
    return json.loads(server.call("generateNewGameJSON", number, fold, True))


def _gold(server: GameServer) -> list[str]:
    return list(server.call("getGoldActionSequence"))


def _plan(server: GameServer, number: int, fold: str) -> list[str]:
    """Return the actions of a game's gold path that are progress, by playing it."""
    _begin(server, number, fold)
    plan = []
    for action in _gold(server):
        answer = json.loads(server.call("stepJSON", action))["observation"]
        if action not in _NOT_PROGRESS and not answer.startswith(_UNKNOWN):
            plan.append(action)
    return plan


@functools.cache
def _numbers(game: str, settings: tuple[tuple[str, str], ...]) -> dict[str, list[int]]:
    """Return the numbers of distinct games of each split.

    Two games are alike if they show the same first text and have the same plan. Numbers
    of which the generator makes no game under these settings are left out.

    Raises:
      ValueError: it makes none for a split.
    """
    server, signatures = _server(game, settings), set[tuple[str, ...]]()
    out, reason = dict[str, list[int]](), ""
    for split, first in FOLDS.items():
        out[split] = []
        for number in range(SEEDS[split]):
            try:
                info = _begin(server, first + number, split)
            except Py4JJavaError as error:
                reason = str(error.java_exception)
                continue
            signature = (info["observation"], *_gold(server))
            if signature not in signatures:
                signatures.add(signature)
                out[split].append(number)
        if not out[split]:
            raise ValueError(f"game {game!r} has no games of split {split!r}: {reason}")
    return out
