"""Games of audits are those of the policy as it is, whatever the clock says."""

import os
import time

import pytest

from dreamgym.build.real import environments
from dreamgym.build.real.audit_games import play_audit_games, player_hash
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

TASKS = doubles.tasks("test")[:3]
GAMES, WEIGHTS = "audit/bc.jsonl", "policies/bc/model.safetensors"
YEAR = 365 * 24 * 3600.0


def run_of(root, **settings):
    run = Run(root, preset("tiny", {"env.id": "tests.doubles:Corridor"} | settings))
    write_episodes(
        run.path("episodes.jsonl"), [doubles.expert(doubles.tasks("train")[0])]
    )
    run.path("policies/bc").mkdir(parents=True)
    run.path(WEIGHTS).write_bytes(b"1")
    return run


@pytest.fixture
def run(tmp_path):
    return run_of(tmp_path / "r")


@pytest.fixture
def loads(monkeypatch):
    """The policies that were loaded, by their weights; those of b"1" know the way."""
    loaded = []

    def load(run, name):
        del name
        loaded.append(run.path(WEIGHTS).read_bytes())
        wins = loaded[-1] == b"1"
        return doubles.Scripted(doubles.expert_rule if wins else lambda *_: "look")

    monkeypatch.setattr(environments, "load_player", load)
    return loaded


def wins(run):
    played = play_audit_games(run, "bc", TASKS, "audit")
    return sum(bool(t.episode.success) for t in played)


@pytest.mark.parametrize("games_time", [-YEAR, YEAR])
@pytest.mark.parametrize("weights_time", [-YEAR, YEAR])
def test_times_of_files_decide_nothing(run, loads, games_time, weights_time):
    """A clock that is set back makes weights of today older than games of yesterday."""
    assert wins(run) == 3
    for name, seconds in ((GAMES, games_time), (WEIGHTS, weights_time)):
        os.utime(run.path(name), (time.time() + seconds,) * 2)
    assert wins(run) == 3
    assert loads == [b"1"]  # the same policy: its games stand
    run.path(WEIGHTS).write_bytes(b"2")
    os.utime(run.path(WEIGHTS), (time.time() + weights_time,) * 2)
    assert wins(run) == 0
    assert loads == [b"1", b"2"]
    assert wins(run) == 0
    assert loads == [b"1", b"2"]


def test_games_of_an_unknown_policy_are_played_anew(run, loads):
    """Those of an earlier version, and those of a command killed before its end."""
    wins(run)
    run.path("audit/bc.player").unlink()
    assert wins(run) == 3
    assert loads == [b"1", b"1"]


def test_games_stay_until_others_have_been_played(run, monkeypatch):
    monkeypatch.setattr(
        environments, "load_player", lambda *_: doubles.Scripted(doubles.expert_rule)
    )
    wins(run)
    run.path(WEIGHTS).write_bytes(b"2")
    with monkeypatch.context() as broken:
        broken.setattr(environments, "load_player", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            wins(run)
    assert len(read_episodes(run.path(GAMES))) == 3
    run.path(WEIGHTS).write_bytes(b"1")  # and yet they are not taken for those of 1:
    with monkeypatch.context() as broken:
        broken.setattr(environments, "load_player", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            wins(run)  # nobody has noted who played them


def test_what_a_policy_plays_with_is_in_its_hash(run, tmp_path):
    first = player_hash(run, "bc")
    for stage, numbers in (
        ("shield", {"shield": "valid"}),
        ("pretrain", {"action_tokens": 30}),
        ("collect", {"deterministic": False}),
    ):
        run.mark(stage, numbers)
        assert player_hash(run, "bc") != first, stage
        run.path(f"stages/{stage}.json").unlink()
    run.mark("shield", {"other": 1}, seconds=7.0)
    assert player_hash(run, "bc") == first
    # Files that it does not read, and where it lies, are no part of it.
    write_episodes(run.path("episodes.jsonl"), [])
    assert player_hash(run, "bc") == first == player_hash(run_of(tmp_path / "s"), "bc")


def test_what_a_policy_remembers_and_plans_in_is_in_its_hash(tmp_path):
    recalls = run_of(tmp_path / "m", **{"policy.memories": 2})
    first = player_hash(recalls, "bc")
    write_episodes(recalls.path("episodes.jsonl"), [])
    assert player_hash(recalls, "bc") != first
    plans = run_of(tmp_path / "p", **{"evaluate.plan.method": "mpc"})
    first = player_hash(plans, "bc")
    plans.path("experience").mkdir()
    plans.path("experience/model.safetensors").write_bytes(b"1")
    assert player_hash(plans, "bc") != first
