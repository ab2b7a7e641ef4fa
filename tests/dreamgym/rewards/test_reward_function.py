"""The mix: outcome and process, gate, routing, blending, and who is asked of what."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.dream import DreamVectorEnv, UncertaintyGate
from dreamgym.rewards.config import (
    MilestoneConfig,
    RewardConfig,
    RewardModelSourceConfig,
)
from dreamgym.rewards.reward_function import (
    RewardedEpisode,
    RewardFunction,
    with_rewards,
)
from dreamgym.rewards.tool_config import ToolConfig
from tests import doubles, helpers
from worldmodel.data.records import Task

WON = helpers.lamp_and_door()  # pays 0.5, 0, 1
LOST = dataclasses.replace(WON, id="lost", success=False)
UNKNOWN = dataclasses.replace(WON, id="unknown", success=None)


class Learned:
    """R is a list given; notes what was asked."""

    objective = "preference"

    def __init__(self, *scores):
        self.given, self.asked, self.pasts = scores, [], []

    def scores(self, attempts, pasts=None):
        self.asked += [task.id for task, _ in attempts]
        self.pasts += pasts or []
        return [np.array(self.given[: len(steps)]) for _, steps in attempts]


class Judging:
    """Pays a tenth of the step's number; an episode named `bad` has no answer."""

    def __init__(self, bad=""):
        self.bad, self.asked, self.pasts = bad, [], []

    def scores(self, episodes, wanted, pasts=None):
        self.pasts += pasts or []
        self.asked += [(e.id, tuple(w)) for e, w in zip(episodes, wanted, strict=True)]
        return [
            "judge: timeout: late"
            if e.id == self.bad and w
            else {s: 0.1 * (s + 1) for s in w}
            for e, w in zip(episodes, wanted, strict=True)
        ]


def one(config, episode, **parts) -> RewardedEpisode:
    (result,) = RewardFunction(config, **parts).score([episode])
    return result


def test_the_default_leaves_rewards_as_they_are():
    t = dataclasses.replace(
        WON.transitions[0],
        rewards={"dream": 0.3, "uncertainty_penalty": -0.1, "zero": 0.0},
    )
    e = dataclasses.replace(WON, transitions=(t, *WON.transitions[1:]))
    for some in (e, dataclasses.replace(e, success=None)):
        result = one(RewardConfig(), some)
        assert result.rewards == tuple(x.rewards for x in some.transitions)
        assert result.sources == ("rule", "none", "rule")
        assert result.problem is None
        assert with_rewards(some, result) == some


def test_the_mixture_by_hand():
    # alpha 0.25: outcome 2 or -1 at the end, and 0.75 of what the environment paid.
    c = RewardConfig(outcome_weight=0.25, success_reward=2.0, failure_reward=-1.0)
    assert one(c, WON).rewards == (
        {"reward": 0.375},
        {"reward": 0.0},
        {"reward": 0.75, "outcome": 0.5},
    )
    assert one(c, LOST).rewards[-1] == {"reward": 0.75, "outcome": -0.25}
    pure = one(RewardConfig(outcome_weight=1.0), WON)
    assert [sum(r.values()) for r in pure.rewards] == [0.0, 0.0, 1.0]


def test_an_outcome_that_nobody_knows_is_a_problem_where_it_is_needed():
    result = one(RewardConfig(outcome_weight=0.5), UNKNOWN)
    assert result.problem == "outcome: nobody scored the episode"
    assert result.rewards[-1] == {"reward": 0.5}  # no outcome, but no zero either
    assert one(RewardConfig(process_requires_success=True), UNKNOWN).problem is not None
    assert one(RewardConfig(invalid_penalty=1.0), UNKNOWN).problem is None


def test_process_is_paid_past_the_gate_only():
    c = RewardConfig(
        process_requires_success=True, outcome_weight=0.5, invalid_penalty=0.2
    )
    slip = dataclasses.replace(WON.transitions[1], invalid=True)
    steps = (WON.transitions[0], slip, WON.transitions[2])
    won = dataclasses.replace(WON, transitions=steps)
    lost = dataclasses.replace(won, success=False)
    assert one(c, won).rewards == (
        {"reward": 0.25},
        {"reward": 0.0, "invalid": -0.2},
        {"reward": 0.5, "outcome": 0.5},
    )
    assert one(c, lost).rewards == ({}, {"invalid": -0.2}, {"outcome": 0.0})
    assert one(c, lost).sources == ("none",) * 3
    # Nobody is asked of what is not paid.
    judge = Judging()
    c = dataclasses.replace(c, sources=("judge",))
    RewardFunction(c, judge=judge).score([won, lost])
    assert judge.asked == [(won.id, (0, 1, 2)), (lost.id, ())]


def test_doubt_of_the_dream_is_neither_scaled_nor_gated():
    env = DreamVectorEnv(
        doubles.RuleModel(), 1, max_steps=3, uncertainty=UncertaintyGate(penalty=0.5)
    )
    env.reset(options={"tasks": [doubles.task(0, 1, 3)]})
    (step,) = env.step(["go right"])
    assert step is not None
    assert set(step.rewards) == {"dream", *RewardConfig().unscaled_components}
    t = dataclasses.replace(
        WON.transitions[0],
        rewards={"dream": 1.0, "uncertainty_penalty": -0.5},
        terminated=True,
    )
    lost = dataclasses.replace(LOST, transitions=(t,))
    assert one(RewardConfig(process_requires_success=True), lost).rewards == (
        {"uncertainty_penalty": -0.5},
    )
    assert one(RewardConfig(outcome_weight=0.5), lost).rewards == (
        {"dream": 0.5, "uncertainty_penalty": -0.5, "outcome": 0.0},
    )


@pytest.mark.parametrize(
    ("score", "who", "paid", "queries"),
    [
        (2.0, "reward_model", 2 / (1 + math.exp(-2.0)) - 1, ()),
        (0.1, "judge", 0.2, (1,)),
    ],
)
def test_a_tier_that_does_not_know_passes_on(score, who, paid, queries):
    # The rule knows steps 0 and 2 (they pay); R = 2 is sure of step 1, 0.1 is not.
    judge = Judging()
    c = RewardConfig(sources=("rule", "reward_model", "judge"))
    result = one(c, WON, reward_model=Learned(9.0, score, 9.0), judge=judge)
    assert result.rewards[0] == {"reward": 0.5}
    assert result.rewards[1] == pytest.approx({"reward": 0.0, who: paid})
    assert result.rewards[2] == {"reward": 1.0}
    assert result.sources == ("rule", who, "rule")
    assert judge.asked == [(WON.id, queries)]


def test_what_nobody_knows_is_said_to_be_nobodys():
    unsure = one(
        RewardConfig(sources=("reward_model",)),
        WON,
        reward_model=Learned(0.0, 1.0, -1.0),
    )
    assert unsure.sources == ("none", "reward_model", "reward_model")
    assert unsure.rewards[0] == {}
    assert unsure.rewards[1]["reward_model"] == -unsure.rewards[2]["reward_model"] > 0


def test_the_threshold_is_that_of_the_chance():
    # sigmoid(0.4) - 0.5 = 0.0987
    for threshold, tier in ((0.0986, "reward_model"), (0.0988, "none")):
        c = RewardConfig(
            sources=("reward_model",),
            reward_model=RewardModelSourceConfig(confidence=threshold),
        )
        assert one(c, WON, reward_model=Learned(0.4, 0.4, 0.4)).sources == (tier,) * 3


def test_a_blend_is_the_weighted_sum_of_all():
    c = RewardConfig(
        sources=("rule", "reward_model", "judge"),
        source_weights=(0.5, 0.3, 0.2),
        reward_model=RewardModelSourceConfig(scale=2.0),
    )
    result = one(c, WON, reward_model=Learned(0.0, 1.0, -1.0), judge=Judging())
    p = 1 / (1 + math.exp(-1.0))
    expected = [
        {"reward": 0.25, "reward_model": 0.0, "judge": 0.2 * 0.1},
        {"reward": 0.0, "reward_model": 0.3 * 2 * (2 * p - 1), "judge": 0.2 * 0.2},
        {"reward": 0.5, "reward_model": -0.3 * 2 * (2 * p - 1), "judge": 0.2 * 0.3},
    ]
    for got, want in zip(result.rewards, expected, strict=True):
        assert got == pytest.approx(want)
    assert result.sources == ("rule+reward_model+judge",) * 3
    judge = Judging()
    c = dataclasses.replace(c, source_weights=(0.5, 0.5, 0.0))
    one(c, WON, reward_model=Learned(0.0, 1.0, -1.0), judge=judge)
    assert judge.asked == []  # what counts nothing costs nothing


def test_the_unified_reward_has_a_preference_part():
    # Everything right: when 1 + which 1.5 + syntax 0.5 + arguments 0.5 + execution 1 +
    # task 10 = 14.5. R = ln 3 has sigmoid 3/4, so r_pref = 2 * 3/4 - 1 = 0.5, and
    # w_pref = 2: 14.5 + 1. Weights that had to sum to 1 would take from the 14.5.
    c = RewardConfig(
        environment_weight=0.0,
        tools=ToolConfig(enabled=True),
        sources=("rule", "reward_model"),
        source_weights=(1.0, 2.0),
    )
    calls = [{"tool": "book", "arguments": {"n": 1}}]
    step = dataclasses.replace(
        WON.transitions[-1], action="book(n=1)", success=True, invalid=False
    )
    task = Task(id="trip", instruction="", options={"calls": calls})
    e = dataclasses.replace(WON, task=task, transitions=(step,), success=True)
    model = Learned(math.log(3.0))
    assert one(c, e, reward_model=model).rewards[0] == pytest.approx(
        {
            "tool/when": 1.0,
            "tool/which": 1.5,
            "tool/syntax": 0.5,
            "tool/arguments": 0.5,
            "tool/execution": 1.0,
            "tool/task": 10.0,
            "reward_model": 1.0,
        }
    )
    # Asked in turn, the reward model has no say where a rule has scored the step.
    in_turn = dataclasses.replace(c, source_weights=())
    assert "reward_model" not in one(in_turn, e, reward_model=model).rewards[0]


def test_an_answer_that_cannot_be_had_is_a_problem_and_no_zero():
    judge = Judging(bad="lost")
    c = RewardConfig(sources=("rule", "judge"), outcome_weight=0.5)
    won, lost = RewardFunction(c, judge=judge).score([WON, LOST])
    assert won.problem is None
    assert lost.problem == "judge: timeout: late"
    assert "judge" not in lost.rewards[1]
    assert lost.sources == ("rule", "none", "rule")


def test_every_tier_is_told_what_was_done_before_a_fork():
    c = RewardConfig(
        environment_weight=0.0,
        tools=ToolConfig(enabled=True, match="step"),
        sources=("rule", "reward_model", "judge"),
        source_weights=(0.5, 0.3, 0.2),
    )
    calls = [{"tool": "search"}, {"tool": "book", "arguments": {"n": 1}}]
    task = Task(id="trip", instruction="", options={"calls": calls})
    step = dataclasses.replace(WON.transitions[-1], action="book(n=1)")
    fork = dataclasses.replace(WON, task=task, transitions=(step,))
    learned, judge = Learned(0.0, 0.0, 0.0), Judging()
    scorer = RewardFunction(c, reward_model=learned, judge=judge)
    past = ("search()",)
    _, result = scorer.score([WON, fork], [(), past])
    assert result.rewards[0]["tool/which"] == 0.5 * 1.5
    assert result.rewards[0]["tool/arguments"] == 0.5 * 0.5
    assert learned.pasts == judge.pasts == [(), past]
    (alone,) = scorer.score([fork])
    assert alone.rewards[0]["tool/which"] == 0.5 * -0.5
    assert "tool/arguments" not in alone.rewards[0]


def test_tiers_that_are_not_given_are_asked_for():
    for tier in ("reward_model", "judge"):
        with pytest.raises(ValueError, match=tier):
            RewardFunction(RewardConfig(sources=("rule", tier)))


def test_everything_at_once_does_not_depend_on_any_order():
    c = RewardConfig(
        outcome_weight=0.3,
        invalid_penalty=0.1,
        sources=("rule", "reward_model", "judge"),
        milestones=(
            MilestoneConfig(name="lit", pattern="lamp is on", weight=0.5),
            MilestoneConfig(name="out", pattern="open", weight=0.5),
        ),
        tools=ToolConfig(enabled=True),
    )
    about = Task(id="calls", instruction="", options={"calls": [{"tool": "press"}]})
    called = dataclasses.replace(WON, id="called", task=about)
    episodes = [WON, LOST, called, UNKNOWN]

    def scored(some, config=c):
        return RewardFunction(
            config, reward_model=Learned(1, 0.01, 3), judge=Judging()
        ).score(some)

    results = scored(episodes)
    order = [2, 0, 3, 1]
    assert scored([episodes[i] for i in order]) == [results[i] for i in order]
    turned = dataclasses.replace(c, milestones=c.milestones[::-1])
    assert scored(episodes, turned) == results
    assert [scored([e])[0] for e in episodes] == results
    assert RewardFunction(c, reward_model=Learned(), judge=Judging()).score([]) == []


@given(
    st.floats(0, 1),
    st.booleans(),
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.sampled_from([True, False]),
)
def test_the_return_is_the_mixture_of_both(alpha, gated, paid, success):
    steps = tuple(
        dataclasses.replace(t, rewards={"env": x})
        for t, x in zip(WON.transitions, paid, strict=True)
    )
    e = dataclasses.replace(WON, transitions=steps, success=success)
    result = one(
        RewardConfig(
            outcome_weight=alpha, process_requires_success=gated, failure_reward=-1.0
        ),
        e,
    )
    process = 0.0 if gated and not success else sum(paid)
    expected = alpha * (1.0 if success else -1.0) + (1 - alpha) * process
    np.testing.assert_allclose(
        with_rewards(e, result).episode_return, expected, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcome_weight": 1.5}, "outcome_weight"),
        ({"invalid_penalty": -0.1}, "invalid_penalty"),
        ({"success_reward": float("inf")}, "success_reward"),
        ({"sources": ()}, "sources"),
        ({"sources": ("rule", "oracle")}, "oracle"),
        ({"sources": ("rule", "rule")}, "once"),
        ({"source_weights": (0.5, 0.5)}, "source_weights"),
        ({"source_weights": (0.0,)}, "not all 0"),
        ({"source_weights": (float("inf"),)}, "finite weight"),
        (
            {"sources": ("rule", "judge"), "source_weights": (1.5, -0.5)},
            "source_weights",
        ),
        (
            {"milestones": (MilestoneConfig(name="a", pattern="a", weight=1.0),) * 2},
            "different names",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        RewardConfig(**changes)


@pytest.mark.parametrize("confidence", [-0.1, 0.5])
def test_bad_thresholds_are_refused(confidence):
    with pytest.raises(ValueError, match="confidence"):
        RewardModelSourceConfig(confidence=confidence)


@pytest.mark.parametrize("pair", [(1.0,), (1.0, float("nan")), (1.0, 0.0, 0.0)])
def test_bad_rows_of_the_table_are_refused(pair):
    with pytest.raises(ValueError, match="task must be two finite numbers"):
        ToolConfig(task=pair)
