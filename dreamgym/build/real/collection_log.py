"""The episodes that an interrupted collection has played.

behavior.collect -> one line an episode -> the next attempt, which goes on after the
last whole line. A line holds the episode and the state of the collection's random
numbers after it, so that the next attempt collects what this one would have.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.agent.behavior import PlayedEpisode
from worldmodel.data import processes
from worldmodel.data.json_reading import RecordError, Where, field, json_lines
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, atomic_write, episode_json, parse_episode

UNWRITABLE = "unwritable"
"""What broke an episode that the run's episodes.jsonl could not hold."""


class CollectionLog:
    """The played episodes of one collection, in a file to which each is appended."""

    def __init__(self, path: str | os.PathLike):
        """Read the file, if there is one, up to the first line that is damaged."""
        self._path = Path(path)
        self.played = list(_read(self._path))
        """The episodes of earlier attempts, in order."""
        exists = self._path.is_file()
        # Nobody appends before all have read: they would see different files.
        processes.wait_for_all(f"{self._path.name} of the collection is read")
        if exists:  # without the line that a kill left unfinished
            with atomic_write(self._path) as file:
                file.writelines(map(_line, self.played))

    @property
    def steps(self) -> int:
        """The number of real steps of the episodes of earlier attempts."""
        episodes = (p.episode for p in self.played)
        return sum(len(e.transitions) for e in episodes if e is not None)

    def append(self, played: PlayedEpisode) -> None:
        """Add an episode to the file.

        Raises:
          OSError: the disk is full, for instance.
        """
        if not processes.is_first_process():
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(_line(played))
        except OSError as error:
            error.filename = str(self._path)  # which disk is full
            raise


def _line(played: PlayedEpisode) -> str:
    """Return the line of an episode; one that JSON cannot hold is left out of it."""
    episode, failure = None, played.failure
    if played.episode is not None:
        try:
            episode = episode_json(played.episode)
            episode.encode()
        except (TypeError, ValueError, RecursionError):
            episode, failure = None, failure or UNWRITABLE
    rest = {
        "generator": dict(played.generator),
        "listed": [int(played.listed.hits), played.listed.count],
        "failure": failure,
    }
    return f'{{"episode": {episode or "null"}, {json.dumps(rest)[1:]}\n'


def _read(path: Path) -> Iterator[PlayedEpisode]:
    """Yield what a file holds, until a line is damaged."""
    if not path.is_file():
        return
    try:
        for row, where in json_lines(path, "the episodes of a collection"):
            yield _parse(row, where)
    except RecordError:
        return


def _parse(row: Any, where: Where) -> PlayedEpisode:
    generator = field(row, "generator", dict, where)
    try:
        np.random.PCG64().state = generator
    except (KeyError, TypeError, ValueError, OverflowError):
        raise where.at("generator").error("a state of PCG64", generator) from None
    counts = field(row, "listed", list, where)
    if len(counts) != 2 or any(type(n) is not int for n in counts):
        raise where.at("listed").error("two whole numbers", counts)
    recorded = field(row, "episode", object, where)
    episode = _episode(recorded, where.at("episode"))
    failure = field(row, "failure", str, where)
    if recorded is not None and episode is None:
        failure = failure or UNWRITABLE
    return PlayedEpisode(
        episode=episode,
        generator=generator,
        listed=Rate.of(*counts),
        failure=failure,
    )


def _episode(row: Any, where: Where) -> Episode | None:
    """Return an episode; None for one that the run's episodes.jsonl could not hold."""
    try:
        return None if row is None else parse_episode(row, where)
    except RecordError:
        return None
