"""The pages name files, commands, options and settings that exist."""

import argparse
import dataclasses
import importlib
import importlib.util
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dreamgym.commands.studies.study_file import read_study
from dreamgym.config.presets import preset
from dreamgym.config.stages import ServerConfig
from dreamgym.envs.contract import checker
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import read_episodes

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
DIARY = ROOT / "docs/LOG.md"  # entries keep the names of their time
CURRENT = [p for p in PAGES if p != DIARY]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files_and_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if target.startswith("http"):
            continue
        path = (page.parent / target) if target else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", h).strip().lower() for h in heads]
    return {re.sub(r"[\s-]+", "-", h) for h in plain}


def test_every_page_named_in_the_repository_is_there():
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml", "*.md", "*.yml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    missing = []
    for name in files:
        if ROOT / name == DIARY:
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        named = re.findall(r"(?<![\w/.])docs/[\w/.-]+\.(?:md|svg|png|css)", text)
        missing += [(name, x) for x in named if not (ROOT / x).exists()]
    assert missing == []


# --- commands and options ----------------------------------------------------


def code_of(page: Path) -> Iterator[str]:
    """Yield the lines of code blocks, continued lines joined, and inline code."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from itertools.chain.from_iterable(b.splitlines() for b in blocks)
    yield from re.findall(r"^ {4}(.*)$", rest, re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", rest)


def calls(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (command, options) of each call of `dreamgym` in a page's code."""
    for line in code_of(page):
        for part in re.split(r"&&|\||;", line.partition(" #")[0]):
            if match := re.search(r"(?<![\w./-])dreamgym ([a-z][a-z-]*)(.*)", part):
                yield match[1], re.findall(r"(?<!\S)--[a-z-]+(?![\w.-])", match[2])


def docs_hook() -> ModuleType:
    path = ROOT / "scripts/docs_reference.py"
    spec = importlib.util.spec_from_file_location("docs_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    from dreamgym.cli.main import _parser as parser

    return dict(docs_hook().commands(parser()))


@pytest.mark.parametrize("page", CURRENT, ids=name_of)
def test_commands_and_their_options_exist(page, commands):
    for command, options in calls(page):
        assert command in commands, command
        assert set(options) <= set(options_of(commands[command])), (command, options)


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a command and of its own subcommands."""
    yield from parser._option_string_actions
    for _, child in docs_hook().commands(parser):
        yield from options_of(child)


def test_the_page_of_settings_has_those_of_fine_tuning_alone():
    text = docs_hook().settings()
    for name in ("train.updates", "transfer.method", "transfer.iteration.refit_share"):
        assert f"`{name}`" in text
    assert "`transfer.updates`" not in text  # listed once, as that of train


def test_a_call_is_read_with_its_options(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "text\n```\na && dreamgym study F \\\n  --table  # dreamgym no\n```\n"
    )
    assert list(calls(page)) == [("study", ["--table"])]


# --- settings ----------------------------------------------------------------


def names_of(part: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of settings and of their groups."""
    for field in dataclasses.fields(part):
        yield prefix + field.name
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from names_of(value, f"{prefix}{field.name}.")


@pytest.fixture(scope="module")
def settings() -> set[str]:
    server = ServerConfig(chat=ChatConfig(base_url="http://localhost", model="m"))
    config = dataclasses.replace(preset("default"), server=server)
    return set(names_of(config))


def is_setting(name: str, settings: set[str]) -> bool:
    """Return whether a name is that of a setting or group, or the end of one."""
    return any(s == name or s.endswith(f".{name}") for s in settings)


def is_module(name: str) -> bool:
    return (ROOT / f"{name.replace('.', '/')}.py").exists()


@pytest.mark.parametrize("page", CURRENT, ids=name_of)
def test_settings_named_in_pages_exist(page, settings):
    groups = {part for name in settings for part in name.split(".")[:-1]}
    for line in code_of(page):
        given = re.findall(r"--set ['\"]?([a-z_.]+)=", line)
        assert [n for n in given if n not in settings] == []
        named = [
            x
            for x in re.findall(r"(?<![\w./-])[a-z_]+(?:\.[a-z_]+)+(?![\w(/])", line)
            if x.split(".")[0] in groups and not x.endswith((".py", ".jsonl", ".json"))
        ]
        assert [n for n in named if not (is_setting(n, settings) or is_module(n))] == []


# --- what is shown works -----------------------------------------------------


def block(page: str, language: str) -> str:
    """Return the only code block of a language in a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return code


def test_the_environment_of_the_readme_keeps_the_contract():
    names: dict[str, Any] = {}
    exec(block("README.md", "python"), names)
    report = checker.check(names["Doors"]())
    assert report.faults == ()
    assert "deterministic" in report.checks


def test_the_study_of_the_how_to_is_one(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(block("docs/how-to/studies.md", "toml"))
    assert read_study(path).preset == "small"


def test_a_log_with_a_row_per_step_becomes_episodes(tmp_path, monkeypatch):
    rows = [
        {
            "episode": name,
            "goal": "light",
            "action": "press",
            "reward": float(bool(won)),
        }
        | {"observation": "dim", "next_observation": "dim", "won": won}
        for name, won in (("a", None), ("a", True), ("b", False), ("c", None))
    ]
    (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    exec(block("docs/how-to/episodes.md", "python"), {})
    episodes = read_episodes("mine.jsonl")
    assert [(e.id, e.success) for e in episodes] == [
        ("a", True),
        ("b", False),
        ("c", None),
    ]
    ends = [t.terminated for e in episodes for t in e.transitions]
    assert ends == [False, True, True, False]


def test_every_page_is_in_the_navigation_of_the_site():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    pages = {str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/**/*.md")}
    assert set(re.findall(r": (\S+\.md)$", nav, re.MULTILINE)) == pages


@pytest.mark.parametrize("part", ["settings", "command-line", "stages", "contributing"])
def test_each_generated_part_has_a_page(part):
    marks = [p for p in CURRENT if f"<!-- generate: {part} -->" in p.read_text()]
    assert len(marks) == 1
    text = docs_hook().on_page_markdown(marks[0].read_text())
    assert "<!-- generate" not in text
    assert len(text) > len(marks[0].read_text()) + 500


def test_the_names_of_the_python_api_are_where_the_page_says():
    page = (ROOT / "docs/reference/python-api.md").read_text(encoding="utf-8")
    for name in re.findall(r"^::: (\S+)", page, re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute, None)
        if value is None:  # a module
            importlib.import_module(name)
        assert getattr(value, "__module__", module) == module, name


def test_a_bar_in_a_cell_does_not_end_it():
    assert (
        docs_hook().table(("a",), [("x | y\nz",)]).splitlines()[-1] == "| x \\| y z |"
    )
