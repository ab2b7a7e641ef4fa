"""Throughput of a decoder shape on this machine, each number beside a yardstick.

    python scripts/bench.py                 # the default shape
    python scripts/bench.py --model mini --json

Training (one update of 16 rows of 128), prefill (64 prompts of 128) and decode (64
streams) take turns with a matrix product, so that a busy machine slows both sides. A
ratio counts 2 operations a parameter and token (6 in training), attention not, and
divides by the best matrix rate of the same run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dreamgym.pipeline.config import MODELS
from worldmodel.backbone.generate import Grammar, Streams
from worldmodel.backbone.model import Model, create
from worldmodel.fitting.batches import Example, pack
from worldmodel.fitting.learner import Learner, OptimizerConfig
from worldmodel.pretrain import supervised_loss

ROWS, WIDTH, BATCH, NEW = 16, 128, 64, 32
SIDE = 1024


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, waiting for its arrays."""
    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start


def trainer(model: Model) -> Callable[[], object]:
    """One update on random tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.config.vocab_size, (ROWS, WIDTH))
    rows = [Example(r.tolist(), [True] * WIDTH, [0] * WIDTH) for r in ids]
    batch = pack(rows, WIDTH)
    learner = Learner(model, OptimizerConfig(kind="muon"), supervised_loss)
    held = [learner.init()]

    def work() -> object:
        held[0], metrics = learner.update(held[0], [batch])
        return metrics

    return work


def generator(model: Model) -> tuple[Callable[[], object], Callable[[], object]]:
    """(prefill, decode) of a batch; greedy, so that no stream ends early."""
    vocab = model.config.vocab_size
    free, never = np.ones((1, vocab), bool), np.zeros((1, vocab), bool)
    zero = np.zeros(1, np.float32)
    grammar = Grammar(
        free, free, never, np.zeros(1, np.int32), np.full(1, 10**6, np.int32), zero,
        zero,
    )  # fmt: skip
    prompts = [[1 + i % 7] * WIDTH for i in range(BATCH)]
    keys = jax.random.split(jax.random.key(0), BATCH)
    held = [Streams(model, BATCH, WIDTH + NEW)]

    def prefill() -> object:
        held[0] = Streams(model, BATCH, WIDTH + NEW)
        held[0].append(prompts, columns=WIDTH)
        return held[0].lengths

    def decode() -> object:
        return held[0].sample(grammar, keys, most=NEW).ids

    return prefill, decode


def measure(model: Model, rounds: int) -> dict[str, float]:
    """Median tokens/s of each, and their share of the matrix rate."""
    parameters = sum(x.size for x in jax.tree.leaves(model.params))
    x = jnp.ones((SIDE, SIDE))
    product = jax.jit(lambda a: a @ a)
    prefill, decode = generator(model)
    works = {
        "matrix": lambda: product(x), "train": trainer(model), "prefill": prefill,
        "decode": decode,
    }  # fmt: skip
    tokens = {"train": ROWS * WIDTH, "prefill": BATCH * WIDTH, "decode": BATCH * NEW}
    flops = {"train": 6.0, "prefill": 2.0, "decode": 2.0}  # of a parameter and token
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            spent = seconds(work)
            if number:  # the first round compiles
                taken[name].append(spent)
    best = 2.0 * SIDE**3 / min(taken["matrix"])
    out: dict[str, float] = {"parameters": parameters, "matrix_gflops": best / 1e9}
    for name, count in tokens.items():
        rate = count / statistics.median(taken[name])
        out[f"{name}_tokens_per_second"] = rate
        out[f"{name}_of_matrix_rate"] = rate * flops[name] * parameters / best
    return out


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="micro", choices=sorted(MODELS))
    parser.add_argument("--rounds", type=int, default=8, help="timed rounds (8)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be >= 1")
    shape = MODELS[args.model]
    found = measure(create(shape.model(shape.vocab_size), seed=0), args.rounds)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28s} {value:,.3g}" if value < 10 else f"{name:28s} {value:,.0f}")


if __name__ == "__main__":
    main()
