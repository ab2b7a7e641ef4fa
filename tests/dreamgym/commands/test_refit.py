"""A run that goes on from another."""

import dataclasses
import json

import numpy as np
import pytest

from dreamgym.build import episodes as run_episodes
from dreamgym.build import experience as run_experience
from dreamgym.commands.refit import refit
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import collect, pretrain
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes


def episode(place, *, split="train", name=None):
    e = doubles.expert(doubles.task(place, 1, 2))
    task = dataclasses.replace(e.task, id=f"place-{place}", split=split)
    return dataclasses.replace(e, id=name or f"e{place}", task=task)


def source(tmp_path, train, dev) -> Run:
    run = Run(tmp_path / "old", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    write_episodes(run.path("episodes.jsonl"), train)
    write_episodes(run.path("dev.jsonl"), dev)
    return run


def test_a_task_keeps_its_side_and_a_name_its_episode(tmp_path):
    old = source(tmp_path, [episode(0)], [episode(1, split="dev")])
    fresh = [
        episode(0, split="dev"),
        episode(1, name="again"),
        episode(2, name="e1"),
        episode(2, name="more"),
    ]
    write_episodes(tmp_path / "new.jsonl", fresh)
    train, dev = run_episodes.joined(old, str(tmp_path / "new.jsonl"))
    # place-0 was trained on, whatever the file says; place-1 was held out.
    assert [(e.id, e.task.id) for e in dev] == [("e1", "place-1"), ("again", "place-1")]
    assert [(e.id, e.task.id) for e in train] == [
        ("e0", "place-0"),
        ("e0#2", "place-0"),
        ("e1#2", "place-2"),
        ("more", "place-2"),
    ]
    assert {e.task.split for e in train} == {"train"}
    assert {e.task.split for e in dev} == {"dev"}


def test_of_new_tasks_some_are_held_out(tmp_path):
    old = source(tmp_path, [episode(9)], [episode(8, split="dev")])
    write_episodes(tmp_path / "a.jsonl", [episode(i) for i in range(4)])
    train, dev = run_episodes.joined(old, str(tmp_path / "a.jsonl"))
    assert {e.task.id for e in dev} == {"place-8", "place-3"}
    assert not {e.task.id for e in dev} & {e.task.id for e in train}
    # Where the file says which, those.
    text = [episode(0), episode(1, split="dev"), episode(2)]
    write_episodes(tmp_path / "b.jsonl", text)
    train, dev = run_episodes.joined(old, str(tmp_path / "b.jsonl"))
    assert {e.task.id for e in dev} == {"place-8", "place-1"}


def test_test_games_are_not_learned_from(tmp_path, capsys):
    old = source(tmp_path, [episode(9)], [episode(8, split="dev")])
    fresh = [episode(0), episode(1), episode(2, split="test")]
    fresh.append(episode(9, split="test", name="known"))
    write_episodes(tmp_path / "a.jsonl", fresh)
    train, dev = run_episodes.joined(old, str(tmp_path / "a.jsonl"))
    known = {e.task.id for e in (*train, *dev)}
    assert known == {"place-9", "place-8", "place-0", "place-1"}
    assert "known" in {e.id for e in train}  # of a task that is learned from already
    assert "1 episodes of split 'test' are left out" in capsys.readouterr().err
    write_episodes(tmp_path / "b.jsonl", [episode(2, split="test")])
    with pytest.raises(RunError, match="expected episodes of split 'train' or 'dev'"):
        run_episodes.joined(old, str(tmp_path / "b.jsonl"))


def test_a_source_that_is_not_fitted_is_refused(tmp_path):
    old = source(tmp_path, [episode(0)], [episode(1, split="dev")])
    write_episodes(tmp_path / "new.jsonl", [episode(2)])
    with pytest.raises(RunError, match="stage 'pretrain' has not been run"):
        refit(old, tmp_path / "new.jsonl", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_refit_knows_what_its_source_knows_of_the_environment(tmp_path):
    """Else later stages would take wins for skill where the environment draws lots."""
    old = source(tmp_path, [episode(0)], [episode(1, split="dev")])
    of_env = {
        "deterministic": False,
        "listed_actions": 0.5,
        "listed_actions_of": 40,
    }
    old.stage("collect", lambda: of_env | {"max_episode_steps": 9, "episodes": 2})
    write_episodes(tmp_path / "new.jsonl", [episode(2)])
    data = {
        "data.base_run": str(old.root),
        "data.episodes": str(tmp_path / "new.jsonl"),
    }
    run = Run(
        tmp_path / "new",
        preset("tiny", {"env.id": "tests.doubles:Corridor"} | data),
    )
    numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert {name: numbers[name] for name in of_env} == of_env
    assert numbers["max_episode_steps"] == 9
    assert numbers["episodes"] == 2  # counted anew


@pytest.mark.slow
def test_a_refit_starts_where_its_source_ended(tmp_path):
    config = preset("tiny", {"env.id": "tests.doubles:Corridor"})
    old = Run(tmp_path / "old", config)
    old.stage("collect", lambda: collect.body(old))
    old.stage("pretrain", lambda: pretrain.body(old))
    before = {p.name: p.read_bytes() for p in old.path("experience").iterdir()}
    tasks = [doubles.task(a, b, 6) for a in range(5) for b in range(3, 6)]
    fresh = [
        dataclasses.replace(doubles.expert(t), id=f"n{i}") for i, t in enumerate(tasks)
    ]
    write_episodes(tmp_path / "new.jsonl.gz", fresh)
    data = refit(old, tmp_path / "new.jsonl.gz", tmp_path / "new")
    run = Run.open(tmp_path / "new")
    assert run.config.data.base_run == str((tmp_path / "old").resolve())
    assert json.loads(run.path("refit.json").read_text()) == data
    # The source is as it was; its tokenizer is kept.
    assert before == {p.name: p.read_bytes() for p in old.path("experience").iterdir()}
    new, tok = (
        run_experience.load_experience(run),
        run_experience.load_experience(old).tokenizer,
    )
    text = "at 3 go right, take the coin"
    assert new.tokenizer.encode(text) == tok.encode(text)
    # Both on the same unseen games; the fit went on from lower ground.
    assert data["before"]["transitions"] == data["after"]["transitions"] > 0
    curves = [
        [
            json.loads(x)
            for x in r.path("curves/pretrain.jsonl").read_text().split("\n")[:1]
        ]
        for r in (old, run)
    ]
    assert curves[1][0]["loss"] < 0.7 * curves[0][0]["loss"]
    sizes = [len(read_episodes(r.path("episodes.jsonl"))) for r in (old, run)]
    assert sizes[1] > sizes[0]
    assert len(new.memory) > len(run_experience.load_experience(old).memory)
    assert np.isfinite(data["after"]["exact"]["all"]["mean"])
