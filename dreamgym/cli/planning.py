"""The options of `dreamgym evaluate` with which the policies of a run plan."""

import argparse
from pathlib import Path

from dreamgym.agent.config import PLANS


def add_plan_options(command: argparse.ArgumentParser) -> None:
    """Add the options with which the policies of a finished run plan."""
    group = command.add_argument_group(
        "planning in the dream",
        "The policies of RUN play its test games again, and try actions in the dream "
        "before they take one: no further real step is spent. The games are in "
        "RUN-METHOD (or RUN-NAME with --name), and the gain over play without a plan "
        "is printed.",
    )
    add = group.add_argument
    add("run", nargs="?", type=Path, metavar="RUN", help="the run, as --run-dir")
    add(
        "--plan",
        choices=PLANS[1:],
        help="continue each candidate action in the dream (best-of-n), sample whole "
        "sequences (mpc), or search a tree (puct)",
    )
    add("--policy", action="append", default=[], help="a policy (default: all tested)")
    add("--depth", type=int, metavar="H", help="dreamed steps ahead, at most")
    add("--simulations", type=int, metavar="M", help="candidates or paths a step")


def apply_plan_options(args: argparse.Namespace) -> None:
    """Turn the options of planning into settings, a name and a run directory.

    Raises:
      ValueError: an option is given twice, or has no effect.
    """
    if args.run is not None:
        if args.run_dir not in (None, args.run):
            raise ValueError(
                f"RUN is {args.run} and --run-dir {args.run_dir}: give one"
            )
        args.run_dir = args.run
    if args.plan is None:
        for name in ("policy", "depth", "simulations"):
            if getattr(args, name) not in (None, []):
                raise ValueError(f"--{name} has no effect without --plan")
        return
    if args.run_dir is None:
        raise ValueError("--plan plays the test games of a finished run: give RUN")
    args.settings.append(f"evaluate.plan.method={args.plan}")
    for name in ("depth", "simulations"):
        if (value := getattr(args, name)) is not None:
            args.settings.append(f"evaluate.plan.{name}={value}")
    args.name = args.name or args.plan
