"""A long conversation: turns that keep their cache, beside a client that prefills anew.

    python scripts/bench_rollout.py --model models/smollm2
    python scripts/bench_rollout.py --model 1m --batch 64

Every turn appends tokens to each stream and samples some. `growth` is the last turn's
seconds by the second one's; `ratio` the median over rounds of a peer's seconds at the
last turn, where it sends the whole conversation, by ours.
"""

from bench_common import engines, in_turns, median, options, show


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = options(__doc__)
    parser.add_argument("--batch", type=int, default=8, help="streams (8)")
    parser.add_argument("--turns", type=int, default=12, help="turns (12)")
    parser.add_argument("--append", type=int, default=128, help="tokens appended (128)")
    parser.add_argument("--new", type=int, default=8, help="tokens sampled (8)")
    args = parser.parse_args()
    order = {
        "batch": args.batch,
        "turns": args.turns,
        "append": args.append,
        "new": args.new,
        "only": [2, args.turns],
    }
    rows = []
    with engines(args) as running:
        results = in_turns(
            running, args.rounds, lambda engine: engine("turns", **order)
        )
    ours = results["dreamgym"]
    for name, answers in results.items():
        second = [a["seconds"][1 if name == "dreamgym" else 0] for a in answers]
        last = [a["seconds"][-1] for a in answers]
        pairs = zip(ours, answers, strict=True)
        rows.append(
            {
                "engine": name,
                "turn 2 s": median(second),
                f"turn {args.turns} s": median(last),
                "growth": median([b / a for a, b in zip(second, last, strict=True)]),
                "ratio": median(
                    [b["seconds"][-1] / a["seconds"][-1] for a, b in pairs]
                ),
            }
        )
    show(args, rows)


if __name__ == "__main__":
    main()
