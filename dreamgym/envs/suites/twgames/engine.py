"""The interpreter of TextWorld's compiled games: a command -> what the game answers.

Each game is played in a copy of the interpreter's library (Jericho's), in this process.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import textworld

from dreamgym.envs.suites.twgames.games import Files

UNKNOWN_VERB = "That's not a verb I recognise."
UNKNOWN_NOUN = "You can't see any such thing."
"""The game's own answers to words that it does not know."""

_SEED = 1
"""Of the interpreter's random numbers; TextWorld's games draw none."""

_WORD = re.compile(r"[^\s{}]+")
_BRACES = re.compile(r"\{\w+\}")


class Reply(NamedTuple):
    """What a game says, and what is true in it now.

    `facts` are the package's propositions, `commands` those that it would take, and
    `score` is the number of points so far, of `max_score`.
    """

    text: str
    facts: Sequence[Any]
    commands: tuple[str, ...]
    score: int
    max_score: int
    won: bool
    lost: bool


class Engine:
    """One game at a time."""

    def __init__(self) -> None:
        self._env: Any = None
        self._last: Reply | None = None

    def start(self, files: Files) -> tuple[Reply, str]:
        """Start a game; return its first moment, and what it asks for."""
        self.close()
        infos = textworld.EnvInfos(
            admissible_commands=True,
            command_templates=True,
            entities=True,
            facts=True,
            max_score=True,
            objective=True,
            score=True,
            verbs=True,
        )
        with tempfile.TemporaryDirectory(prefix="dreamgym-") as folder:
            story = Path(folder) / "game.z8"
            story.write_bytes(files.story)
            story.with_suffix(".json").write_bytes(files.description)
            env = textworld.start(str(story), infos)
            env.seed(_SEED)
            state = env.reset()
        self._env = env
        self._verbs = {verb.lower() for verb in state["verbs"]}
        templates = (_BRACES.sub("", text) for text in state["command_templates"])
        texts = [*templates, *state["entities"]]
        self._words = {w for text in texts for w in _WORD.findall(text.lower())}
        self._last = _reply(state)
        return self._last, str(state["objective"])

    def step(self, command: str) -> Reply:
        """Take one command; one that is not possible now changes nothing.

        The game gets words alone that its own commands and names consist of. Others it
        would take for its menu (quit, undo, save), or for a second command.
        """
        assert self._last is not None, "start() comes first"
        words = command.lower().split()
        if not words or words[0] not in self._verbs:
            return self._last._replace(text=UNKNOWN_VERB)
        if not self._words.issuperset(words):
            return self._last._replace(text=UNKNOWN_NOUN)
        state, _, _ = self._env.step(" ".join(words))
        self._last = _reply(state)
        return self._last

    def close(self) -> None:
        """Unload the game."""
        env, self._env, self._last = self._env, None, None
        if env is not None:
            env.close()


def _reply(state: Any) -> Reply:
    return Reply(
        str(state["feedback"]),
        tuple(state["facts"]),
        tuple(state["admissible_commands"]),
        int(state["score"] or 0),
        int(state["max_score"]),
        bool(state["won"]),
        bool(state["lost"]),
    )
