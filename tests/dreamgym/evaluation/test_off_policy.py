"""What recorded episodes say of a policy, by hand, in the corridor."""

import pytest

from dreamgym.evaluation.off_policy import action_agreement, sentences
from tests import doubles

EPISODES = [doubles.expert(t) for t in doubles.tasks("dev")[:8]]
STEPS = sum(len(e.transitions) for e in EPISODES)


def agreement(rule, limit=1000):
    policy = doubles.Scripted(rule)
    return action_agreement(policy, EPISODES, limit=limit, temperature=1.0, seed=0)


def test_agreement_is_the_share_of_recorded_actions():
    assert agreement(doubles.expert_rule)["mean"] == 1.0
    assert agreement(lambda *_: "fly")["mean"] == 0.0
    coins = agreement(lambda *_: "take coin")  # right at the end of each episode
    assert coins["mean"] == pytest.approx(8 / STEPS)
    assert coins["low"] < coins["mean"] < coins["high"]
    assert coins["count"] == STEPS
    assert agreement(doubles.expert_rule, limit=5)["count"] == 5


def test_the_past_is_that_of_the_episode():
    seen = []

    def rule(task, past, state):
        seen.append((task.id, past, state))
        return "fly"

    agreement(rule)
    expected = {
        (e.task.id, tuple(x.action for x in e.transitions[:i]), t.state)
        for e in EPISODES
        for i, t in enumerate(e.transitions)
    }
    assert set(seen) == expected


def test_without_a_demonstration_nothing_is_known():
    empty = action_agreement(
        doubles.Scripted(doubles.expert_rule), [], limit=5, temperature=1.0, seed=0
    )
    assert empty["mean"] is None
    assert empty["count"] == 0


def test_sentences_say_what_was_measured_and_what_it_is_worth():
    row = {
        "action_agreement": {"mean": 0.62, "count": 120},
        "dream_success": {"mean": 0.4, "episodes": 10},
    }
    messages = sentences(
        {"policies": {"bc": row}, "outcome_agreement": {"mean": 0.475, "count": 42}},
        {},
    )
    assert "no success in the real one" in messages[0]
    assert messages[1] == (
        "bc takes the recorded action in 62 % of 120 states of held-out "
        "demonstrations, and it wins 40 % of 10 dev tasks in the dream."
    )
    lost = row | {"dream_success": {"mean": None, "episodes": 0}}
    (_, unscored) = sentences(
        {"policies": {"bc": lost}, "outcome_agreement": {"mean": None, "count": 0}},
        {},
    )
    assert unscored.endswith("none of its episodes in the dream could be scored.")
    assert "of 42 recorded episodes" in messages[2]
    assert messages[2].endswith("48 % end as recorded.")
    nobody = {"policies": {}, "outcome_agreement": {"mean": None, "count": 0}}
    assert len(sentences(nobody, {})) == 1
    uncompared = {"policies": {}, "outcome_agreement": None}
    assert len(sentences(uncompared, {})) == 1
    unwon = row | {"action_agreement": {"mean": None, "count": 0}}
    (_, unknown) = sentences(uncompared | {"policies": {"bc": unwon}}, {})
    assert unknown == (
        "No held-out task has a won episode, so that no state shows whether bc takes "
        "the recorded action, and it wins 40 % of 10 dev tasks in the dream."
    )
    both = {
        "policies": {"bc": row, "dream": row},
        "outcome_agreement": nobody["outcome_agreement"],
    }
    assert sentences(both, {"dream": "bc"})[2:] == ["dream is bc."]
