"""A stage tried again under a new name: the rest of its run is taken over."""

import json

import pytest

from dreamgym.cli import main
from tests.ledger import SPEC, Ledger


@pytest.fixture
def root(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    root = tmp_path / "run"
    command = ["collect", "--preset", "tiny", "--env", SPEC, "--run-dir", str(root)]
    assert main(command) == 0
    return root


def test_an_attempt_has_the_settings_of_its_run_and_collects_nothing(root, capsys):
    taken = Ledger.taken
    again = ["collect", "--run-dir", str(root), "--name", "second"]
    assert main([*again, "--set", "pretrain.fit.steps=7"]) == 0
    assert Ledger.taken == taken > 0
    assert "collect: as in" in capsys.readouterr().err
    other = root.with_name("run-second")
    one, two = (json.loads((r / "manifest.json").read_text()) for r in (root, other))
    assert two["config"]["env"]["id"] == SPEC  # which nobody typed again
    changed = [k for k in one["config"] if one["config"][k] != two["config"][k]]
    assert changed == ["pretrain"]
    for name in ("episodes.jsonl", "stages/collect.json"):
        assert (root / name).read_bytes() == (other / name).read_bytes()
    assert main(again) == 0  # resumed under its own settings


def test_what_a_change_touches_is_computed_again(root):
    taken = Ledger.taken
    again = ["collect", "--run-dir", str(root), "--name", "more"]
    assert main([*again, "--set", "collect.episodes=7"]) == 0
    assert Ledger.taken > taken


def test_other_options_and_missing_runs_are_refused(root, capsys):
    again = ["collect", "--run-dir", str(root), "--name", "x"]
    assert main([*again, "--seed", "5"]) == 2
    assert "drop --seed" in capsys.readouterr().err
    assert main(["collect", "--name", "x"]) == 2
    assert main(["collect", "--run-dir", str(root), "--name", "a/b"]) == 2
    assert "a name of a folder" in capsys.readouterr().err
    changed = ["collect", "--run-dir", str(root), "--set", "pretrain.fit.steps=7"]
    assert main(changed) == 2
    assert "give a --name" in capsys.readouterr().err
