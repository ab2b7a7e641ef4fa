"""The causes of a disappointing run, by hand: numbers, names and advice of each."""

import pytest

from dreamgym.envs.base import LOW_CONFIDENCE
from dreamgym.evaluation.diagnosis import causes as module
from dreamgym.evaluation.diagnosis import dream_causes
from dreamgym.evaluation.diagnosis.causes import causes
from dreamgym.evaluation.diagnosis.evidence import Cause, collect_more
from dreamgym.evaluation.diagnosis.verdict import (
    diagnosis,
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


def scored(part, name, mean, count):
    rate = {"mean": mean, "count": count, "effective": float(count)}
    return evidence(bc=0.4, fidelity=SOUND | {part: {name: rate}})


def hidden(mean, count, *, deterministic=True):
    fidelity = SOUND | {"hidden_state": {"mean": mean, "count": count}}
    collect = STAGES["collect"] | {"deterministic": deterministic}
    return evidence(bc=0.4, fidelity=fidelity, stages=STAGES | {"collect": collect})


@pytest.mark.parametrize(
    ("some", "name", "message", "advice"),
    [
        (
            with_stage(bc={"imitated_episodes": 7}),
            "few demonstrations",
            "only 7 won",
            "collect.",
        ),
        (
            with_stage(
                collect={
                    "successes": 50,
                    "episodes": 90,
                    "dev_episodes": 10,
                    "broken/KeyError": 9,
                    "broken/TextTooLong": 2,
                }
            ),
            "broken episodes",
            "broke 11 episodes of the collection, mostly by KeyError. Its files hold "
            "100 episodes",
            "`dreamgym check --env ENV --tasks 30` may find the cause.",
        ),
        (
            with_stage(collect={"successes": 50, "episodes": 90, "unscored": 11}),
            "unscored episodes",
            "11 of 90 training episodes do not say whether they were won",
            "dreamgym judge",
        ),
        (
            with_stage(collect={"successes": 3, "episodes": 300}),
            "few episodes that were won",
            "Only 3 of 300",
            "collect.expert_weight",
        ),
        (
            scored("exact", "predictable", 0.05, 200),
            "low fidelity",
            "5 % of 200 predictable next states right",
            "pretrain.fit.steps",
        ),
        (
            scored("copying", "state_unseen", 0.77, 30),
            "garbled identifiers",
            "77 % of 30 identifiers",
            "pretrain.fit.steps",
        ),
        (
            scored("copying", "state_unseen", 0.95, 200),  # 99 % are required
            "garbled identifiers",
            "95 % of 200 identifiers",
            "pretrain.fit.steps",
        ),
        (
            scored("exact", "predictable", None, 0),
            "unmeasured dream",
            "no next states can be known",
            "collect.dev_tasks",
        ),
        (scored("done", "recall", 0.08, 26), "missed ends", "8 % of 26", "rare_event"),
        (
            evidence(
                bc=0.4,
                fidelity=SOUND
                | {
                    "instruction": {
                        "agree": {"mean": 0.6, "count": 80},
                        "shown": {"mean": 0.25, "count": 40},
                        "elsewhere": {"mean": 0.05, "count": 40},
                        "words": ["coin"],
                    }
                },
            ),
            "ignored instruction",
            "(coin) is there, it shows it in 25 % of 40 reveals, and in 5 % of 40",
            "pretrain.fit.steps",
        ),
        (
            with_stage(
                dream_check={"disagrees": True, "sentence": "the dream is wrong"}
            ),
            "wrong about the policy",
            "The dream is wrong.",
            "collect.noisy_weight",
        ),
        (
            evidence(warmstart=row(0.4, invalid=0.93)),
            "invalid actions",
            "93 % of the warm start's actions",
            "demonstrations",
        ),
        (
            evidence(
                warmstart=row(0.4, invalid=0.93),
                stages=STAGES | {"collect": {"listed_actions_of": None}},
            ),
            "invalid actions",
            "and the environment lists no valid ones",
            "Define valid_actions()",
        ),
        (
            evidence(bc=0.4, curve=[{"informative_groups": x} for x in (0.0, 0.1)]),
            "little signal",
            "ended differently in 5 % of the groups",
            "group_size",
        ),
        (
            evidence(
                bc=0.4,
                curve=[
                    {
                        "rollouts": 16.0,
                        "unscored_rollouts": 14.0,
                        "informative_groups": 0.0,  # nothing could be compared
                    }
                ],
            ),
            "broken rollouts",
            "88 % of the rollouts",
            "retries",
        ),
        (with_stage(train={"kl": 2.5}), "large KL", "2.5 nats", "learning_rate"),
        (
            evidence(bc=0.3, expert=0.9),
            "weak imitation",
            "bc imitates 60 won episodes and wins 30 %, the expert 90 %",
            "bc.fit.steps",
        ),
        (
            hidden(0.12, 90),
            "hidden state",
            "Of 90 recorded steps that were taken more than once, with the same task, "
            "state and last actions, 12 % had",
            "experience.history",
        ),
        # A dream that is not very good is named where there is no other cause.
        (
            scored("exact", "predictable", 0.75, 200),
            "low fidelity",
            "75 % of 200",
            "pretrain.fit.steps",
        ),
        (scored("done", "recall", 0.9, 40), "missed ends", "90 % of 40", "rare_event"),
        # Half of the 60 games: 1.96 sqrt(0.5 / 60) = 0.179.
        (evidence(bc=row(0.4, 60)), "few test games", "ences of 0.18", "evaluate"),
    ],
)
def test_each_cause_is_named_with_its_numbers_and_a_setting(
    some, name, message, advice
):
    (cause,) = causes(some)
    assert cause.name == name
    assert message in cause.sentence
    assert advice in cause.advice


@pytest.mark.parametrize(
    ("error", "memory_gb", "advice"),
    [
        ("KeyError", 0.5, "`dreamgym check --env mine:Game --tasks 30` may find"),
        ("MemoryError", 0.5, "Raise env.worker_memory_gb, which is 0.5."),
        ("MemoryError", 0.0, "`dreamgym check --env mine:Game --tasks 30` may find"),
    ],
)
def test_the_advice_on_broken_episodes_is_of_the_run(error, memory_gb, advice):
    broken = {"successes": 50, "episodes": 90, f"broken/{error}": 20}
    run = with_stage(collect=broken)._replace(env="mine:Game", memory_gb=memory_gb)
    (cause,) = causes(run)
    assert cause.advice.startswith(advice)


def test_a_sound_run_has_no_cause():
    assert causes(evidence(bc=0.4, warmstart=0.5, dream=0.6)) == []
    assert causes(scored("copying", "state_unseen", 0.0, 19)) == []  # too few
    assert causes(scored("copying", "state_unseen", 0.97, 80)) == []  # perhaps 99 %
    few_broken = STAGES["collect"] | {"broken/KeyError": 30}  # of 300
    assert causes(with_stage(collect=few_broken)) == []
    assert causes(evidence(bc=0.75, expert=0.9)) == []
    assert causes(hidden(0.12, 49)) == []
    assert causes(hidden(0.12, 90, deterministic=False)) == []  # it draws lots
    better = evidence(bc=0.4, dream=0.6, paired=gain(0.1, 0.2, 0.3))
    assert len(verdict(better)) == 2
    assert "Nothing that was measured" in diagnosis(better)


def test_advice_names_only_what_has_an_effect():
    """A budget decides how much is collected, and no expert has no weight."""
    stages = STAGES | {
        "bc": {"imitated_episodes": 7},
        "collect": {"successes": 3, "episodes": 300},
        "dream_check": {"disagrees": True, "sentence": "the dream is wrong"},
    }
    low = SOUND | {"exact": {"predictable": {"mean": 0.1, "count": 50}}}
    some = evidence(bc=0.4, stages=stages, fidelity=low)
    plain = " ".join(cause.advice for cause in causes(some))
    assert "collect.episodes" in plain
    assert "collect.expert_weight" in plain
    assert "--budget" not in plain
    none = {"evaluate/expert": {"status": "skipped: the environment has no expert"}}
    some = some._replace(
        results=some.results | {"budget": {"real_steps": 3000, "spent": 2000}},
        stages=stages | none,
    )
    advice = [cause.advice for cause in causes(some)]
    assert len(advice) == 4
    assert not any("_weight" in text or "collect.episodes" in text for text in advice)
    assert all("--budget" in text for text in advice[:3])
    assert all("expert()" in text for text in advice[:2])


def test_advice_for_recordings_asks_for_more_recordings():
    """Nothing can be collected, and a gate that nothing has closed is not named."""
    wrong = SOUND | {"exact": {"predictable": {"mean": 0.5, "count": 100}}}
    curve = [{"rollouts": 16.0, "unscored_rollouts": 14.0}]
    played = evidence(fidelity=wrong, curve=curve)
    recorded = played._replace(
        results=played.results | {"skipped": "skipped: no environment (give --env)"}
    )
    for part, source in ((played, "collect.episodes"), (recorded, "--episodes")):
        cause = dream_causes.low_fidelity(part)
        assert cause is not None
        assert f"to more episodes ({source})" in cause.advice
        assert source in collect_more(part, "collect.episodes")
        broken = module.broken_rollouts(part)
        assert broken is not None
        assert "false_abort_rate" not in broken.advice
    gated = played._replace(curve=[curve[0] | {f"unscored/{LOW_CONFIDENCE}": 3.0}])
    broken = module.broken_rollouts(gated)
    assert broken is not None
    assert "false_abort_rate" in broken.advice


def test_the_first_advice_for_the_trial_preset_is_to_take_another():
    some = evidence(bc=0.4)
    text = diagnosis(some._replace(results=some.results | {"preset": "tiny"}))
    assert "run without `--preset tiny`" in text
    assert "--preset" not in diagnosis(some)


def test_every_cause_is_checked_by_hand_here():
    checks = [
        n
        for n, f in (vars(module) | vars(dream_causes)).items()
        if getattr(f, "__annotations__", {}).get("return") == (Cause | None)
    ]
    # The lesser ones share their names, and a row above, with those that come first;
    # test_texts.py has those of texts: two, and what states forget.
    assert len(checks) == 25
