"""What is dreamed for imitation, and how long a fit to it is."""

import dataclasses

import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.build import imitation
from dreamgym.build.episodes import NAMES
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.data.records import write_episodes
from worldmodel.memory import ReplayMemory


@pytest.mark.parametrize(("epochs", "by_epochs"), [(1, False), (2000, True)])
def test_a_fit_makes_as_many_updates_as_behaviour_cloning_at_least(
    tmp_path, monkeypatch, epochs, by_epochs
):
    """Few demonstrations are read more than `epochs` times, many just as often."""
    fits = []

    def fit_model(run, name, model, examples, fit, held_out, seed):
        del run, name, examples, held_out
        fits.append((fit, seed))
        return model

    monkeypatch.setattr(imitation, "initial_policy", lambda _: doubles.policy())
    monkeypatch.setattr(imitation, "fit_model", fit_model)
    settings = {
        "env.id": "tests.doubles:Corridor",
        "bc.fit.steps": 7,
        "bc.fit.eval_every": 7,
        "expert_iteration.epochs": epochs,
        "train.seed": 5,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.write_json(NAMES, {})
        demonstrations = [doubles.expert(t) for t in doubles.tasks("train")[:2]]
        imitation.fit_demonstrations(run, demonstrations, "fit")
    ((fit, seed),) = fits
    assert seed == run.config.policy_seed != run.config.seed
    assert fit.steps == fit.eval_every
    assert fit.steps > 7 if by_epochs else fit.steps == 7


def test_each_task_is_dreamed_as_often_as_set(tmp_path, monkeypatch, capsys):
    """Also where its first episode was won; what broke is counted, not imitated."""
    played, rollout = [], imitation.rollout
    tasks = doubles.tasks("train")[:4]
    stuck = tasks[0].id

    def record(_, envs, starts, **kwargs):
        def act(task, past, state):
            if task.id == stuck:
                return "go left"
            return doubles.expert_rule(task, past, state)

        played.append(([t.id for t in starts], kwargs["source"]))
        out = rollout(doubles.Scripted(act), envs, starts, **kwargs)
        return [*out[:-1], out[-1]._replace(error="malformed")]

    monkeypatch.setattr(imitation, "rollout", record)
    settings = {
        "env.id": "tests.doubles:Corridor",
        "expert_iteration.rollouts_per_task": 2,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": 14})
        world, policy = doubles.Known(ReplayMemory()), doubles.policy()
        won = imitation.dreamed_wins(run, world, policy, tasks, "dreamed", won_tasks=())
        again = imitation.dreamed_wins(
            run, world, policy, tasks, "dreamed", won_tasks=()
        )
    assert again == won  # read from its file
    ((starts, source),) = played
    assert sorted(starts) == sorted(t.id for t in tasks for _ in range(2))
    assert source == "dreamed"
    assert sorted(e.task.id for e in won) == sorted(t.id for t in tasks[1:])
    assert "dreamed: 5 of 8 dreamed episodes were won, in 3 of 4 tasks; 1 broke " in (
        printed := capsys.readouterr().err
    )
    assert "(malformed: 1; 0 of 2 of long, 1 of 6 of short)" in printed


def test_broken_episodes_are_counted_by_family_where_there_are_several():
    def played(family, error):
        episode = doubles.expert(doubles.task(0, 1 if error else 2, 3))
        task = dataclasses.replace(episode.task, family=family)
        return Trajectory(dataclasses.replace(episode, task=task), (), error)

    coin = [played("coin", e) for e in (None, "low_confidence", "dream: long")]
    assert imitation.broken_text(coin[:1]) == ""
    reasons = "(low_confidence: 1, dream: long: 1)"
    text = f"; 2 broke after 2.0 steps, where the others have 3.0 {reasons}"
    assert imitation.broken_text(coin) == text
    assert imitation.broken_text(coin[1:]) == f"; 2 broke after 2.0 steps {reasons}"
    both = [*coin, played("map", None)]
    assert imitation.broken_text(both).endswith("; 2 of 3 of coin, 0 of 1 of map)")


def test_another_training_dreams_of_other_tasks(tmp_path, monkeypatch):
    """Of two tasks of 40 that are drawn; without a training seed the run's decides."""
    starts = {}

    def record(_, envs, tasks, **kwargs):
        del envs, kwargs
        starts[name] = [t.id for t in tasks]
        return []

    monkeypatch.setattr(imitation, "rollout", record)
    tasks = doubles.tasks("train")[:40]
    seeds = {"none": {}, "same": {"train.seed": 0}, "other": {"train.seed": 1}}
    for name, seed in seeds.items():
        settings = {"env.id": "tests.doubles:Corridor", "expert_iteration.tasks": 2}
        with Run(tmp_path / name, preset("tiny", settings | seed)) as run:
            run.mark("collect", {"max_episode_steps": 14})
            world, policy = doubles.Known(ReplayMemory()), doubles.policy()
            imitation.dreamed_wins(run, world, policy, tasks, "dreamed", won_tasks=())
    assert starts["none"] == starts["same"] != starts["other"]


@pytest.mark.parametrize(("steps", "searched"), [(0, 0), (4, 0), (60, 4)])
def test_a_search_wins_what_the_policy_never_draws(
    tmp_path, monkeypatch, capsys, steps, searched
):
    """A policy that only goes left wins nothing; recorded actions lead to the coin."""
    tasks = [
        t for t in doubles.tasks("train") if len(doubles.expert(t).transitions) > 2
    ]
    tasks = tasks[:4]
    others = [doubles.expert(t) for t in doubles.tasks("train")[4:8]]
    monkeypatch.setattr(imitation, "read", lambda _: (others, []))
    policy = doubles.Scripted(lambda *_: "go left")
    settings = {
        "env.id": "tests.doubles:Corridor",
        "expert_iteration.search_steps": steps,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": 14})
        world = doubles.Known(ReplayMemory())
        won = imitation.dreamed_wins(run, world, policy, tasks, "dreamed", won_tasks=())
        assert (
            imitation.dreamed_wins(run, world, policy, tasks, "dreamed", won_tasks=())
            == won
        )
    assert len(won) == searched
    for e in won:  # the dream knows the rules, so that its shortest win is the expert's
        assert [t.action for t in e.transitions] == doubles.plan(e.task.initial_state)
        assert e.success
        assert e.transitions[-1].terminated
    line = f"dreamed: a search in the dream won {searched} of the other 4 tasks"
    assert (line in capsys.readouterr().err) == bool(steps)


def test_dreamed_parts_are_imitated_where_wins_are_few(tmp_path, monkeypatch):
    """Also those of tasks that the real environment paid for before; never a win's."""
    far = [doubles.task(0, 1, end) for end in (7, 8, 9, 10)]
    pay = dict(zip([t.id for t in far], (0.0, 0.25, 0.5, 0.5), strict=True))

    def record(_, envs, starts, **kwargs):
        del envs, kwargs
        out = []
        for i, task in enumerate(starts):
            if task.id not in pay:
                out.append(doubles.trajectory(task, doubles.plan(task.initial_state)))
                continue
            t = doubles.trajectory(task, ["go right", "go left"], index=i)
            steps = [
                dataclasses.replace(x, rewards={"score": pay[task.id]})
                for x in t.episode.transitions
            ]
            e = dataclasses.replace(t.episode, transitions=tuple(steps))
            broken = "malformed" if task.id == far[3].id else None
            out.append(t._replace(episode=e, error=broken))
        return out

    monkeypatch.setattr(imitation, "rollout", record)
    easy = doubles.tasks("train")[:1]
    settings = {
        "env.id": "tests.doubles:Corridor",
        "expert_iteration.rollouts_per_task": 1,
        "bc.min_wins": 5,
    }
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.mark("collect", {"max_episode_steps": 14})
        world, policy = doubles.Known(ReplayMemory()), doubles.policy()
        imitated = {
            known: imitation.dreamed_wins(
                run,
                world,
                policy,
                [*easy, *far],
                f"known-{known}",
                won_tasks=[f"task-{n}" for n in range(known)],
            )
            for known in (0, 4)
        }
    wins = [e.task.id for e in imitated[4]]
    assert wins == [easy[0].id]
    first, *parts = imitated[0]
    assert first.task.id == easy[0].id
    assert [e.task.id for e in parts] == [far[1].id, far[2].id]  # the fourth broke
    assert not any(e.success for e in parts)


def test_what_an_earlier_version_dreamed_is_shortened_when_it_is_read(tmp_path):
    """Its file has every win of a task, with detours."""
    task = doubles.tasks("train")[0]
    win = doubles.expert(task)
    actions = ["fly", *doubles.plan(task.initial_state)]
    detour = doubles.episode(task, actions, name="detour")
    part = doubles.episode(doubles.task(0, 1, 9), ["go right"])
    with Run(tmp_path / "run", preset("tiny", {})) as run:
        path = run.path("checkpoints/dreamed.jsonl")
        path.parent.mkdir(parents=True)
        write_episodes(path, [detour, win, part])
        world, policy = doubles.Known(ReplayMemory()), doubles.policy()
        imitated = imitation.dreamed_wins(
            run, world, policy, [task], "dreamed", won_tasks=()
        )
    actions = [[t.action for t in e.transitions] for e in imitated]
    assert actions == [[t.action for t in win.transitions], ["go right"]]
