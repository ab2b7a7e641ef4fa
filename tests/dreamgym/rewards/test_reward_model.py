"""R_phi: its loss by hand, what it reads, that it learns, and nothing from luck."""

import dataclasses
import functools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rewards import reward_model
from dreamgym.rewards.preferences import Preference
from dreamgym.rewards.reward_function import StepScorer
from dreamgym.rewards.reward_model import RewardModel, bradley_terry
from dreamgym.rewards.reward_model_config import RewardModelConfig
from tests import doubles
from worldmodel.backbone.scalar_head import with_scalar_head

CONFIG = RewardModelConfig(
    steps=40, batch_pairs=4, row_tokens=64, history=2, learning_rate=1e-2, save_every=20
)


# --- the loss ----------------------------------------------------------------


def test_the_loss_by_hand():
    # Pair 0: better has steps 1 and 3 (mean 2), worse one step 0: -log sigmoid(2).
    # Pair 1: better -1, worse 1: -log sigmoid(-2). By sums pair 0 would have gap 4.
    scores = jnp.array([[9.0, 1.0, 3.0, 0.0], [-1.0, 1.0, 9.0, 9.0]])
    mask = np.array([[False, True, True, True], [True, True, False, False]])
    side = np.array([[0, 0, 0, 1], [2, 3, 3, 0]], np.int32)
    loss, right = bradley_terry(scores, mask, side, pairs=2)
    expected = math.log1p(math.exp(-2.0)) + math.log1p(math.exp(2.0))
    np.testing.assert_allclose(float(loss.total), expected, rtol=1e-6)
    assert (float(loss.count), float(right.total), float(right.count)) == (2, 1, 2)


def test_pairs_that_are_not_there_do_not_count():
    scores = jnp.array([[2.0, jnp.nan, 1.0]])
    mask, side = np.array([[True, False, True]]), np.array([[0, 5, 1]], np.int32)
    few = bradley_terry(scores, mask, side, pairs=1)
    many = bradley_terry(scores, mask, side, pairs=3)
    assert [float(x) for r in few for x in r] == [float(x) for r in many for x in r]
    # One side alone is no pair.
    alone, _ = bradley_terry(scores, mask, np.array([[0, 0, 2]], np.int32), pairs=3)
    assert (float(alone.total), float(alone.count)) == (0.0, 0.0)
    # A tie is half right.
    tie = bradley_terry(jnp.zeros((1, 3)), mask, side, pairs=1)[1]
    assert float(tie.total) == 0.5


def test_the_loss_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 10)).astype(np.float32)
    mask, side = rng.random((3, 10)) < 0.8, rng.integers(0, 8, (3, 10)).astype(np.int32)
    total = count = 0.0
    for pair in range(4):
        better, worse = (scores[mask & (side == 2 * pair + x)] for x in (0, 1))
        if len(better) and len(worse):
            total += math.log1p(math.exp(-(better.mean() - worse.mean())))
            count += 1
    loss, _ = bradley_terry(jnp.asarray(scores), mask, side, pairs=4)
    np.testing.assert_allclose(float(loss.total), total, rtol=1e-5)
    assert float(loss.count) == count >= 3


# --- the model ---------------------------------------------------------------


def pairs_of(tasks) -> list[Preference]:
    """Straight to the coin is better than walking about."""
    out = []
    for task in tasks:
        idle = doubles.episode(task, ["go right", "go left", "go right"])
        out.append(
            Preference(
                task=task,
                better=doubles.expert(task).transitions,
                worse=idle.transitions,
            )
        )
    return out


TASKS = doubles.tasks("train")
SEEN, UNSEEN = pairs_of(TASKS[::3]), pairs_of(TASKS[1::6])


def swapped(pairs, seed):
    """Exactly half of the pairs the wrong way round: nothing is left to be learnt."""
    wrong = set(np.random.default_rng(seed).permutation(len(pairs))[::2].tolist())
    return [
        dataclasses.replace(p, better=p.worse, worse=p.better) if i in wrong else p
        for i, p in enumerate(pairs)
    ]


@functools.cache
def fitted(folder, shuffled=False) -> tuple[RewardModel, list]:
    return reward_model.fit(
        doubles.model(),
        doubles.tokenizer(),
        swapped(SEEN, 0) if shuffled else SEEN,
        CONFIG,
        seed=0,
        directory=folder,
    )


@pytest.fixture(scope="session")
def told(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("told"))


def chance(gaps) -> float:
    """The mean probability that it gives to the better attempt."""
    return float((1 / (1 + np.exp(-gaps))).mean())


@pytest.mark.medium
def test_it_ranks_unseen_pairs_and_not_if_the_pairs_were_shuffled(told, tmp_path):
    model, curve = told
    gaps = model.margins(UNSEEN)
    assert (gaps > 0).mean() > 0.9
    assert chance(gaps) > 0.9
    assert curve[-1]["loss"] < 0.2 < math.log(2)
    assert 0.35 < chance(fitted(tmp_path, True)[0].margins(UNSEEN)) < 0.65


def test_the_average_step_it_was_fitted_to_has_a_score_of_0(told):
    model, _ = told
    assert isinstance(model, StepScorer)
    both = [(p.task, x) for p in SEEN for x in (p.better, p.worse)]
    np.testing.assert_allclose(np.concatenate(model.scores(both)).mean(), 0, atol=1e-4)
    # And the winning step is worth more than a step back.
    won, idle = model.scores([both[0], both[1]])
    assert won[-1] > idle[1]


def test_scores_do_not_depend_on_what_is_scored_beside(told):
    model, _ = told
    both = [(p.task, x) for p in UNSEEN[:5] for x in (p.better, p.worse)]
    results = model.scores(both)
    assert [len(x) for x in results] == [len(steps) for _, steps in both]
    for i in (0, 3, 9):
        (alone,) = model.scores([both[i]])
        np.testing.assert_allclose(alone, results[i], rtol=1e-4, atol=1e-5)
    turned = model.scores(both[::-1])[::-1]
    for a, b in zip(results, turned, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert model.scores([]) == []


def test_a_model_of_no_fit_says_nothing():
    raw = RewardModel(
        with_scalar_head(doubles.model()), doubles.tokenizer(), history=2, width=64
    )
    np.testing.assert_array_equal(raw.margins(UNSEEN[:2]), 0.0)


def test_it_reads_state_action_effect_and_history():
    tok, e = doubles.tokenizer(), doubles.expert(TASKS[0])
    t = e.transitions[0]

    def ids(past=("a",), **changes):
        step = dataclasses.replace(t, **changes)
        return reward_model.transition_ids(tok, e.task, past, step, history=1)

    whole = ids()
    assert whole[-1] == tok.control("reward")
    others = [
        ids(state=(*t.state[:3], "said wall")),
        ids(action="go left"),
        ids(next_state=(*t.state[:3], "said no coin")),
        ids(past=("b",)),
    ]
    assert all(x != whole for x in others)
    assert ids(past=("z", "a")) == whole  # older than the history
    # What was paid is not read: it is what is to be told.
    assert ids(rewards={"coin": 7.0}, success=True) == whole


def test_a_fork_is_scored_as_the_end_of_a_whole_episode(told):
    model, _ = told
    task, steps = UNSEEN[0].task, UNSEEN[0].worse
    whole, fork, alone = model.scores(
        [(task, steps), (task, steps[2:]), (task, steps[2:])],
        [(), [t.action for t in steps[:2]], ()],
    )
    np.testing.assert_allclose(fork, whole[2:], atol=1e-5)
    # It reads its history; how much of it matters depends on the processor's rounding.
    assert np.abs(alone - fork).max() > 1e-4


def test_it_is_saved_and_loaded_whole(told, tmp_path):
    model, _ = told
    model.save(tmp_path / "reward")
    again = RewardModel.load(tmp_path / "reward")
    assert (again.history, again.width, again.mean_score) == (2, 64, model.mean_score)
    np.testing.assert_allclose(
        again.margins(UNSEEN[:3]), model.margins(UNSEEN[:3]), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ValueError, match=r"expected a reward model.*reward\.json"):
        RewardModel.load(tmp_path)
    path = tmp_path / "reward" / "reward.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "x/9"}))
    with pytest.raises(ValueError, match=r"schema must be .*x/9"):
        RewardModel.load(tmp_path / "reward")


@pytest.mark.slow
def test_a_fit_goes_on_where_it_was(told, tmp_path):
    class Killed(Exception):
        pass

    def kill(step, row):
        del row
        if step == 20:
            raise Killed

    args = (doubles.model(), doubles.tokenizer(), SEEN, CONFIG)
    with pytest.raises(Killed):
        reward_model.fit(*args, seed=0, directory=tmp_path, progress=kill)
    model, curve = reward_model.fit(*args, seed=0, directory=tmp_path)
    assert curve == told[1]
    np.testing.assert_array_equal(
        model.margins(UNSEEN[:3]), told[0].margins(UNSEEN[:3])
    )


def test_without_pairs_there_is_nothing_to_fit(tmp_path):
    with pytest.raises(ValueError, match="no pairs"):
        reward_model.fit(
            doubles.model(), doubles.tokenizer(), [], CONFIG, seed=0, directory=tmp_path
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("history", -1), ("learning_rate", 0.0), ("held_out_share", 1.0)],
)
def test_bad_settings_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        RewardModelConfig(**{name: value})
