"""TextWorld's own games: cook what a recipe says, and find a coin.

  twcooking              recipes of one to three ingredients, in a kitchen
  twcooking:SKILLS       one kind of recipe, such as recipe3+take3+cook+cut+open+go6
  twcoin                 Coin Collector in chains and mazes of rooms
  twcoin:levelN          one level, 1 to 300

A game is made and compiled when it is first played (games.py, making.py). Its texts and
facts become lines of state (text.py). An episode pays a share for each of the game's
points, 1 in all; it is lost where the food is burned, cut wrongly or eaten.
"""

import functools
import itertools
import json
from typing import Any, ClassVar

try:
    import textworld  # noqa: F401
except ImportError as error:
    raise ImportError(
        "TextWorld's own games need pip install 'dreamgym[textworld]'"
    ) from error

from dreamgym.envs.base import SPLITS, TextEnv, task_to_start
from dreamgym.envs.suites.twgames.engine import Engine, Reply
from dreamgym.envs.suites.twgames.expert import MAX_PLAN, READ, plan_of
from dreamgym.envs.suites.twgames.games import (
    FIRST_SEEDS,
    Files,
    Game,
    GameError,
    level_rooms,
    load_game,
    recipe_name,
    recipe_settings,
)
from dreamgym.envs.suites.twgames.making import Progress, core_count, make_games
from dreamgym.envs.suites.twgames.text import House
from worldmodel.data.records import Task

SIZES = {"train": 200, "dev": 40, "test": 100}
"""Games of a split. The generator makes any number, but each takes seconds."""

RECIPES = tuple(f"recipe{n}+take{n}+cook+cut+open" for n in (1, 2, 3))
LEVELS = ("level5", "level105", "level205")
"""Families of the two environments without a name after the colon."""

AHEAD = 2
"""Games for each core that are made at once, where one is missing."""

_WITHOUT_EFFECT = ("examine ", "inventory", "look")


class TextWorldGames(TextEnv):
    """Games of one kind; each name of a game is a family.

    It is deterministic: equal tasks and actions give equal texts.
    """

    deterministic = True
    reset_seconds = 600.0
    """It may make games, or wait for other processes that do."""

    kind: ClassVar[str] = "cooking"
    id: ClassVar[str] = "twcooking"
    names: ClassVar[tuple[str, ...]] = RECIPES
    max_episode_steps: int = 50

    def __init__(self) -> None:
        super().__init__()
        self._engine, self._house = Engine(), House()
        self._files: Files | None = None
        self._reply: Reply | None = None
        self._game: Game | None = None
        self._steps, self._open = 0, False
        self._progress = Progress()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a train task drawn by `seed`.

        Raises:
          ValueError: the task's options name no game.
          GameError: TextWorld's generator does not make this game.
          ConnectionError: a process that makes games was ended.
        """
        super().reset(seed=seed)
        self._open = False
        task = task_to_start(self, options)
        game = self._game_of(task)
        self._files = self._make(game)
        self._reply, instruction = self._engine.start(self._files)
        self._house = House()
        self._house.read(self._reply.facts, "")
        self._game, self._steps, self._open = game, 0, True
        return self._text(), {"instruction": instruction, "success": False}

    def _game_of(self, task: Task) -> Game:
        options = task.options
        name, split, seed = (options.get(key) for key in ("game", "split", "seed"))
        try:
            check_name(self.kind, str(name))
            problem = "" if split in SPLITS else f"no split {split!r}"
            problem = problem if type(seed) is int else f"no seed {seed!r}"
        except ValueError as error:
            problem = str(error)
        if problem or not isinstance(name, str):
            raise ValueError(
                f"task {task.id!r}: options must name a game, a split of {SPLITS} and "
                f"a seed, got {json.dumps(dict(options))}: {problem}"
            )
        return Game(self.kind, name, str(split), int(str(seed)))

    def _make(self, game: Game) -> Files:
        """Return a game's files; make it, and the next ones, where it is missing."""
        files = load_game(game)
        if files is None:
            games = self._games(game.split)
            first = games.index(game) if game in games else len(games)
            later = [g for g in games[first + 1 :] if not g.path.exists()]
            batch = [game, *later][: max(1, AHEAD * core_count())]
            failures = self._make_all(batch)
            files = load_game(game)
            if files is None:
                raise GameError(failures.get(game, f"{game.path} is gone again"))
        return files

    def _make_all(self, games: list[Game]) -> dict[Game, str]:
        split = games[0].split
        listed = self._games(split)

        def report() -> None:
            done = sum(game.path.exists() for game in listed)
            text = f"{self.id}: games of {split} that are made"
            self._progress.update(text, done, len(listed))

        return make_games(games, report)

    def make_ahead(self, split: str) -> None:
        """Make all games of a split that are not in the cache yet.

        Raises:
          GameError: TextWorld's generator fails at some of them.
        """
        failures = self._make_all(self._games(split))
        if failures:
            raise GameError("; ".join(failures.values()))

    def _text(self) -> str:
        return "\n".join(self._house.lines())

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, given as free text.

        Raises:
          RuntimeError: there is no running episode.
        """
        before = self._reply
        if not self._open or before is None:
            raise RuntimeError("step() needs a running episode: call reset() first")
        reply = self._reply = self._engine.step(action)
        self._steps += 1
        reveals = self._house.read(reply.facts, reply.text, reply.score)
        points = (reply.score - before.score) / reply.max_score
        truncated = self._steps >= self.max_episode_steps
        truncated = truncated and not (reply.won or reply.lost)
        self._open = not (reply.won or reply.lost or truncated)
        command = " ".join(action.lower().split())
        looks = command.startswith(_WITHOUT_EFFECT) and command in map(
            str.lower, before.commands
        )
        info = {
            "rewards": {"points": points},
            "success": reply.won,
            "invalid": not looks and set(reply.facts) == set(before.facts),
            "reveals": reveals,
        }
        return self._text(), points, reply.won or reply.lost, truncated, info

    def tasks(self, split: str) -> list[Task]:
        """Return the games of a split, the families in turn; none is made for it."""
        return [
            Task(
                id=f"{self.id}-{game.name}-{split}-{game.seed - FIRST_SEEDS[split]}",
                instruction="",
                env=self.id,
                family=game.name,
                split=split,
                options={"game": game.name, "split": split, "seed": game.seed},
            )
            for game in self._games(split)
        ]

    def _games(self, split: str) -> list[Game]:
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        # Equal seeds have equal ingredients: so each game has one of its own.
        names = itertools.cycle(self.names)
        return [
            Game(self.kind, next(names), split, FIRST_SEEDS[split] + number)
            for number in range(SIZES[split])
        ]

    def expert(self) -> list[str]:
        """Return the plan of somebody who searches (expert.py).

        Raises:
          RuntimeError: there was no reset.
        """
        if self._files is None or self._game is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        hands = capacity(self._game)
        return list(_plan(self._files.description, self.kind, hands))

    def valid_actions(self) -> list[str]:
        """Return the commands that the game would take now and that change something.

        To look, to examine and to take stock shows nothing that is not in the state;
        what the cookbook says shows nothing new once it was read.
        """
        if self._reply is None:
            raise RuntimeError("valid_actions() needs a task: call reset() first")
        return [
            command
            for command in self._reply.commands
            if not command.startswith(_WITHOUT_EFFECT)
            or (command == READ and self._house.recipe is None)
        ]

    def close(self) -> None:
        """Unload the game."""
        self._open = False
        self._engine.close()


class TextWorldCooking(TextWorldGames):
    """Games of tw-cooking: find the recipe and the ingredients, prepare and eat."""


class TextWorldCoin(TextWorldGames):
    """Games of Coin Collector: find the coin."""

    kind = "coin"
    id = "twcoin"
    names = LEVELS


@functools.lru_cache(maxsize=256)
def _plan(description: bytes, kind: str, hands: int) -> tuple[str, ...]:
    return plan_of(description, kind, hands)


def capacity(game: Game) -> int:
    """Return the number of things that can be carried in a game."""
    settings = recipe_settings(game.name) if game.kind == "cooking" else {}
    if not settings.get("drop"):
        return MAX_PLAN
    return max(settings["recipe"], 2 if settings["cut"] else 1)


def check_name(kind: str, name: str) -> None:
    """Raise a ValueError where no game of a kind has this name."""
    (recipe_settings if kind == "cooking" else level_rooms)(name)


@functools.cache
def one_recipe(name: str) -> type[TextWorldGames]:
    """Return the environment of one kind of recipe, such as recipe1+take1+cut.

    Raises:
      ValueError: the name is no such kind.
    """
    settings = recipe_settings(name)
    steps = TextWorldCooking.max_episode_steps * (1 if settings["go"] == 1 else 2)
    return _named(TextWorldCooking, recipe_name(settings), steps)


@functools.cache
def one_level(name: str) -> type[TextWorldGames]:
    """Return the environment of one level of Coin Collector, such as level105.

    Raises:
      ValueError: there is no such level.
    """
    chain, _ = level_rooms(name)
    steps = max(TextWorldCoin.max_episode_steps, 5 * chain)
    return _named(TextWorldCoin, name, steps)


def _named(base: type[TextWorldGames], name: str, steps: int) -> type[TextWorldGames]:
    members = {"names": (name,), "max_episode_steps": steps, "__doc__": base.__doc__}
    return type(base.__name__, (base,), members)
