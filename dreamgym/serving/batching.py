"""Model calls of many sessions, answered together.

sessions, each in a thread of its own -> one queue -> one thread that asks the model for
everything that waits. While it computes, further queries gather; they are the next
batch. An answer is a function of its query, so it does not depend on its neighbours.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import jax

from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import (
    CachingExperienceModel,
    ExperienceModel,
    Prediction,
    Query,
)

MAX_BATCH = 64
"""Queries of one call, at most: as many as the sampler computes side by side."""

LINGER_SECONDS, LINGER_SHARE = 0.003, 0.1
"""How long a batch waits for further queries once it has one, at most: some
milliseconds, or this share of what the last call took. It waits for no more queries
than those of the last call and those that came during it: a single session never waits,
and sessions that play side by side fall into step."""

CACHED_ANSWERS = 20_000
"""Answers that the model keeps; beyond them its cache is cleared."""


class _Request(NamedTuple):
    """A query that waits, and where its answer goes."""

    query: Query
    answer: Future[Prediction]


class BatchedExperienceModel(ExperienceModel):
    """An experience model that many threads ask, and that is asked in batches."""

    def __init__(
        self,
        model: ExperienceModel,
        *,
        max_batch: int = MAX_BATCH,
        on_batch: Callable[[int, float], None] = lambda *_: None,
    ):
        """Start the thread that asks the model.

        Args:
          max_batch: queries of one call, at most.
          on_batch: called with the size of each batch and the seconds it took.
        """
        self._model, self._max_batch, self._on_batch = model, max_batch, on_batch
        self._expected, self._last_seconds = 1, 0.0
        self._waiting: list[_Request] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(
            target=self._serve, name="experience-model", daemon=True
        )
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of queries that no batch has taken yet."""
        return len(self._waiting)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction a query, computed together with those of others.

        Raises:
          RuntimeError: the model was closed.
        """
        requests = [_Request(query, Future()) for query in queries]
        with self._changed:
            if self._closed:
                raise RuntimeError("the experience model is closed: the server stops")
            self._waiting += requests
            self._changed.notify()
        return [request.answer.result() for request in requests]

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        """Return a new task from each group; they are not batched with others."""
        return self._model.vary(groups, key=key)

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _next_batch(self) -> list[_Request]:
        """Wait for queries and return them; empty once the model is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            linger = max(LINGER_SECONDS, LINGER_SHARE * self._last_seconds)
            deadline = time.monotonic() + linger
            target = min(self._expected, self._max_batch)
            while len(self._waiting) < target and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            batch = self._waiting[: self._max_batch]
            del self._waiting[: self._max_batch]
            return batch

    def _serve(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            try:
                answers = self._model.predict([request.query for request in batch])
            except Exception as error:
                # Whoever asked decides: a session ends its episode with it.
                for request in batch:
                    request.answer.set_exception(error)
                continue
            self._last_seconds = time.monotonic() - start
            with self._changed:
                self._expected = len(batch) + len(self._waiting)
            for request, answer in zip(batch, answers, strict=True):
                request.answer.set_result(answer)
            self._on_batch(len(batch), self._last_seconds)
            if isinstance(self._model, CachingExperienceModel):
                self._model.trim_cache(CACHED_ANSWERS)
