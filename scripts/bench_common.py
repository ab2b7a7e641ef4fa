"""What the benchmarks share: engines as processes, turns, medians, tables."""

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.model import create
from worldmodel.backbone.weights import save_model
from worldmodel.text.tokenizer import TextTokenizer

SHAPES = {
    "1m": ModelConfig(
        vocab_size=1024, hidden_size=128, num_hidden_layers=4, intermediate_size=384
    ),
    "5m": ModelConfig(
        vocab_size=2048,
        hidden_size=256,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=704,
    ),
}
"""Random weights in the shape of Llama, which every engine here reads."""


class Engine:
    """A process of a script that answers lines: bench_engines.py, if no other.

    Raises:
      OSError: no such Python.
    """

    def __init__(
        self, name: str, python: str, *args: str, script: str = "bench_engines.py"
    ):
        self.name = name
        path = Path(__file__).with_name(script)
        self._process = subprocess.Popen(
            [python, str(path), name, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.DEVNULL if name != "dreamgym" else None,
        )

    def __call__(self, do: str, **order: Any) -> dict[str, Any]:
        """Let the engine do one thing.

        Raises:
          RuntimeError: the engine's process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do} | order) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process; it has some seconds to end what it started itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def options(
    doc: str | None, peers: Sequence[str] = ("transformers", "tunix", "llamacpp")
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark; the first peer is usual."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--model",
        default="1m",
        help=f"a model directory, or random weights: {', '.join(SHAPES)} (1m)",
    )
    add(
        "--peers",
        default=peers[0],
        help=f"what to compare with, by comma: {', '.join(peers)}"
        f"{' (sampling only)' if 'llamacpp' in peers else ''}; '' for none",
    )
    add("--tunix-python", default="", help="the Python of Tunix' own environment")
    add("--rounds", type=int, default=5, help="timed rounds, in turns (5)")
    add("--dtype", default="float32", choices=["float32", "bfloat16"])
    add("--json", action="store_true", help="one JSON object")
    return parser


@contextlib.contextmanager
def engines(
    args: argparse.Namespace,
    *,
    script: str = "bench_engines.py",
    texts: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
) -> Iterator[dict[str, Engine]]:
    """Start our engine and the peers', and close all of them at the end.

    Each is a process of the `script` with the `arguments`, the dtype by default. With
    `texts` random weights have a tokenizer that is fitted to them, and its vocabulary.
    """
    names = ["dreamgym", *filter(None, args.peers.split(","))]
    if "tunix" in names and not args.tunix_python:
        raise SystemExit("tunix needs --tunix-python: its pins conflict with ours")
    with tempfile.TemporaryDirectory() as temp, contextlib.ExitStack() as stack:
        directory = Path(args.model)
        if args.model in SHAPES:
            directory = Path(temp)
            shape = SHAPES[args.model]
            tokenizer = TextTokenizer.train(texts or ["nothing"], shape.vocab_size)
            if texts:
                shape = dataclasses.replace(shape, vocab_size=tokenizer.vocab_size)
            save_model(directory, create(shape, seed=0), tokenizer)
        running = {}
        for name in names:
            python = getattr(args, f"{name}_python", "") or sys.executable
            more = [args.dtype] if arguments is None else arguments
            engine = Engine(name, python, str(directory), *more, script=script)
            stack.callback(engine.close)
            running[name] = engine
        yield running


def in_turns(
    running: dict[str, Engine],
    rounds: int,
    work: Callable[[Engine], dict[str, Any]],
    *,
    warmup: int = 1,
) -> dict[str, list[dict[str, Any]]]:
    """Return what each engine answers in each round, after those that compile."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for number in range(warmup + rounds):
        for name, engine in running.items():
            answer = work(engine)
            if number >= warmup:
                answers[name].append(answer)
    return answers


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def show(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Return rows as one JSON object, or as a Markdown table."""
    if args.json:
        print(json.dumps({"model": args.model, "dtype": args.dtype, "rows": rows}))
        return
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    columns = list(dict.fromkeys(k for row in rows for k in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(cell(row.get(c)) for c in columns) + " |")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """Return a value as the table shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
