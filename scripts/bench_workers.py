"""Steps a second of a real environment by the number of its worker processes.

    python scripts/bench_workers.py --env miniwob
    python scripts/bench_workers.py --env textcraft --workers 0,1,2,4 --copies 4 --json
    python scripts/bench_workers.py --env my_module:MyEnv --fleet local,ray

Every row plays the same tasks with the same actions, valid ones drawn by the number of
the step, in as many copies. `ratio` is the median over rounds of the seconds of one
process (workers 0) by those of the row: above 1 the workers are faster. A copy has a
worker of its own, and W workers play the copies in batches of W. Workers of the fleet
`ray` are actors of the cluster that RAY_ADDRESS names, or of one on this machine;
RAY_ADDRESS=local starts one that nobody else uses.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence

from bench_common import median, table

from dreamgym.build.real.instances import instance_maker
from dreamgym.config.stages import FLEETS, EnvConfig
from dreamgym.envs import base, restarting
from dreamgym.envs.vector import RealVectorEnv
from worldmodel.data.records import Task

IN_PROCESS = ("local", 0)
"""The row of all copies in this process."""


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="miniwob", help="environment (miniwob)")
    parser.add_argument("--workers", default="0,1,2,4", help="counts (0,1,2,4)")
    parser.add_argument(
        "--fleet", default="local", help="where workers run: local, ray or both (local)"
    )
    parser.add_argument(
        "--cpus", type=float, default=0.25, help="what Ray reserves for each (0.25)"
    )
    parser.add_argument("--copies", type=int, default=8, help="episodes a round (8)")
    parser.add_argument("--steps", type=int, default=8, help="steps of each (8)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    counts = [int(n) for n in args.workers.split(",")]
    if 0 not in counts:
        parser.error("--workers needs 0, with which the others are compared")
    fleets = args.fleet.split(",")
    if not set(fleets) <= set(FLEETS):
        parser.error(f"--fleet must be of {FLEETS}, got {args.fleet!r}")
    rows = [IN_PROCESS, *((f, n) for f in fleets for n in counts if n)]
    with_env = {
        (fleet, n): batch_of(
            EnvConfig(id=args.env, workers=n, fleet=fleet, worker_cpus=args.cpus),
            args.copies,
            args.steps,
        )
        for fleet, n in rows
    }
    tasks = base.tasks_of(with_env[IN_PROCESS].envs[0], args.env, "train", args.copies)
    seconds: dict[tuple[str, int], list[float]] = {row: [] for row in rows}
    steps = 0
    for number in range(-1, args.rounds):  # the first one starts what starts slowly
        for row, batch in with_env.items():
            start = time.monotonic()
            steps = play(batch, tasks, args.steps)
            if number >= 0:
                seconds[row].append(time.monotonic() - start)
    for batch in with_env.values():
        batch.close()
    measured = [
        {
            "fleet": fleet if n else "",
            "workers": n,
            "steps/s": round(steps / median(times), 1),
            "ratio": round(
                median(
                    [a / b for a, b in zip(seconds[IN_PROCESS], times, strict=True)]
                ),
                2,
            ),
        }
        for (fleet, n), times in seconds.items()
    ]
    result = {"env": args.env, "copies": args.copies, "steps": steps, "rows": measured}
    print(json.dumps(result) if args.json else table(measured))


def batch_of(config: EnvConfig, copies: int, max_steps: int) -> RealVectorEnv:
    """Return a batch of so many workers, or of all copies in this process."""
    make, count = instance_maker(config), config.workers or copies
    envs = [restarting.open_env(config.id, make=make) for _ in range(count)]
    return RealVectorEnv(envs, max_steps=max_steps)


def play(batch: RealVectorEnv, tasks: Sequence[Task], steps: int) -> int:
    """Play the tasks, as many at once as the batch has slots; return the steps."""
    before = batch.transitions
    for first in range(0, len(tasks), batch.size):
        part = list(tasks[first : first + batch.size])
        padded = [*part, *[None] * (batch.size - len(part))]
        batch.reset(options={"tasks": padded})
        running = [task is not None for task in padded]
        for step in range(steps):
            if not any(running):
                break
            actions = [
                _action(batch, slot, step) if running[slot] else None
                for slot in range(batch.size)
            ]
            for slot, result in enumerate(batch.step(actions)):
                if result is not None:
                    running[slot] = not (result.terminated or result.truncated)
    return batch.transitions - before


def _action(batch: RealVectorEnv, slot: int, step: int) -> str:
    valid = batch.valid_actions(slot)
    return random.Random(step).choice(sorted(valid)) if valid else "look"


if __name__ == "__main__":
    main()
