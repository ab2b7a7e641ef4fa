"""The stage that collects real episodes: actors, splits, what cannot be played."""

import collections

import pytest

from dreamgym.agent import behavior
from dreamgym.agent.behavior import SOURCES, CollectConfig
from dreamgym.build import episodes as run_episodes
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import collect
from tests import doubles
from worldmodel.data.records import read_episodes


def test_dev_games_are_played_by_each_actor_as_often_as_by_another(tmp_path):
    # Few demonstrations to learn from, but enough to see where imitation is best.
    shares = CollectConfig(
        games=9, episodes=40, dev_games=20, expert=0.0, noisy=0.0, random=1.0
    )
    run = Run(tmp_path, preset("tiny", env="tests.doubles:Corridor", collect=shares))
    collect.body(run)
    train, dev = (read_episodes(run.path(n)) for n in ("episodes.jsonl", "dev.jsonl"))
    assert {e.source for e in train} == {"random"}
    counts = collections.Counter(e.source for e in dev)
    assert set(counts) == set(SOURCES)
    assert min(counts.values()) >= 5
    assert not {e.task.id for e in train} & {e.task.id for e in dev}


@pytest.mark.parametrize("split", ["train", "dev"])
def test_an_environment_without_a_game_of_a_split_is_said_before_any_is_played(
    tmp_path, monkeypatch, split
):
    class Missing(doubles.Corridor):
        def tasks(self, split_):
            return [] if split_ == split else super().tasks(split_)

        def reset(self, *, seed=None, options=None):
            raise AssertionError(f"{options} is not to be played (seed {seed})")

    monkeypatch.setattr(doubles, "Missing", Missing, raising=False)
    run = Run(tmp_path, preset("tiny", env="tests.doubles:Missing"))
    said = f"doubles:Missing.* at least 1 task of split '{split}', got none"
    with pytest.raises(RunError, match=said):
        collect.body(run)
    assert not run.path("episodes.jsonl").exists()


@pytest.mark.parametrize("split", ["train", "dev"])
def test_games_that_all_break_at_once_are_said(tmp_path, monkeypatch, capsys, split):
    class Breaking(doubles.Corridor):
        def reset(self, *, seed=None, options=None):
            if options["task"].split == split:
                raise OSError("no answer")
            return super().reset(seed=seed, options=options)

    monkeypatch.setattr(doubles, "Breaking", Breaking, raising=False)
    shares = CollectConfig(games=2, episodes=3, dev_games=2)
    run = Run(tmp_path, preset("tiny", env="tests.doubles:Breaking", collect=shares))
    with pytest.raises(RunError, match=f"a step of at least 1 {split} game, got none"):
        collect.body(run)
    assert "OSError: no answer" in capsys.readouterr().err


def test_tasks_are_held_out_whole():
    tasks = list(doubles.tasks("train")[:10])
    found = behavior.collect(
        doubles.Corridor(), tasks, 40, CollectConfig(), seed=0, max_steps=8
    )
    train, held = run_episodes.split_by_task(found, share=0.2)
    ids = [{e.task.id for e in part} for part in (train, held)]
    assert not ids[0] & ids[1]
    assert len(ids[1]) == 2
    assert len(train) + len(held) == 40
    assert {e.task.split for e in held} == {"dev"}
    assert {e.task.split for e in train} == {"train"}
    two = [e for e in found if e.task in (found[0].task, found[1].task)]
    train, held = run_episodes.split_by_task(two, share=0.1)
    assert train
    assert held
    with pytest.raises(RunError, match=r"at least 2 tasks .* got 1"):
        run_episodes.split_by_task([found[0]], share=0.1)
