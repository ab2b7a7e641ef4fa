"""A verdict, by hand: numbers to each of its sentences, and what is left unsaid."""

import operator
import re

import pytest

from dreamgym.config.presets import preset
from dreamgym.evaluation import leading_numbers
from dreamgym.evaluation.diagnosis import causes as module
from dreamgym.evaluation.diagnosis.causes import STAGE_ADVICE, causes
from dreamgym.evaluation.diagnosis.verdict import (
    UNEXPLAINED,
    UNEXPLAINED_WITHOUT_DREAM,
    benefit_sentence,
    diagnosis,
    outcome_sentences,
    training_sentences,
    verdict,
)
from tests.dreamgym.evaluation.diagnosis.common import (
    SOUND,
    STAGES,
    evidence,
    gain,
    row,
    with_stage,
)


def test_that_all_policies_lose_is_said():
    lost = {name: row(0.0, 60) for name in ("bc", "warmstart", "dream")}
    assert outcome_sentences(evidence(random=row(0.3, 60), untrained=0.0, **lost)) == [
        "All policies win 0 of 60 test games: nothing was learnt.",
        "A random choice among valid actions wins 30 %, more than every trained "
        "policy.",
    ]


def test_of_policies_that_win_as_much_the_one_that_earned_most_is_the_best():
    rows = {
        name: row(1.0) | {"mean_return": earned}
        for name, earned in (("bc", -7.0), ("planner", -4.2), ("s2r", -4.7))
    }
    (sentence,) = outcome_sentences(evidence(**rows))
    assert sentence == "The best policy is planner: it wins 100 % of games."
    rows["bc"]["mean_return"] = None  # then the others are compared
    assert "planner" in outcome_sentences(evidence(**rows))[0]


def test_a_run_that_wins_all_test_games_is_not_disappointing():
    stages = STAGES | {"bc": {"imitated_episodes": 3}}
    paired = gain(-0.1, 0.0, 0.1)
    likely = [
        any(
            "Likely cause" in x
            for x in verdict(evidence(stages=stages, paired=paired, bc=x))
        )
        for x in (0.9, 1.0)
    ]
    assert likely == [True, False]


def test_an_end_of_which_there_are_few_is_no_cause():
    stages = STAGES | {"expert_iteration": {"note": "it did not help"}}

    def cause(count):
        few = SOUND | {"done": {"recall": {"mean": 0.1, "count": count}}}
        return training_sentences(evidence(bc=0.6, stages=stages, fidelity=few))[0]

    assert "ends" not in cause(7)
    assert "The dream finds 10 % of 8 ends" in cause(8)


def test_what_only_a_dream_explains_is_not_said_of_real_play():
    stages = STAGES | {"dream_check": {"real": {}}}
    paired = gain(-0.1, 0.0, 0.1)
    assert "Training in the dream" in training_sentences(evidence(paired=paired))[0]
    assert training_sentences(evidence(paired=paired, stages=stages)) == []


def test_few_games_are_said_with_their_interval():
    few = row(3 / 8, 8)
    few["success"] |= {"low": 0.137, "high": 0.694}
    (sentence,) = outcome_sentences(evidence(bc=few))
    assert sentence == (
        "The best policy is bc: it wins 38 % of games (14 % to 69 % by the 95 % "
        "interval of 8 games)."
    )


def test_where_nobody_wins_what_policies_earn_is_compared():
    """By hand: in an environment that pays for progress and is never won."""

    def earning(**returns):
        rows = {n: row(0.0, 60) | {"mean_return": x} for n, x in returns.items()}
        return outcome_sentences(evidence(**rows))

    assert earning(random=0.5, bc=0.75, s2r=1.25) == [
        "All policies win 0 of 60 test games. By what they earn the best one is s2r, "
        "with a return of 1.25 (random 0.5, bc 0.75)."
    ]
    assert earning(random=0.5, bc=0.75) == [
        "All policies win 0 of 60 test games. By what they earn the best one is bc, "
        "with a return of 0.75 (random 0.5)."
    ]
    nothing = ["All policies win 0 of 60 test games: nothing was learnt."]
    assert earning(random=0.5, bc=0.25, s2r=0.5) == nothing
    assert earning(bc=0.25) == nothing


def test_chance_is_compared_with_each_policy():
    some = evidence(random=0.5, expert=1.0, bc=0.4, warmstart=0.6, dream=0.45)
    assert outcome_sentences(some) == [
        "The best policy is warmstart: it wins 60 % of games.",
        "A random choice among valid actions wins 50 %, more than bc, dream.",
    ]
    assert len(outcome_sentences(evidence(random=0.1, bc=0.4))) == 1
    assert len(outcome_sentences(evidence(bc=0.4))) == 1  # no floor was played
    assert outcome_sentences(evidence(random=0.4, bc=0.4, dream=0.2)) == [
        "The best policy is bc: it wins 40 % of games.",
        "A random choice among valid actions wins 40 %, as many as the best policy: "
        "nothing better was learnt.",
    ]
    assert len(outcome_sentences(evidence(random=0.0, bc=0.0))) == 1


def test_an_untrained_policy_that_wins_is_a_floor_as_well():
    stages = STAGES | {"shield": {"shield": "valid"}}
    rates = {"random": 0.5, "bc": 0.4, "s2r": 0.55}
    shielded = evidence(**rates, untrained=0.625, stages=stages)
    assert outcome_sentences(shielded)[1:] == [  # and nothing of random play
        "The untrained policy, kept to the valid actions (policy.shield), wins 62 %, "
        "more than every trained policy."
    ]
    equal = outcome_sentences(evidence(**rates, untrained=0.55))
    assert equal[1:] == [
        "The untrained policy wins 55 %, as many as the best policy: nothing better "
        "was learnt."
    ]
    assert "random choice" in outcome_sentences(evidence(**rates, untrained=0.5))[1]


@pytest.mark.parametrize(
    ("untrained", "best", "is_disappointing"),
    [
        (0.7, 0.6, True),
        (0.5, 0.6, True),  # of 120 games each: +0.100 [-0.025, +0.222]
        (0.4, 0.6, False),  # +0.200 [+0.073, +0.318]
        (0.0, 0.6, False),
        (0.99, 1.0, False),
    ],
)
def test_a_run_that_is_not_surely_better_than_no_training_disappoints(
    untrained, best, is_disappointing
):
    few = STAGES | {"bc": {"imitated_episodes": 3}}
    rates = {"untrained": untrained, "dream": best}
    text = verdict(evidence(**rates, paired=gain(0.1, 0.2, 0.3), stages=few))
    assert any("Likely cause" in x for x in text) == is_disappointing


def test_success_that_random_play_has_as_often_as_the_expert_is_questioned():
    sentence = outcome_sentences(evidence(random=1.0, expert=1.0, bc=0.5))[-1]
    assert "success does not tell good play from bad" in sentence
    for chance, expert in ((0.9, 1.0), (0.6, 0.5)):
        *_, last = outcome_sentences(evidence(random=chance, expert=expert, bc=0.5))
        assert "good play" not in last


def test_an_expert_that_loses_is_said():
    (_, text) = outcome_sentences(evidence(expert=0.5, bc=0.4))
    assert text.startswith("The expert itself wins 50 %")
    assert outcome_sentences(evidence(expert=1.0, untrained=0.2)) == [
        "No policy was scored on real test games."
    ]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (gain(0.02, 0.1, 0.2), "made the policy better: +0.100 [+0.020, +0.200] over"),
        (gain(-0.4, -0.27, -0.15), "made the policy worse: -0.270 [-0.400, -0.150]"),
        (gain(-0.1, 0.0, 0.1), "changed nothing that these games can show: +0.000"),
    ],
)
def test_what_training_changed_is_said_with_its_interval(pair, message):
    (sentence,) = training_sentences(evidence(bc=0.4, paired=pair))
    assert sentence.startswith("Training in the dream ")
    assert message in sentence


def test_a_stage_that_kept_another_policy_says_so():
    stages = STAGES | {
        "warmstart": {"note": "early experience did not help"},
        "train": {"note": "not trained, so it is the warm start: 5 % of 200"},
    }
    assert training_sentences(evidence(bc=0.4, stages=stages)) == [
        "The warm start: early experience did not help. " + STAGE_ADVICE["warmstart"],
        "The dream policy: not trained, so it is the warm start: 5 % of 200. "
        + STAGE_ADVICE["train"],
    ]


@pytest.mark.parametrize("stage", STAGE_ADVICE)
def test_a_decision_by_rule_has_no_further_cause(stage):
    stages = STAGES | {"bc": {"imitated_episodes": 3}}
    stages |= {stage: {"note": "the environment draws lots", "by_rule": True}}
    (sentence,) = training_sentences(evidence(bc=0.6, stages=stages))
    assert sentence.endswith(": the environment draws lots.")


def test_stages_with_nothing_to_gain_are_one_sentence_and_no_disappointment():
    note = "there is nothing to gain, warmstart wins all real dev games"
    done = {"nothing_to_gain": True, "kept": "warmstart", "note": note}
    stages = STAGES | {
        "expert_iteration": done,
        "train": done | {"kept": "expert_iteration"},
        "s2r": done | {"kept": "dream"},
    }
    equal = {"mean": 0.0, "low": 0.0, "high": 0.0, "episodes": 60}
    pairs = ("dream_minus_warmstart", "s2r_minus_dream")
    some = evidence(
        stages=stages, paired=dict.fromkeys(pairs, equal), bc=0.9, warmstart=0.98
    )
    assert verdict(some) == [
        "The best policy is warmstart: it wins 98 % of games.",
        "The policy warmstart wins all real dev games, so there was nothing to gain "
        "from expert_iteration, train, s2r (dream_check.force goes on all the same).",
    ]


@pytest.mark.parametrize("stage", STAGE_ADVICE)
def test_a_stage_that_did_not_help_names_its_cause_and_a_setting(stage):
    stages = STAGES | {stage: {"note": "it did not help"}}
    (plain,) = training_sentences(evidence(bc=0.6, stages=stages))
    assert "it did not help. " in plain
    settings = re.findall(r"[a-z_]+\.[a-z_.]+[a-z]", plain)
    assert settings
    for setting in settings:  # there is each of them
        operator.attrgetter(setting)(preset("default"))
    wrong = SOUND | {"exact": {"predictable": {"mean": 0.75, "count": 200}}}
    (cause,) = training_sentences(evidence(bc=0.6, stages=stages, fidelity=wrong))
    # The dream is not asked about the warm start.
    asked = stage != "warmstart"
    assert ("Likely cause: The dream has 75 % of 200" in cause) == asked
    of_few = SOUND | {"exact": {"predictable": {"mean": 0.5, "count": 7}}}
    (other,) = training_sentences(evidence(bc=0.6, stages=stages, fidelity=of_few))
    assert "of 7 predictable" not in other
    # Two stages with one cause name it once.
    both = STAGES | {s: {"note": "it did not help"} for s in STAGE_ADVICE}
    sentences = training_sentences(evidence(bc=0.6, stages=both, fidelity=wrong))
    assert len(sentences) == len(STAGE_ADVICE)
    assert sum("75 %" in s for s in sentences) == 1


@pytest.mark.parametrize(
    ("imitation", "updates", "openings"),
    [
        ("expert_iteration", "dream", ["Imitating", "Trust-region", "Training in"]),
        ("expert_iteration", "expert_iteration", ["Imitating"]),
        ("warmstart", "dream", ["Training in"]),
        ("warmstart", "expert_iteration", []),
    ],
)
def test_one_policy_under_two_names_is_not_compared(imitation, updates, openings):
    keys = ("expert_iteration_minus_warmstart", "dream_minus_expert_iteration")
    pairs = dict.fromkeys(
        [*keys, "dream_minus_warmstart"], gain(0.0, 0.1, 0.2)["dream_minus_warmstart"]
    )
    stages = STAGES | {
        "expert_iteration": {"kept": imitation},
        "train": {"kept": updates},
    }
    sentences = training_sentences(evidence(bc=0.4, paired=pairs, stages=stages))
    assert len(sentences) == len(openings)
    for sentence, opening in zip(sentences, openings, strict=True):
        assert sentence.startswith(opening)


@pytest.mark.parametrize(
    ("low", "high", "opening"),
    [
        (0.02, 0.2, "Dreaming paid: "),
        (-0.2, -0.02, "Dreaming did not pay here: "),
        (-0.1, 0.1, "Whether dreaming paid cannot be told by these games: "),
    ],
)
@pytest.mark.parametrize("policy", ["planner", "s2r"])
def test_whether_the_dream_paid_is_said_with_both_costs(low, high, opening, policy):
    control = "real_only_total"
    mean = (low + high) / 2
    pair = {"low": low, "mean": mean, "high": high, "episodes": 60}
    rates = {
        policy: row(0.7) | {"real_transitions": 1100},
        control: row(0.6) | {"real_transitions": 22000},
    }
    paired = {f"{policy}_minus_{control}": pair}
    (sentence,) = training_sentences(evidence(paired=paired, **rates))
    assert sentence.startswith(f"{opening}{mean:+.3f}")
    assert "1,100" in sentence
    assert f"({control}), with 22,000" in sentence
    assert ("transfer.real_transitions" in sentence) == (high < 0)
    refused = STAGES | {"dream_check": {"refused": "no ends", "forced": False}}
    assert not training_sentences(evidence(stages=refused, paired=paired, **rates))


NOT_LEARNT = {
    "expert_iteration": {"kept": "warmstart"},
    "train": {"kept": "expert_iteration"},
    "planner": {"status": "off"},
}


@pytest.mark.parametrize(
    ("stages", "has_learnt"),
    [
        ({}, False),
        ({"planner": {"kept": "s2r"}}, False),
        ({"s2r": {"rounds": [{"dreamed_demonstrations": 0}]}}, False),
        ({"s2r": {"rounds": [{"dreamed_success": 0.5}], "kept": "dream"}}, False),
        ({"expert_iteration": {"kept": "expert_iteration"}}, True),
        ({"train": {"kept": "dream"}}, True),
        ({"train": {}}, True),
        ({"planner": {"kept": "planner"}}, True),
        ({"s2r": {"rounds": [{}, {"dreamed_demonstrations": 3}]}}, True),
        ({"s2r": {"rounds": [{"dreamed_success": 0.5}]}}, True),
    ],
)
def test_dreaming_has_not_paid_where_no_policy_learnt_in_the_dream(stages, has_learnt):
    pair = {"low": 0.02, "mean": 0.1, "high": 0.2, "episodes": 60}
    run = evidence(
        stages=STAGES | NOT_LEARNT | stages,
        paired={"s2r_minus_real_only_total": pair},
        s2r=0.7,
        real_only_total=0.6,
    )
    opening = "Dreaming paid: " if has_learnt else "No policy of this run learnt in "
    (sentence,) = [s for s in training_sentences(run) if "+0.100 [+0.020" in s]
    assert sentence.startswith(opening)
    benefit = benefit_sentence(run.results | {"verdict": verdict(run)})
    assert bool(benefit) == has_learnt


def test_a_dream_that_paid_and_scored_badly_is_both():
    pair = {"low": 0.02, "mean": 0.1, "high": 0.2, "episodes": 60}
    key, row_of = "s2r_minus_real_only_total", {"s2r": 0.7, "real_only_total": 0.6}
    wrong = {"mean": 0.5, "count": 100, "effective": 100.0}
    bad = SOUND | {"exact": {"predictable": wrong}}
    for scorecard, named in ((SOUND, False), (bad, True)):
        run = evidence(paired={key: pair}, fidelity=scorecard, **row_of)
        sentence, *_ = training_sentences(run)
        assert sentence.startswith("Dreaming paid: ")
        assert ("not to be trusted (right next states (50 %) is below" in sentence) == (
            named
        )
        # What the scorecard's own verdict says beside it.
        sentence = benefit_sentence(run.results | {"verdict": verdict(run)})
        assert sentence.startswith("In real games it paid: +0.100 [+0.020, +0.200]")
        beside = leading_numbers.verdict(scorecard | {"real_games": sentence})
        assert ("Do not trust this dream yet: " in beside) == named
        assert (sentence in beside) == named
    lost = {key: pair | {"low": -0.1}}
    run = evidence(paired=lost, fidelity=bad, **row_of)
    assert benefit_sentence(run.results | {"verdict": verdict(run)}) == ""


def test_a_run_without_a_control_does_not_say_whether_the_dream_paid():
    assert not training_sentences(evidence(planner=0.7, s2r=0.6))
    unscored = {"low": None, "mean": None, "high": None, "episodes": 0}
    paired = {"planner_minus_real_only_total": unscored}
    assert not training_sentences(evidence(paired=paired, planner=0.7, s2r=0.6))


def test_a_run_without_a_dream_does_not_blame_one():
    blind = SOUND | {"exact": {"predictable": {"mean": 0.1, "count": 200}}}
    real = STAGES | {"dream_check": {"real": {}, "refused": ""}}
    for stages, blamed in ((STAGES, True), (real, False)):
        run = evidence(fidelity=blind, stages=stages, bc=0.2, random=0.3)
        assert ("low fidelity" in [cause.name for cause in causes(run)]) == blamed


def test_no_advice_to_a_run_without_a_dream_speaks_of_one():
    """By hand: all that can be wrong with the control without a dream."""
    stages = STAGES | {
        "dream_check": {"real": {}, "refused": ""},
        "collect": {"successes": 3, "episodes": 300, "listed_actions_of": None},
        "bc": {"imitated_episodes": 3},
        "train": {"note": "it did not help"},
    }
    curve = [{"rollouts": 16.0, "unscored_rollouts": 14.0}]
    warm = row(0.0, invalid=0.9)
    run = evidence(stages=stages, curve=curve, fidelity=None, warmstart=warm)
    assert len(causes(run)) >= 3
    text = "\n".join([diagnosis(run), *verdict(run)])
    assert "88 % of the rollouts in the real environment broke off" in text
    plain = run._replace(stages=STAGES | {"dream_check": stages["dream_check"]})
    lost = plain._replace(
        curve=(), results=plain.results | {"policies": {"s2r": row(0.0)}}
    )
    assert verdict(lost)[-1] == UNEXPLAINED_WITHOUT_DREAM
    for words in (text, *verdict(lost)):
        assert not re.search(r"(?<!`)dream(?!gym|_check)", words, re.IGNORECASE), words


@pytest.mark.parametrize(
    ("retries", "advice"),
    [
        (0, "(experience.retries, now 0)"),
        (7, "sampled again 7 times already (experience.retries). Fit it longer"),
        (None, "server.prompt.retries"),
    ],
)
def test_more_attempts_are_advised_where_there_are_few(retries, advice):
    curve = [{"rollouts": 16.0, "unscored_rollouts": 14.0}]
    cause = module.broken_rollouts(evidence(curve=curve)._replace(retries=retries))
    assert cause is not None
    assert advice in cause.advice
    assert cause.advice.endswith(".")


@pytest.mark.parametrize(
    ("check", "opening"),
    [
        ({"refused": "", "forced": False}, "Whether dreaming paid is not known: "),
        ({"refused": "no ends", "forced": True}, "Whether dreaming paid is not known"),
        ({"refused": "no ends", "forced": False}, "The dream was refused, so "),
        ({"refused": ""}, None),  # no dream was asked: the run is the control
    ],
)
def test_a_run_with_a_budget_names_its_control(check, opening):
    run = evidence(planner=0.7, stages=STAGES | {"dream_check": check})
    run.results["budget"] = {"real_steps": 5000, "spent": 4990}
    sentences = training_sentences(run)
    if opening is None:
        assert sentences == []
        return
    (sentence,) = sentences
    assert sentence.startswith(opening)
    assert "`dreamgym control real-play --budget 5000`" in sentence


@pytest.mark.parametrize("required", [813, 1938])
def test_no_control_is_named_that_the_budget_does_not_pay_for(required):
    """Its collection is smaller than the run's, and pays for a whole episode first."""
    run = evidence(planner=0.7, stages=STAGES | {"dream_check": {"forced": False}})
    run.results["budget"] = {"real_steps": 1100, "control_minimum": required}
    (sentence,) = training_sentences(run)
    assert ("`dreamgym control real-play --budget" in sentence) == (required == 813)
    assert ("at least 1,938" in sentence) == (required == 1938)


def test_a_shield_that_the_run_chose_is_named():
    chosen = {"shield": "valid", "dev_invalid_actions": 0.62}
    (sentence,) = training_sentences(
        evidence(bc=0.4, stages=STAGES | {"shield": chosen})
    )
    assert "(policy.shield): 62 % of the actions of bc were invalid" in sentence


def test_a_warm_start_that_is_bc_is_not_compared_with_bc():
    pairs = {"warmstart_minus_bc": gain(0.0, 0.1, 0.2)["dream_minus_warmstart"]}
    stages = STAGES | {"warmstart": {"kept": "bc"}}
    assert training_sentences(evidence(bc=0.4, paired=pairs, stages=stages)) == []
    (sentence,) = training_sentences(evidence(bc=0.4, paired=pairs, stages=STAGES))
    assert sentence.startswith("Early experience")


def test_a_disappointing_run_ends_with_its_first_cause_and_where_to_read_more():
    some = evidence(
        random=0.3,
        bc=row(0.0, 60),
        stages=STAGES | {"bc": {"imitated_episodes": 7}},
        fidelity=SOUND | {"done": {"recall": {"mean": 0.08, "count": 26}}},
    )
    *_, cause, more = verdict(some)
    assert cause.startswith(
        "Likely cause of the run's result: The policies imitate only 7 won episodes."
    )
    # That the test games are few explains no success of 0.
    assert more == "`dreamgym doctor RUN` names 1 more: missed ends."
    text = diagnosis(some)
    assert [line[:2] for line in text.splitlines()[-2:]] == ["1.", "2."]


def test_a_disappointing_run_without_a_cause_says_where_to_look():
    lost = evidence(random=0.3, bc=0.0, warmstart=0.0, dream=0.0)
    assert causes(lost) == []
    assert verdict(lost)[-1] == UNEXPLAINED


def test_a_refit_that_mended_the_dream_is_said():
    before = "only 8 % of 40 ends are found; the dream is wrong: episodes are won"
    for helped in (True, False):
        some = with_stage(dream_check={"remedy": {"before": before, "helped": helped}})
        sentences = [s for s in training_sentences(some) if "refitted" in s]
        assert sentences == helped * [
            "The dream was refitted before training, because only 8 % of 40 ends are "
            "found; the dream is wrong."
        ]
