"""Searching the replay memory beside faiss (IndexFlatIP), in turns in one process.

    python scripts/bench_memory.py                    # a million entries
    python scripts/bench_memory.py --entries 50000

Random unit vectors; queries are entries with noise. Both searches are exact: `agree`
is the share of places that hold the same entry (rounding may swap near-ties).
`ratio` is the median over rounds of faiss' seconds by ours.
"""

import argparse
import json
import os
import time
from typing import Any

import faiss
import numpy as np
from bench_common import median, table

from worldmodel.memory.index import Index


def measured(
    index: Index, peer: Any, vectors: np.ndarray, batch: int, k: int, rounds: int
) -> dict[str, Any]:
    """Return one row: seconds of a batch of queries on both sides."""
    rng = np.random.default_rng(batch)
    noise = rng.standard_normal((batch, vectors.shape[1]), dtype=np.float32)
    queries = vectors[rng.integers(0, len(vectors), batch)] + 0.02 * noise
    no_owner = np.full(batch, -1)
    times, peer_times = [], []
    for number in range(rounds + 1):
        start = time.perf_counter()
        _, slots = index.search(queries, no_owner, k)
        middle = time.perf_counter()
        _, peer_slots = peer.search(queries, k)
        end = time.perf_counter()
        if number:  # the first compiles
            times.append(middle - start)
            peer_times.append(end - middle)
    return {
        "queries": batch,
        "ms": 1e3 * median(times),
        "faiss ms": 1e3 * median(peer_times),
        "ratio": median([b / a for a, b in zip(times, peer_times, strict=True)]),
        "agree": float((slots == peer_slots).mean()),
    }


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--entries", type=int, default=1_000_000, help="entries (1000000)")
    add("--dimensions", type=int, default=256, help="of a vector (256)")
    add("--k", type=int, default=8, help="neighbours (8)")
    add("--rounds", type=int, default=5, help="timed rounds, in turns (5)")
    add("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((args.entries, args.dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index, peer = Index(args.dimensions), faiss.IndexFlatIP(args.dimensions)
    index.write(np.arange(args.entries), vectors, np.zeros(args.entries, np.int64))
    peer.add(vectors)
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    rows = [
        measured(index, peer, vectors, batch, args.k, args.rounds)
        for batch in (1, 16, 64, 256)
    ]
    print(
        json.dumps({"entries": args.entries, "rows": rows})
        if args.json
        else table(rows)
    )


if __name__ == "__main__":
    main()
