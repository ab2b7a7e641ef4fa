"""Refits of the reward model: which pairs they take, and what they measure."""

import dataclasses

import numpy as np
import pytest

from dreamgym.rewards.config import RewardModelRefitConfig, RewardModelSourceConfig
from dreamgym.rewards.preferences import rollout_pairs
from dreamgym.rewards.reward_model import RewardModel
from dreamgym.rewards.reward_model_refit import OutcomeRefit, PairRefit
from tests import doubles
from tests.dreamgym.rewards.common import TASKS, WALK, attempt, fallen

REFIT = RewardModelRefitConfig(every=1, steps=0, batch_pairs=4)


# --- the pairs ---------------------------------------------------------------


def test_where_a_task_was_only_lost_its_earlier_wins_are_the_better_attempts():
    a, b, c, d = TASKS
    earlier = [fallen(a), fallen(b), fallen(d)]
    rollouts = [
        attempt(a, WALK),  # lost only: over it stands the earlier win
        doubles.expert(b),  # won only: it stands over the earlier loss
        doubles.expert(c),  # both: no earlier pair is needed
        attempt(c, WALK),
        dataclasses.replace(attempt(d, WALK), success=None),  # nobody scored it
    ]
    pairs = rollout_pairs(rollouts, earlier, max_pairs=4, seed=0)
    assert [(p.task.id, len(p.better), len(p.worse)) for p in pairs] == [
        (a.id, 2, 9),
        (b.id, 2, 1),
        (c.id, 3, 9),
    ]
    # A new task that was only lost has nothing to stand over it.
    assert rollout_pairs([attempt(d, WALK)], earlier[:2], max_pairs=4, seed=0) == []


# --- by hand -----------------------------------------------------------------


class Fixed(RewardModel):
    """Its score of a step is 2 for `take coin`, 1 for `go right`, -1 otherwise."""

    def __init__(self):
        self.model, self.mean_score = doubles.model(), 0.0
        self.known = {"take coin": 2.0, "go right": 1.0}

    def scores(self, attempts, pasts=None):
        del pasts
        return [
            np.array([self.known.get(t.action, -1.0) for t in steps])
            for _, steps in attempts
        ]


def test_what_is_measured_by_hand():
    # Task 0: coin in room 1. Better: R = 1, 2; worse, nine steps: R = 1 each. Means 1.5
    # over 1: ranked right. Pay 2 sigmoid(R) - 1 = tanh(R / 2), twice that by the scale,
    # summed: 2 (0.46212 + 0.76159) = 2.44742 over 2 * 9 * 0.46212 = 8.31811.
    c = RewardModelSourceConfig(scale=2.0, refit=dataclasses.replace(REFIT, steps=0))
    refit = PairRefit(Fixed(), [fallen(TASKS[3])], c, seed=0)
    rollouts = [doubles.expert(TASKS[0]), attempt(TASKS[0], WALK)]
    row = refit.refit(rollouts, 1)
    assert row == pytest.approx(
        {
            "reward_refit/pairs": 1.0,
            "reward_refit/accuracy_before": 1.0,
            "reward_refit/pay_gap_before": 2.44742 - 8.31811,
            "reward_refit/original_accuracy_before": 1.0,
        },
        rel=1e-4,
    )
    every_second = dataclasses.replace(c.refit, every=2)
    other = dataclasses.replace(c, refit=every_second)
    refit = PairRefit(Fixed(), [fallen(TASKS[3])], other, seed=0)
    assert refit.refit(rollouts, 3) == {}
    assert refit.refit(rollouts, 4) == row
    assert refit.refit([], 4) == {"reward_refit/pairs": 0.0}


def test_what_is_measured_of_shares_by_hand():
    # The coin of task 0 is in room 1. Won: 1 + 2 = 3, an error of (3 - 1)^2 = 4. Lost,
    # by a fall: -1, (-1 - 0)^2 = 1, and by nine steps right: 9, 81. Told right are the
    # first two. Paid, at scale 2: 6 less the mean of -2 and 18. Drawn is the fall of
    # another task, again -1.
    c = RewardModelSourceConfig(scale=2.0, refit=dataclasses.replace(REFIT, steps=0))
    won, fall = doubles.expert(TASKS[0]), attempt(TASKS[0], ["go left"])
    original = [attempt(TASKS[3], ["go left"])]
    refit = OutcomeRefit(Fixed(), original, c, seed=0)
    unscored = dataclasses.replace(fall, success=None)
    row = refit.refit([won, fall, attempt(TASKS[0], WALK), unscored], 1)
    assert row == pytest.approx(
        {
            "reward_refit/attempts": 3.0,
            "reward_refit/error_before": 86 / 3,
            "reward_refit/accuracy_before": 2 / 3,
            "reward_refit/pay_gap_before": 6.0 - 8.0,
            "reward_refit/original_error_before": 1.0,
        }
    )
    assert refit._batch_records == 8  # attempts, as many as four pairs have
    # Without a won rollout there is no gap; without a scored one nothing is measured.
    assert "reward_refit/pay_gap_before" not in refit.refit([fall], 2)
    assert refit.refit([unscored], 3) == {"reward_refit/attempts": 0.0}


@pytest.mark.parametrize(("share", "drawn"), [(0.0, 0), (0.5, 2), (0.6, 3), (0.9, 5)])
def test_the_share_of_original_pairs(share, drawn):
    # Of 2 new pairs: 2 s / (1 - s) = 0, 2, 3; and of 18 there are no more than 5.
    c = dataclasses.replace(REFIT, steps=0, original_share=share)
    original = [fallen(doubles.task(0, goal, 6)) for goal in range(1, 6)]
    config = RewardModelSourceConfig(refit=c)
    refit = PairRefit(Fixed(), original, config, seed=0)
    pairs = refit._draw_originals(2, 7)
    assert len({p.task.id for p in pairs}) == len(pairs) == drawn
    assert pairs == refit._draw_originals(2, 7)
