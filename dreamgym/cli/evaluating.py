"""The options of `dreamgym evaluate` for the policies of a finished run.

They plan (`--plan`), or play test games that chose nothing (`--confirm`).
"""

import argparse

from dreamgym.agent.config import PLANS, WORLDS
from dreamgym.cli.options import changed_options


def add_evaluate_options(command: argparse.ArgumentParser) -> None:
    """Add the options with which the policies of a finished run play again."""
    command.add_argument(
        "--confirm",
        type=int,
        metavar="TASKS",
        help="the policies of RUN play so many test tasks after those of its table, "
        "and both are printed: policies and settings that were chosen by test games "
        "look better there than they are",
    )
    group = command.add_argument_group(
        "planning in the dream",
        "dreamgym evaluate RUN --plan auto: the policies of RUN play its test games "
        "again, and try actions in the dream before they take one: no further real "
        "step is spent. The games are in RUN-METHOD (or RUN-NAME with --name), and the "
        "gain over play without a plan is printed.",
    )
    add = group.add_argument
    add(
        "--plan",
        choices=PLANS[1:],
        help="continue each candidate action in the dream (best-of-n), sample whole "
        "sequences (mpc), search a tree (puct), or the cheapest win (a_star); auto is "
        "a_star or mpc, as the environment is",
    )
    add(
        "--policy",
        action="append",
        default=[],
        help="a policy that plans, or plays the games of --confirm (default: all "
        "trained ones that are tested)",
    )
    add(
        "--world",
        choices=WORLDS,
        help="what plans are tried in: the dream, or a control: the dream with the "
        "answers to other recorded actions (permuted), or the real environment, whose "
        "steps are not counted (real)",
    )
    add("--depth", type=int, metavar="H", help="dreamed steps ahead, at most")
    add("--simulations", type=int, metavar="M", help="candidates or paths a step")


def apply_evaluate_options(args: argparse.Namespace) -> None:
    """Turn the options of planning into settings, a name and a run directory.

    Raises:
      ValueError: an option is given twice, or has no effect.
    """
    if args.confirm is not None:
        _check_confirm_options(args)
    if args.plan is None:
        for name in ("policy", "world", "depth", "simulations"):
            if name == "policy" and args.confirm is not None:
                continue
            if getattr(args, name) not in (None, []):
                raise ValueError(f"--{name} has no effect without --plan")
        return
    if args.run_dir is None:
        raise ValueError("--plan plays the test games of a finished run: give RUN")
    args.settings.append(f"evaluate.plan.method={args.plan}")
    for name in ("world", "depth", "simulations"):
        if (value := getattr(args, name)) is not None:
            args.settings.append(f"evaluate.plan.{name}={value}")
    control = "" if args.world in (None, "dream") else f"-{args.world}"
    args.name = args.name or f"{args.plan}{control}"


def _check_confirm_options(args: argparse.Namespace) -> None:
    """Raise a ValueError where --confirm has no run, no task, or stands with others."""
    if args.confirm < 1:
        raise ValueError(f"--confirm: expected at least 1 task, got {args.confirm}")
    if args.run_dir is None:
        raise ValueError("--confirm asks the policies of a finished run: give RUN")
    if given := [f"--{k}" for k in ("plan", "name") if getattr(args, k) is not None]:
        raise ValueError(f"--confirm plays as the run does: drop {given[0]}")
    if given := [*changed_options(args), *(getattr(args, "typed", None) or [])]:
        raise ValueError(f"--confirm plays as the run does: drop {given[0]}")
