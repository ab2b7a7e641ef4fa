"""Which real episodes a refit of the experience model reads, and which it leaves."""

import dataclasses

from dreamgym.build.experience import refit_episodes
from dreamgym.build.real import dev_play
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.data.records import write_episodes

TASKS = doubles.tasks("train")[:8]


def test_a_refit_keeps_the_episodes_of_the_remedy_before_it(tmp_path):
    run = Run(tmp_path, preset("tiny"))
    for folder, task in (("remedy", TASKS[0]), ("s2r/round-1", TASKS[1])):
        path = run.path(f"{folder}/episodes.jsonl")
        path.parent.mkdir(parents=True)
        write_episodes(path, [dataclasses.replace(doubles.expert(task), id=folder)])
    assert [e.id for e in refit_episodes(run, "remedy")] == ["remedy"]
    both = [e.id for e in refit_episodes(run, "s2r/round-1")]
    assert both == ["remedy", "s2r/round-1"]


def test_the_remedy_leaves_the_steps_of_games_that_judge_its_policies(
    tmp_path, monkeypatch
):
    """Of 100 steps 60 are planned for two players: 40 pay for four games of 10."""
    settings = {"env.id": "tests.doubles:Corridor", "env.max_episode_steps": 10}
    run = Run(tmp_path, preset("tiny", settings))
    write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in TASKS])
    games = []
    monkeypatch.setattr(dev_play, "_play_once", lambda *x: games.append(len(x[3])))
    monkeypatch.setattr(dev_play, "dev_game_steps", lambda *_, later: 30 * later)
    with run.real_steps.recorded(tmp_path / "x.steps", 100):
        dev_play.play_train_games(run, doubles.policy(), 8)
    assert games == [4]
