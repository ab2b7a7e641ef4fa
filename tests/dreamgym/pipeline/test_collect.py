"""Collecting real episodes: sources, records, splits."""

import collections

import pytest

from dreamgym.pipeline import collect
from dreamgym.pipeline.config import CollectConfig
from dreamgym.pipeline.presets import preset
from dreamgym.pipeline.run import Run, RunError
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

TASKS = list(doubles.tasks("train")[:10])


def collected(env=None, episodes=60, tasks=TASKS, *, seed=0, max_steps=8, **settings):
    return collect.collect(
        doubles.Corridor() if env is None else env, tasks, episodes,
        CollectConfig(**settings), seed=seed, max_steps=max_steps,
    )  # fmt: skip


def test_episodes_are_what_the_environment_answers(tmp_path):
    found = collected()
    assert [e.task.id for e in found] == [t.id for t in TASKS] * 6
    for e in found:
        again = doubles.episode(e.task, [t.action for t in e.transitions])
        assert [t.next_state for t in e.transitions] == [
            t.next_state for t in again.transitions
        ]
        assert e.total_reward == again.total_reward
        last = e.transitions[-1]
        assert last.terminated or last.truncated
        assert not any(t.terminated or t.truncated for t in e.transitions[:-1])
        assert e.success is last.success
    write_episodes(tmp_path / "e.jsonl", found)
    assert read_episodes(tmp_path / "e.jsonl") == found


def test_sources_are_drawn_by_their_weights():
    found = collected(episodes=300, expert=0.6, noisy=0.1, random=0.3)
    counts = collections.Counter(e.source for e in found)
    assert abs(counts["expert"] - 180) < 45
    assert abs(counts["random"] - 90) < 45
    assert all(e.success for e in found if e.source == "expert")
    lost = [e for e in found if e.source == "random" and not e.success]
    assert lost
    noisy = collected(episodes=40, expert=0.0, noisy=1.0, random=0.0, noise=0.0)
    assert all(e.success for e in noisy)


def test_dev_games_are_played_by_each_actor_as_often_as_by_another(tmp_path):
    # Few demonstrations to learn from, but enough to see where imitation is best.
    shares = CollectConfig(
        games=9, episodes=40, dev_games=20, expert=0.0, noisy=0.0, random=1.0
    )
    run = Run(tmp_path, preset("tiny", env="tests.doubles:Corridor", collect=shares))
    collect.stage(run)
    train, dev = (read_episodes(run.path(n)) for n in ("episodes.jsonl", "dev.jsonl"))
    assert {e.source for e in train} == {"random"}
    counts = collections.Counter(e.source for e in dev)
    assert set(counts) == set(collect.SOURCES)
    assert min(counts.values()) >= 5
    assert not {e.task.id for e in train} & {e.task.id for e in dev}


def test_random_actors_take_valid_foreign_and_mangled_actions():
    def invalid(**settings):
        found = collected(
            episodes=200, expert=0.0, noisy=0.0, random=1.0, max_steps=12, **settings
        )
        steps = [t for e in found for t in e.transitions]
        return sum(t.invalid for t in steps) / len(steps)

    assert invalid(foreign=0.0, mangled=0.0, tempting=0.0) == 0.0
    assert invalid(foreign=0.0, mangled=0.5, tempting=0.0) > 0.1


def test_what_was_refused_is_not_tried_elsewhere():
    # Mangled words that are remembered would soon be most of what is tried.
    found = collected(
        episodes=300, expert=0.0, noisy=0.0, random=1.0, foreign=0.6, mangled=0.1,
        tempting=0.0,
    )  # fmt: skip
    played = [t.action for e in found for t in e.transitions]
    mangled = sum(a not in doubles.ACTIONS for a in played) / len(played)
    assert 0.02 < mangled < 0.12


def test_random_actors_try_what_earned_a_reward_elsewhere():
    def tries(tempting):
        found = collected(
            episodes=200, expert=0.1, noisy=0.0, random=0.9, foreign=0.0, mangled=0.0,
            tempting=tempting,
        )  # fmt: skip
        rewarding = {t.action for e in found for t in e.transitions if t.reward > 0}
        played = [t for e in found if e.source == "random" for t in e.transitions]
        vain = [t for t in played if t.action in rewarding and t.reward <= 0]
        return len(vain) / len(played)

    assert tries(0.5) > tries(0.0) + 0.2


def test_the_seed_decides():
    assert collected() == collected()
    assert collected() != collected(seed=1)


def test_an_environment_without_an_expert_is_played_at_random():
    found = collected(doubles.Bare(), episodes=5)
    assert {e.source for e in found} == {"random"}


def test_an_environment_that_breaks_leaves_its_episode_unscored(tmp_path):
    class Crashing(doubles.Corridor):
        def step(self, action):
            if self.steps == 1 and "end 2" in self.state:
                raise OSError("no answer")
            return super().step(action)

    found = collected(Crashing(), episodes=20)
    broken = [e for e in found if e.success is None]
    assert broken
    assert all("end 2" in e.task.initial_state for e in broken)
    assert any(e.success for e in found)
    write_episodes(tmp_path / "e.jsonl", found)
    read_episodes(tmp_path / "e.jsonl")


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
        collect.stage(run)
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
        collect.stage(run)
    assert "OSError: no answer" in capsys.readouterr().err


def test_tasks_are_held_out_whole():
    found = collected(episodes=40)
    train, held = collect.split_by_task(found, share=0.2)
    ids = [{e.task.id for e in part} for part in (train, held)]
    assert not ids[0] & ids[1]
    assert len(ids[1]) == 2
    assert len(train) + len(held) == 40
    assert {e.task.split for e in held} == {"dev"}
    assert {e.task.split for e in train} == {"train"}
    two = [e for e in found if e.task in (found[0].task, found[1].task)]
    train, held = collect.split_by_task(two, share=0.1)
    assert train
    assert held
    with pytest.raises(RunError, match=r"at least 2 tasks .* got 1"):
        collect.split_by_task([found[0]], share=0.1)
