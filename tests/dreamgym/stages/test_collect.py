"""The stage that collects real episodes: actors, splits, what cannot be played."""

import collections
import dataclasses
import math
import re

import pytest

from dreamgym.agent import behavior
from dreamgym.agent.behavior import SOURCES
from dreamgym.agent.config import CollectConfig
from dreamgym.build import episodes as run_episodes
from dreamgym.build.step_limit import step_limit, step_limit_from_episodes
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import collect
from tests import doubles
from worldmodel.data.records import read_episodes


def test_dev_games_are_played_by_each_actor_as_often_as_by_another(tmp_path):
    # Few demonstrations to learn from, but enough to see where imitation is best.
    shares = CollectConfig(
        train_tasks=9,
        episodes=40,
        dev_tasks=20,
        expert_weight=0.0,
        noisy_weight=0.0,
        random_weight=1.0,
    )
    run = Run(
        tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"}, collect=shares)
    )
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
    run = Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Missing"}))
    message = f"doubles:Missing.* at least 1 task of split '{split}', got none"
    with pytest.raises(RunError, match=message):
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
    shares = CollectConfig(train_tasks=2, episodes=3, dev_tasks=2)
    run = Run(
        tmp_path, preset("tiny", {"env.id": "tests.doubles:Breaking"}, collect=shares)
    )
    with pytest.raises(RunError, match=f"a step of at least 1 {split} game, got none"):
        collect.body(run)
    assert "OSError: no answer" in capsys.readouterr().err


def collected(tmp_path, monkeypatch, cls, limit=0):
    changes = {"env.max_episode_steps": limit}
    monkeypatch.setattr(doubles, "Played", cls, raising=False)
    shares = CollectConfig(train_tasks=9, episodes=20, dev_tasks=4, expert_weight=1.0)
    run = Run(
        tmp_path,
        preset("tiny", {"env.id": "tests.doubles:Played", **changes}, collect=shares),
    )
    return run, collect.body(run)


def test_the_step_limit_is_decided_once_and_read_by_later_stages(tmp_path, monkeypatch):
    run, numbers = collected(tmp_path / "a", monkeypatch, doubles.Corridor)
    assert numbers["max_episode_steps"] == 13
    assert "longest expert's plan, 7 actions" in numbers["max_episode_steps_reason"]
    run.stage("collect", lambda: numbers)
    assert step_limit(run) == 13
    run, numbers = collected(tmp_path / "b", monkeypatch, doubles.Corridor, limit=2)
    assert (numbers["max_episode_steps"], step_limit(run)) == (2, 2)
    longest = max(len(e.transitions) for e in read_episodes(run.path("episodes.jsonl")))
    assert longest == 2


def test_recorded_episodes_decide_it_where_there_is_no_environment():
    config = preset("tiny", {"env.id": ""})
    won = doubles.expert(max(doubles.tasks("train"), key=lambda t: t.options["goal"]))
    steps = len(won.transitions)
    lost = dataclasses.replace(won, transitions=won.transitions * 9, success=False)
    limit = step_limit_from_episodes(config, [won, lost])
    assert limit.steps == max(math.ceil(1.75 * steps), steps + 4)
    assert step_limit_from_episodes(config, [lost]).steps == 9 * steps
    three = preset("tiny", {"env.id": "", "env.max_episode_steps": 3})
    assert step_limit_from_episodes(three, [lost])[0] == 3


def test_nothing_to_imitate_says_how_the_episodes_ended(tmp_path, monkeypatch):
    class Unlucky(doubles.Corridor):
        """A third of its episodes break, a third fall, a third walk on."""

        def expert(self):
            number = self.begin[1].split()[1]
            return {"0": ["break"], "1": ["go left"] * 9}.get(number, ["wait"] * 50)

        def step(self, action):
            if action == "break":
                raise OSError("no answer")
            return super().step(action)

        def tasks(self, split):
            tasks = super().tasks(split)
            return [t for t in tasks if t.options["goal"] < 3 and not t.options["at"]]

    run, numbers = collected(tmp_path, monkeypatch, Unlucky, limit=3)
    assert numbers["truncated"] > 0
    text = run_episodes.nothing_to_imitate(read_episodes(run.path("episodes.jsonl")))
    assert re.search(
        r"among the collected \d+, of which \d+ were an expert's: \d+ were cut at the "
        r"step limit \(at most 3 steps\), \d+ ended without success, \d+ broke",
        text,
    )


def test_tasks_are_held_out_whole():
    tasks = list(doubles.tasks("train")[:10])
    results = behavior.collect(
        doubles.Corridor(), tasks, 40, CollectConfig(), seed=0, max_steps=8
    )
    train, held = run_episodes.split_by_task(results, share=0.2)
    ids = [{e.task.id for e in part} for part in (train, held)]
    assert not ids[0] & ids[1]
    assert len(ids[1]) == 2
    assert len(train) + len(held) == 40
    assert {e.task.split for e in held} == {"dev"}
    assert {e.task.split for e in train} == {"train"}
    two = [e for e in results if e.task in (results[0].task, results[1].task)]
    train, held = run_episodes.split_by_task(two, share=0.1)
    assert train
    assert held
    with pytest.raises(RunError, match=r"at least 2 tasks .* got 1"):
        run_episodes.split_by_task([results[0]], share=0.1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_numbers_say_whether_the_environment_draws_lots(
    tmp_path, monkeypatch, deterministic
):
    monkeypatch.setattr(doubles.Corridor, "deterministic", deterministic)
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        numbers = run.stage("collect", lambda: collect.body(run))["numbers"]
    assert numbers["deterministic"] is deterministic
