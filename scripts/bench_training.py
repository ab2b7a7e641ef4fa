"""Training steps beside other engines, on the same weights, in turns.

    python scripts/bench_training.py                         # 1 M parameters
    python scripts/bench_training.py --model models/smollm2 --rows 4 --width 256
    python scripts/bench_training.py --peers transformers,tunix --tunix-python PYTHON

One AdamW step on rows of random ids, every token a target. `ratio` is the median over
rounds of the peer's seconds by ours; `of matrix` counts 6 operations a multiplied
parameter and token, attention not, over this run's best matrix rate; `peak` is the most
memory the engine's process held. The losses of the first timed step stand next to it.
"""

from bench_common import engines, in_turns, median, options, show


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch (32)")
    parser.add_argument("--width", type=int, default=128, help="tokens of a row (128)")
    parser.add_argument(
        "--remat", action="store_true", help="ours computes layers again: less memory"
    )
    args = parser.parse_args()
    tokens, rows = args.rows * args.width, []
    with engines(args) as running:
        results = in_turns(
            running,
            args.rounds,
            lambda engine: engine(
                "train", rows=args.rows, width=args.width, remat=args.remat
            ),
        )
        peak = {name: engine("peak")["bytes"] / 1e9 for name, engine in running.items()}
        # Last: what measuring the rates holds is none of a step's memory.
        about, rates = running["dreamgym"]("about"), running["dreamgym"]("rates")
        ours = results["dreamgym"]
        for name, answers in results.items():
            speed = tokens / median([a["seconds"] for a in answers])
            pairs = zip(ours, answers, strict=True)
            rows.append(
                {
                    "engine": name,
                    "tokens/s": speed,
                    "ratio": median([b["seconds"] / a["seconds"] for a, b in pairs]),
                    "of matrix": speed
                    * 6
                    * about["multiplied"]
                    / rates["matrix_flops"],
                    "peak GB": peak[name],
                    "loss": answers[0]["loss"],
                }
            )
    show(args, rows)


if __name__ == "__main__":
    main()
