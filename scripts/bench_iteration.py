"""Whole iterations of GRPO in a real environment, beside TRL and Tunix.

    python scripts/bench_iteration.py --model 1m --trl-python PYTHON
    python scripts/bench_iteration.py --peers trl,tunix --tunix-python PYTHON2

An iteration plays a group of episodes of each task in TextWorldExpress, and makes one
pass of GRPO over them in one optimiser step. Trainers take their turns in one run, each
in a process of its own, with the same weights, tokenizer and train games; the game is
this project's adapter, which needs no JAX, inside the trainer's process, so no server
stands between them. Random weights write noise: the checksum of a text picks the
action that is taken and the reward (Game in bench_iteration_engines.py). All episodes
have the same number of turns and all turns the same number of tokens, none ends
earlier, and actions are not drawn again.

Each side reads what its users' policies read. Ours writes each turn in a context of its
own (the instruction, past actions, the state) and trains on turns; the peers write a
conversation of states and actions, read anew at each turn, and train on it as one
sequence, which is how their trainers have episodes of several turns. `sampled` counts
the policy's tokens of an iteration, `trained` all tokens of the sequences in its pass.
Ours also measures its trust region, under the policy before and after the update; no
side has a KL penalty. TRL plays by `rollout_func`, as in docs/how-to/trl.md, without
gradient checkpointing. Tunix' agentic learner has its vanilla rollout engine, which
samples one conversation a call (its others, vLLM and SGLang, were not tried), with two
additions that make its work equal (Tunix in bench_iteration_peers.py).

`rollout` is sampling and the environment, `environment` the share of its resets and
steps, `update` the rest; of Tunix the update alone is timed, so that `rollout` is the
rest, with a pass for log-probabilities. `tokens/s` are sampled tokens by the seconds of
the whole. Every row is a median over rounds; a ratio is the median of a trainer's
seconds by ours of the same round, `range` the smallest and largest of the whole.
`first s` is the first iteration, which compiles. CPU seconds are of the trainer's
process, without the game's Java. Measure on a quiet machine: PyTorch's threads wait for
each other, and lose far more than ours where others use the cores (docs/LOG.md,
2026-11-27), so that taking turns does not make up for it.
"""

import argparse
import json
import statistics
from typing import Any

from bench_common import engines, in_turns, median, options, show
from bench_iteration_engines import Sizes, episodes


def main() -> None:
    """Parse the arguments, measure, and print."""
    args = parsed()
    sizes = Sizes(args.tasks, args.group, args.turns, args.tokens, args.rows)
    texts = [text for episode in episodes(sizes, 40) for text in episode]
    first: dict[str, float] = {}

    def work(engine: Any) -> dict[str, Any]:
        row = engine("iterate")
        parts = row.pop("parts")
        row["whole s"] = sum(seconds for seconds, _ in parts.values())
        row["CPU s"] = sum(seconds for _, seconds in parts.values())
        row["rollout s"] = parts["rollout"][0]
        if "environment" in parts:
            row["environment s"] = parts["environment"][0]
            row["rollout s"] += row["environment s"]
        row["update s"] = parts["update"][0]
        first.setdefault(engine.name, row["whole s"])
        return row

    with engines(
        args,
        script="bench_iteration_engines.py",
        texts=texts,
        arguments=[json.dumps(sizes._asdict())],
    ) as running:
        results = in_turns(running, args.rounds, work, warmup=args.warmup)
    show(args, [table_row(n, rows, results, first[n]) for n, rows in results.items()])


def table_row(
    name: str,
    rows: list[dict[str, Any]],
    results: dict[str, list[dict[str, Any]]],
    first: float,
) -> dict[str, Any]:
    """Return medians of a trainer's rounds, and their ratios to ours by round."""
    columns = ("whole s", "rollout s", "environment s", "update s", "CPU s")
    out: dict[str, Any] = {"trainer": name}
    out |= {c: median([row[c] for row in rows]) for c in columns if c in rows[0]}
    out["tokens/s"] = median([row["sampled"] / row["whole s"] for row in rows])
    for column in ("whole s", "rollout s", "update s", "CPU s"):
        ratios = [
            row[column] / ours[column]
            for row, ours in zip(rows, results["dreamgym"], strict=True)
        ]
        out[f"ratio {column[:-2]}"] = median(ratios)
        if column == "whole s":
            out["range"] = f"{min(ratios):.2f} to {max(ratios):.2f}"
    for count in ("turns", "sampled", "trained"):
        out[count] = int(statistics.median_low([row[count] for row in rows]))
    return out | {"first s": first}


def parsed() -> argparse.Namespace:
    """Return the arguments, checked."""
    parser = options(__doc__, peers=("trl", "tunix"))
    add = parser.add_argument
    add("--trl-python", default="", help="the Python of TRL's environment (this one)")
    add("--tasks", type=int, default=8, help="tasks of an iteration (8)")
    add("--group", type=int, default=8, help="episodes of each task (8)")
    add("--turns", type=int, default=6, help="turns of an episode (6)")
    add("--tokens", type=int, default=8, help="tokens of a turn (8)")
    add("--rows", type=int, default=0, help="a peer's sequences of a pass (0: all)")
    add("--warmup", type=int, default=2, help="iterations before the timed ones (2)")
    args = parser.parse_args()
    if args.dtype != "float32":
        parser.error(f"--dtype must be float32 here, got {args.dtype}")
    args.rows = args.rows or args.tasks * args.group
    if (args.tasks * args.group) % args.rows or args.rows % args.group:
        parser.error(
            "--rows must be a multiple of --group and divide the episodes of an "
            f"iteration, {args.tasks * args.group}, got {args.rows}"
        )
    return args


if __name__ == "__main__":
    main()
