"""What is dreamed for imitation, and how long a fit to it is."""

import jax
import pytest

from dreamgym.build import imitation
from dreamgym.build.episodes import NAMES
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.memory import ReplayMemory


@pytest.mark.parametrize(("epochs", "by_epochs"), [(1, False), (2000, True)])
def test_a_fit_makes_as_many_updates_as_behaviour_cloning_at_least(
    tmp_path, monkeypatch, epochs, by_epochs
):
    """Few demonstrations are read more than `epochs` times, many just as often."""
    fits = []

    def fit_model(run, name, model, examples, fit, held_out):
        del run, name, examples, held_out
        fits.append(fit)
        return model

    monkeypatch.setattr(imitation, "initial_policy", lambda _: doubles.policy())
    monkeypatch.setattr(imitation, "fit_model", fit_model)
    settings = {
        "env.id": "tests.doubles:Corridor",
        "bc.fit.steps": 7,
        "bc.fit.eval_every": 7,
        "expert_iteration.epochs": epochs,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.write_json(NAMES, {})
        demonstrations = [doubles.expert(t) for t in doubles.tasks("train")[:2]]
        imitation.fit_demonstrations(run, demonstrations, "fit")
    (fit,) = fits
    assert fit.steps == fit.eval_every
    assert fit.steps > 7 if by_epochs else fit.steps == 7


@pytest.mark.parametrize("tries", [1, 3])
def test_a_task_is_dreamed_again_only_where_it_was_not_won(
    tmp_path, monkeypatch, capsys, tries
):
    """A policy that stands still at its first try of the second half of the tasks."""
    played, keys, rollout = [], [], imitation.rollout
    tasks = doubles.tasks("train")[:6]
    stubborn = {t.id for t in tasks[3:]}

    def record(_, envs, starts, **kwargs):
        def act(task, past, state):
            if task.id in stubborn and len(played) == 1:
                return "go left"
            return doubles.expert_rule(task, past, state)

        played.append((sorted(t.id for t in starts), kwargs["source"]))
        keys.append(jax.random.key_data(kwargs["key"]).tolist())
        return rollout(doubles.Scripted(act), envs, starts, **kwargs)

    monkeypatch.setattr(imitation, "rollout", record)
    settings = {
        "env.id": "tests.doubles:Corridor",
        "expert_iteration.rollouts_per_task": tries,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": 14})
        world, policy = doubles.Known(ReplayMemory()), doubles.policy()
        won = imitation.dreamed_wins(run, world, policy, tasks, "dreamed")
        again = imitation.dreamed_wins(run, world, policy, tasks, "dreamed")
    assert again == won  # read from its file
    every = {t.id for t in tasks}
    plays, text = [(sorted(every), "dreamed")], "3 of 6 tasks were won, in 6"
    if tries > 1:
        plays.append((sorted(stubborn), "dreamed-2"))
        text = "6 of 6 tasks were won, in 9"
    assert played == plays
    assert {e.task.id for e in won} == (every if tries > 1 else every - stubborn)
    assert len({e.id for e in won}) == len(won)
    assert all(keys.count(key) == 1 for key in keys)  # each try has noise of its own
    assert f"dreamed: {text} dreamed episodes" in capsys.readouterr().err
