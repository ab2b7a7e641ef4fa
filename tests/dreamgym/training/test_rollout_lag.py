"""Rollouts one update behind: who sampled what, resume, equality without a lag."""

import contextlib
import dataclasses
import json
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curriculum.config import CurriculumConfig, LessonConfig, StepLimitConfig
from curriculum.generator import FunctionProposer
from curriculum.lesson_tracker import lesson_tracker_for
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.build.loop_checkpoint import (
    LoopCheckpoint,
    batch_from_json,
    batch_to_json,
)
from dreamgym.config.presets import preset
from dreamgym.config.stages import TrainConfig
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rl.config import SurrogateConfig, UpdateConfig
from dreamgym.rl.update import Updater
from dreamgym.training import LoopParts, TrainingState, loop
from dreamgym.training.config import MonitorConfig
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.state import RolloutBatch
from tests import doubles
from tests.dreamgym.training import test_learning as bandits
from tests.dreamgym.training.common import (
    CONFIG,
    Recorder,
    Tabular,
    fresh,
    updater,
    with_,
)

STEPS = 6


class Watched(Tabular):
    """A tabular policy that notes with which table, and where, each turn was drawn."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.drawn = []

    def replace(self, model):
        other = Watched(model.params, self.actions, self.place, self.turns)
        other.drawn = self.drawn
        return other

    def act(self, situations, keys, *, temperature):
        self.drawn.append(
            (
                float(jnp.sum(jnp.asarray(self.model.params))),
                threading.current_thread().name,
            )
        )
        return super().act(situations, keys, temperature=temperature)


@pytest.fixture
def corridor(monkeypatch):
    """Return a function that trains a table of logits in the dreamed corridors."""
    policy = Watched(jnp.zeros((10, 3)), doubles.ACTIONS, lambda s: int(s[0][3:]))
    start = policy.take_updates(monkeypatch)
    monkeypatch.setattr(Updater, "sampler_kl", lambda *_: 0.0)

    def run(lag, config=CONFIG, state=None, recorder=None, **more):
        tasks = doubles.tasks("train")[:4]
        policy.drawn.clear()
        end = training.train(
            policy,
            DreamVectorEnv(doubles.RuleModel(), 4, max_steps=STEPS),
            updater(),
            TrainingState(0, start, pool_of(tasks, config.curriculum), 0, [])
            if state is None
            else state,
            config,
            seed=5,
            recorder=Recorder() if recorder is None else recorder,
            rollout_lag=lag,
            **more,
        )
        return SimpleNamespace(end=end, drawn=list(policy.drawn))

    run.start = start
    return run


def shifted(monkeypatch):
    """Let each update add 1 to the first logit: after k updates the sum is k."""

    def update(self, state, examples, **_):
        del self, examples
        row = {"kl": 0.0, "update_kl": 0.0, "entropy": 1.0}
        return state._replace(params=state.params.at[0, 0].add(1.0)), row

    monkeypatch.setattr(Updater, "update", update)


EAGER = with_(
    advantage_estimator="batch_mean", group_size=4, tasks_per_update=4, updates=4
)
"""Settings with which each update of the tests here has a turn to learn from."""


def test_the_policy_before_the_update_samples_the_next_batch(corridor, monkeypatch):
    # All turns carry a signal with baseline batch_mean, so that every update moves the
    # table by 1. In turns, batch k is of table k: 0 1 2 3. With a lag, batch 1 is made
    # while update 0 turns table 0 into 1, so it is of table 0, and batch k of k - 1.
    shifted(monkeypatch)
    recorder = Recorder()
    lagged = corridor(1, EAGER, recorder=recorder)
    tables = list(dict.fromkeys(lagged.drawn))
    assert tables == [
        (0.0, "MainThread"),
        (0.0, "rollouts_0"),
        (1.0, "rollouts_0"),
        (2.0, "rollouts_0"),
    ]
    synchronous = corridor(0, EAGER)
    assert list(dict.fromkeys(synchronous.drawn)) == [
        (float(k), "MainThread") for k in range(4)
    ]
    assert [row["rollout_lag"] for row in lagged.end.curve] == [0.0, 1.0, 1.0, 1.0]
    assert "rollout_lag" not in synchronous.end.curve[-1]
    for number, (_, rows) in enumerate(recorder.seen):
        assert all(t.episode.id.startswith(f"update{number}-") for t in rows)
    assert float(lagged.end.policy.params.sum()) == 4.0


def test_equal_policies_have_equal_loops_with_and_without_a_lag(corridor, monkeypatch):
    # An update that changes nothing: then tasks, values, step limits and rollouts of
    # both loops must be the same, as the curriculum is not behind.
    row = {"kl": 0.0, "update_kl": 0.0, "entropy": 1.0}
    monkeypatch.setattr(Updater, "update", lambda _, state, *__, **___: (state, row))
    config = with_(
        dataclasses.replace(
            CONFIG,
            updates=5,
            max_resample_rounds=1,
            forks_per_update=1,
            curriculum=CurriculumConfig(
                proposals_per_update=2,
                generated_share=0.5,
                step_limit=StepLimitConfig(initial=3, updates=3),
            ),
        )
    )

    def propose(groups):
        return doubles.RuleModel().vary(groups, key=jax.random.key(0))

    def columns(curve):
        left_out = ("rollout_lag", "sampler_kl", "transitions")
        return [{k: v for k, v in r.items() if k not in left_out} for r in curve]

    recorders = Recorder(), Recorder()
    parts = LoopParts(propose=FunctionProposer(propose))
    runs = [
        corridor(lag, config, recorder=recorders[lag], parts=parts).end
        for lag in (0, 1)
    ]
    assert columns(runs[0].curve) == columns(runs[1].curve)
    assert runs[0].pool.state() == runs[1].pool.state()
    for (_, rows), (_, others) in zip(*(r.seen for r in recorders), strict=True):
        assert rows == others
    # Those of the pending batch are counted when they are taken: one update earlier.
    counts = [[row["transitions"] for row in end.curve] for end in runs]
    assert counts[1] == [*counts[0][1:], counts[0][-1]]
    # Both end at the same update where transitions are limited.
    limited = dataclasses.replace(config, max_transitions=int(counts[0][2]))
    assert [corridor(lag, limited, parts=parts).end.update for lag in (0, 1)] == [3, 3]


@pytest.mark.usefixtures("update_calls")
@pytest.mark.parametrize("lag", [0, 1])
def test_an_update_weighs_rewards_by_the_lesson_that_was_played(monkeypatch, lag):
    played, learn = [], loop.learn

    def noting(updater, state, *args, **more):
        played.append(state.lessons.state.index)
        return learn(updater, state, *args, **more)

    monkeypatch.setattr(loop, "learn", noting)
    curriculum = CurriculumConfig(
        proposals_per_update=0,
        generated_share=0.0,
        lessons="games",
        lesson=LessonConfig(consecutive_checks=1, advance_on_budget=False),
    )
    config = dataclasses.replace(CONFIG, updates=4, curriculum=curriculum)
    tasks = doubles.tasks("train")[:30]
    state = fresh(tasks, config)._replace(lessons=lesson_tracker_for(curriculum))
    plans = {t.id: len(doubles.plan(t.initial_state)) for t in tasks}
    end = training.train(
        doubles.Scripted(doubles.expert_rule),  # it wins: every check goes on
        DreamVectorEnv(doubles.RuleModel(), 4, max_steps=14),
        updater(),
        state,
        config,
        seed=3,
        recorder=Recorder(),
        rollout_lag=lag,
        parts=LoopParts(plan_lengths=plans),
    )
    assert played == [0, *(row["lesson"] for row in end.curve[:-1])]
    assert played[-1] > 0


class Killed(LoopCheckpoint):
    """A checkpoint of a process that is killed when an update has been saved."""

    stop_at = 0

    def record(self, progress, trajectories, rewarded):
        super().record(progress, trajectories, rewarded)
        if progress.update == self.stop_at:
            raise InterruptedError


def same_arrays(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_killed_loop_goes_on_as_if_it_had_not_been_killed(corridor, tmp_path):
    config = dataclasses.replace(EAGER, updates=5, forks_per_update=1)
    whole = corridor(1, config).end
    state = None
    for stop_at in (1, 3, 5):
        saver = Killed(tmp_path, None, preset("tiny"))
        saver.stop_at = stop_at
        with contextlib.suppress(InterruptedError), saver:
            if state is not None:
                state = saver.restore(state)
                assert state.pending is not None
            corridor(1, config, state=state, recorder=saver)
            pytest.fail("nothing stopped it")
        tasks = doubles.tasks("train")[:4]
        pool = pool_of(tasks, config.curriculum)
        state = TrainingState(0, corridor.start, pool, 0, [])
    end = LoopCheckpoint(tmp_path, None, preset("tiny")).restore(state)
    assert end.curve == whole.curve
    assert end.pool.state() == whole.pool.state()
    assert end.transitions == whole.transitions
    assert same_arrays(end.policy.params, whole.policy.params)
    assert end.pending is None
    # Rolled out anew by the policy of the checkpoint, the batch would be another one.
    synchronous = corridor(0, config).end
    assert not same_arrays(synchronous.policy.params, whole.policy.params)


def test_a_batch_in_a_checkpoint_is_read_as_it_was():
    task = doubles.task(0, 1, 2)
    plain = doubles.trajectory(task, ["go right", "take coin"])
    step = dataclasses.replace(
        plain.episode.transitions[0],
        valid_actions=("go left", "go right"),
        costs={"walk": 1.0},
        thought="why not",
        rewards={"dream": 0.1, "uncertainty_penalty": -1 / 3},
    )
    rich = plain._replace(
        episode=dataclasses.replace(plain.episode, transitions=(step,)),
        past=("go left",),
        past_states=(("at 0", "no coin"),),
    )
    broken = doubles.trajectory(task, ["go left"], error="dream: no reply")
    given = tuple(turn._replace(given=True) for turn in plain.turns)
    batch = RolloutBatch(
        Rollouts(
            [plain, broken],
            [rich],
            from_demonstrations=[plain],
            guided=[plain._replace(turns=given)],
        ),
        {"step_limit": 9},
    )
    text = json.dumps(batch_to_json(batch))
    assert batch_from_json(json.loads(text)) == batch


@pytest.mark.usefixtures("update_calls")
def test_a_stop_drops_the_rollouts_that_were_under_way(corridor, monkeypatch):
    shifted(monkeypatch)
    config = dataclasses.replace(
        EAGER, monitor=MonitorConfig(min_entropy=2.0, response="stop")
    )
    recorder = Recorder()
    end = corridor(1, config, recorder=recorder).end
    assert end.stop_reason
    assert end.update == 1
    assert end.pending is None
    taken = sum(len(t.turns) for _, rows in recorder.seen for t in rows)
    assert end.transitions > taken  # the dropped ones were taken, too
    assert corridor(1, config, state=end).end.update == 1


@pytest.mark.parametrize("where", ["rollouts", "update"])
def test_an_error_on_either_side_ends_the_loop(corridor, monkeypatch, where):
    def broken(*_, **__):
        raise RuntimeError("it broke")

    if where == "update":
        monkeypatch.setattr(Updater, "update", broken)
    else:
        act = Watched.act

        def act_once(self, *args, **more):
            if threading.current_thread().name != "MainThread":
                broken()
            return act(self, *args, **more)

        monkeypatch.setattr(Watched, "act", act_once)
    with pytest.raises(RuntimeError, match="it broke"):
        corridor(1, EAGER)
    names = [t.name for t in threading.enumerate()]
    assert not [name for name in names if name.startswith("rollouts")]


def good(action):
    return action == bandits.GOOD


@pytest.mark.medium
def test_the_policy_learns_from_rollouts_that_are_one_update_old(monkeypatch):
    """A policy finds what pays, as in turns, and nothing where everything pays."""
    seen = []
    original = Updater.update

    def update(self, state, examples, **more):
        params = jax.tree.map(jnp.copy, state.params)
        seen.append((self, params, list(examples)))
        return original(self, state, examples, **more)

    monkeypatch.setattr(Updater, "update", update)
    share, end = bandits.learned(0, good, rollout_lag=1)
    assert share > 0.9
    # The ratio is to the policy that sampled: that before the last update.
    learner, old, _ = seen[0]
    _, new, examples = seen[1]
    assert learner.sampler_kl(old, examples) < 1e-6
    assert learner.sampler_kl(new, examples) > 1e-3
    curve = end.curve
    assert curve[0]["sampler_kl"] < 1e-6 < 1e-3 < curve[1]["sampler_kl"]
    rng = np.random.default_rng(0)
    control, _ = bandits.learned(0, lambda _: bool(rng.random() < 0.25), rollout_lag=1)
    assert control < 0.7


def test_settings_that_no_ratio_corrects_for_are_refused():
    none = UpdateConfig(surrogate=SurrogateConfig(importance_level="none"))
    with pytest.raises(ValueError, match="importance_level must be token or turn, got"):
        TrainConfig(rollout_lag=1, update=none)
    with pytest.raises(ValueError, match="rollout_lag must be 0 or 1, got 2"):
        TrainConfig(rollout_lag=2)
    with pytest.raises(ValueError, match=r"environment = real .* must be 0, got 1"):
        TrainConfig(rollout_lag=1, environment="real")
    assert TrainConfig(update=none).rollout_lag == 0


def test_several_devices_and_limited_real_steps_are_refused(corridor, monkeypatch):
    with pytest.raises(ValueError, match="0 or 1, got 2"):
        corridor(2)
    with pytest.raises(ValueError, match="real steps are limited"):
        corridor(1, parts=LoopParts(steps_left=lambda: 9))
    model = doubles.model()._replace(mesh=SimpleNamespace(size=2))
    monkeypatch.setattr(doubles, "model", lambda: model)
    policy = doubles.Scripted(doubles.expert_rule)
    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=STEPS)
    state = TrainingState(
        0, corridor.start, pool_of(doubles.tasks("train")[:2], CONFIG.curriculum), 0, []
    )
    settings = {"seed": 0, "recorder": Recorder()}
    with pytest.raises(ValueError, match=r"0 on several devices.* got 1 on 2 devices"):
        training.train(
            policy, envs, updater(), state, CONFIG, rollout_lag=1, **settings
        )
