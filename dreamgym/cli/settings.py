"""The command `settings`, which lists the settings of a run."""

import argparse
import json
from typing import Any

from dreamgym.config.presets import PRESETS


def add(commands: Any) -> None:
    """Add the subcommand and the function it runs."""
    command = commands.add_parser(
        "settings",
        help="List settings: name, type, default, meaning",
        description="List every setting of a run with its type, its default and its "
        "meaning; with NAME only those of that name, or of that group.",
    )
    option = command.add_argument
    option("name", nargs="?", default="", metavar="NAME", help="such as train.update")
    option(
        "--preset",
        default="default",
        help=f"whose defaults: {', '.join(PRESETS)} (default: default)",
    )
    option("--json", action="store_true", help="one JSON object for each setting")
    command.set_defaults(body=_settings)


def _settings(args: argparse.Namespace) -> None:
    from dreamgym.commands.settings import matching, text

    matches = matching(args.name, args.preset)
    if args.json:
        for setting in matches:
            print(json.dumps(setting._asdict(), ensure_ascii=False))
    else:
        print(text(matches))
