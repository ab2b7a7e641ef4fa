"""Commands that audit a finished run: its card, and its games in other words."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    card = commands.add_parser(
        "card",
        help="Print the evaluation card of each policy of a run",
        description="Success, efficiency, robustness, safety and traceability of each "
        "policy that has played the test games, each with its number of cases and a 95 "
        "%% interval; writes RUN/card.json.",
    )
    card.add_argument("run_dir", type=Path, metavar="RUN")
    card.set_defaults(body=_card)
    command = commands.add_parser(
        "robustness",
        help="Play the test games in other words",
        description="Play RUN's test games with its policies while what they read is "
        "perturbed; writes RUN/robustness.json. The real steps are not counted as "
        "training.",
    )
    argument = command.add_argument
    argument("run_dir", type=Path, metavar="RUN")
    argument("--policy", action="append", default=[], help="a policy (default: all)")
    argument(
        "--perturb",
        default="rename,rephrase,order,lost,garbled",
        metavar="KINDS",
        help="kinds, separated by commas (%(default)s)",
    )
    argument(
        "--rate",
        type=float,
        default=0.1,
        help="probability of a lost reply, and of a wrong letter (%(default)s)",
    )
    command.set_defaults(body=_robustness)


def _card(args: argparse.Namespace) -> None:
    from dreamgym.commands.card import cards, table
    from dreamgym.run.directory import Run

    print(table(cards(Run.open(args.run_dir))))


def _robustness(args: argparse.Namespace) -> None:
    from dreamgym.commands.robustness import robustness, table
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process

    tune_process()
    kinds = [kind for kind in args.perturb.split(",") if kind]
    run = Run.open(args.run_dir)
    print(table(robustness(run, args.policy, kinds, args.rate)))
