"""One update: examples, advantages, the KL controller."""

import dataclasses
import functools

import numpy as np
import pytest

from curriculum.config import CurriculumConfig
from curriculum.sampler import pool_of
from dreamgym.rl.config import KLPenaltyConfig, SurrogateConfig, UpdateConfig
from dreamgym.rl.update import Updater
from dreamgym.training import TrainingState
from dreamgym.training.config import LoopConfig
from dreamgym.training.learn import learn
from dreamgym.training.rollouts.groups import Rollouts
from tests import doubles
from worldmodel.fitting.batches import pack

CONFIG = LoopConfig(
    updates=3,
    tasks_per_update=2,
    group_size=2,
    update=UpdateConfig(
        batch_rows=8,
        row_tokens=80,
        num_minibatches=1,
        warmup_steps=1,
        normalize_advantages="none",
    ),
    curriculum=CurriculumConfig(proposals_per_update=1),
)


class Given:
    """Stands for the updater: keeps the examples it is given."""

    def __init__(self):
        self.examples, self.seeds, self.weights = [], [], []


@pytest.fixture
def given(monkeypatch):
    result = Given()

    def update(self, state, examples, *, seed, weights, **rest):
        del self, rest
        result.weights.append(weights.kl)
        result.examples.append(list(examples))
        result.seeds.append(seed)
        return state._replace(step=state.step + 1), {"loss": 0.5, "kl": 0.25}

    monkeypatch.setattr(Updater, "update", update)
    return result


@functools.cache
def updater(config=CONFIG.update):
    policy = doubles.policy()
    return Updater(policy.model, policy.model.params, policy.grammar(1.0), config)


def fresh(tasks, config=CONFIG):
    return TrainingState(
        0, updater().learner.init(), pool_of(tasks, config.curriculum), 0, []
    )


def test_an_example_is_the_turn_with_its_advantage_and_nothing_of_the_context():
    task = doubles.task(0, 1, 2)
    (turn, _) = doubles.trajectory(task, ["go right", "take coin"]).turns
    example = turn.example(advantage=-0.5)
    n = len(turn.context)
    assert list(example.ids) == [*turn.context, *turn.ids]
    assert not any(example.mask[: n + 1])  # the opener was forced
    assert all(example.mask[n + 1 :])
    assert list(example.columns["sampler_logp"]) == [0.0] * n + list(turn.logp)
    assert list(example.token_type) == [0] * n + list(turn.part)
    tokens = pack([example], len(example.ids) + 3)
    assert tokens.mask.sum() == len(turn.ids) - 1
    np.testing.assert_allclose(
        tokens.columns["advantage"][tokens.mask], -0.5, atol=1e-7
    )
    np.testing.assert_allclose(
        tokens.columns["sampler_logp"][tokens.mask], -1.0, atol=1e-7
    )


def test_learn_takes_groups_and_leaves_out_what_carries_no_signal(given):
    a, b, c = (doubles.task(0, 1, e) for e in (2, 3, 4))
    win, lose = ["go right", "take coin"], ["go left"]
    rows = [
        doubles.trajectory(a, win),
        doubles.trajectory(a, lose),
        doubles.trajectory(a, ["fly", "go left"]),
        doubles.trajectory(b, win),
        doubles.trajectory(b, win),
        doubles.trajectory(b, win),
        doubles.trajectory(c, win),
        doubles.trajectory(c, lose, error="broke"),
        doubles.trajectory(c, lose, error="broke"),
    ]
    config = dataclasses.replace(CONFIG, group_size=3)
    progress = fresh([a, b, c])._replace(update=4)
    state, row, *_ = learn(updater(), progress, Rollouts(rows, []), config, seed=100)
    (examples,) = given.examples
    # Group a: to go 0.9 and 1, 0, 0 and 0. At the first turn their mean is 0.3, at
    # the second two act. Group b agrees; group c has one scored member only.
    got = [e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(got, [0.6, 0.5, -0.3, -0.3, -0.5], rtol=1e-6)
    assert list(examples[0].ids[: len(rows[0].turns[0].context)]) == list(
        rows[0].turns[0].context
    )
    assert given.seeds == [104]
    assert int(state.step) == 1
    assert row["success"] == pytest.approx(5 / 7)
    assert row["return"] == pytest.approx(5 / 7)
    assert row["unscored_rollouts"] == 2.0
    assert row["informative_turn_share"] == pytest.approx(5 / 15)
    assert row["episode_length"] == pytest.approx((2 + 1 + 2 + 2 * 3 + 2 + 1 + 1) / 9)
    assert (row["loss"], row["kl"]) == (0.5, 0.25)


def groups_of_two():
    a, b = doubles.task(0, 1, 2), doubles.task(0, 1, 3)
    win, lose = ["go right", "take coin"], ["go left"]
    rows = [
        doubles.trajectory(a, win),
        doubles.trajectory(a, lose),
        doubles.trajectory(b, win),
        doubles.trajectory(b, lose),
    ]
    return [a, b], rows


@pytest.mark.parametrize("average", ["token", "turn", "episode"])
def test_what_is_averaged_weighs_the_same(given, average):
    tasks, rows = groups_of_two()
    surrogate = SurrogateConfig(loss_aggregation=average)
    update = dataclasses.replace(CONFIG.update, surrogate=surrogate)
    config = dataclasses.replace(CONFIG, update=update)
    learn(updater(), fresh(tasks), Rollouts(rows, []), config, seed=0)
    (examples,) = given.examples
    tokens = [sum(e.mask) * e.weight for e in examples]
    assert len(examples) == 4  # the first turns; at the second one member is left
    written = [sum(sum(t.sampled) for t in r.turns) for r in rows]
    first = [sum(r.turns[0].sampled) for r in rows]
    expected = {
        "token": first,
        "turn": [1.0] * 4,
        "episode": [a / b for a, b in zip(first, written, strict=True)],
    }
    np.testing.assert_allclose(tokens, expected[average])


def test_the_distance_to_the_reference_may_be_taken_off_the_reward(given, monkeypatch):
    tasks, rows = groups_of_two()
    update = dataclasses.replace(
        CONFIG.update,
        kl_penalty=KLPenaltyConfig(coefficient=0.5, placement="reward"),
        discount=1.0,
    )
    config = dataclasses.replace(CONFIG, update=update)
    far = [0.2, 0.4, 0.6, 0.0, 0.0, 0.0]  # of the six turns, in order
    monkeypatch.setattr(
        Updater, "reference_log_ratio", lambda _, e: np.array(far[: len(e)])
    )
    learn(updater(), fresh(tasks), Rollouts(rows, []), config, seed=0)
    (examples,) = given.examples
    # To go: 1 - (0.2 + 0.4) / 2 and 0 - 0.6 / 2; then 1 and 0.
    np.testing.assert_allclose(
        [e.columns["advantage"] for e in examples], [0.5, -0.5, 0.5, -0.5]
    )


def test_the_weight_of_the_kl_follows_its_target_and_is_kept(given):
    tasks, rows = groups_of_two()
    update = dataclasses.replace(
        CONFIG.update, kl_penalty=KLPenaltyConfig(coefficient=0.1, target=0.1)
    )
    config = dataclasses.replace(CONFIG, update=update)
    progress, weight = fresh(tasks), 0.1
    for number in range(3):
        state, row, *_ = learn(updater(), progress, Rollouts(rows, []), config, seed=0)
        assert given.weights[-1] == pytest.approx(weight)
        weight *= 1.1  # measured 0.25: more than 20 % above the target
        assert row["kl_weight"] == pytest.approx(weight)
        progress = progress._replace(
            update=number + 1, policy=state, curve=[*progress.curve, row]
        )


def test_without_a_signal_the_parameters_stay(given):
    task = doubles.task(0, 1, 2)
    rows = [doubles.trajectory(task, ["go left"], error="broke") for _ in range(2)]
    progress = fresh([task])
    config = dataclasses.replace(CONFIG, tasks_per_update=1)
    state, row, *_ = learn(updater(), progress, Rollouts(rows, []), config, seed=0)
    assert given.examples == []
    assert state is progress.policy
    assert row["unscored_rollouts"] == 2.0
    assert not {"success", "return"} & row.keys()  # nobody knows


def test_the_advantage_may_be_divided_by_the_std(given):
    task = doubles.task(0, 1, 2)
    rows = [
        doubles.trajectory(task, a) for a in (["go right", "take coin"], ["go left"])
    ]
    config = dataclasses.replace(
        CONFIG, update=dataclasses.replace(CONFIG.update, normalize_advantages="group")
    )
    learn(updater(), fresh([task]), Rollouts(rows, []), config, seed=0)
    got = [e.columns["advantage"] for e in given.examples[0]]
    # At the second turn one is left, and nothing to compare it with.
    np.testing.assert_allclose(got, [1.0, -1.0], rtol=1e-3)
