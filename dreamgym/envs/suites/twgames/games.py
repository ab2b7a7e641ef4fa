"""Games of TextWorld's generator: their names, what makes them, where they are kept.

  recipe2+take2+cook+cut+open+go6   tw-cooking, as the package itself writes its skills
  level105                          Coin Collector
a name, a split and a seed -> the package's game -> compiled, an archive in the cache

A game is compiled when it is first played. An archive holds the compiled game and the
package's description of it, with checksums: one that is broken or cut off counts as
missing, and the game is made again. Equal games are equal in every process.
"""

import contextlib
import functools
import io
import re
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

SPLIT_NAMES = {"train": "train", "dev": "valid", "test": "test"}
"""The package's names of the splits of foods."""

FIRST_SEEDS = {"train": 0, "dev": 1_000_000, "test": 2_000_000}
"""The seed of a split's first game."""

MAX_INGREDIENTS = 5
ROOMS = (1, 6, 9, 12)
MAX_LEVEL, MAX_ROOMS = 300, 100

ATTEMPTS = 50
"""Seeds that are tried for a game.

The generator refuses some: those of a recipe with salt where everything is to be cut.
"""

_NEXT_SEED = 10_000_000

_SKILL = re.compile(r"(recipe|take|go)(\d+)|cook|cut|open|drop", re.ASCII)
_LEVEL = re.compile(r"level([1-9]\d*)", re.ASCII)


class GameError(RuntimeError):
    """TextWorld's generator makes no game of these settings."""


class Game(NamedTuple):
    """A game by what makes it: its kind, its name as above, its split and its seed."""

    kind: str
    name: str
    split: str
    seed: int

    @property
    def path(self) -> Path:
        """Its archive in the cache."""
        name = f"{self.kind}-{self.split}-{self.name}-{self.seed}.zip"
        return cache_folder() / name


class Files(NamedTuple):
    """A compiled game, and the package's description of it (JSON)."""

    story: bytes
    description: bytes


def cache_folder() -> Path:
    """Return where the games of this version of the package are kept."""
    return Path.home() / ".cache" / "dreamgym" / f"textworld-{_version()}"


@functools.cache
def _version() -> str:
    return metadata.version("textworld")


# --- names ---


def recipe_settings(name: str) -> dict[str, Any]:
    """Return the settings of tw-cooking that a name such as recipe1+take1+cut writes.

    Raises:
      ValueError: it is no such name; the message says what was expected.
    """
    settings: dict[str, Any] = {
        "recipe": 1,
        "take": 0,
        "cook": False,
        "cut": False,
        "open": False,
        "drop": False,
        "go": 1,
    }
    skills = set[str]()
    for part in name.split("+"):
        match = _SKILL.fullmatch(part)
        if match is None:
            raise ValueError(
                f"unknown game of tw-cooking {name!r}: expected skills joined by +, "
                "of recipeN, takeN, cook, cut, open, drop, goN, such as "
                f"recipe2+take2+cook+cut+open+go6, got {part!r}"
            )
        skill = match[1] or part
        if skill in skills:
            raise ValueError(f"{name!r}: expected each skill once, got {part!r} again")
        skills.add(skill)
        settings[skill] = int(match[2]) if match[1] else True
    if not 1 <= settings["recipe"] <= MAX_INGREDIENTS:
        raise ValueError(f"{name!r}: recipe must be 1 to {MAX_INGREDIENTS}")
    if settings["take"] > settings["recipe"]:
        raise ValueError(f"{name!r}: take must be at most recipe")
    if settings["go"] not in ROOMS:
        raise ValueError(f"{name!r}: go, the number of rooms, must be one of {ROOMS}")
    return settings


def recipe_name(settings: Mapping[str, Any]) -> str:
    """Return the name of settings, as `recipe_settings` reads it."""
    words = [
        key if value is True else f"{key}{value}"
        for key, value in settings.items()
        if value and (key, value) != ("go", 1)
    ]
    return "+".join(words)


def level_rooms(name: str) -> tuple[int, int]:
    """Return the rooms on the way to the coin, and all rooms, of a name as level105.

    Raises:
      ValueError: it is no such name, there is no such level, or it is too large.
    """
    match = _LEVEL.fullmatch(name)
    if match is None or not 1 <= int(match[1]) <= MAX_LEVEL:
        raise ValueError(
            f"unknown game of Coin Collector {name!r}: expected level1 to level100, "
            "level101 to level150, or level201 to level233"
        )
    mode, chain = divmod(int(match[1]) - 1, 100)
    rooms = (mode + 1) * (chain + 1)
    if rooms > MAX_ROOMS:
        raise ValueError(f"{name!r} has {rooms} rooms: TextWorld takes {MAX_ROOMS}")
    return chain + 1, rooms


# --- making and keeping ---


def _cooking(game: Game, options: Any) -> Any:
    from textworld.challenges.tw_cooking import cooking

    split = {"split": SPLIT_NAMES[game.split], "recipe_seed": 0}
    return cooking.make({**recipe_settings(game.name), **split}, options)


def _coin(game: Game, options: Any) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector

    options.grammar.only_last_action = True  # else the request is the way to the coin
    return coin_collector.make({"level": int(game.name.removeprefix("level"))}, options)


MAKERS: Mapping[str, Callable[[Game, Any], Any]] = {
    "cooking": _cooking,
    "coin": _coin,
}
"""What makes the package's game, by kind."""


def compile_game(game: Game) -> None:
    """Make a game and keep it in the cache: it takes 3 to 8 seconds.

    Raises:
      GameError: the generator fails.
      OSError: the cache cannot be written.
    """
    from textworld.generator import compile_game as compile_story

    with tempfile.TemporaryDirectory(prefix="dreamgym-") as folder:
        story = Path(folder) / "game.z8"
        try:
            content, options = _generate(game)
            options.path = str(story)
            compile_story(content, options)
        except Exception as error:  # asserts, bugs of the package, Inform's compilers
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise GameError(
                f"TextWorld makes no game {game.name!r} of seed {game.seed} (split "
                f"{game.split}): {reason}"
            ) from error
        _keep(game, Files(story.read_bytes(), story.with_suffix(".json").read_bytes()))


def _generate(game: Game) -> tuple[Any, Any]:
    """Return the package's game of the first seed that it takes, and its options.

    Raises:
      ValueError: it refuses all that are tried.
    """
    import textworld

    for attempt in range(ATTEMPTS):
        options = textworld.GameOptions()
        options.seeds = game.seed + attempt * _NEXT_SEED
        with contextlib.suppress(ValueError):
            return MAKERS[game.kind](game, options), options
    raise ValueError(f"the generator refused {ATTEMPTS} seeds")


def _keep(game: Game, files: Files) -> None:
    """Write an archive that takes its place only when it is whole."""
    path = game.path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files._asdict().items():
                archive.writestr(name, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_game(game: Game) -> Files | None:
    """Return a game from the cache, or None where it is missing or broken."""
    try:
        content = game.path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return Files(*map(archive.read, Files._fields))
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError):
        return None
