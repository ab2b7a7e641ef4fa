"""Many clients of a served dream for minutes, some of which vanish: what is left?

    python scripts/soak_serving.py runs/a
    python scripts/soak_serving.py runs/a --sessions 64 --minutes 10 --json

Each client plays episodes one after another, with actions that were recorded. In some
episodes (`--vanish`) it disconnects without a word in the middle, in some it sends
what is no message. Printed are the episodes, the errors that sound clients saw (0 is
right), the sessions that the server still has at the end (0 is right), and its memory
after a tenth of the time and at the end. Exit status 1 where an episode was lost or a
session leaked.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from pathlib import Path

from bench_serving import served
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from dreamgym.build.episodes import read
from dreamgym.run.directory import Run
from dreamgym.run.process import tune_process

GROWTH = 1.2
"""Memory at the end by that after a tenth of the time; above it grows."""


class Counts:
    """What the clients of one soak saw."""

    def __init__(self) -> None:
        self.episodes = self.steps = self.vanished = self.nonsense = 0
        self.errors: list[str] = []


def main() -> None:
    """Parse the arguments, play, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="a run, pretrained")
    parser.add_argument("--sessions", type=int, default=64, help="clients (64)")
    parser.add_argument("--minutes", type=float, default=10.0, help="time (10)")
    parser.add_argument("--steps", type=int, default=12, help="steps an episode (12)")
    parser.add_argument(
        "--vanish", type=float, default=0.1, help="share of episodes cut off (0.1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    tune_process()
    train, _ = read(Run.open(args.run_dir))
    words = sorted({t.action for e in train for t in e.transitions})
    with served(args.run_dir, args.sessions) as (url, process):
        result = asyncio.run(soak(url, process.pid, words, args))
    lines = [f"{name:24} {value}" for name, value in result.items()]
    print(json.dumps(result) if args.json else "\n".join(lines))
    if result["errors"] or result["sessions at the end"] or not result["memory flat"]:
        sys.exit(1)


async def soak(url: str, pid: int, words: list[str], args: argparse.Namespace) -> dict:
    """Let all clients play; return what they saw and what the server kept."""
    counts, start = Counts(), time.monotonic()
    end = start + 60 * args.minutes
    early = 0.0

    async def remember_memory() -> None:
        nonlocal early
        await asyncio.sleep(6 * args.minutes)
        early = memory_mib(pid)

    clients = [
        _client(url, random.Random(i), words, args, end, counts)
        for i in range(args.sessions)
    ]
    await asyncio.gather(remember_memory(), *clients)
    late = memory_mib(pid)
    return {
        "sessions": args.sessions,
        "minutes": round((time.monotonic() - start) / 60, 2),
        "episodes": counts.episodes,
        "steps": counts.steps,
        "vanished clients": counts.vanished,
        "messages without sense": counts.nonsense,
        "errors": len(counts.errors),
        "first error": counts.errors[0] if counts.errors else "",
        "sessions at the end": await _sessions_left(url),
        "memory early (MiB)": round(early),
        "memory at the end (MiB)": round(late),
        "memory flat": late <= GROWTH * early,
    }


async def _client(
    url: str,
    rng: random.Random,
    words: list[str],
    args: argparse.Namespace,
    end: float,
    counts: Counts,
) -> None:
    while time.monotonic() < end:
        fate = "vanish" if rng.random() < args.vanish else ""
        fate = "nonsense" if not fate and rng.random() < args.vanish else fate
        try:
            await _episode(url, rng, words, args.steps, fate, counts)
            counts.episodes += 1
        except (WebSocketException, OSError, RuntimeError, ValueError) as error:
            counts.errors.append(f"{type(error).__name__}: {error}")


async def _episode(
    url: str,
    rng: random.Random,
    words: list[str],
    steps: int,
    fate: str,
    counts: Counts,
) -> None:
    address = f"{url.replace('http', 'ws')}/ws"
    socket = await connect(address, proxy=None, open_timeout=60)
    try:

        async def ask(message: str) -> dict:
            await socket.send(message)
            return json.loads(await socket.recv())

        seed = {"seed": rng.randrange(10_000)}
        _expect(await ask(json.dumps({"type": "reset", "data": seed})))
        at = rng.randrange(steps)
        for number in range(steps):
            if fate and number == at:
                if fate == "vanish":
                    counts.vanished += 1
                    socket.transport.abort()
                    return
                counts.nonsense += 1
                if (await ask("{nonsense"))["type"] != "error":
                    raise RuntimeError("nonsense was answered as if it were a message")
            data = {"message": rng.choice(words)}
            result = _expect(await ask(json.dumps({"type": "step", "data": data})))
            counts.steps += 1
            if result["done"]:
                return
    finally:
        await socket.close()


def _expect(answer: dict) -> dict:
    if answer["type"] == "error":
        raise RuntimeError(str(answer["data"]))
    return answer["data"]


async def _sessions_left(url: str) -> int:
    """Return the server's sessions once all clients are gone, after 20 s at most."""
    left = -1
    for _ in range(40):
        with urllib.request.urlopen(f"{url}/metrics") as page:
            text = page.read().decode()
        rows = [r for r in text.splitlines() if r.startswith("dreamgym_sessions ")]
        left = int(float(rows[0].split()[1]))
        if not left:
            break
        await asyncio.sleep(0.5)
    return left


def memory_mib(pid: int) -> float:
    """Return the memory that a process holds (resident set), in MiB; Linux alone."""
    status = Path(f"/proc/{pid}/status").read_text()
    (row,) = (r for r in status.splitlines() if r.startswith("VmRSS:"))
    return int(row.split()[1]) / 1024


if __name__ == "__main__":
    main()
