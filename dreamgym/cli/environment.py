"""The command `check` for environments."""

import argparse
import contextlib
import json
import sys
from typing import Any

from dreamgym.cli.options import ENV_HELP

_CHECK = """\
Play a few tasks of an environment with nonsense, with random valid actions and with
the expert's plan, each twice, and tell everything that is wrong (faults) or will hurt
(warnings), with what to do. docs/how-to/environments.md describes the contract. The
exit status is 1 where there are faults, else 0."""

_EXAMPLES = """\
examples:
  dreamgym check --env my_module:MyEnv
  dreamgym check --env gymnasium:Taxi-v4
  python -m dreamgym check --env my_module:MyEnv --json
"""


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    check = commands.add_parser(
        "check",
        help="Check that an environment keeps its contract",
        description=_CHECK,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = check.add_argument
    option("environment", nargs="?", metavar="ENV", help="the same as --env ENV")
    option("--env", help=ENV_HELP)
    option(
        "--tasks",
        type=int,
        default=3,
        metavar="N",
        help="train tasks that are played (3)",
    )
    option(
        "--max-episode-steps",
        type=int,
        default=0,
        metavar="N",
        help="the step limit of your run (default: the environment's)",
    )
    option("--json", action="store_true", help="the findings as one JSON object")
    check.set_defaults(body=_check)


def _check(args: argparse.Namespace) -> int:
    from dreamgym.envs import registry
    from dreamgym.envs.contract import checker
    from dreamgym.run.display import progress_bar

    if args.tasks < 1 or args.max_episode_steps < 0:
        raise ValueError("--tasks must be >= 1 and --max-episode-steps >= 0")
    if args.env and args.environment:
        raise ValueError(f"two environments: {args.environment} and {args.env}")
    name = args.env or args.environment or "textworld"
    env = registry.make(name)
    try:
        # What the environment itself prints must not stand in the report.
        with (
            progress_bar(0, f"check {name}"),
            contextlib.redirect_stdout(sys.stderr),
        ):
            report = checker.check(
                env,
                name=name,
                tasks=args.tasks,
                max_steps=args.max_episode_steps,
                make=lambda: registry.make(name),
            )
    finally:
        env.close()
    print(json.dumps(report.json()) if args.json else report.text(name))
    return 1 if report.faults else 0
