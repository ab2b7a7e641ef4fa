"""The command line: one subcommand a stage, one for all of them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dreamgym.cli import annotate, data, engine, estimate, reward, runs

_EPILOG = """\
examples:
  dreamgym quickstart                              everything, under 10 minutes
  dreamgym quickstart --preset tiny --run-dir runs/t   every stage in under 90 s
  dreamgym quickstart --episodes mine.jsonl        your episodes, no environment
  dreamgym quickstart --env my_module:MyEnv        your environment
  dreamgym collect --run-dir runs/a                one stage; the next: pretrain,
                                                   warmstart, train, ...
  dreamgym control shuffled --run-dir runs/a       the control that must not gain
  dreamgym fidelity runs/default-0                 how far to trust its dream
  dreamgym pretrain --from runs/a --episodes new.jsonl   refit with fresh episodes
  dreamgym study scripts/studies/worldmodel.toml   a grid of runs and its table
  dreamgym estimate --preset small                 time, memory, disk: before it runs
  dreamgym quickstart --track wandb                metrics there too (or tensorboard)
  dreamgym compare runs/a runs/b                   runs side by side, and their plot
  dreamgym check --env my_module:MyEnv             does it keep the contract?
  dreamgym import openai traces.jsonl --to mine.jsonl   recordings as episodes
  dreamgym inspect mine.jsonl                      what is in them, what is wrong
  dreamgym annotate mine.jsonl --to traced.jsonl --by rule   reasoning traces
  dreamgym reward fit runs/a                       a model of rewards from pairs

  dreamgym fetch smollm2                           a pretrained model, offline
  dreamgym quickstart --model models/smollm2       ... as policy and dream
  dreamgym quickstart --server http://127.0.0.1:8080/v1   a chat server as the dream
  dreamgym generate --model models/smollm2 --prompt "Once upon a time"
  dreamgym score --model models/smollm2 lines.txt  log-probabilities as JSON lines

Interrupted? Repeat the same command: it goes on where it was.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dreamgym",
        description="Train a language agent in a dream of a real environment, and "
        "prove it in the real one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in (runs, estimate, data, annotate, reward, engine):
        group.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parser().parse_args(argv)
    # `--env my_module:MyEnv` may lie here. Last: nothing of ours is to be hidden by it.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    from dreamgym.run.directory import RunError
    from dreamgym.run.tracking import TrackerError
    from worldmodel.chat.cache import CacheError
    from worldmodel.chat.protocol import ChatError
    from worldmodel.data.records import RecordError

    told = (RunError, RecordError, ChatError, CacheError, TrackerError)
    told += (AssertionError, ArithmeticError, ValueError, OSError, MemoryError)
    try:
        args.body(args)
    except told as error:
        print(f"dreamgym {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: repeat the same command to go on", file=sys.stderr)
        return 130
    return 0
