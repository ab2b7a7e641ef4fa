"""Replay memory: stored transitions, retrieved by similarity of (state, action).

transition -> phi(state, action) -> unit vector; query -> exact cosine top-k. All
transitions of the query's own task are left out, because another attempt at the same
task would reveal the answer.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from worldmodel.data import processes
from worldmodel.data.records import (
    Episode,
    RecordError,
    State,
    Task,
    Transition,
    atomic_write,
    read_episodes,
    write_episodes,
)
from worldmodel.memory.encoders import Encoder, Lexical
from worldmodel.memory.index import Index

SCHEMA = "dreamgym.memory/1"
CANDIDATES_PER_RESULT = 8
"""Neighbours that are read for each result, since repeats of an effect are dropped;
where too few results are left, the square and then the cube of it."""


class ReplayMemory:
    """A ring of transitions with their task ids; the oldest entries make room.

    It does not change while rollouts run: callers add afterwards.
    """

    def __init__(self, *, capacity: int = 20_000, encoder: Encoder | None = None):
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self.capacity = capacity
        self.encoder = Lexical() if encoder is None else encoder
        self._index = Index(self.encoder.dimensions)
        self._transitions: list[Transition] = []
        self._tasks: list[str] = []
        self._owners: dict[str, int] = {}
        self._oldest = 0

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Episode],
        *,
        capacity: int,
        encoder: Encoder | None = None,
    ) -> "ReplayMemory":
        """Return a memory with the transitions of these episodes."""
        memory = cls(capacity=capacity, encoder=encoder)
        ids = [e.task.id for e in episodes for _ in e.transitions]
        memory.add(ids, [t for e in episodes for t in e.transitions])
        return memory

    def __len__(self) -> int:
        return len(self._transitions)

    def entries(self) -> list[tuple[str, Transition]]:
        """Return (task id, transition) of all entries, the oldest first."""
        pairs = list(zip(self._tasks, self._transitions, strict=True))
        return pairs[self._oldest :] + pairs[: self._oldest]

    def add(self, task_ids: Sequence[str], transitions: Sequence[Transition]) -> None:
        """Append transitions; the oldest entries go when the capacity is reached.

        Raises:
          ValueError: the numbers of task ids and transitions differ.
        """
        if len(task_ids) != len(transitions):
            raise ValueError(
                f"expected one task id a transition, got {len(task_ids)} task ids, "
                f"{len(transitions)} transitions"
            )
        tasks = list(task_ids)[-self.capacity :]
        fresh = list(transitions)[-self.capacity :]
        vectors = self.encoder.encode([(t.state, t.action) for t in fresh])
        self._store(tasks, fresh, vectors)

    def _store(
        self, tasks: list[str], fresh: list[Transition], vectors: np.ndarray
    ) -> None:
        slots = np.zeros(len(fresh), np.int64)
        for i, (task, transition) in enumerate(zip(tasks, fresh, strict=True)):
            if len(self._transitions) < self.capacity:
                slots[i] = len(self._transitions)
                self._transitions.append(transition)
                self._tasks.append(task)
                continue
            slots[i] = self._oldest
            self._transitions[self._oldest] = transition
            self._tasks[self._oldest] = task
            self._oldest = (self._oldest + 1) % self.capacity
        owners = [self._owners.setdefault(t, len(self._owners)) for t in tasks]
        self._index.write(slots, vectors, np.array(owners, np.int64))

    def search(
        self, queries: Sequence[tuple[str, State, str]], k: int
    ) -> list[list[Transition]]:
        """Return the k most similar transitions of other tasks, the most similar last.

        `queries` holds (task id, state, action). Repeats of one effect are dropped, so
        that k demonstrations show k different effects where the nearest 512 k entries
        have them.
        """
        return [[t for _, t in neighbors] for neighbors in self.nearest(queries, k)]

    def nearest(
        self, queries: Sequence[tuple[str, State, str]], k: int
    ) -> list[list[tuple[float, Transition]]]:
        """Return the results of `search`, each with its cosine similarity."""
        if k == 0 or not self._transitions or not queries:
            return [[] for _ in queries]
        # Rollouts of a group ask the same question: each distinct one is encoded once.
        positions = {(s, a): i for i, (s, a) in enumerate({q[1:]: 0 for q in queries})}
        vectors = self.encoder.encode(list(positions))
        phi = vectors[[positions[s, a] for _, s, a in queries]]
        # -1 is the owner of no entry: a task that the memory does not know excludes
        # nothing.
        exclude_owner = np.array([self._owners.get(task, -1) for task, _, _ in queries])
        neighbors, pending = [[]] * len(queries), list(range(len(queries)))
        for num_candidates in (
            CANDIDATES_PER_RESULT * k,
            CANDIDATES_PER_RESULT**2 * k,
            CANDIDATES_PER_RESULT**3 * k,
        ):
            scores, slots = self._index.search(
                phi[pending], exclude_owner[pending], num_candidates
            )
            for i, row, score in zip(pending, slots, scores, strict=True):
                neighbors[i] = self._pick(row, score, k)
            pending = [i for i in pending if len(neighbors[i]) < k]
            if not pending or num_candidates >= len(self._transitions):
                break
        return neighbors

    def _pick(
        self, slots: np.ndarray, scores: np.ndarray, k: int
    ) -> list[tuple[float, Transition]]:
        size = len(self._transitions)
        # Ties by age, not by slot: slots are reused, and a saved memory is renumbered.
        order = sorted(
            (-score, (slot - self._oldest) % size, slot)
            for score, slot in zip(scores.tolist(), slots.tolist(), strict=True)
            if score > -np.inf
        )
        distinct: dict[tuple[str, State], tuple[float, Transition]] = {}
        for score, _, slot in order:
            t = self._transitions[slot]
            distinct.setdefault((t.action, t.next_state), (-score, t))
            if len(distinct) == k:
                break
        # The most similar last: beyond the context budget the first ones are left out.
        return list(distinct.values())[::-1]

    # --- on disk -------------------------------------------------------------

    def save(self, directory: str | os.PathLike) -> None:
        """Write all entries; an older memory there is replaced when all is on disk.

        `transitions.jsonl.gz` holds the records, one for each entry (their format is in
        docs/reference/episodes.md), `vectors.npy` their vectors and `memory.json` the
        rest.
        """
        with processes.first_process_writes("memory") as writes:
            if writes:
                self._write(Path(directory))

    def _write(self, directory: Path) -> None:
        fresh = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        vectors = self._index.vectors()[: len(self)]
        # The oldest first, as `entries()` lists them: a loaded ring begins at slot 0.
        _write_array(fresh / "vectors.npy", np.roll(vectors, -self._oldest, axis=0))
        if len(self):
            write_episodes(
                fresh / "transitions.jsonl.gz",
                (
                    Episode(
                        id=str(i),
                        task=Task(id=task, instruction=""),
                        transitions=(t,),
                        source="memory",
                        success=None,
                    )
                    for i, (task, t) in enumerate(self.entries())
                ),
                check=False,
            )
        with atomic_write(fresh / "memory.json") as file:
            header = {
                "schema": SCHEMA,
                "entries": len(self),
                "capacity": self.capacity,
                "encoder": self.encoder.name,
                "dimensions": self.encoder.dimensions,
            }
            json.dump(header, file, indent=2)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)

    @classmethod
    def load(
        cls, directory: str | os.PathLike, *, encoder: Encoder | None = None
    ) -> "ReplayMemory":
        """Return the memory of a directory; vectors of another encoder are recomputed.

        Raises:
          RecordError: there is no memory, one of another schema, or its parts do not
            fit.
        """
        directory = Path(directory)
        path = directory / "memory.json"
        try:
            header = json.loads(path.read_text())
            if header["schema"] != SCHEMA:
                raise RecordError(
                    f"{path}: expected schema {SCHEMA!r}, got {header['schema']!r}"
                )
            memory = cls(capacity=header["capacity"], encoder=encoder)
            if not header["entries"]:
                return memory
            episodes = read_episodes(directory / "transitions.jsonl.gz")
            vectors = _vectors(directory / "vectors.npy")
        except FileNotFoundError as error:
            raise RecordError(f"{error.filename}: no such file") from None
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise RecordError(f"{path}: not a replay memory ({error!r})") from None
        if not len(episodes) == len(vectors) == header["entries"]:
            raise RecordError(
                f"{directory}: expected {header['entries']} entries, got "
                f"{len(episodes)} transitions and {len(vectors)} vectors"
            )
        transitions = [t for e in episodes for t in e.transitions]
        tasks = [e.task.id for e in episodes]
        encoder_row = header["encoder"], header["dimensions"]
        if encoder_row == (memory.encoder.name, memory.encoder.dimensions):
            memory._store(tasks, transitions, vectors)
        else:
            memory.add(tasks, transitions)
        return memory


def _vectors(path: Path) -> np.ndarray:
    try:
        return np.load(path)
    except (EOFError, ValueError) as error:
        raise RecordError(f"{path}: expected an array of vectors ({error})") from None


def _write_array(path: Path, array: np.ndarray) -> None:
    """Write what np.save writes, whose error would not say that the disk is full."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)
