"""The command `reward-model`, which fits a run's reward model."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

_ABOUT = """\
Fit a reward model to which of two attempts at a task is better: successful over
failed episodes of RUN, or the pairs of a file (dreamgym.preferences/1, see
docs/concepts/rewards.md). It begins at RUN's experience model and is written to
RUN/reward_model/. Another run takes its rewards from it:
  dreamgym quickstart --run-dir NEW \\
    --set 'train.reward.sources=["rule", "reward_model"]' \\
    --set train.reward.reward_model.model=RUN/reward_model
and without the last setting it fits its own, to its own episodes.
Prints how many pairs of unseen tasks it ranks right, with an interval.
Interrupted? The same command goes on."""


def add(commands: Any) -> None:
    """Add the subcommand and the function it runs."""
    command = commands.add_parser(
        "reward-model",
        help="Fit a run's reward model to pairs of attempts",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = command.add_argument
    option("run_dir", type=Path, metavar="RUN", help="a run directory, pretrained")
    option("--pairs", type=Path, metavar="FILE", help="pairs (JSONL, gzip or not)")
    option("--steps", type=int, metavar="N", help="updates (default: the run's)")
    command.set_defaults(body=_fit)


def _fit(args: argparse.Namespace) -> None:
    from dreamgym.build import rewards
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process

    run = Run.open(args.run_dir)
    changes = {"steps": args.steps, "preferences": args.pairs and str(args.pairs)}
    config = dataclasses.replace(
        run.config.reward_model, **{k: v for k, v in changes.items() if v is not None}
    )
    tune_process()
    numbers = rewards.fit(run, config)
    run.mark(rewards.STAGE, numbers)
    print(f"reward model: {rewards.summary(numbers)}")
    print(f"model: {args.run_dir / rewards.DIRECTORY}")
