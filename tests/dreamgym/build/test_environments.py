"""Test games of a run: an environment that breaks all of them is down."""

import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.build import environments
from dreamgym.config.presets import preset
from dreamgym.envs import vector
from dreamgym.envs.failures import EnvironmentDown
from dreamgym.run.directory import Run
from tests import doubles


@pytest.mark.parametrize("scored", [0, 1])
def test_games_of_which_none_was_scored_are_not_written(tmp_path, monkeypatch, scored):
    episodes = [doubles.expert(t) for t in doubles.tasks("test")[:3]]
    errors = [None] * scored + ["ConnectionError: gone"] * (3 - scored)
    played = [
        Trajectory(e, (), error) for e, error in zip(episodes, errors, strict=True)
    ]
    monkeypatch.setattr(environments.evaluate, "play", lambda *_, **__: played)
    monkeypatch.setattr(environments, "load_policy", lambda *_: None)
    monkeypatch.setattr(
        environments, "real_envs",
        lambda _: vector.RealVectorEnv([doubles.Corridor()], max_steps=5),
    )  # fmt: skip
    run = Run(tmp_path, preset("tiny"))
    tasks = [e.task for e in episodes]
    if scored:
        assert len(environments.play_test_games(run, "bc", tasks)) == 3
        return
    with pytest.raises(EnvironmentDown, match=r"3 games of the policy 'bc'.*gone"):
        environments.play_test_games(run, "bc", tasks)
    assert not (tmp_path / "test").exists()
