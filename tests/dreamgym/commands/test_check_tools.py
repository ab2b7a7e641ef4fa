"""Strict actions and tasks without tools: refused before anything is collected."""

import dataclasses
import re

import pytest

from dreamgym.build.models import tools_to_call
from dreamgym.cli import main
from dreamgym.commands.quickstart import check_tools, quickstart
from dreamgym.config.presets import preset
from dreamgym.run.directory import RunError
from tests import doubles
from worldmodel.data.records import write_episodes

STORE, CORRIDOR = "tests.strangers.tools:Store", "tests.doubles:Corridor"
MIXED = f"mix:{STORE},{CORRIDOR}"


def strict(**settings):
    return preset("tiny", {"policy.actions": "json", "env.id": STORE} | settings)


def recorded(number, **options):
    episode = doubles.expert(doubles.task(0, number, 6))
    task = dataclasses.replace(episode.task, id=f"t{number}", options=options)
    return dataclasses.replace(episode, id=f"e{number}", task=task)


def test_an_environment_of_which_tasks_list_no_tools(tmp_path):
    check_tools(tmp_path, strict())
    for name, counts in ((CORRIDOR, "2 of 2"), (MIXED, "2 of 3")):
        message = re.escape(f"environment {name!r}: policy.actions = json")
        with pytest.raises(RunError, match=f"{message}.* {counts} do not, such as"):
            check_tools(tmp_path, strict(**{"env.id": name}))
    check_tools(tmp_path, preset("tiny", {"env.id": MIXED}))  # free text
    (tmp_path / "manifest.json").write_text("{}")
    check_tools(tmp_path, strict(**{"env.id": MIXED}))  # it has begun


def test_no_run_is_begun(tmp_path, capsys):
    root, settings = tmp_path / "run", {"env.id": MIXED}
    with pytest.raises(RunError, match=r"policy.actions = json"):
        quickstart(root, strict(**settings))
    command = ["collect", "--preset", "tiny", "--env", MIXED, "--run-dir", str(root)]
    assert main([*command, "--set", "policy.actions=json"]) == 2
    assert "expected tasks that list their tools" in capsys.readouterr().err
    assert not root.exists()


def test_recorded_tasks_that_list_no_tools(tmp_path):
    path = tmp_path / "all.jsonl"
    settings = strict(**{"data.episodes": str(path), "env.id": ""})
    tools = {"tools": [{"name": "get"}]}
    write_episodes(path, [recorded(1, **tools), recorded(2), recorded(3, **tools)])
    with pytest.raises(RunError, match=r"all.jsonl: .* 1 of 3 do not, such as 't2'"):
        check_tools(tmp_path, settings)
    # A task that lists none is answered, which strict actions can write.
    write_episodes(path, [recorded(1, **tools), recorded(2, tools=[])])
    check_tools(tmp_path, settings)
    with pytest.raises(RunError, match=r"all.jsonl: .* all lists are empty"):
        tools_to_call([recorded(2, tools=[]).task], "all.jsonl")
