"""The commands `import` and `inspect` for your own episodes."""

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_INSPECT = """\
Count what is in episode files: tasks, lengths, outcomes, duplicates,
contradictions, leaks between splits; then warn of what would hurt training.
Several files are counted together, so a leak between train.jsonl and
dev.jsonl is seen. Files are streamed; gzip is read as it is."""

_INSPECT_EXAMPLES = """\
examples:
  dreamgym inspect mine.jsonl
  dreamgym inspect train.jsonl.gz dev.jsonl.gz --json
"""

_IMPORT = """\
Turn recordings of another format into episodes of ours, then inspect them.
FILE holds one JSON object a line, or one JSON array; gzip is read as it is.

  openai     {"messages": [...]}: text before the first assistant turn is the
             instruction, assistant turns are actions (tool calls as
             name {"arg": ...}), what follows them is the next state
  agentgym   {"conversations": [{"from": "human", "value": ...}, ...]}
  gymnasium  {"observations": [...], "actions": [...], "rewards": [...],
             "terminations": [...], "truncations": [...]}, as text

Nothing is made up: where a recording tells no success, none is written."""

_IMPORT_EXAMPLES = """\
examples:
  dreamgym import openai traces.jsonl --to mine.jsonl.gz --family support
  dreamgym import agentgym alfworld_train.json --to train.jsonl --split train
  dreamgym quickstart --episodes mine.jsonl.gz      and then

Formats, before and after: docs/reference/episodes.md
"""

MAX_ERROR_LINES = 5
"""Number of skipped records whose errors are printed one by one."""


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    from worldmodel.data.importers import FORMATS
    from worldmodel.data.records import SPLITS

    raw = argparse.RawDescriptionHelpFormatter
    inspect = commands.add_parser(
        "inspect",
        help="Report what is in episode files and what is wrong with them",
        description=_INSPECT,
        epilog=_INSPECT_EXAMPLES,
        formatter_class=raw,
    )
    inspect.add_argument("files", nargs="+", type=Path, metavar="FILE")
    inspect.add_argument("--json", action="store_true", help="one JSON object instead")
    inspect.set_defaults(body=_inspect)
    bring = commands.add_parser(
        "import",
        help="Turn recordings of another format into episodes",
        description=_IMPORT,
        epilog=_IMPORT_EXAMPLES,
        formatter_class=raw,
    )
    option = bring.add_argument
    option("format", choices=list(FORMATS), metavar="FORMAT", help=", ".join(FORMATS))
    option("file", type=Path, metavar="FILE", help="what to read")
    option(
        "--to",
        type=Path,
        required=True,
        metavar="OUT",
        help="what to write: .jsonl, or .jsonl.gz; replaced once all of it is there",
    )
    option("--env", metavar="NAME", help="the environment they come from")
    option("--family", metavar="NAME", help="one name for all these tasks")
    option("--split", choices=SPLITS, help="the split of all of them")
    option(
        "--skip",
        action="store_true",
        help="leave out what cannot be taken, and say so (it is an error otherwise)",
    )
    bring.set_defaults(body=_import)


@contextlib.contextmanager
def _bar(path: Path, text: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over the bytes of a file; yield show(bytes read so far)."""
    from dreamgym.run.display import progress_bar

    size = path.stat().st_size if path.is_file() else 0
    with progress_bar(size, f"{text} {path.name}", "B") as show:
        yield show


def _episodes(path: Path) -> Iterator[Any]:
    from worldmodel.data.records import iter_episodes

    with _bar(path, "read") as show:
        yield from iter_episodes(path, progress=show)


def _inspect(args: argparse.Namespace) -> None:
    from worldmodel.data.summary import summarise, table

    summary = summarise(itertools.chain.from_iterable(map(_episodes, args.files)))
    print(json.dumps(summary, ensure_ascii=False) if args.json else table(summary))


def _import(args: argparse.Namespace) -> None:
    from worldmodel.data.importers import import_file
    from worldmodel.data.records import write_episodes
    from worldmodel.data.summary import summarise, table

    if args.to.exists() and args.file.exists() and args.to.samefile(args.file):
        raise ValueError(f"--to {args.to} is the file to be read: name another")
    names = {"env": args.env, "family": args.family, "split": args.split}
    changes = {k: v for k, v in names.items() if v is not None}
    errors: list[Exception] = []
    with _bar(args.file, "import") as show:
        write_episodes(
            args.to,
            (
                dataclasses.replace(e, task=dataclasses.replace(e.task, **changes))
                for e in import_file(
                    args.format,
                    args.file,
                    progress=show,
                    skip=errors.append if args.skip else None,
                )
            ),
        )
    for error in errors[:MAX_ERROR_LINES]:
        print(f"left out: {error}", file=sys.stderr)
    if len(errors) > MAX_ERROR_LINES:
        print(f"left out: {len(errors) - MAX_ERROR_LINES} more", file=sys.stderr)
    # Read back from the disk: what is counted is what the next command will find.
    summary = summarise(_episodes(args.to))
    print(
        f"{args.to}: {summary['episodes']:,} episodes, {summary['transitions']:,} "
        f"transitions from {args.format} {args.file}"
        + (f"; {len(errors):,} left out" if errors else "")
        + f"\n\n{table(summary)}"
    )
