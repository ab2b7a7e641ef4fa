"""The stage and the command of offline DPO: a policy from pairs alone."""

import dataclasses
import json

import pytest

from dreamgym import cli
from dreamgym.build.models import load_policy, save_policy
from dreamgym.config.presets import preset
from dreamgym.rewards.preferences import (
    Preference,
    won_over_lost,
    write_preferences,
)
from dreamgym.run.directory import Run, RunError
from dreamgym.run.view import StageView
from dreamgym.stages.policies import dpo
from dreamgym.stages.table import STAGES, is_in_run
from dreamgym.training import preference_training
from tests import doubles, helpers
from worldmodel.data.records import read_episodes, write_episodes

SETTINGS = {
    "env.id": "tests.doubles:Corridor",
    "env.max_episode_steps": 6,
    "evaluate.tasks": 4,
}
SMALL = {
    "dpo.updates": 2,
    "dpo.eval_every": 2,
    "dpo.batch_pairs": 4,
    "dpo.row_tokens": 80,
    "dpo.learning_rate": 1e-2,
}
LOST = ["go right", "go left", "go right"]
OPTIONS = [word for k, v in SMALL.items() for word in ("--set", f"{k}={v}")]
NEEDS = [s.name for s in STAGES.closure(["dpo"])][:-1]


def both(split, count):
    """A won and a lost attempt at each of some tasks."""
    return [
        e
        for task in doubles.tasks(split)[:count]
        for e in (
            doubles.expert(task),
            doubles.episode(task, LOST, name=f"lost-{task.id}"),
        )
    ]


def made(tmp_path, **settings):
    """A run that is warm-started, with policies of the doubles."""
    run = Run(tmp_path / "r", preset("tiny", SETTINGS | settings))
    write_episodes(run.path("episodes.jsonl"), both("train", 6))
    write_episodes(run.path("dev.jsonl"), both("dev", 3))
    for seed, name in enumerate(("warmstart", "bc")):
        save_policy(run, name, doubles.policy(seed=seed))
    for name in NEEDS:
        key = STAGES.key(name, run.config)
        run.mark(name, {"deterministic": True, "shield": ""}, key=key)
    return run


def body(run):
    return dpo.body(StageView(run, STAGES["dpo"], STAGES))


def distance(run, one, two):
    a, b = (load_policy(run, name).model.params for name in (one, two))
    return helpers.distance(a, b)


def test_collected_pairs_train_a_policy_and_dev_tasks_are_held_out(tmp_path, capsys):
    run = made(tmp_path, **SMALL, **{"dpo.pairs": "collected"})
    numbers = body(run)
    assert (numbers["pairs"], numbers["held_out"]) == (6, 3)
    assert numbers["margin"] > 0.0
    assert numbers["accuracy"] > 0.5
    assert numbers["better_is_shorter"] == pytest.approx(
        sum(len(e.transitions) < 3 for e in both("dev", 3)[::2]) / 3
    )
    assert "left out" not in capsys.readouterr().err
    assert distance(run, "dpo", "warmstart") > 1e-3
    (row,) = map(json.loads, run.path("curves/dpo.jsonl").read_text().splitlines())
    assert row["held_out/margin"] == numbers["margin"]
    assert not list(run.path("checkpoints").glob("*"))
    # From another start the same pairs make another policy.
    other = dataclasses.replace(run.config.dpo, start="bc")
    run.config = dataclasses.replace(run.config, dpo=other)
    assert body(run)["settings"]["start"] == "bc"
    assert distance(run, "dpo", "bc") < distance(run, "dpo", "warmstart")


def test_pairs_that_cannot_be_learnt_from_are_counted(tmp_path, capsys):
    pairs = won_over_lost(both("train", 5), max_pairs=1, seed=0)

    def saying(pair):
        step = dataclasses.replace(pair.worse[0], action="go " * 99)
        return dataclasses.replace(pair, worse=(step, *pair.worse[1:]))

    # One pair of each task that is held out counts: the first one.
    write_preferences(tmp_path / "p.jsonl", [*pairs, *map(saying, pairs)])
    file = {"dpo.pairs": str(tmp_path / "p.jsonl")}
    run = made(tmp_path, **SMALL, **file)
    numbers = body(run)
    assert (numbers["pairs"], numbers["pairs/unwritable_action"]) == (4, 4)
    assert "4 of 8 pairs are left out: 4 unwritable_action" in capsys.readouterr().err
    write_preferences(tmp_path / "p.jsonl", map(saying, pairs))
    with pytest.raises(RunError, match="4 of 4 pairs are left out: 4 unwritable"):
        body(run)


def test_without_pairs_there_is_one_line(tmp_path):
    run = made(tmp_path, **SMALL, **{"dpo.pairs": "collected"})
    write_episodes(run.path("dev.jsonl"), both("dev", 3)[::2])  # nobody lost
    with pytest.raises(RunError, match="6 pairs to fit and 0 tasks held out"):
        body(run)
    run.config = dataclasses.replace(run.config, dpo=preset("tiny").dpo)
    with pytest.raises(RunError, match="no pairs to train from"):
        body(run)


def test_a_run_has_the_policy_where_it_names_pairs():
    plain = preset("tiny")
    pairs = preset("tiny", {"dpo.pairs": "collected"})
    for name in ("dpo", "evaluate/dpo"):
        assert not is_in_run(name, plain)
        assert is_in_run(name, pairs)
    assert STAGES["dpo"].share == ""  # no real step
    others = [n for n in STAGES if n not in ("dpo", "evaluate/dpo")]
    # Nor does it change anything else of a run.
    assert {n: STAGES.key(n, plain) for n in others} == {
        n: STAGES.key(n, pairs) for n in others
    }


def test_the_key_has_what_the_file_says(tmp_path):
    keys = []
    for name, text in (("x", "one"), ("y", "one"), ("y", "two")):
        (tmp_path / name).write_text(text)
        config = preset("tiny", {"dpo.pairs": str(tmp_path / name)})
        keys.append(STAGES.key("dpo", config))
    assert keys[0] == keys[1] != keys[2]


def test_a_new_run_refuses_settings_without_effect(tmp_path):
    with pytest.raises(ValueError, match=r"dpo\.beta has no effect without dpo\.pairs"):
        Run(tmp_path / "r", preset("tiny", {"dpo.beta": 0.3}))


# --- the command -------------------------------------------------------------


def command(run, *args):
    return cli.main(["dpo", str(run.root), *map(str, args)])


def test_the_command_trains_plays_and_trains_anew(tmp_path, capsys, monkeypatch):
    run = made(tmp_path)
    pairs = won_over_lost(both("train", 5), max_pairs=1, seed=0)
    write_preferences(tmp_path / "p.jsonl", pairs)
    given = ("--pairs", tmp_path / "p.jsonl", *OPTIONS)
    assert command(run, *given) == 0
    output = capsys.readouterr().out
    assert "dpo: fitted to 4 pairs; of 1 tasks held out" in output
    assert f"policy: {run.path('policies/dpo')}" in output
    games = read_episodes(run.path("test/dpo.jsonl"))
    assert len(games) == 4
    marks = {name: run.done(name) for name in ("dpo", "evaluate/dpo")}
    assert "real_transitions" not in marks["dpo"]["numbers"]
    assert marks["evaluate/dpo"]["numbers"]["games"] == 4

    with monkeypatch.context() as patch:  # the same command has nothing to do
        patch.setattr(preference_training.PreferenceTrainer, "update", None)
        assert command(run, *given) == 0
    assert marks == {name: run.done(name) for name in marks}
    # Other pairs: the policy and its games are made anew, and nothing else.
    swapped = [Preference(task=p.task, better=p.worse, worse=p.better) for p in pairs]
    write_preferences(tmp_path / "p.jsonl", swapped)
    before = {name: run.done(name) for name in NEEDS}
    assert command(run, *given) == 0
    assert run.done("dpo")["key"] != marks["dpo"]["key"]
    assert run.done("evaluate/dpo")["key"] != marks["evaluate/dpo"]["key"]
    assert before == {name: run.done(name) for name in NEEDS}
    assert Run.open(run.root).config == run.config  # the run keeps its settings


@pytest.mark.parametrize("end", ["no pair is left", "interrupted"])
def test_a_policy_stays_where_another_cannot_be_trained(
    tmp_path, capsys, monkeypatch, end
):
    run = made(tmp_path)
    pairs = won_over_lost(both("train", 5), max_pairs=1, seed=0)
    write_preferences(tmp_path / "p.jsonl", pairs)
    given = ("--pairs", tmp_path / "p.jsonl", *OPTIONS)
    assert command(run, *given) == 0

    def files():
        paths = sorted(p for p in run.root.rglob("*") if "dpo" in p.as_posix())
        kept = (p for p in paths if p.is_file() and p.suffix != ".seconds")
        return {p: p.read_bytes() for p in kept}

    before = files()
    assert len(before) >= 5
    if end == "interrupted":
        given = (*given, "--dpo.beta", "0.3")
        monkeypatch.setattr(preference_training.PreferenceTrainer, "update", _interrupt)
    else:
        long = [
            dataclasses.replace(
                p, worse=(dataclasses.replace(p.worse[0], action="go " * 99),)
            )
            for p in pairs
        ]
        write_preferences(tmp_path / "p.jsonl", long)
    assert command(run, *given) == (130 if end == "interrupted" else 2)
    capsys.readouterr()
    assert files() == before


def _interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "names no pairs to train from: give --pairs FILE, or --pairs collected"),
        (("--pairs", "gone.jsonl"), "gone.jsonl: no such file"),
        (("--pairs", "collected", "--start", "dream"), "start must be one of"),
        (("--pairs", "collected", "--set", "bc.init=base_model"), "group dpo alone"),
        (
            ("--pairs", "collected", "--set", "dpo.held_out_share=0.5"),
            "those of the dev tasks are held out",
        ),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, capsys, args, message):
    run = made(tmp_path)
    assert command(run, *args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert run.done("dpo") is None
