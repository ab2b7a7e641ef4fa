"""Test games of a run: an environment that breaks all of them is down."""

import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.build.real import dev_play, environments
from dreamgym.config.presets import preset
from dreamgym.envs import vector
from dreamgym.envs.failures import EnvironmentDown
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.data.records import write_episodes


@pytest.mark.parametrize("scored", [0, 1])
def test_games_of_which_none_was_scored_are_not_written(tmp_path, monkeypatch, scored):
    episodes = [doubles.expert(t) for t in doubles.tasks("test")[:3]]
    errors = [None] * scored + ["ConnectionError: gone"] * (3 - scored)
    played = [
        Trajectory(e, (), error) for e, error in zip(episodes, errors, strict=True)
    ]
    monkeypatch.setattr(environments.evaluate, "play", lambda *_, **__: played)
    monkeypatch.setattr(environments, "load_player", lambda *_: doubles.policy())
    monkeypatch.setattr(
        environments,
        "real_envs",
        lambda *_, **__: vector.RealVectorEnv([doubles.Corridor()], max_steps=5),
    )
    run = Run(tmp_path, preset("tiny"))
    tasks = [e.task for e in episodes]
    if scored:
        assert len(environments.play_test_games(run, "bc", tasks)) == 3
        return
    with pytest.raises(EnvironmentDown, match=r"3 games of the policy 'bc'.*gone"):
        environments.play_test_games(run, "bc", tasks)
    assert not (tmp_path / "test").exists()


class Broken(doubles.Corridor):
    """A corridor in which no step succeeds."""

    def step(self, action):
        raise KeyError(f"gone: {action}")


def test_broken_floors_and_dev_games_are_not_written(tmp_path, monkeypatch):
    """They are few, so that no batch sees enough of them break in a row."""
    tasks = doubles.tasks("test")[:3]
    monkeypatch.setattr(environments, "test_tasks", lambda _: tasks)
    monkeypatch.setattr(dev_play, "dev_tasks", lambda _: doubles.tasks("dev")[:3])
    monkeypatch.setattr(environments, "make_env", lambda _: Broken())
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        write_episodes(run.path("episodes.jsonl"), [doubles.expert(tasks[0])])
        for name in ("random", "expert"):
            with pytest.raises(EnvironmentDown, match=f"3 games of {name}.*gone"):
                environments.play_floor(run, name)
        with pytest.raises(EnvironmentDown, match=r"3 games of bc.*gone"):
            dev_play.play_dev_games(run, "bc", doubles.policy())
        assert not list(tmp_path.glob("**/random.jsonl"))
        assert not list(tmp_path.glob("dev_games/*"))


@pytest.mark.parametrize("count", [3, 8])
def test_a_few_dev_games_that_broke_as_before_decide_nothing(
    tmp_path, monkeypatch, capsys, count
):
    """Where collection met broken games, three in a row are no sign of a dead one."""
    tasks = doubles.tasks("dev")[:count]
    monkeypatch.setattr(dev_play, "dev_tasks", lambda _: tasks)
    for room in (environments, dev_play):
        monkeypatch.setattr(room, "make_env", lambda _: Broken())
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        run.mark("collect", {"broken/KeyError": 7, "max_episode_steps": 16})
        if count == 8:
            with pytest.raises(EnvironmentDown, match=r"8 games of bc"):
                dev_play.play_dev_games(run, "bc", doubles.policy())
            return
        for _ in range(2):  # they are recorded, and not played again
            assert dev_play.play_dev_games(run, "bc", doubles.policy()) == []
        error = capsys.readouterr().err
        assert error.count("bc: the environment broke all 3 real games") == 1


def test_fresh_tasks_are_train_tasks_that_nothing_was_collected_of(tmp_path):
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path, preset("tiny", settings)) as run:
        collected = [*doubles.tasks("train")[:5], doubles.tasks("train")[0]]
        tasks = environments.training_tasks(run, collected, 3)
        assert [t.id for t in tasks] == [t.id for t in doubles.tasks("train")[:8]]
        assert all(t.initial_state for t in tasks)
        assert run.real_steps.count == 0
        assert environments.training_tasks(run, collected, 0) == tasks[:5]
        every = environments.training_tasks(run, collected, 10_000)
        assert {t.id for t in every} == {t.id for t in doubles.tasks("train")}


def test_without_an_environment_there_are_no_fresh_tasks(tmp_path):
    with Run(tmp_path, preset("tiny", {"env.id": ""})) as run:
        collected = list(doubles.tasks("train")[:5])
        assert environments.training_tasks(run, collected, 3) == collected


def test_tasks_that_were_held_out_of_recordings_are_no_training_tasks(tmp_path):
    """The environment lists them for training still."""
    train = doubles.tasks("train")
    held_out = [doubles.expert(train[3]), doubles.expert(train[6])]
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        write_episodes(run.path("dev.jsonl"), held_out)
        tasks = environments.training_tasks(run, train[:2], 6)
    expected = [t.id for i, t in enumerate(train[:10]) if i not in (3, 6)]
    assert [t.id for t in tasks] == expected


def test_test_tasks_that_were_collected_are_refused(tmp_path, capsys):
    other = [doubles.expert(doubles.tasks("train")[0])]
    seen = [doubles.expert(doubles.tasks("test")[1])]
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path, preset("tiny", settings)) as run:
        write_episodes(run.path("episodes.jsonl"), other)
        assert environments.test_tasks(run)
        write_episodes(run.path("dev.jsonl"), seen)
        with pytest.raises(RunError, match=r"not be dev tasks as well.*dev\.jsonl"):
            environments.test_tasks(run)
        write_episodes(run.path("episodes.jsonl"), seen)
        with pytest.raises(RunError, match=r"not be learnt from.*dreamgym check"):
            environments.test_tasks(run)
    with Run(tmp_path / "recorded", preset("tiny", settings)) as run:
        run.mark("collect", {"recorded": True})
        write_episodes(run.path("episodes.jsonl"), other)
        write_episodes(run.path("dev.jsonl"), seen)
        tasks = environments.test_tasks(run)  # its splits are not the environment's
        assert f"1 of {len(tasks)} test tasks, such as" in capsys.readouterr().err
