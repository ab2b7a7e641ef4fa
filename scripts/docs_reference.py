"""Write the reference pages of the documentation from the code (a hook of MkDocs).

A page of docs/ holds a line `<!-- generate: NAME -->`; when the site is built, the line
is replaced by Markdown made from the code: the settings from their dataclasses, the
command line from its parser, the stages from their table.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"^<!-- generate: ([\w-]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marks of a page (MkDocs calls this with each page)."""
    return MARK.sub(lambda match: PARTS[match[1]](), markdown)


def settings() -> str:
    """Return a table of the settings of each group, under a heading."""
    from dreamgym.config.describe import settings_of, value_text
    from dreamgym.config.presets import preset
    from dreamgym.config.stages import ServerConfig
    from worldmodel.chat.config import ChatConfig

    server = ServerConfig(chat=ChatConfig(base_url="http://127.0.0.1:8080/v1"))
    groups: dict[str, list[Sequence[str]]] = {}
    every = list(settings_of(preset("default", server=server)))
    names = {setting.name for setting in every}
    for name, kind, default, text in every:
        group = name.rpartition(".")[0]
        shared = name.replace("transfer.", "train.", 1) in names
        if not (name.startswith("transfer.") and shared):
            row = (f"`{name}`", f"`{kind}`", f"`{value_text(default)}`", text)
            groups.setdefault(group, []).append(row)
    head, parts = ("setting", "type", "default", "meaning"), []
    for group, rows in groups.items():
        parts += [f"## {f'`{group}`' if group else 'The run'}", "", table(head, rows)]
        parts.append("")
    return "\n".join(parts)


def command_line() -> str:
    """Return the help of every command, each under a heading."""
    os.environ["COLUMNS"] = "92"  # read by argparse
    from dreamgym.cli.main import _parser as parser

    parts = []
    for name, command in commands(parser()):
        parts += [f"## `dreamgym {name}`", "", "```text", command.format_help().strip()]
        parts += ["```", ""]
    return "\n".join(parts)


def commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield (name, parser) of every subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def stages() -> str:
    """Return a section for each stage: what it does, needs, reads and writes."""
    from dreamgym.stages.table import STAGES

    parts = []
    for stage in STAGES.values():
        parts += [f"### `{stage.name}`", "", f"{stage.about.rstrip('.')}.", ""]
        facts = {
            "command": [f"dreamgym {stage.subcommand}"],
            "needs": stage.needs,
            "reads the settings": stage.reads,
            "writes": stage.writes,
            "makes the policies": stage.policies,
            "spends the part of a budget": [stage.share] * bool(stage.share),
        }
        parts += [f"- {name} {code(names)}" for name, names in facts.items() if names]
        parts.append("")
    return "\n".join(parts)


def contributing() -> str:
    """Return CONTRIBUTING.md, with its links as they are from inside docs/."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)


def code(names: Iterable[str]) -> str:
    """Return names as Markdown code, separated by commas."""
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; line ends and bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| "
        + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row)
        + " |"
        for row in lines
    )


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "command-line": command_line,
    "stages": stages,
    "contributing": contributing,
}
