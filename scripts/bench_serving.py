"""A served dream beside the same dream in one process: steps a second.

    python scripts/bench_serving.py runs/a
    python scripts/bench_serving.py runs/a --sessions 16 --rounds 5 --json

Both play the same actions in the same tasks, in turns: a batch of slots here, and as
many WebSocket sessions of `dreamgym serve` in another process. `ratio` is the median
over rounds of the local seconds by the served ones: 1 where serving costs nothing.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from websockets.asyncio.client import connect

from dreamgym.build.episodes import read
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.run.directory import Run
from dreamgym.run.process import tune_process
from dreamgym.serving.dream import Dream, load_dream


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="a run, pretrained")
    parser.add_argument("--sessions", type=int, default=64, help="sessions (64)")
    parser.add_argument("--steps", type=int, default=12, help="steps of each (12)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    tune_process()
    run = Run.open(args.run_dir)
    dream, (train, _) = load_dream(run), read(run)
    words = sorted({t.action for e in train for t in e.transitions})
    rows = []
    with served(args.run_dir, args.sessions) as (url, _):
        for number in range(-1, args.rounds):  # the first one compiles
            rng = random.Random(number)
            actions = [
                [rng.choice(words) for _ in range(args.steps)]
                for _ in range(args.sessions)
            ]
            local = play_local(dream, actions)
            remote = asyncio.run(play_served(url, dream, actions))
            if number >= 0:
                rows.append((local, remote))
    result = {
        "sessions": args.sessions,
        "local steps/s": round(statistics.median(r[0] for r in rows), 1),
        "served steps/s": round(statistics.median(r[1] for r in rows), 1),
        "ratio": round(statistics.median(r[1] / r[0] for r in rows), 3),
    }
    lines = [f"{name:16} {value}" for name, value in result.items()]
    print(json.dumps(result) if args.json else "\n".join(lines))


@contextlib.contextmanager
def served(run_dir: Path, sessions: int) -> Iterator[tuple[str, subprocess.Popen]]:
    """Serve the run in another process within the block; yield its URL and process."""
    command = [sys.executable, "-m", "dreamgym", "serve", str(run_dir), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--max-sessions", str(2 * sessions), "--turn-seconds", "600"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if json.loads(line)["event"] == "server_started":
                break
        # Somebody has to read its log, or the server waits once the pipe is full.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield json.loads(line)["url"], process
    finally:
        process.terminate()
        process.wait()


def play_local(dream: Dream, actions: list[list[str]]) -> float:
    """Return the steps a second of one episode in each slot of a batch."""
    envs = DreamVectorEnv(
        dream.model,
        len(actions),
        max_steps=dream.max_steps,
        uncertainty=dream.uncertainty,
    )
    start, count = time.perf_counter(), 0
    tasks = [dream.tasks[i % len(dream.tasks)] for i in range(len(actions))]
    envs.reset(options={"tasks": tasks})
    for step in zip(*actions, strict=True):
        count += sum(s is not None for s in envs.step(step))
    return count / (time.perf_counter() - start)


async def play_served(url: str, dream: Dream, actions: list[list[str]]) -> float:
    """Return the steps a second of one episode in each of as many sessions."""
    splits: dict[str, list[str]] = {}
    for task in dream.tasks:
        splits.setdefault(task.split, []).append(task.id)

    async def episode(number: int) -> int:
        task = dream.tasks[number % len(dream.tasks)]
        index = splits[task.split].index(task.id)
        address = f"{url.replace('http', 'ws')}/ws"
        async with connect(address, proxy=None, open_timeout=60) as socket:
            data: dict = {"split": task.split, "index": index}
            await socket.send(json.dumps({"type": "reset", "data": data}))
            await socket.recv()
            for count, action in enumerate(actions[number], 1):
                data = {"message": action}
                await socket.send(json.dumps({"type": "step", "data": data}))
                if json.loads(await socket.recv())["data"]["done"]:
                    return count
        return len(actions[number])

    start = time.perf_counter()
    counts = await asyncio.gather(*map(episode, range(len(actions))))
    return sum(counts) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
