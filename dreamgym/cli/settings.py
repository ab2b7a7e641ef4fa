"""The command `settings`, and the settings that a command works with."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from dreamgym.cli.options import change_run_settings, changed_options, config_of
from dreamgym.config.presets import PRESETS

if TYPE_CHECKING:
    from dreamgym.config.settings import RunConfig
    from dreamgym.run.directory import Run


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


def settings_of(args: argparse.Namespace, source: "Run | None" = None) -> "RunConfig":
    """Return the settings of a run: its own, or those that the options ask for.

    An existing run keeps its settings, so that its later stages need no options; a new
    attempt starts with the settings of the `source` run that it continues.
    """
    from dreamgym.run.directory import Run, RunError

    root = args.run_dir
    if root is not None and (root / "manifest.json").is_file():
        config = Run.open(root).config
    elif source is not None:
        config = source.config
    else:
        return config_of(args)
    options = [*changed_options(args), *(["--episodes"] if args.episodes else [])]
    present = {
        "preset": config.preset,
        "seed": config.seed,
        "env": config.env.id,
        "model": config.model,
        "budget": config.budget.real_steps,
    }
    same = {f"--{k}" for k, value in present.items() if getattr(args, k) == value}
    options = [option for option in options if option not in same]
    if config.data.base_run and (options or args.command == "control"):
        raise RunError(
            f"{root} is a refit of {config.data.base_run} and goes on under its "
            f"settings: drop {[*options, 'control'][0]}"
        )
    if (
        set(options) <= {"--set", "--algorithm", "--config"}
        and args.command != "control"
    ):
        return change_run_settings(config, args)
    if source is not None:
        raise RunError(
            f"--name goes on under the settings of {source.root} and those of --set: "
            f"drop {[*options, 'control'][0]}"
        )
    return config_of(args)
