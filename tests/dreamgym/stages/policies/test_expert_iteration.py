"""Expert iteration in the dream: what is imitated, what is kept, and a control."""

import dataclasses

import numpy as np
import pytest

from dreamgym.agent.demonstrations import random_success
from dreamgym.build import imitation
from dreamgym.build.episodes import NAMES
from dreamgym.build.models import load_policy
from dreamgym.config.presets import preset
from dreamgym.config.stages import ExpertIterationConfig
from dreamgym.run.directory import Run
from dreamgym.stages.policies import expert_iteration
from dreamgym.training.selection import ENOUGH_WON
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes
from worldmodel.fitting.config import FitConfig, OptimizerConfig
from worldmodel.memory import ReplayMemory

SHOWN = doubles.tasks("train")[:8]
"""Tasks with a real demonstration."""


class NoWin(doubles.Known):
    """The corridor, but the coin is never there: the control."""

    def predict(self, queries):
        return [
            p._replace(reward=0.0, outcome="lose") if p.outcome == "win" else p
            for p in super().predict(queries)
        ]


def corridor(
    folder,
    monkeypatch,
    *,
    world=doubles.Known,
    deterministic=True,
    trusted=False,
    **changes,
):
    """A run up to the check of its dream, whose warm start says any word at first."""
    settings = {"env.id": "tests.doubles:Corridor", "evaluate.tasks": 30}
    config = preset("tiny", settings | {"dream_check.force": False})
    c = ExpertIterationConfig(
        rounds=2, tasks=60, rollouts_per_task=3, fresh_tasks=60, epochs=30
    )
    fit = FitConfig(
        steps=10,
        batch_rows=2,
        row_tokens=64,
        eval_every=10,
        optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=5),
    )
    config = dataclasses.replace(
        config,
        bc=dataclasses.replace(config.bc, fit=fit),
        expert_iteration=dataclasses.replace(c, **changes),
    )
    run = Run(folder, config)
    run.write_json(NAMES, {})
    write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in SHOWN])
    dev = doubles.tasks("dev")[:2]
    write_episodes(run.path("dev.jsonl"), [doubles.expert(t) for t in dev])
    warm = doubles.cloned(doubles.ACTIONS, SHOWN)
    start = {"real_success": 0.1, "real_return": 0.1}
    numbers = {"refused": "", "forced": False, "real": start, "dreamed": start}
    run.mark("collect", {"deterministic": deterministic, "max_episode_steps": 14})
    run.mark("dream_check", numbers)
    initial = doubles.policy(action_tokens=6)
    for module, name, value in (
        (expert_iteration, "load_policy", lambda *_: warm),
        (imitation, "initial_policy", lambda *_: initial),
        (expert_iteration, "load_experience", lambda *_, **__: world(ReplayMemory())),
        (expert_iteration, "read_scorecard", lambda *_: {}),
        (expert_iteration, "is_trusted", lambda _: trusted),
    ):
        monkeypatch.setattr(module, name, value)
    return run


def saved(run):
    return Run.open(run.root).path("policies/expert_iteration")


@pytest.fixture(scope="module")
def improved(tmp_path_factory):
    """A run whose stage has ended, and the numbers of its marker."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = corridor(tmp_path_factory.mktemp("improved"), monkeypatch)
        return run, expert_iteration.body(run)


@pytest.fixture(scope="module")
def expert(improved):
    """The policy of that run."""
    run, numbers = improved
    assert numbers["kept"] == "expert_iteration"
    return load_policy(run, "expert_iteration")


@pytest.fixture(scope="module")
def worse(expert, tmp_path_factory):
    """What two rounds make of the expert with half a fit, and their numbers.

    The policy says `go right` too often to win everywhere.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = corridor(tmp_path_factory.mktemp("worse"), monkeypatch, epochs=1)
        world = doubles.Known(ReplayMemory())
        return expert_iteration._iterate(run, world, expert)


@pytest.mark.medium
def test_what_is_won_in_the_dream_is_imitated_and_pays(improved):
    run, numbers = improved
    assert numbers["kept"] == "expert_iteration"
    assert numbers["real_demonstrations"] == len(SHOWN)
    first, last = numbers["dreamed_demonstrations"]
    assert 0 < first <= last
    # Plays that a uniform choice among three words wins in 14 steps: about a third.
    assert numbers["real"]["real_success"] > numbers["dev_success_before"] + 0.2
    demonstrations = read_episodes(run.path("expert_iteration.jsonl"))
    assert len(demonstrations) == last
    shown = {t.id for t in SHOWN}
    assert not shown & {e.task.id for e in demonstrations}
    assert {e.task.split for e in demonstrations} == {"train"}
    for e in demonstrations:  # without a detour, and won
        states = [t.state for t in e.transitions]
        assert len(set(states)) == len(states)
        assert e.transitions[-1].success
    assert not run.path("checkpoints/expert_iteration").exists()


@pytest.mark.medium
def test_a_task_that_was_won_is_not_dreamed_again(tmp_path, monkeypatch):
    run, dreamed, imitated = corridor(tmp_path, monkeypatch, epochs=10), [], []

    def record(run, experience, player, tasks, *names, **known):
        dreamed.append({t.id for t in tasks})
        return wins(run, experience, player, tasks, *names, **known)

    def fit(run, demonstrations, name):
        imitated.append({e.task.id for e in demonstrations})
        return fitted(run, demonstrations, name)

    wins, fitted = expert_iteration.dreamed_wins, expert_iteration.fit_demonstrations
    monkeypatch.setattr(expert_iteration, "dreamed_wins", record)
    monkeypatch.setattr(expert_iteration, "fit_demonstrations", fit)
    # One that a mixture leaves out was won all the same, and is not imitated.
    drawn = [doubles.expert(t) for t in SHOWN[1:]]
    monkeypatch.setattr(expert_iteration, "imitated_episodes", lambda _: drawn)
    first, last = expert_iteration.body(run)["dreamed_demonstrations"]
    assert not {t.id for t in SHOWN} & dreamed[0]
    assert len(dreamed[0] - dreamed[1]) == first > 0 == len(dreamed[1] - dreamed[0])
    assert last > first
    assert not any(SHOWN[0].id in ids for ids in imitated)
    assert all({t.id for t in SHOWN[1:]} < ids for ids in imitated)


def test_parts_are_imitated_and_counted_apart_from_wins(tmp_path, monkeypatch):
    """A dream in which progress is paid and nothing is won: the best part of a task."""
    run, imitated = corridor(tmp_path, monkeypatch, epochs=10), []
    tasks = [t for t in doubles.tasks("train") if t.id not in {s.id for s in SHOWN}]
    pay = iter((0.25, 0.5, 0.25))

    def dream(*_, won_tasks):
        assert won_tasks == {t.id for t in SHOWN}
        part = doubles.episode(tasks[0], ["go right"])
        step = dataclasses.replace(part.transitions[0], rewards={"x": next(pay, 0.5)})
        return [dataclasses.replace(part, transitions=(step,))]

    def fit(run, demonstrations, name):
        del run, name
        imitated.append([e.episode_return for e in demonstrations if not e.success])
        return doubles.policy()

    monkeypatch.setattr(expert_iteration, "dreamed_wins", dream)
    monkeypatch.setattr(expert_iteration, "fit_demonstrations", fit)
    _, numbers = expert_iteration._iterate(
        run, doubles.Known(ReplayMemory()), doubles.policy()
    )
    rounds = numbers["rounds"]
    assert imitated == [[0.25], [0.5], [0.5]][:rounds]
    assert numbers["dreamed_demonstrations"] == [0] * rounds
    assert numbers["dreamed_parts"] == 1
    assert numbers["real_demonstrations"] == len(SHOWN)


def random_play(count):
    """Return episodes of random players, a part of which are won."""
    rng, episodes = np.random.default_rng(0), []
    for task in doubles.tasks("train")[8 : 8 + count]:
        state, actions, over = task.initial_state, [], False
        while not over and len(actions) < 14:
            actions.append(str(rng.choice(doubles.ACTIONS)))
            outcome = doubles.walk(state, actions[-1])
            state, over = outcome.state, outcome.terminated
        episodes.append(doubles.episode(task, actions, source="random"))
    return episodes


@pytest.mark.medium
@pytest.mark.parametrize("explore", [True, False])
def test_random_play_finds_wins_where_the_policy_finds_none(
    tmp_path, monkeypatch, explore
):
    run = corridor(tmp_path, monkeypatch, explore=explore, epochs=10)
    stuck = doubles.Scripted(lambda *_: "go left")
    monkeypatch.setattr(expert_iteration, "load_policy", lambda *_: stuck)
    episodes = [doubles.expert(SHOWN[0]), *random_play(20)]
    write_episodes(run.path("episodes.jsonl"), episodes)
    monkeypatch.setattr(expert_iteration, "save_policy", lambda *_: None)
    numbers = expert_iteration.body(run)
    first, last = numbers["dreamed_demonstrations"]
    if not explore:
        assert first == last == 0
        assert "explorer_demonstrations" not in numbers
        assert numbers["kept"] == "warmstart"
        return
    # The policy that imitates them wins more than random players do: it is enough.
    assert numbers["explorer_demonstrations"] == [first]
    assert 10 < first < last


@pytest.mark.medium
def test_nobody_explores_where_the_policy_wins_more_than_chance(tmp_path, monkeypatch):
    # An explorer could only begin in the first round.
    run = corridor(tmp_path, monkeypatch, explore=True, rounds=1, epochs=1)
    random = random_play(30)
    assert 0.1 < random_success(random) < 0.5
    write_episodes(run.path("episodes.jsonl"), [*map(doubles.expert, SHOWN), *random])
    monkeypatch.setattr(expert_iteration, "exploration_policy", None)  # would fail
    assert "explorer_demonstrations" not in expert_iteration.body(run)


def test_a_dream_that_is_never_won_leaves_the_warm_start(tmp_path, monkeypatch):
    few = {"tasks": 12, "rollouts_per_task": 2}  # a third is won where there is a coin
    run = corridor(tmp_path, monkeypatch, world=NoWin, **few)
    numbers = expert_iteration.body(run)
    assert numbers["kept"] == "warmstart"
    assert numbers["dreamed_demonstrations"] == [0, 0]
    assert "won in no further task" in numbers["note"]
    assert numbers["real"]["real_success"] == 0.1  # of the warm start, as it was


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"rounds": 0}, "status"), ({"deterministic": False}, "by_rule")],
)
def test_nothing_is_dreamed_where_it_is_off_or_wins_are_luck(
    tmp_path, monkeypatch, changes, expected
):
    run = corridor(tmp_path, monkeypatch, **changes)
    monkeypatch.setattr(expert_iteration, "_iterate", None)  # would fail if called
    numbers = expert_iteration.body(run)
    assert (numbers["kept"], numbers["rounds"]) == ("warmstart", 0)
    assert expected in numbers


def test_a_refused_dream_is_not_imitated(tmp_path, monkeypatch):
    run = corridor(tmp_path, monkeypatch)
    monkeypatch.setattr(expert_iteration, "_iterate", None)
    run.mark("dream_check", {"refused": "ends are missing", "forced": False})
    assert "ends are missing" in expert_iteration.body(run)["note"]


def test_nothing_is_dreamed_for_a_warm_start_that_wins_all_dev_games(
    tmp_path, monkeypatch
):
    run = corridor(tmp_path, monkeypatch)
    iterations = []
    monkeypatch.setattr(
        expert_iteration, "_iterate", lambda *_: (iterations.append(1), (None, {}))[1]
    )
    monkeypatch.setattr(expert_iteration, "save_policy", lambda *_: None)
    for games, count in ((ENOUGH_WON, 0), (ENOUGH_WON - 1, 1)):
        real = {"real_success": 1.0, "real_games/": float(games)}
        run.mark("dream_check", {"refused": "", "forced": False, "real": real})
        numbers = expert_iteration.body(run)
        assert len(iterations) == count
        assert numbers.get("nothing_to_gain", False) == (not count)
        assert numbers["kept"] == "warmstart"


@pytest.mark.slow
def test_an_interrupted_stage_goes_on_to_the_same_policy(tmp_path, monkeypatch):
    whole = corridor(tmp_path / "whole", monkeypatch)
    numbers = expert_iteration.body(whole)
    run = corridor(tmp_path / "two", monkeypatch)
    rollouts, played = imitation.rollout, []

    def interrupted(*args, **kwargs):
        played.append(kwargs["source"])
        if len(played) == 2:
            raise KeyboardInterrupt
        return rollouts(*args, **kwargs)

    monkeypatch.setattr(imitation, "rollout", interrupted)
    with pytest.raises(KeyboardInterrupt):
        expert_iteration.body(run)
    again = expert_iteration.body(run)
    assert played == [f"expert_iteration/round-{i}" for i in (1, 2, 2)]
    assert again == numbers
    one, other = (saved(r) / "model.safetensors" for r in (whole, run))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.medium
@pytest.mark.parametrize("trusted", [False, True])
def test_a_policy_that_clearly_loses_real_dev_games_is_not_kept(
    tmp_path, monkeypatch, trusted, expert, worse
):
    run = corridor(tmp_path, monkeypatch, trusted=trusted)
    monkeypatch.setattr(expert_iteration, "load_policy", lambda *_: expert)
    monkeypatch.setattr(expert_iteration, "_iterate", lambda *_: worse)
    numbers = expert_iteration.body(run)
    assert numbers["kept"] == "warmstart"
    assert numbers["dev_success_after"] < numbers["dev_success_before"]
    assert "imitating dreamed wins did not help, so it is warmstart" in numbers["note"]


@pytest.mark.parametrize("trusted", [False, True])
def test_in_a_dream_that_is_trusted_a_policy_need_not_win_more_dev_games(
    tmp_path, monkeypatch, trusted, expert
):
    run = corridor(tmp_path, monkeypatch, trusted=trusted)
    monkeypatch.setattr(expert_iteration, "load_policy", lambda *_: expert)
    monkeypatch.setattr(expert_iteration, "_iterate", lambda *_: (expert, {}))
    numbers = expert_iteration.body(run)  # the same policy wins as many games
    assert numbers["kept"] == ("expert_iteration" if trusted else "warmstart")


@pytest.mark.medium
def test_where_real_tasks_are_few_invented_ones_are_dreamed_of(tmp_path, monkeypatch):
    """The model of the corridor moves the coin, and what is won there is imitated."""
    run = corridor(tmp_path, monkeypatch, fresh_tasks=0, invented_tasks=20)
    numbers = expert_iteration.body(run)
    count = numbers["invented_tasks"]
    assert 0 < count <= 20
    assert numbers["tasks"] == len(SHOWN) + count
    won = read_episodes(run.path("expert_iteration.jsonl"))
    assert won
    assert {e.task.split for e in won} == {"generated"}
    real = {t.id for t in SHOWN}
    texts = {(t.instruction, t.initial_state) for t in SHOWN}
    for e in won:
        assert set(e.task.lineage) <= real
        assert (e.task.instruction, e.task.initial_state) not in texts


def test_no_task_is_invented_where_there_are_enough(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(expert_iteration, "invented_tasks", asked.append)
    run = corridor(
        tmp_path, monkeypatch, world=NoWin, tasks=8, fresh_tasks=0, invented_tasks=20
    )
    assert expert_iteration.body(run)["invented_tasks"] == 0
    assert not asked
