"""Robustness under exchanged names: which words are names, and what the results say."""

import functools
import itertools
import json
import re

import pytest

from dreamgym.agent import floors
from dreamgym.build.real import environments
from dreamgym.commands.audits import robustness as command
from dreamgym.config.presets import preset
from dreamgym.envs import base, registry
from dreamgym.evaluation.card import card
from dreamgym.run.directory import Run
from tests import doubles
from tests.house import ROOMS, instructions
from worldmodel.data.records import Episode, read_episodes, write_episodes

HOUSE = "tests.house:House"
MIX = f"mix:{HOUSE},tests.strangers.tools:Calendar"
TOOLS = "tests.strangers.tools:Calendar/calendar"
FORMS = instructions(("ROOM", "", ""))


@functools.cache
def episodes(spec: str, split: str, count: int) -> list[Episode]:
    """Return episodes of random valid actions."""
    env = registry.make(spec)
    tasks = base.begin_all(env, base.tasks_of(env, spec, split, count))

    def actor(env, task):
        return floors.random_actor(env, task, [], seed=0)

    played = floors.play_scripted(
        env, tasks, actor, source="random", seed=0, max_steps=9
    )
    return [t.episode for t in played]


def reads(task, past, state):
    """Play by what is written alone; in the calendar cancel meetings."""
    del past
    if "tools:" in task.instruction:
        return 'cancel {"day": "mon"}'
    doors = [re.fullmatch(r"next to (\w+) is (\w+)", line) for line in state[:-1]]
    rooms = [doors[0][1], *(door[2] for door in doors)]
    place = rooms.index(state[-1].split()[-1])
    if "carry the coin" in state[-1]:
        goal = task.instruction.split()[4]
        return "drop coin" if rooms[place] == goal else f"move {rooms[place - 1]}"
    if "here the coin" in state[-1]:
        return "take coin"
    return f"move {rooms[place + 1]}"


def run_of(tmp_path, monkeypatch, spec, collected, rule=reads) -> Run:
    run = Run(tmp_path / "r", preset("tiny", {"env.id": spec, "evaluate.tasks": 8}))
    write_episodes(run.path("episodes.jsonl"), collected, check=False)
    path = run.path("policies/bc/config.json")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    policy = doubles.Scripted(rule)
    monkeypatch.setattr(environments, "load_player", lambda *_: policy)
    for module in (command, environments):
        monkeypatch.setattr(module, "step_limit", lambda _: 9)
    return run


def games(run: Run, kind: str) -> list[Episode]:
    (path,) = run.root.glob(f"robustness/{kind}-*/bc.jsonl")
    return read_episodes(path)


@pytest.mark.parametrize("spec", [HOUSE, MIX])
def test_names_alone_are_exchanged(tmp_path, monkeypatch, spec):
    run = run_of(tmp_path, monkeypatch, spec, episodes(spec, "train", 120))
    result = command.robustness(run, [], ["rename"], 0.1)
    row = result["kinds"]["rename"]
    family = "house" if spec == HOUSE else f"{HOUSE}/house"
    assert row["names"] == {family: (ROOMS,)}
    as_they_are = {e.task.id: e for e in games(run, "identity")}
    exchanged = 0
    for game in games(run, "rename"):
        before = as_they_are[game.task.id]
        if game.task.family == TOOLS:  # as it was: no name of it is known
            assert game == before
            continue
        form = re.sub("|".join(ROOMS), "ROOM", game.task.instruction)
        assert form in FORMS
        steps = zip(before.transitions, game.transitions, strict=True)
        texts = [(before.task.instruction, game.task.instruction)]
        for a, b in steps:
            texts += [*zip(a.state, b.state, strict=True), (a.action, b.action)]
        words = [zip(a.split(), b.split(), strict=True) for a, b in texts]
        swap = dict(itertools.chain(*words))
        assert all(swap[b] == a for a, b in swap.items() if b in swap)
        moved = {a for a, b in swap.items() if a != b}
        assert moved <= set(ROOMS)
        exchanged += bool(moved)
    # Who reads loses nothing, and only games with names count.
    policy = row["policies"]["bc"]
    assert policy["difference"]["mean"] == 0.0
    assert policy["difference"]["episodes"] == (8 if spec == HOUSE else 4)
    assert policy["changed_games"] == exchanged > 0
    assert row["expert_losses"] == row["expert_losses_unperturbed"] == 0
    text = command.table(result)
    assert "100.0 % (+0.0 [" in text
    assert ("left out, without names" in text) == (spec == MIX)
    assert ("Calendar" in text) == (spec == MIX)


def test_test_games_show_names_of_which_the_collection_has_too_few(
    tmp_path, monkeypatch
):
    run = run_of(tmp_path, monkeypatch, HOUSE, episodes(HOUSE, "train", 4))
    assert command._names(run) == {}
    run.path("test").mkdir()
    write_episodes(run.path("test/bc.jsonl"), episodes(HOUSE, "test", 60))
    assert command._names(run) == {"house": (ROOMS,)}


def test_where_no_names_are_known_nothing_is_played(tmp_path, monkeypatch):
    run = run_of(tmp_path, monkeypatch, HOUSE, episodes(HOUSE, "train", 4))
    result = command.robustness(run, [], ["rename"], 0.1)
    assert result["kinds"]["rename"]["policies"] == {}
    assert not list(run.root.glob("robustness/rename*"))
    *_, line, _, note = command.table(result).splitlines()
    assert line == "| rename | - | - |"
    assert note == f"rename: {command.NO_NAMES}"
    written = json.loads(run.path("robustness.json").read_text())
    (row,) = [
        r for r in card([], robustness=written, policy="bc") if "rename" in r.name
    ]
    assert (row.mean, row.note) == (None, command.NO_NAMES)


def test_a_kind_that_changes_no_game_says_so(tmp_path, monkeypatch):
    few = episodes(HOUSE, "train", 4)
    run = run_of(tmp_path, monkeypatch, HOUSE, few, lambda *_: "move attic")
    result = command.robustness(run, [], ["lost", "order"], 0.0)
    changed = {
        kind: row["policies"]["bc"]["changed_games"]
        for kind, row in result["kinds"].items()
    }
    assert changed["identity"] == changed["lost"] == 0 < changed["order"]
    assert "| lost | nothing changed in any game | 0 |" in command.table(result)
    rows = {r.name: r for r in card([], robustness=result, policy="bc")}
    lost = rows["change of success: lost"]
    assert (lost.mean, lost.note) == (None, "nothing changed in any game")
    assert rows["change of success: order"].mean is not None
