"""Shares of the outcome: the loss by hand, what is learnt, and nothing from luck."""

import dataclasses
import functools
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rewards import progress_attribution
from dreamgym.rewards.config import (
    RewardConfig,
    RewardModelRefitConfig,
    RewardModelSourceConfig,
)
from dreamgym.rewards.progress_attribution import outcome_error
from dreamgym.rewards.reward_function import RewardFunction
from dreamgym.rewards.reward_model import RewardModel
from dreamgym.rewards.reward_model_config import RewardModelConfig
from tests import doubles

CONFIG = RewardModelConfig(
    objective="progress",
    steps=60,
    batch_pairs=4,
    row_tokens=64,
    learning_rate=1e-2,
    save_every=60,
)


# --- the loss ----------------------------------------------------------------


def test_the_loss_by_hand():
    # Attempt 0, won: shares 1 and 0.5, (1.5 - 1)^2 = 0.25, above 0.5: right. Attempt 1,
    # lost: 0.25 - 1 = -0.75, 0.5625, right. Attempt 2, won: 0.5 is not above 0.5, 0.25,
    # wrong. By means attempt 0 would be (0.75 - 1)^2.
    scores = jnp.array([[9.0, 1.0, 0.5, 0.25], [-1.0, 0.5, 9.0, 9.0]])
    mask = np.array([[False, True, True, True], [True, True, False, False]])
    attempt = np.array([[0, 0, 0, 1], [1, 2, 2, 0]], np.int32)
    outcome = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], np.int32)
    error, right = outcome_error(scores, mask, attempt, outcome, attempts=3)
    np.testing.assert_allclose(float(error.total), 0.25 + 0.5625 + 0.25, rtol=1e-6)
    assert (float(error.count), float(right.total), float(right.count)) == (3, 2, 3)


def test_attempts_that_are_not_there_do_not_count():
    scores = jnp.array([[2.0, jnp.nan, 1.0]])
    mask, attempt = np.array([[True, False, True]]), np.array([[0, 1, 0]], np.int32)
    outcome = np.array([[1, 1, 1]], np.int32)
    few = outcome_error(scores, mask, attempt, outcome, attempts=1)
    many = outcome_error(scores, mask, attempt, outcome, attempts=5)
    assert [float(x) for r in few for x in r] == [float(x) for r in many for x in r]
    assert float(few[0].total) == 4.0  # (3 - 1)^2


def test_the_loss_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 10)).astype(np.float32)
    mask = rng.random((3, 10)) < 0.8
    attempt = rng.integers(0, 6, (3, 10)).astype(np.int32)
    won = rng.integers(0, 2, 6)
    total = right = count = 0.0
    for i in range(6):
        shares = scores[mask & (attempt == i)]
        if len(shares):
            total += (shares.sum() - won[i]) ** 2
            right += (shares.sum() > 0.5) == won[i]
            count += 1
    args = (jnp.asarray(scores), mask, attempt, won[attempt].astype(np.int32))
    error, hits = outcome_error(*args, attempts=6)
    np.testing.assert_allclose(float(error.total), total, rtol=1e-5)
    assert (float(error.count), float(hits.total)) == (count, right)
    assert count >= 5


# --- a corridor with a known potential ---------------------------------------


def progress(t) -> float:
    """How much nearer the coin is after a step: 1, 0 or -1."""
    before, after = (
        [int(line.split()[1]) for line in state[:2]]
        for state in (t.state, t.next_state)
    )
    return float(abs(before[0] - before[1]) - abs(after[0] - after[1]))


def walks(tasks):
    """Three steps of each kind in every order; won are those that end nearer."""
    out = []
    for task in tasks:
        for actions in itertools.product(("go left", "go right", "dance"), repeat=3):
            e = doubles.episode(task, actions, name=f"{task.id}-{'-'.join(actions)}")
            nearer = sum(map(progress, e.transitions)) > 0
            out.append(dataclasses.replace(e, success=nearer))
    return out


TASKS = [doubles.task(at, goal, 9) for at in (3, 4, 5) for goal in range(at + 3, 10)]
HELD_OUT = TASKS[1::4]
SEEN, UNSEEN = walks([t for t in TASKS if t not in HELD_OUT]), walks(HELD_OUT)


def permuted(episodes, seed):
    """Outcomes that know nothing of progress: half of those of the same steps are won.

    A free permutation is off by chance, and a correlation shows any small chance whole.
    """
    groups = {}
    for i, e in enumerate(episodes):
        steps = tuple(sorted(t.action for t in e.transitions))
        groups.setdefault(steps, []).append(i)
    rng, out = np.random.default_rng(seed), list(episodes)
    for index in groups.values():
        first = rng.integers(2)
        for number, i in enumerate(rng.permutation(index)):
            success = bool((number + first) % 2)
            out[i] = dataclasses.replace(out[i], success=success)
    return out


@functools.cache
def fitted(folder, permutation=False):
    return progress_attribution.fit(
        doubles.model(),
        doubles.tokenizer(),
        permuted(SEEN, 0) if permutation else SEEN,
        CONFIG,
        seed=0,
        directory=folder,
    )


@pytest.fixture(scope="session")
def shares(tmp_path_factory) -> RewardModel:
    return fitted(tmp_path_factory.mktemp("shares"))[0]


def attempts(episodes):
    return [(e.task, e.transitions) for e in episodes]


def relation(model) -> tuple[float, float]:
    """The correlation of unseen shares with the true progress, and their slope."""
    scores = np.concatenate(model.scores(attempts(UNSEEN)))
    truth = np.array([progress(t) for e in UNSEEN for t in e.transitions])
    return np.corrcoef(scores, truth)[0, 1], np.polyfit(truth, scores, 1)[0]


@pytest.mark.medium
def test_shares_follow_the_true_progress_and_not_if_outcomes_were_permuted(
    shares, tmp_path
):
    correlation, slope = relation(shares)
    assert correlation > 0.9
    assert slope > 0.2
    control, flat = relation(fitted(tmp_path, permutation=True)[0])
    assert abs(control) < 0.5
    assert abs(flat) < 0.02


def test_the_sum_predicts_outcomes_better_than_a_constant_or_the_length(shares):
    predictions = progress_attribution.predicted_outcomes(shares, SEEN, UNSEEN)
    outcome = progress_attribution.outcomes_of(UNSEEN)
    error = {k: ((x - outcome) ** 2).mean() for k, x in predictions.items()}
    assert error["model"] < 0.5 * error["constant"]
    # All walks have three steps: their number says nothing.
    np.testing.assert_allclose(predictions["length"], predictions["constant"])
    assert ((predictions["model"] > 0.5) == (outcome > 0)).mean() > 0.9


def test_a_constant_and_a_line_by_hand(shares):
    # Won after 1 step, won after 1, lost after 3: the mean is 2/3, and the line through
    # (1, 1) and (3, 0) is 1.5 - 0.5 n: 0.5 for the two steps of the held-out attempt.
    def walk(steps, success):
        e = doubles.episode(TASKS[0], ["dance"] * steps)
        return dataclasses.replace(e, success=success)

    known = [walk(1, True), walk(1, True), walk(3, False)]
    predictions = progress_attribution.predicted_outcomes(
        shares, known, [walk(2, False)]
    )
    np.testing.assert_allclose(predictions["constant"], [2 / 3])
    np.testing.assert_allclose(predictions["length"], [0.5])


def test_episodes_without_an_outcome_are_left_out():
    unknown = dataclasses.replace(SEEN[0], success=None)
    empty = dataclasses.replace(SEEN[0], transitions=())
    kept = progress_attribution.scored_attempts([unknown, SEEN[1], empty])
    assert kept == [SEEN[1]]


def test_without_attempts_there_is_nothing_to_fit(tmp_path):
    args = (doubles.model(), doubles.tokenizer(), [], CONFIG)
    with pytest.raises(ValueError, match="no attempts"):
        progress_attribution.fit(*args, seed=0, directory=tmp_path)


# --- what is paid ------------------------------------------------------------


def pay(model, episode, **source) -> list[float]:
    config = RewardConfig(
        sources=("reward_model",), reward_model=RewardModelSourceConfig(**source)
    )
    (result,) = RewardFunction(config, reward_model=model).score([episode])
    assert set(result.sources) == {"reward_model"}
    return [row["reward_model"] for row in result.rewards]


class Given:
    """The shares are a list given."""

    objective = "progress"

    def scores(self, attempts, pasts=None):
        del pasts
        return [np.array([0.75, 0.0, -1.5])[: len(steps)] for _, steps in attempts]


def test_each_step_is_paid_its_share():
    # Not 2 sigmoid(R) - 1, which is at most 1 and would pass on the share of 0.
    assert pay(Given(), SEEN[0], scale=2.0) == [1.5, 0.0, -3.0]


def test_what_is_paid_sums_to_the_predicted_outcome(shares):
    predictions = progress_attribution.predicted_outcomes(shares, SEEN, UNSEEN[:5])
    paid = [sum(pay(shares, e)) for e in UNSEEN[:5]]
    np.testing.assert_allclose(paid, predictions["model"], rtol=1e-5, atol=1e-6)


def test_a_step_without_effect_changes_no_other_steps_pay(shares):
    e = doubles.episode(TASKS[1], ["go right", "go left", "go right"])
    first, second, third = e.transitions
    refused = dataclasses.replace(
        first, state=second.state, action="sing", next_state=second.state, invalid=True
    )
    longer = dataclasses.replace(e, transitions=(first, refused, second, third))
    before, after = pay(shares, e), pay(shares, longer)
    np.testing.assert_allclose(after[:1] + after[2:], before, rtol=1e-4, atol=1e-6)
    # The same weights with past actions: the pay of the next steps would change.
    reads_past = RewardModel(
        shares.model, shares.tokenizer, history=2, width=64, objective="progress"
    )
    before, after = pay(reads_past, e), pay(reads_past, longer)
    assert not np.allclose(after[2:], before[1:], rtol=1e-2)


def test_a_model_of_shares_is_saved_and_loaded_whole(shares, tmp_path):
    shares.save(tmp_path / "reward")
    again = RewardModel.load(tmp_path / "reward")
    assert (again.objective, again.history, again.mean_score) == ("progress", 0, 0.0)
    for a, b in zip(
        again.scores(attempts(UNSEEN[:3])),
        shares.scores(attempts(UNSEEN[:3])),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # A model of an older version says nothing of its objective: there was one.
    path = tmp_path / "reward" / "reward.json"
    row = json.loads(path.read_text())
    del row["objective"]
    path.write_text(json.dumps(row))
    assert RewardModel.load(tmp_path / "reward").objective == "preference"


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "regret"}, "objective must be one of .*progress.*'regret'"),
        ({"preferences": "p.jsonl"}, "not to the pairs of a file.*p.jsonl"),
        ({"history": 2}, "reads no past actions.*got 2"),
        ({"max_pairs_per_task": 2}, "max_pairs_per_task is about pairs.*got 2"),
        ({"held_out_share": 0.5}, "held_out_share is about pairs.*got 0.5"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RewardModelConfig(**{"objective": "progress"} | settings)
    assert RewardModelConfig(objective="progress", history=0).history == 0


def test_what_does_not_go_with_shares():
    refit = RewardModelRefitConfig(every=5, max_pairs_per_task=2)
    problem = RewardModelSourceConfig(refit=refit).progress_problem() or ""
    assert "refit.max_pairs_per_task = 2 is about pairs" in problem
    confidence = RewardModelSourceConfig(confidence=0.2)
    assert "confidence = 0.2 has no effect" in (confidence.progress_problem() or "")
    for sound in ({"scale": 0.5}, {"refit": RewardModelRefitConfig(every=5)}):
        assert RewardModelSourceConfig(**sound).progress_problem() is None
