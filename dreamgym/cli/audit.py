"""Commands that audit finished runs: cards, other words, other environments."""

import argparse
import json
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
    matrix = commands.add_parser(
        "transfer-matrix",
        help="Play policies in each other's environments",
        description="A policy of each RUN plays the test games of every RUN. The table "
        "has a row for each policy and a column for each environment; differences are "
        "to the policy that was trained there, paired by game.",
    )
    argument = matrix.add_argument
    argument("run_dirs", type=Path, nargs="+", metavar="RUN", help="two runs or more")
    argument("--policy", default="", help="its name (default: the last trained one)")
    argument("--games", type=int, metavar="N", help="games of each run (default: all)")
    argument("--json", action="store_true", help="everything as one JSON object")
    matrix.set_defaults(body=_transfer_matrix)


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


def _transfer_matrix(args: argparse.Namespace) -> None:
    from dreamgym.commands.transfer_matrix import table, transfer_matrix
    from dreamgym.run.process import tune_process

    tune_process()
    result = transfer_matrix(args.run_dirs, policy=args.policy, games=args.games)
    print(json.dumps(result) if args.json else table(result))
