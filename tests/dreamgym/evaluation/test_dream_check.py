"""What a dream gets wrong about a policy, by hand, in the corridor."""

import dataclasses

import pytest

from dreamgym.evaluation import dream_check
from dreamgym.evaluation.dream_check import (
    broken_refusals,
    cost_gaps,
    cost_text,
    describe_unmeasured,
    dev_metrics,
    disagrees,
    dream_faults,
    gap_text,
    scorecard_refusals,
    success_gap,
)
from dreamgym.evaluation.leading_numbers import ends_found
from dreamgym.training.limit_config import LimitConfig
from dreamgym.training.limits import cost_counters
from tests import doubles

TASKS = doubles.tasks("dev")[:12]


def won(task):
    return doubles.trajectory(task, doubles.plan(task.initial_state))


def endless(task):
    """The same walk, but nothing ever ends nor pays."""
    t = won(task)
    steps = [
        dataclasses.replace(x, terminated=False, rewards={"coin": 0.0}, success=False)
        for x in t.episode.transitions
    ]
    e = dataclasses.replace(t.episode, transitions=tuple(steps), success=False)
    return t._replace(episode=e)


def invalid(task):
    return doubles.trajectory(task, ["fly"] * 5)


def test_success_that_differs_by_chance_or_by_little_is_no_disagreement():
    real = [won(t) for t in TASKS]
    same = success_gap(real, real, seed=0)
    assert same["mean"] == 0.0
    assert not disagrees(same, 0.3)
    one = [endless(TASKS[0]), *real[1:]]
    little = success_gap(real, one, seed=0)
    assert little["mean"] == pytest.approx(-1 / 12)
    assert not disagrees(little, 0.0)  # the interval holds 0
    half = [endless(t) for t in TASKS[:6]] + real[6:]
    assert disagrees(success_gap(real, half, seed=0), 0.3)
    assert not disagrees(success_gap(real, half, seed=0), 0.6)  # tolerated
    # Half is left of the real success: not so rare that nothing could be learnt.
    assert not disagrees(success_gap(real, half, seed=0), 0.6, 1.0)
    rare = [endless(t) for t in TASKS[:10]] + real[10:]
    assert disagrees(success_gap(real, rare, seed=0), 0.9, 1.0)
    nobody = [t._replace(error="dream: gone") for t in real]
    unknown = success_gap(real, nobody, seed=0)
    assert disagrees(unknown, 1.0)
    assert "could be scored in the dream" in gap_text(unknown)
    assert "none" not in gap_text(unknown)
    assert "(dreamed minus real -0.833 [" in gap_text(success_gap(real, rare, seed=0))


def test_faults_are_named_by_what_differs_between_two_sets_of_episodes():
    real = [won(t) for t in TASKS]
    assert dream_faults(real, real) == []
    assert dream_faults(real, [endless(t) for t in TASKS]) == [
        ("missed_ends", "episodes reach an end: 100 % really, 0 % in the dream"),
        (
            "missed_rewards",
            "episodes hold an unusual reward: 100 % really, 0 % in the dream",
        ),
    ]
    refused = [invalid(t) for t in TASKS]
    accepted = [
        t._replace(
            episode=dataclasses.replace(
                t.episode,
                transitions=tuple(
                    dataclasses.replace(x, invalid=False) for x in t.episode.transitions
                ),
            )
        )
        for t in refused
    ]
    assert dream_faults(refused, accepted) == [
        (
            "accepted_actions",
            "actions are refused as invalid: 100 % really, 0 % in the dream",
        )
    ]
    assert dream_faults([endless(t) for t in TASKS], real)[0] == (
        "early_ends",
        "episodes end too early: 0 % really, 100 % in the dream",
    )
    broken = [t._replace(error="dream: gone") for t in real]
    assert dream_faults(real, broken)[0] == (
        "broken_episodes",
        "100 % of the dreamed episodes broke off",
    )


@pytest.mark.parametrize("unit", [1.0, 1000.0, 1e-5])
def test_an_unusual_reward_is_one_whatever_its_unit(unit):
    def paid(t, share):
        steps = [
            dataclasses.replace(x, rewards={"r": unit * (share * x.reward - 0.05)})
            for x in t.episode.transitions
        ]
        return t._replace(
            episode=dataclasses.replace(t.episode, transitions=tuple(steps))
        )

    real, dreamed = ([paid(won(t), share) for t in TASKS] for share in (1.0, 0.0))
    assert [f.name for f in dream_faults(real, dreamed)] == ["missed_rewards"]


def scorecard(predictable, ends):
    def rate(value):
        return {"mean": value[0], "count": value[1]}

    return {"exact": {"predictable": rate(predictable)}, "done": {"recall": rate(ends)}}


@pytest.mark.parametrize(
    ("predictable", "ends", "message"),
    [
        ((0.57, 200), (0.08, 26), "only 8 % of 26 ends are found"),
        ((0.05, 200), (None, 0), "only 5 % of 200 predictable next states are right"),
        ((0.05, 7), (0.0, 7), None),  # too few to say
        ((0.98, 200), (0.72, 40), None),
    ],
)
def test_a_scorecard_refuses_by_what_it_says(predictable, ends, message):
    reasons = scorecard_refusals(
        scorecard(predictable, ends), min_predictable=0.2, min_ends=0.2
    )
    assert [r.text for r in reasons] == ([] if message is None else [message])


def test_ends_of_training_episodes_refuse_where_dev_episodes_hold_few():
    unlearned = scorecard((0.9, 200), (0.0, 3))
    unlearned["training_ends"] = {"mean": 2 / 29, "count": 29, "effective": 29.0}
    (fault,) = scorecard_refusals(unlearned, min_predictable=0.2, min_ends=0.2)
    assert fault.name == "missed_ends"
    assert fault.text == "only 7 % of 29 ends of the training episodes are found"
    unlearned["training_ends"]["mean"] = 0.9
    assert not scorecard_refusals(unlearned, min_predictable=0.2, min_ends=0.2)


def test_ends_that_reveal_something_count_only_where_few_others_are_left():
    known = scorecard((0.9, 50), (0.5, 40))
    known["done"]["predictable"] = {"mean": 1.0, "count": 20, "effective": 20.0}
    assert ends_found(known)["mean"] == 1.0
    known["done"]["predictable"] = {"mean": 1.0, "count": 7, "effective": 7.0}
    assert ends_found(known)["mean"] == 0.5


def test_a_scorecard_without_cases_says_what_it_could_not_measure():
    assert describe_unmeasured(scorecard((0.9, 50), (0.5, 4))) == ""
    text = describe_unmeasured(scorecard((None, 0), (None, 0)))
    assert "no next states can be known" in text
    assert "no ends are among the dev episodes" in text


@pytest.mark.parametrize(
    ("broken", "games", "text"),
    [
        (12, 12, "none of 12 dreamed episodes could be scored"),
        (10, 12, "10 of 12 dreamed episodes broke off"),
        (9, 12, ""),  # 47 % lie within the interval
        (3, 4, ""),
        (0, 12, ""),
    ],
)
def test_a_dream_of_which_most_breaks_off_is_refused(broken, games, text):
    """The rest agreed by chance on one game, and what was trained in it got worse."""
    dreamed = [won(t) for t in TASKS[:games]]
    dreamed[:broken] = [t._replace(error="broke") for t in dreamed[:broken]]
    assert [x.text for x in broken_refusals(dreamed)] == [text] * bool(text)


def test_metrics_of_dev_games_are_pooled_and_by_family():
    rows = [won(t) for t in TASKS] + [invalid(t) for t in TASKS]
    metrics = dev_metrics(rows)
    assert metrics["real_success"] == 0.5
    assert metrics["real_return"] == 0.5
    # Half of the returns are 1, the others 0.
    assert metrics["real_return_error"] == pytest.approx(0.5 / (len(rows) - 1) ** 0.5)
    families = {t.family for t in TASKS}
    assert {k for k in metrics if k.startswith("real_success/")} == {
        f"real_success/{name}" for name in families
    }
    for name in families:
        assert metrics[f"real_success/{name}"] == 0.5
        games = 2 * sum(t.family == name for t in TASKS)
        assert metrics[f"real_games/{name}"] == games
    assert dev_metrics([rows[0]._replace(error="gone")]) == {}


def test_costs_are_compared_as_reported_and_in_a_dream_as_the_pattern_counts():
    real = [won(t) for t in TASKS]
    steps = [
        dataclasses.replace(x, costs={"noise": 2.0, "take": float("take" in x.action)})
        for x in real[0].episode.transitions
    ]
    loud = dataclasses.replace(real[0].episode, transitions=tuple(steps))
    limit = LimitConfig(name="take", limit=0.1, pattern="take coin")
    gaps = cost_gaps(
        [real[0]._replace(episode=loud)], [won(TASKS[0])], cost_counters([limit])
    )
    assert list(gaps) == ["noise", "take"]
    assert gaps["noise"]["real"]["mean"] == 2.0 * len(steps)
    assert gaps["noise"]["dreamed"]["mean"] == 0.0  # nobody can tell there
    assert gaps["take"]["real"]["mean"] == gaps["take"]["dreamed"]["mean"] == 1.0
    assert cost_gaps(real, real, {}) == {}
    text = cost_text("noise", gaps["noise"], 1)
    assert f"costs {2 * len(steps):.3f} [" in text
    assert "of noise really and 0.000 [0.000, 0.000] in the dream, over 1 dev" in text


def test_a_gap_that_is_not_too_large_is_not_called_wrong():
    gap = {"mean": 0.0, "low": -0.924, "high": 0.924, "episodes": 1}
    text = dream_check.agreement_text(gap)
    assert "+0.000 [-0.924, +0.924] over 1 dev tasks" in text
    assert "wrong" not in text
