"""Replay memory: stored transitions, retrieved by similarity of (state, action).

transition -> phi(state, action) -> unit vector; query -> cosine top-k, leaving out
every transition of the query's own task (another run of the same game holds the
answer). phi is lexical: hashed character n-grams of the action and of the state.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from worldmodel.text.records import State, Transition

DIMENSIONS = 256


def _grams(text: str, size: int = 3) -> list[str]:
    padded = f" {text.lower()} "
    return [padded[i : i + size] for i in range(max(len(padded) - size + 1, 1))]


def lexical(
    state: State, action: str, dimensions: int = DIMENSIONS
) -> Float[np.ndarray, " D"]:
    """phi: a unit vector; the action weighs as much as the whole state."""
    out = np.zeros(dimensions, np.float32)
    for text, salt in ((action, b"a"), ("\n".join(state), b"s")):
        part = np.zeros(dimensions, np.float32)
        for gram in _grams(text):
            code = zlib.crc32(salt + gram.encode())
            part[code % dimensions] += 1.0 if code & 0x40000000 else -1.0
        out += part / max(float(np.linalg.norm(part)), 1e-9)
    return out / max(float(np.linalg.norm(out)), 1e-9)


class ReplayMemory:
    """Transitions with their task ids. Frozen while rollouts run: callers add after."""

    def __init__(self, *, capacity: int = 20_000):
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self._capacity = capacity
        self._transitions: list[Transition] = []
        self._tasks: list[str] = []
        self._vectors = np.zeros((0, DIMENSIONS), np.float32)
        self._cache: dict[tuple[State, str], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._transitions)

    def add(self, task_ids: Sequence[str], transitions: Sequence[Transition]) -> None:
        """Append; the oldest go when the capacity is reached.

        Raises:
          ValueError: as many task ids as transitions are needed.
        """
        if len(task_ids) != len(transitions):
            raise ValueError(
                f"{len(task_ids)} task ids, {len(transitions)} transitions"
            )
        if not transitions:
            return
        new = np.stack([self._phi(t.state, t.action) for t in transitions])
        keep = -self._capacity
        self._transitions = [*self._transitions, *transitions][keep:]
        self._tasks = [*self._tasks, *task_ids][keep:]
        self._vectors = np.concatenate([self._vectors, new])[keep:]

    def _phi(self, state: State, action: str) -> np.ndarray:
        key = (state, action)
        if key not in self._cache:
            if len(self._cache) > 4 * self._capacity:
                self._cache.clear()
            self._cache[key] = lexical(state, action)
        return self._cache[key]

    def search(
        self, queries: Sequence[tuple[str, State, str]], k: int
    ) -> list[list[Transition]]:
        """The k most similar transitions of other tasks, the most similar last.

        `queries` holds (task id, state, action). Repeats of one effect are kept out, so
        that k demonstrations show k different things where the memory has them.
        """
        if k == 0 or not self._transitions or not queries:
            return [[] for _ in queries]
        out = []
        reach = min(8 * k, len(self._transitions))
        owner = {task: i for i, task in enumerate(dict.fromkeys(self._tasks))}
        owners = np.array([owner[task] for task in self._tasks])
        for start in range(0, len(queries), 256):
            part = queries[start : start + 256]
            phi = np.stack([self._phi(s, a) for _, s, a in part])
            scores = phi @ self._vectors.T
            own = np.array([owner.get(task, -1) for task, _, _ in part])
            scores[own[:, None] == owners[None]] = -np.inf
            top = np.argpartition(-scores, reach - 1, axis=1)[:, :reach]
            for row, score in zip(top, scores, strict=True):
                others = [i for i in row.tolist() if score[i] > -np.inf]
                order = sorted(others, key=lambda i: (-score[i], i))  # ties by age
                out.append(self._pick(order, k))
        return out

    def _pick(self, order: Sequence[int], k: int) -> list[Transition]:
        found: dict[tuple[str, State], Transition] = {}
        for i in order:
            t = self._transitions[i]
            found.setdefault((t.action, t.next_state), t)
            if len(found) == k:
                break
        return list(found.values())[::-1]
