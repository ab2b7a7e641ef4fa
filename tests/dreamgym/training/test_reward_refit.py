"""A reward model that is refitted in the loop, and one that is not, as its control."""

import contextlib
import dataclasses
import re
from typing import Any

import jax
import numpy as np
import pytest

from curriculum.config import CurriculumConfig
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.build.loop_checkpoint import LoopCheckpoint
from dreamgym.config.presets import preset
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rewards import progress_attribution, reward_model
from dreamgym.rewards.config import (
    RewardConfig,
    RewardModelRefitConfig,
    RewardModelSourceConfig,
)
from dreamgym.rewards.reward_function import RewardFunction
from dreamgym.rewards.reward_model import RewardModel
from dreamgym.rewards.reward_model_config import RewardModelConfig
from dreamgym.rewards.reward_model_refit import OutcomeRefit, PairRefit
from dreamgym.training import LoopParts, TrainingState
from dreamgym.training.config import LoopConfig
from tests import doubles
from tests.dreamgym.rewards.common import TASKS, attempt, fallen
from tests.dreamgym.training.common import UPDATE, updater

REFIT = RewardModelRefitConfig(
    every=1, steps=20, batch_pairs=4, learning_rate=1e-2, original_share=0.5
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model that has seen coins fetched and falls, and nobody walk on and on."""
    original = [fallen(t) for t in TASKS]
    config = RewardModelConfig(
        steps=40, batch_pairs=4, row_tokens=64, history=2, learning_rate=1e-2
    )
    model, _ = reward_model.fit(
        doubles.model(),
        doubles.tokenizer(),
        original,
        config,
        seed=0,
        directory=tmp_path_factory.mktemp("fit"),
    )
    return model.weights, original


@pytest.fixture(scope="module")
def fitted_shares(tmp_path_factory):
    """A model of shares that has seen the same coins and falls."""
    original = [doubles.expert(t) for t in TASKS]
    original += [attempt(t, ["go left"]) for t in TASKS]
    config = RewardModelConfig(
        objective="progress",
        steps=40,
        batch_pairs=4,
        row_tokens=64,
        learning_rate=1e-2,
    )
    model, _ = progress_attribution.fit(
        doubles.model(),
        doubles.tokenizer(),
        original,
        config,
        seed=0,
        directory=tmp_path_factory.mktemp("shares"),
    )
    return model.weights, original


def rebuilt(weights, objective="preference") -> RewardModel:
    """The fitted model, as another process would load it."""
    raw = reward_model.with_scalar_head(doubles.model())
    out = RewardModel(
        raw,
        doubles.tokenizer(),
        history=0 if objective == "progress" else 2,
        width=64,
        objective=objective,
    )
    out.load_weights(weights)
    return out


class Greedy(doubles.Scripted):
    """Walks to the coin; takes it with a probability that follows what was paid.

    Otherwise it walks on, to the wall and against it. It records the loop, too.
    """

    def __init__(self, saver=None, stop_at=0):
        super().__init__(self._act)
        self.p, self.decisions = 0.5, 0
        self.state: Any = None
        self.saver, self.stop_at = saver, stop_at

    def _act(self, task, past, state):
        del task, past
        at, goal = (int(line.split()[1]) for line in state[:2])
        if at != goal:
            return "go right"
        self.decisions += 1
        takes = self.decisions * self.p % 1.0 < self.p  # p of them, evenly
        return "take coin" if takes else "go right"

    def record(self, state, trajectories, rewarded):
        self.state = state
        paid = {True: [], False: []}
        for t in rewarded:
            paid[bool(t.episode.success)].append(t.episode.episode_return)
        better = np.mean(paid[True]) > np.mean(paid[False])
        # At least one of four rollouts takes it, and one does not: it can learn.
        self.p = min(max(self.p + (0.25 if better else -0.25), 0.25), 0.75)
        if self.saver is not None:
            self.saver.record(state, trajectories, rewarded)
        if state.update == self.stop_at:
            raise InterruptedError

    def column(self, name):
        return [row[name] for row in self.state.curve]


def config_of(refit, **reward) -> LoopConfig:
    source = RewardModelSourceConfig(confidence=0.0, refit=refit)
    reward = {"environment_weight": 0.0, "sources": ("reward_model",)} | reward
    return LoopConfig(
        updates=6,
        tasks_per_update=2,
        group_size=4,
        update=UPDATE,
        curriculum=CurriculumConfig(proposals_per_update=0, generated_share=0.0),
        reward=RewardConfig(reward_model=source, **reward),
    )


def trained(fitted, refit, greedy=None, *, objective="preference") -> Greedy:
    """The scripted policy in the loop, from its last checkpoint; returns it."""
    weights, original = fitted
    model, config = rebuilt(weights, objective), config_of(refit)
    part = None
    if refit.every:
        kind = OutcomeRefit if objective == "progress" else PairRefit
        part = kind(model, original, config.reward.reward_model, seed=3)
    greedy = Greedy() if greedy is None else greedy
    start = TrainingState(
        0,
        updater().learner.init(),
        pool_of(TASKS, config.curriculum),
        0,
        [],
        reward_model=None if part is None else part.weights,
    )
    training.train(
        greedy,
        DreamVectorEnv(doubles.RuleModel(), 8, max_steps=9),
        updater(),
        start if greedy.saver is None else greedy.saver.restore(start),
        config,
        seed=3,
        recorder=greedy,
        parts=LoopParts(
            score=RewardFunction(config.reward, reward_model=model).score,
            reward_refit=part,
        ),
    )
    return greedy


def same(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


FROZEN = dataclasses.replace(REFIT, steps=0)


@pytest.mark.medium
def test_an_exploit_stops_paying_once_the_model_is_refitted(fitted, update_calls):
    del update_calls  # the policy is scripted: its parameters do not matter
    frozen, refitted = trained(fitted, FROZEN), trained(fitted, REFIT)
    # Walking on is paid more than the coin, though each pair is ranked right: the sum
    # over many steps that the model likes a little. The policy finds that out.
    assert frozen.column("success")[::5] == [0.5, 0.25]
    returns = frozen.column("return")
    assert returns[-1] > returns[0] + 0.5
    assert max(frozen.column("reward_refit/pay_gap_before")) < 0
    assert min(frozen.column("reward_refit/accuracy_before")) == 1.0
    # The refitted model takes the exploit back, and still ranks what it knew before.
    assert refitted.column("success")[::5] == [0.5, 0.75]
    assert refitted.column("reward_refit/pay_gap_before")[0] < 0
    assert min(refitted.column("reward_refit/pay_gap_after")) > 0
    assert refitted.column("reward_refit/pay_gap_before")[-1] > 0  # on unseen rollouts
    assert min(refitted.column("reward_refit/original_accuracy_after")) == 1.0
    assert "reward_refit/pay_gap_after" not in frozen.state.curve[0]


@pytest.mark.medium
def test_an_exploit_of_shares_stops_paying_once_they_are_refitted(
    fitted_shares, update_calls
):
    del update_calls
    frozen = trained(fitted_shares, FROZEN, objective="progress")
    refitted = trained(fitted_shares, REFIT, objective="progress")
    # Each step to the right was a share of a coin, and to walk on has many.
    assert frozen.column("success")[::5] == [0.5, 0.25]
    assert max(frozen.column("reward_refit/pay_gap_before")) < 0
    assert min(frozen.column("reward_refit/error_before")) > 1.0
    assert refitted.column("success")[::5] == [0.5, 0.75]
    assert refitted.column("reward_refit/pay_gap_before")[0] < 0
    assert refitted.column("reward_refit/pay_gap_before")[-1] > 0  # on unseen rollouts
    assert refitted.column("reward_refit/error_before")[-1] < 0.25
    assert max(refitted.column("reward_refit/original_error_after")) < 0.25
    assert set(refitted.column("reward_refit/attempts")) == {8.0}


def test_without_refits_nothing_changes(fitted, update_calls):
    del update_calls
    none = trained(fitted, dataclasses.replace(REFIT, every=0))
    measured = trained(fitted, FROZEN)
    plain = [
        {k: v for k, v in row.items() if not k.startswith("reward_refit/")}
        for row in measured.state.curve
    ]
    assert none.state.curve == plain != measured.state.curve
    assert none.state.reward_model is None
    assert same(measured.state.reward_model, fitted[0])


@pytest.mark.medium
def test_an_interrupted_loop_goes_on_with_the_refitted_model(
    fitted, update_calls, tmp_path
):
    del update_calls
    refit = dataclasses.replace(REFIT, every=2, steps=5)
    whole = trained(fitted, refit)

    def saver():
        return LoopCheckpoint(tmp_path, None, preset("tiny"))

    killed = Greedy(saver(), stop_at=3)
    with contextlib.suppress(InterruptedError), killed.saver:
        trained(fitted, refit, killed)
        pytest.fail("nothing stopped it")
    again = Greedy(saver())
    again.p, again.decisions = killed.p, killed.decisions
    trained(fitted, refit, again)
    assert again.state.curve == whole.state.curve
    assert same(again.state.reward_model, whole.state.reward_model)
    assert not same(whole.state.reward_model, fitted[0])
    # Had it gone on with the model of the beginning, its rewards would be others.
    first, third = whole.column("return")[1], whole.column("return")[3]
    due = ["reward_refit/pairs" in row for row in whole.state.curve]
    assert due == [False, True] * 3
    assert third < first / 2


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (config_of(REFIT, sources=("rule",)), "sources without weight"),
        (
            config_of(
                REFIT, sources=("rule", "reward_model"), source_weights=(1.0, 0.0)
            ),
            "sources without weight",
        ),
        (config_of(REFIT, outcome_weight=1.0), "outcome_weight = 1"),
        (config_of(dataclasses.replace(REFIT, every=7)), "never reached.*updates = 6"),
        (config_of(dataclasses.replace(REFIT, every=0)), "every is 0"),
        (
            config_of(dataclasses.replace(REFIT, steps=0, learning_rate=1.0)),
            "learning_rate has no effect with steps = 0",
        ),
        (config_of(REFIT), None),
    ],
)
def test_refits_without_effect_are_refused(loop, message):
    if message is None:
        assert loop.dead() is None
    else:
        assert loop.dead().startswith("reward.reward_model.refit")
        assert re.search(message, loop.dead())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("every", -1),
        ("steps", -1),
        ("batch_pairs", 0),
        ("max_pairs_per_task", 0),
        ("learning_rate", 0.0),
        ("original_share", 1.0),
    ],
)
def test_bad_settings_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        RewardModelRefitConfig(**{name: value})
