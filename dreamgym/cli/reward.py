"""The command of reward models: reward fit."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

_ABOUT = """\
Fit a model of rewards to which of two attempts at a task is better: won over
lost episodes of RUN, or the pairs of a file (dreamgym.preferences/1, see
docs/REWARDS.md). It begins at RUN's experience model and is kept in
RUN/reward/. A run of its own lets it score:
  dreamgym quickstart --run-dir NEW --set 'dream.reward.tiers=["rule", "learned"]'
    --set dream.reward.learned.model=RUN/reward
and without the last setting it fits its own, to its own episodes.
How many pairs of unseen tasks it ranks right is told, with an interval.
Interrupted? The same command goes on."""


def add(commands: Any) -> None:
    """The subcommand, with what it runs."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("reward", help="Fit a reward model to pairs")
    ways = command.add_subparsers(dest="way", required=True, metavar="WAY")
    made = ways.add_parser(
        "fit", help="from won and lost episodes, or pairs",
        description=_ABOUT, formatter_class=raw,
    )  # fmt: skip
    option = made.add_argument
    option("run_dir", type=Path, metavar="RUN", help="a run directory, pretrained")
    option("--pairs", type=Path, metavar="FILE", help="pairs (JSONL, gzip or not)")
    option("--steps", type=int, metavar="N", help="updates (default: 200)")
    made.set_defaults(body=_fit)


def _fit(args: argparse.Namespace) -> None:
    from dreamgym.build import rewards
    from dreamgym.rewards.reward_model import PreferenceFitConfig
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process

    config = PreferenceFitConfig()
    if args.steps is not None:
        config = dataclasses.replace(config, steps=args.steps)
    tune_process()
    told = rewards.fit(Run.open(args.run_dir), args.pairs, config)
    print(f"reward: {rewards.summary(told)}")
    print(f"model: {args.run_dir / rewards.DIRECTORY}")
