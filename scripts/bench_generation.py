"""Sampling speed beside other engines, on the same weights, in turns.

    python scripts/bench_generation.py                  # 1 M parameters, 64 streams
    python scripts/bench_generation.py --model models/smollm2 --batches 1,8,32
    python scripts/bench_generation.py --peers transformers,tunix --tunix-python PYTHON

Each batch prefills random prompts and samples at temperature 1. `ratio` is the median
over rounds of the peer's seconds by ours. Prefill is the time to the first token,
decode the rest. Rooflines: `of matrix` is prefill's operations (2 a multiplied
parameter and token) over this run's best matrix rate; `of copy` and `of read` decode's
bytes (the parameters, once a step) over the best rate of a copy (read and written) and
of a sum.
"""

from typing import Any

from bench_common import Engine, engines, in_turns, median, options, show


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = options(__doc__)
    parser.add_argument("--batches", default="64", help="streams, by comma (64)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens prefilled")
    parser.add_argument("--new", type=int, default=64, help="tokens sampled (>= 2)")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with engines(args) as running:
        ours = running["dreamgym"]
        about = ours("about")
        for batch in map(int, args.batches.split(",")):
            rates = ours("rates")
            number = iter(range(10**6))

            def work(engine: Engine, batch: int = batch, number=number) -> Any:
                return engine(
                    "sample",
                    batch=batch,
                    prompt=args.prompt,
                    new=args.new,
                    seed=next(number),
                )

            results = in_turns(running, args.rounds, work)
            for name in running:
                rows.append(row(args, batch, name, results, about, rates))
    show(args, rows)


def row(
    args: Any, batch: int, name: str, results: Any, about: Any, rates: Any
) -> dict[str, Any]:
    """Return one engine's row of the table."""
    ours, peer = results["dreamgym"], results[name]
    first = median([a["first"] for a in peer])
    rest = median([a["total"] - a["first"] for a in peer])
    prefill = batch * args.prompt / first
    # None: too short to be told from the noise of two calls.
    steps = (args.new - 1) / rest if rest > 0 else None
    ratios = [b["total"] / a["total"] for a, b in zip(ours, peer, strict=True)]
    return {
        "engine": name,
        "batch": batch,
        "tokens/s": batch * args.new / median([a["total"] for a in peer]),
        "prefill/s": prefill,
        "decode/s": None if steps is None else batch * steps,
        "ratio": median(ratios),
        "of matrix": prefill * 2 * about["multiplied"] / rates["matrix_flops"],
        "of copy": None
        if steps is None
        else 2 * steps * about["bytes"] / rates["copy_bytes"],
        "of read": None
        if steps is None
        else steps * about["bytes"] / rates["read_bytes"],
    }


if __name__ == "__main__":
    main()
