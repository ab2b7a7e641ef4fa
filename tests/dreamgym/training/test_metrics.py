"""What is said of a training loop as a whole."""

import pytest

from dreamgym.training.config import LoopConfig
from dreamgym.training.metrics import rollout_metrics, training_note
from dreamgym.training.rollouts.groups import Rollouts
from tests import doubles


def row(rollouts=16.0, unscored=0.0, **more):
    return {"rollouts": rollouts, "unscored_rollouts": unscored, **more}


GOOD = row(success=0.5, update_kl=0.01, informative_turn_share=0.4)


def test_a_loop_that_learns_from_most_of_its_rollouts_needs_no_note():
    assert training_note([GOOD, row(unscored=3.0, success=1.0, update_kl=0.0)]) is None
    # One silent update among others is usual.
    assert training_note([GOOD, row(success=0.0)]) is None


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([], ["learned nothing", "no update"]),
        (
            [row(unscored=16.0, **{"unscored/dream": 10.0, "unscored/KeyError": 6.0})],
            ["learned nothing", "16 of 16", "answer was malformed: 10, KeyError: 6"],
        ),
        ([row(success=0.0)] * 2, ["learned nothing", "all of them were lost"]),
        ([row(success=1.0)], ["learned nothing", "each group agreed"]),
        (
            [row(unscored=8.0, success=0.0, **{"unscored/malformed": 8.0})],
            ["learned nothing", "all of them were lost", "8 of 16"],
        ),
        (
            [
                row(
                    unscored=14.0,
                    success=1.0,
                    update_kl=0.1,
                    **{"unscored/malformed": 14.0},
                )
            ],
            ["14 of 16 rollouts were not scored (malformed: 14)", "of the others"],
        ),
    ],
)
def test_a_loop_says_that_it_learned_nothing_or_little(curve, words):
    note = training_note(curve)
    assert note is not None
    for word in words:
        assert word in note


WIN, LOSE = ["go right", "take coin"], ["go left"]
SHORT, LONG = doubles.task(0, 1, 2), doubles.task(0, 3, 6)


def test_rollouts_are_counted_by_family_and_by_how_far_they_came():
    assert SHORT.family != LONG.family
    rows = [
        doubles.trajectory(SHORT, WIN),
        doubles.trajectory(SHORT, LOSE),
        doubles.trajectory(LONG, LOSE),
        doubles.trajectory(LONG, ["go right"] * 2, error="dream: garbled"),
    ]
    got = rollout_metrics(Rollouts(rows, []), LoopConfig(group_size=2))
    assert got[f"success/{SHORT.family}"] == 0.5
    assert got[f"scored/{SHORT.family}"] == 2.0
    assert got[f"success/{LONG.family}"] == 0.0
    assert got[f"scored/{LONG.family}"] == 1.0
    assert got[f"unscored_share/{SHORT.family}"] == 0.0
    assert got[f"unscored_share/{LONG.family}"] == 0.5
    assert got["informative_groups"] == 0.5  # the second one has one scored member
    assert got["unscored_episode_length"] == 2.0
    assert got[f"unscored_episode_length/{LONG.family}"] == 2.0
    assert f"unscored_episode_length/{SHORT.family}" not in got
    won = sum(bool(t.episode.success) for t in rows if t.error is None)
    assert got["success_at_least"] == won / len(rows)
    assert got["success_at_most"] == (won + 1) / len(rows)
    assert got["success_at_least"] <= got["success"] <= got["success_at_most"]
    assert got["unscored_return"] == rows[3].episode.episode_return
    assert got["success"] == 1 / 3


def test_a_family_without_a_scored_rollout_has_no_success():
    rows = [doubles.trajectory(LONG, LOSE, error="dream: garbled")] * 2
    got = rollout_metrics(Rollouts(rows, []), LoopConfig(group_size=2))
    assert f"success/{LONG.family}" not in got
    assert got[f"scored/{LONG.family}"] == 0.0
    assert "success" not in got
