"""Text from prompts: a queue of prompts over batches of token streams.

prompts -> streams (streams.py) -> sampled tokens, one record a prompt. Where there are
more prompts than streams, a stream whose text has ended takes the next prompt. Equal
prompts are prefilled once.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jaxtyping import Array

from worldmodel.backbone.grammar import Grammar, Quotable
from worldmodel.backbone.model import Model
from worldmodel.backbone.streams import (
    PROMPT_BUCKET,
    SampledTokens,
    Streams,
    bucket,
)

BATCHES = (16, 64)
SMALL_MODEL = 700_000
"""Parameters up to which a CPU samples few streams a core (_plan)."""
SMALL_BATCH = 8
"""Streams a core of such a model."""
LEAST_ROOM = 2 * PROMPT_BUCKET
"""Columns for prompts, at least: each capacity compiles programs of its own, and only
the first steps of episodes have shorter ones throughout. Prefills are not padded to it.
"""


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    grammar: Grammar,
    keys: Array,
    *,
    max_tokens: int,
    banned: np.ndarray | None = None,
    quotable: Sequence[Quotable] | None = None,
) -> list[SampledTokens]:
    """Return one Sampled (B = 1) a prompt, in a handful of compiled shapes.

    `keys` has one PRNG key a prompt, or more than these, `banned` and `quotable` one
    row a prompt (Streams.sample). Where there are more prompts than streams, a stream
    that ends takes the next prompt.
    """
    if not prompts:
        return []
    batch, workers = _plan(model, len(prompts))
    # Rows of them are chosen for each pass, which NumPy does a hundred times faster.
    key_data = np.asarray(jax.random.key_data(keys))
    equal: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        equal.setdefault(tuple(prompt), []).append(i)
    order = [equal[prompt] for prompt in sorted(equal, key=len)]
    longest = max(bucket(max(map(len, equal))), LEAST_ROOM)
    out: list[SampledTokens | None] = [None] * len(prompts)
    quotes = None
    if quotable is not None:  # as wide as the prompts: no shape of its own to compile
        width = max(longest, bucket(max(len(row.tokens) for row in quotable)))
        quotes = Quotable.stack(quotable, width)

    def work(share: Sequence[list[int]]) -> None:
        queue = _Queue(model, batch, longest + max_tokens, prompts, share)
        for i, sampled in queue.sample(grammar, key_data, max_tokens, banned, quotes):
            out[i] = sampled

    shares = [share for n in range(workers) if (share := order[n::workers])]
    if len(shares) == 1:
        work(shares[0])
    else:
        with ThreadPoolExecutor(len(shares)) as pool:
            list(pool.map(work, shares))
    return [sampled for sampled in out if sampled is not None]


def _plan(model: Model, prompts: int) -> tuple[int, int]:
    """Return the number of streams of a batch, and of batches sampled side by side.

    On a CPU the caches of a few streams of a small model stay in the processor's own
    cache, and one core is enough for their products (docs/LOG.md, 2026-11-23). A batch
    costs the same however few of its streams are used: most passes of a dream have 4 to
    30 prompts, and two malformed replies of one step should not cost 16.
    """
    is_single = model.mesh is None or model.mesh.size == 1
    if jax.default_backend() == "cpu" and is_single:
        size = sum(x.size for x in jax.tree.leaves(model.params))
        if size <= SMALL_MODEL:
            workers = min(os.cpu_count() or 1, -(-prompts // SMALL_BATCH))
            return SMALL_BATCH, workers
    return next((b for b in BATCHES if prompts <= b), BATCHES[-1]), 1


class _Queue:
    """Prompts that wait for a stream of one batch; `share` groups the equal ones."""

    def __init__(
        self,
        model: Model,
        batch: int,
        capacity: int,
        prompts: Sequence[Sequence[int]],
        share: Sequence[list[int]],
    ):
        self._model, self._batch, self._capacity = model, batch, capacity
        self._prompts, self._share = prompts, list(share)
        self._slots: list[int | None] = [None] * batch
        self._pieces: dict[int, list[SampledTokens]] = {
            i: [] for numbers in share for i in numbers
        }
        self._waiting: tuple[Streams, list[tuple[int, int]]] | None = None
        self._used = 0
        self._streams, first = self._prefilled()
        if len({row for row, _ in first}) == len(first):
            for row, number in first:
                self._slots[row] = number
        else:  # equal prompts share a row, from which their streams are copied
            self._waiting = self._streams, first
            self._streams = Streams(model, batch, capacity)
            self._refill()

    def _prefilled(self) -> tuple[Streams, list[tuple[int, int]]]:
        """Return streams of the next distinct prompts, and (row, number) of each."""
        groups = self._share[: self._batch]
        self._share = self._share[self._batch :]
        runs = [self._prompts[numbers[0]] for numbers in groups]
        streams = Streams(self._model, self._batch, self._capacity)
        # Filled up with short runs: the batch keeps its one compiled shape.
        padded = runs + [runs[-1][:1]] * (self._batch - len(runs))
        streams.append(padded, columns=bucket(max(map(len, runs))))
        return streams, [(row, i) for row, group in enumerate(groups) for i in group]

    def _refill(self) -> None:
        """Give free slots the next prompts."""
        free = [n for n, i in enumerate(self._slots) if i is None]
        while free and (self._waiting or self._share):
            if self._waiting is None:
                self._waiting = self._prefilled()
            source, waiting = self._waiting
            taken = waiting[self._used : self._used + len(free)]
            rows, free = free[: len(taken)], free[len(taken) :]
            self._streams.replace(rows, source, [row for row, _ in taken])
            for row, (_, number) in zip(rows, taken, strict=True):
                self._slots[row] = number
            self._used += len(taken)
            if self._used == len(waiting):
                self._waiting, self._used = None, 0

    def sample(
        self,
        grammar: Grammar,
        key_data: np.ndarray,
        max_tokens: int,
        banned: np.ndarray | None,
        quotable: Quotable | None,
    ) -> Iterator[tuple[int, SampledTokens]]:
        """Sample all prompts; yield each number with its tokens as they are done."""
        resume = False
        while any(i is not None for i in self._slots):
            index = np.array([0 if i is None else i for i in self._slots])
            active = np.array([i is not None for i in self._slots])
            used = [
                sum(int(p.length[0]) for p in self._pieces[i]) if i is not None else 0
                for i in self._slots
            ]
            more = self._waiting is not None or bool(self._share)
            sampled = self._streams.sample(
                grammar,
                key_data[index],
                max_tokens=max_tokens,
                limit=max_tokens - np.array(used),
                # Pauses when a quarter of the slots is free: one for each slot would
                # stop all streams too often, and free slots cost as much as others.
                enough=self._batch - max(self._batch // 4, 1) if more else 0,
                active=active,
                banned=None if banned is None else banned[index],
                quotable=quotable and Quotable(*(x[index] for x in quotable)),
                resume=resume,
            )
            resume = True
            for row, number in enumerate(self._slots):
                if number is None:
                    continue
                piece = SampledTokens(*(field[row : row + 1] for field in sampled))
                self._pieces[number].append(piece)
                count = used[row] + int(piece.length[0])
                if count >= max_tokens or not self._streams.live[row]:
                    self._slots[row] = None
                    yield number, _joined(self._pieces.pop(number))
            self._refill()


def _joined(pieces: Sequence[SampledTokens]) -> SampledTokens:
    """Return the pieces of one stream as one."""
    if len(pieces) == 1:
        return pieces[0]
    columns = [
        np.concatenate([p[n][:, : int(p.length[0])] for p in pieces], axis=1)
        for n in range(len(pieces[0]) - 1)
    ]
    ids, logp, sampled, phase, first = columns
    length = np.array([ids.shape[1]], np.int32)
    return SampledTokens(ids, logp, sampled, phase, first, length)
