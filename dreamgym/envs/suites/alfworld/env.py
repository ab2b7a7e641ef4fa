"""ALFWorld's engine: find things in a household, treat them, and put them away.

  alfworld                games of our own on ALFWorld's floor plans, six task types
  alfworld:TASK_TYPE      one of the task types
  alfworld:official       ALFWorld's own games, where their files are there

The engine, its rules and its texts are the package's (engine.py). Our games
are drawn on the package's floor plans (games.py), so a success rate on them is
none on ALFWorld. The texts become lines of state (text.py). An episode pays 1
when the task is done.
"""

import functools
import itertools
import json
import os
from pathlib import Path
from typing import Any, ClassVar

try:
    import alfworld  # noqa: F401
except ImportError as error:
    raise ImportError(
        "the games of ALFWorld's engine need pip install 'dreamgym[alfworld]'"
    ) from error

from dreamgym.envs.base import SPLITS, TextEnv, task_to_start
from dreamgym.envs.suites.alfworld.engine import Engine, Reply
from dreamgym.envs.suites.alfworld.games import (
    MAX_STEPS,
    TASK_TYPES,
    draw_game,
    list_games,
    plan_of,
)
from dreamgym.envs.suites.alfworld.text import REFUSAL, Household
from worldmodel.data.records import Task

OFFICIAL = "official"
"""The name of ALFWorld's own games, "alfworld:official"."""

OFFICIAL_FOLDERS = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""The folders of the downloaded games, in ALFWORLD_DATA, by split."""

_WITHOUT_EFFECT = ("examine ", "help", "inventory", "look")


class AlfWorld(TextEnv):
    """Games of some task types, each of which is a family.

    It is deterministic: equal tasks and actions give equal texts.
    """

    deterministic = True
    task_types: ClassVar[tuple[str, ...]] = TASK_TYPES
    max_episode_steps: int = MAX_STEPS

    def __init__(self) -> None:
        super().__init__()
        self._engine: Engine | None = None
        self._task: Task | None = None
        self._steps, self._open = 0, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a train task drawn by `seed`.

        Raises:
          ValueError: the task's options name no game.
        """
        super().reset(seed=seed)
        self._open = False
        task = task_to_start(self, options)
        data = self.game_data(task)
        self._engine = self._engine or Engine()
        self._reply = self._engine.start(data)
        self._household = Household(self._reply.text)
        self._task, self._steps, self._open = task, 0, True
        instruction = self._household.request
        return self._text(), {"instruction": instruction, "success": False}

    def game_data(self, task: Task) -> dict[str, Any]:
        """Return the game of a task as the engine loads it.

        Raises:
          ValueError: the task's options name no game.
        """
        options = task.options
        game = None
        if options.get("task_type") in TASK_TYPES and _is_pair(options):
            game = draw_game(options["room"], options["task_type"], options["seed"])
        if game is None:
            raise ValueError(
                f"task {task.id!r}: options must name a task_type of "
                f"{list(TASK_TYPES)}, a room that allows it, and a seed, got "
                f"{json.dumps(dict(options))}"
            )
        return game.data

    def _text(self) -> str:
        return "\n".join(self._household.lines())

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, given as free text.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open or self._engine is None:
            raise RuntimeError("step() needs a running episode: call reset() first")
        self._reply = self._engine.step(action)
        self._steps += 1
        reveals = self._household.read(self._reply.text)
        won = self._reply.won
        truncated = not won and self._steps >= self.max_episode_steps
        self._open = not (won or truncated)
        info = {
            "rewards": {"task": float(won)},
            "success": won,
            "invalid": self._reply.text.startswith(REFUSAL),
            "reveals": reveals,
        }
        return self._text(), float(won), won, truncated, info

    def tasks(self, split: str) -> list[Task]:
        """Return the games of a split, the task types in turn."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        families = [
            [_task(name, room, seed, split) for room, seed in list_games(name, split)]
            for name in self.task_types
        ]
        turns = itertools.zip_longest(*families)
        return [task for turn in turns for task in turn if task is not None]

    def expert(self) -> list[str]:
        """Return the plan of somebody who searches, as games.py has it.

        Raises:
          RuntimeError: there was no reset.
        """
        if self._task is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        options = self._task.options
        return list(plan_of(options["room"], options["task_type"], options["seed"]))

    def valid_actions(self) -> list[str]:
        """Return the commands that the game would take now and that change something.

        To look, to examine and to take stock shows nothing that is not in the state.
        """
        if self._task is None:
            raise RuntimeError("valid_actions() needs a task: call reset() first")
        reply: Reply = self._reply
        return [a for a in reply.commands if not a.startswith(_WITHOUT_EFFECT)]

    def close(self) -> None:
        """Unload the engine."""
        engine, self._engine = self._engine, None
        self._open = False
        if engine is not None:
            engine.close()


class OfficialAlfWorld(AlfWorld):
    """ALFWorld's own games, from the files in ALFWORLD_DATA."""

    def __init__(self) -> None:
        """Make an environment.

        Raises:
          ValueError: there is no folder of a split's games.
        """
        super().__init__()
        root = _official_folder()
        if not any((root / name).is_dir() for name in OFFICIAL_FOLDERS.values()):
            raise _no_games(root / OFFICIAL_FOLDERS["train"])

    def game_data(self, task: Task) -> dict[str, Any]:
        """Return the content of the game's file."""
        file = task.options.get("file")
        if not isinstance(file, str) or not (_official_folder() / file).is_file():
            raise ValueError(
                f"task {task.id!r}: options must name the file of a game in "
                f"{_official_folder()}, got {json.dumps(dict(task.options))}"
            )
        return json.loads((_official_folder() / file).read_text(encoding="utf-8"))

    def tasks(self, split: str) -> list[Task]:
        """Return the games of a split that can be solved, sorted by their files.

        Raises:
          ValueError: the games are not there.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        return list(_official_tasks(str(_official_folder()), split))

    def expert(self) -> list[str]:
        """Return the plan in the game's file; an empty list where it has none."""
        if self._task is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        return list(self.game_data(self._task).get("walkthrough") or ())


def _is_pair(options: Any) -> bool:
    """Whether options have the number of a floor plan and a seed."""
    room, seed = options.get("room"), options.get("seed")
    rooms = {*range(1, 31), *range(201, 231), *range(301, 331), *range(401, 431)}
    return type(room) is int and room in rooms and type(seed) is int


def _task(task_type: str, room: int, seed: int, split: str) -> Task:
    return Task(
        id=f"drawn-{task_type}-{room}-{seed}",
        instruction="",
        env="alfworld",
        family=task_type,
        split=split,
        options={"task_type": task_type, "room": room, "seed": seed},
    )


def _official_folder() -> Path:
    default = Path.home() / ".cache" / "alfworld"
    return Path(os.environ.get("ALFWORLD_DATA") or default) / "json_2.1.1"


@functools.lru_cache(maxsize=8)
def _official_tasks(folder: str, split: str) -> tuple[Task, ...]:
    """Return a task for each game that ALFWorld itself plays."""
    root = Path(folder)
    files = sorted((root / OFFICIAL_FOLDERS[split]).glob("*/*/game.tw-pddl"))
    tasks = []
    for file in files:
        if "movable" in str(file) or "Sliced" in str(file):
            continue  # ALFWorld leaves these out, too
        description = json.loads((file.parent / "traj_data.json").read_text())
        if description["task_type"] not in TASK_TYPES:
            continue
        if not json.loads(file.read_text(encoding="utf-8")).get("solvable"):
            continue
        name = file.relative_to(root)
        tasks.append(
            Task(
                id=f"alfworld-{name.parent.as_posix()}",
                instruction="",
                env=f"alfworld:{OFFICIAL}",
                family=description["task_type"],
                split=split,
                options={"file": name.as_posix()},
            )
        )
    if not tasks:
        raise _no_games(root / OFFICIAL_FOLDERS[split])
    return tuple(tasks)


def _no_games(folder: Path) -> ValueError:
    return ValueError(
        f"no game of ALFWorld in {folder}: download them with alfworld-download, and "
        "set ALFWORLD_DATA to their folder"
    )


@functools.cache
def one_task_type(name: str) -> type[AlfWorld]:
    """Return the environment of one task type, or that of ALFWorld's own games.

    Raises:
      ValueError: there is no such task type; the message lists them.
    """
    if name == OFFICIAL:
        return OfficialAlfWorld
    if name not in TASK_TYPES:
        raise ValueError(
            f"unknown task type of ALFWorld {name!r}: expected {OFFICIAL!r} or one of "
            f"{', '.join(TASK_TYPES)}"
        )
    members = {"task_types": (name,), "__doc__": AlfWorld.__doc__}
    return type("AlfWorld", (AlfWorld,), members)
