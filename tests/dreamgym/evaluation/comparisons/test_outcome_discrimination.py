"""Whether a refitted model tells rewards and ends apart less well, by family."""

import pytest

from dreamgym.evaluation.comparisons.outcome_discrimination import lost_discrimination


def rate(hits, count):
    mean = hits / count if count else None
    return {"mean": mean, "count": count, "effective": float(count)}


def card(ends=(36, 40), false_ends=(0, 200), rewards=(38, 40), near=(0, 20), **rest):
    reward = {"recall": rate(*rewards), "false_positives": rate(0, 200)}
    return {
        "reward": reward | {"near_misses": rate(*near)},
        "done": {"recall": rate(*ends), "false_positives": rate(*false_ends)},
        **rest,
    }


def test_fewer_ends_beyond_chance_are_a_loss():
    (loss,) = lost_discrimination(card(), card(ends=(20, 40)))
    shares = "found 90 % before, 50 % after, false alarms 0 % before, 0 % after"
    assert loss == f"ends in all tasks: {shares}"
    # By hand, Wilson: 36 of 40 is 0.90 [0.770, 0.960] and 30 of 40 is 0.75 [0.598,
    # 0.858]: -0.15 + sqrt(0.130^2 + 0.108^2) = 0.019 > 0. 28 of 40 is 0.70 [0.546,
    # 0.819]: -0.2 + 0.176 < 0.
    assert lost_discrimination(card(), card(ends=(30, 40))) == []
    assert len(lost_discrimination(card(), card(ends=(28, 40)))) == 1
    assert lost_discrimination(card(ends=(28, 40)), card()) == []


def test_false_alarms_are_a_loss_that_more_ends_make_up_for():
    (loss,) = lost_discrimination(card(), card(false_ends=(30, 200)))
    assert "false alarms 0 % before, 15 % after" in loss
    blind = card(ends=(2, 40))
    assert lost_discrimination(blind, card(false_ends=(30, 200))) == []


def test_no_reward_makes_up_for_wins_one_step_too_early():
    before, after = card(rewards=(2, 40)), card(rewards=(39, 40), near=(9, 20))
    (loss,) = lost_discrimination(before, after)
    assert loss.startswith("rewards and wins one step too early in all tasks: false al")


def test_one_family_may_lose_where_all_tasks_gain():
    before = card(families={"cook": card(), "fetch": card(), "gone": card()})
    better = card(ends=(40, 40))
    after = card(
        ends=(39, 40), families={"cook": card(rewards=(4, 40)), "fetch": better}
    )
    (loss,) = lost_discrimination(before, after)
    assert loss.startswith("unusual rewards in family 'cook': found 95 % before, 10 %")


@pytest.mark.parametrize("ends", [(0, 0), (0, 1), (1, 3)])
def test_what_was_hardly_measured_is_no_loss(ends):
    count = ends[1]
    assert lost_discrimination(card(ends=(count, count)), card(ends=ends)) == []
    assert lost_discrimination({"exact": {}}, card()) == []
