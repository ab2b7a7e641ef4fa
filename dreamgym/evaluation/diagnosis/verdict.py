"""The verdict on a run: numbers to sentences.

evidence (causes.py) -> what was learnt, what was not, the likely cause. All are pure
functions; `verdict` is what a run ends with, `diagnosis` what `dreamgym doctor` prints.
"""

import math
from collections.abc import Mapping
from typing import Any

from dreamgym.evaluation.diagnosis.causes import FEW_GAMES, cause_of_stage, causes
from dreamgym.evaluation.diagnosis.evidence import Evidence
from dreamgym.evaluation.leading_numbers import low_numbers
from dreamgym.evaluation.off_policy import sentences as off_policy_sentences
from dreamgym.evaluation.statistics import (
    difference_text,
    percent,
    rate_difference,
)

LOW_EXPERT = 0.9
UNEXPLAINED = (
    "Nothing that was measured explains it: `dreamgym show RUN` shows the dream beside "
    "reality, and test/POLICY.jsonl what a policy did."
)
UNEXPLAINED_WITHOUT_DREAM = (
    "Nothing that was measured explains it: test/POLICY.jsonl shows what a policy did."
)
BENEFIT = "Dreaming paid"
"""How the sentence begins that says that the run with the dream beat real play."""
TRIAL_PRESET = "tiny"
"""The preset that tries every stage and whose models learn next to nothing."""


_START = {
    "warmstart": "bc",
    "expert_iteration": "warmstart",
    "train": "expert_iteration",
    "s2r": "dream",
    "planner": "s2r",
}
"""The policy that a stage begins at, and keeps where it did not help."""
_STAGE_NAMES = {
    "warmstart": "The warm start",
    "expert_iteration": "Expert iteration",
    "train": "The dream policy",
    "s2r": "The policy s2r",
    "planner": "The planner",
}
"""The stages of which the verdict quotes the note, and how it calls their policies."""
_OF_DREAM = (
    "expert_iteration_minus_warmstart",
    "dream_minus_expert_iteration",
    "dream_minus_warmstart",
)
"""The comparisons that say what a dream was worth."""
_MAKERS = {
    "warmstart_minus_bc": ("warmstart",),
    "expert_iteration_minus_warmstart": ("expert_iteration",),
    "dream_minus_expert_iteration": ("train",),
    "dream_minus_warmstart": ("train",),
    "s2r_minus_dream": ("s2r",),
    "planner_minus_s2r": ("planner",),
}
"""The stages of which one must have changed the policy for a comparison to say more.

Where the stage `train` changed nothing, the comparison of expert iteration says it."""


def verdict(evidence: Evidence) -> list[str]:
    """Return the sentences that a run ends with."""
    out = [*outcome_sentences(evidence), *training_sentences(evidence)]
    if _is_disappointing(evidence):
        likely_causes = causes(evidence)
        if not likely_causes:
            asks = evidence.asks_dream()
            out.append(UNEXPLAINED if asks else UNEXPLAINED_WITHOUT_DREAM)
        elif not any(likely_causes[0].text() in sentence for sentence in out):
            out.append(f"Likely cause of the run's result: {likely_causes[0].text()}")
        if len(likely_causes) > 1:
            out.append(
                f"`dreamgym doctor RUN` names {len(likely_causes) - 1} more: "
                + ", ".join(cause.name for cause in likely_causes[1:])
                + "."
            )
    return out


def outcome_sentences(evidence: Evidence) -> list[str]:
    """Return sentences on the test results of all policies, chance and the expert."""
    trained = evidence.trained()
    if not trained and evidence.results.get("off_policy"):
        copies = evidence.results.get("copies", {})
        return off_policy_sentences(evidence.results["off_policy"], copies)
    if not trained:
        return ["No policy was scored on real test games."]
    games = max(
        evidence.results["policies"][name]["success"]["episodes"] for name in trained
    )
    earned = evidence.returns()
    # Of policies that win as much, the one that earned most, such as in fewer steps.
    best = max(trained, key=lambda name: (trained[name], earned.get(name, -math.inf)))
    if trained[best] == 0.0:
        out = [_never_won(evidence, games)]
    else:
        out = [
            f"The best policy is {best}: it wins {percent(trained[best])} of games"
            f"{_interval_of(evidence.results['policies'][best]['success'])}."
        ]
    out += _chance_sentences(evidence, trained)
    expert = evidence.success("expert")
    if expert is not None and expert < LOW_EXPERT:
        out.append(
            f"The expert itself wins {percent(expert)}: its plans may be longer than "
            "the step limit, or its games draw lots."
        )
    return out


def _interval_of(success: Mapping[str, Any]) -> str:
    """Return the interval of a success rate where the games are few, else nothing."""
    if success["episodes"] >= FEW_GAMES:
        return ""
    low, high = (percent(success[x]) for x in ("low", "high"))
    return f" ({low} to {high} by the 95 % interval of {success['episodes']} games)"


def _never_won(evidence: Evidence, games: int) -> str:
    """Return what was learnt where no policy wins, by what they earn."""
    never = f"All policies win 0 of {games} test games"
    earned = evidence.returns()
    trained = [name for name in evidence.trained() if name in earned]
    best = max(trained, key=lambda name: earned[name], default="")
    floors = {n: earned[n] for n in ("random", "bc") if n in earned and n != best}
    if not best or not floors or earned[best] <= max(floors.values()):
        return f"{never}: nothing was learnt."
    compared = ", ".join(f"{name} {x:.3g}" for name, x in floors.items())
    return (
        f"{never}. By what they earn the best one is {best}, with a return of "
        f"{earned[best]:.3g} ({compared})."
    )


def _chance_sentences(evidence: Evidence, trained: Mapping[str, float]) -> list[str]:
    """Return how the trained policies, and the expert, compare with no training.

    That is random play or the untrained policy, whichever wins more: one sentence for
    both.
    """
    chance, expert = evidence.success("random") or 0.0, evidence.success("expert")
    floor, untrained = chance, evidence.success("untrained") or 0.0
    player = "A random choice among valid actions"
    if untrained > chance:
        shield = ", kept to the valid actions (policy.shield),"
        has_shield = bool(evidence.number("shield", "shield"))
        floor, player = untrained, "The untrained policy" + shield * has_shield
    if not floor:
        return []
    below = [name for name, rate in trained.items() if floor > rate]
    comparison = f"{player} wins {percent(floor)}"
    if len(below) == len(trained):
        out = [f"{comparison}, more than every trained policy."]
    elif floor == max(trained.values()):
        out = [f"{comparison}, as many as the best policy: nothing better was learnt."]
    else:
        out = [f"{comparison}, more than {', '.join(below)}."] if below else []
    if chance and expert is not None and LOW_EXPERT <= expert <= chance:
        out.append(
            "The expert wins no more than a random choice: success does not tell good "
            "play from bad here. Report info['success'] where the task is solved."
        )
    return out


def training_sentences(evidence: Evidence) -> list[str]:
    """Return sentences on the effects of early experience and training in the dream."""
    out = []
    paired = evidence.results.get("paired", {})
    for key, what in (
        ("warmstart_minus_bc", "Early experience"),
        ("expert_iteration_minus_warmstart", "Imitating what was won in the dream"),
        ("dream_minus_expert_iteration", "Trust-region updates in the dream"),
        ("dream_minus_warmstart", "Training in the dream"),
        ("s2r_minus_dream", "Fine-tuning in the real environment"),
        ("planner_minus_s2r", "Planning in the dream at play"),
    ):
        if key == "dream_minus_expert_iteration" and (
            evidence.number("expert_iteration", "kept") == "warmstart"
        ):
            continue  # the difference to the warm start says it
        if key in _OF_DREAM and not evidence.asks_dream():
            continue
        makers = _MAKERS.get(key, ())
        if makers and all(evidence.number(s, "kept") == _START[s] for s in makers):
            continue  # one policy under two names
        if key in paired and paired[key]["mean"] is not None:
            out.append(_change(what, paired[key]))
    out += _against_real_play(evidence)
    if evidence.number("shield", "shield"):
        share = percent(evidence.number("shield", "dev_invalid_actions"))
        reason = evidence.number("shield", "reason")
        out.append(
            "The policies keep to the actions that the environment lists as valid "
            "(policy.shield): "
            f"{reason or f'{share} of the actions of bc were invalid'}."
        )
    remedy = evidence.number("dream_check", "remedy")
    if remedy and remedy["helped"]:
        out.append(f"The dream was refitted before training, because {_cause(remedy)}.")
    out += _nothing_to_gain(evidence)
    for stage, name in _STAGE_NAMES.items():
        if evidence.number(stage, "nothing_to_gain"):
            continue
        if note := evidence.number(stage, "note"):
            cause = _cause_of_note(evidence, stage)
            repeated = not cause or any(cause in sentence for sentence in out)
            real = stage == "train" and not evidence.asks_dream()
            title = "Training in the real environment" if real else name
            out.append(f"{title}: {note}." + ("" if repeated else f" {cause}"))
    return out


def _cause_of_note(evidence: Evidence, stage: str) -> str:
    """Return the cause of what the note of a stage says, "" where the note states it.

    A decision by rule, as where the environment draws lots, has no further cause.
    """
    is_by_rule = evidence.number(stage, "by_rule")
    return "" if is_by_rule else cause_of_stage(evidence, stage)


def _against_real_play(evidence: Evidence) -> list[str]:
    """Return whether the dream paid: the run's last policy against real play.

    Nothing of a run whose dream was refused: its policies are of real play, too. A run
    with a budget has no control of its own.
    """
    is_refused = _is_refused(evidence)
    if evidence.results.get("budget"):
        return _advice_on_control(evidence, is_refused)
    comparison = None if is_refused else _real_play_difference(evidence.results)
    if comparison is None:
        return []
    difference, text = comparison
    if not has_learnt_in_dream(evidence):
        return [
            "No policy of this run learnt in its dream, so nothing is known of whether "
            f"dreaming pays: {text}."
        ]
    if difference["low"] > 0:
        return [f"{BENEFIT}: {text}.{_despite_scorecard(evidence)}"]
    if difference["high"] < 0:
        return [
            f"Dreaming did not pay here: {text}. Where real steps are cheap, play on: "
            "transfer.real_transitions."
        ]
    return [f"Whether dreaming paid cannot be told by these games: {text}."]


def _is_refused(evidence: Evidence) -> bool:
    """Return whether the dream was refused, so that nothing was trained in it."""
    check = evidence.stages.get("dream_check", {})
    return bool(check.get("refused")) and not check.get("forced")


def has_learnt_in_dream(evidence: Evidence) -> bool:
    """Return whether a policy of the run was trained or planned in its dream.

    A stage whose numbers do not say what it kept may have done so.
    """
    if _is_refused(evidence):
        return False
    if evidence.number("expert_iteration", "kept") != "warmstart":
        return True
    if evidence.number("train", "kept") in (None, "dream"):
        return True
    if evidence.number("planner", "kept") == "planner":
        return True
    if evidence.number("s2r", "kept") == "dream":
        return False
    rounds = evidence.number("s2r", "rounds") or []
    dreamed = ("dreamed_demonstrations", "dreamed_success")
    return any(row.get(name) for row in rounds for name in dreamed)


def _real_play_difference(
    results: Mapping[str, Any],
) -> tuple[Mapping[str, Any], str] | None:
    """Return the last policy's difference to real play without a dream, and its text.

    None where they played no games that both have a score of.
    """
    paired, control = results.get("paired", {}), "real_only_total"
    for policy in ("planner", "s2r"):
        difference = paired.get(f"{policy}_minus_{control}")
        if difference is not None and difference["mean"] is not None:
            break
    else:
        return None
    rows = results["policies"]
    steps = [rows[name].get("real_transitions", 0) for name in (policy, control)]
    return difference, (
        f"{difference_text(difference)} between {policy}, with {steps[0]:,} real "
        f"steps, and real play without a dream ({control}), with {steps[1]:,}"
    )


def _despite_scorecard(evidence: Evidence) -> str:
    """Return a sentence on the scorecard of a dream that paid, where it is bad."""
    scorecard = evidence.results.get("fidelity")
    low = low_numbers(scorecard) if scorecard else ""
    if not low:
        return ""
    return (
        f" By its scorecard it was not to be trusted ({low}); real games have the last "
        "word."
    )


def benefit_sentence(results: Mapping[str, Any]) -> str:
    """Return a sentence on real games in which the dream paid, '' where none say so.

    It stands beside a scorecard that says not to trust the dream. A dream that was
    refused is in no policy, so that nothing paid.
    """
    if not any(str(s).startswith(BENEFIT) for s in results.get("verdict") or []):
        return ""
    comparison = _real_play_difference(results)
    return "" if comparison is None else f"In real games it paid: {comparison[1]}."


def _advice_on_control(evidence: Evidence, is_refused: bool) -> list[str]:
    """Return how a run with a budget, which has no control, finds out if dreaming paid.

    Nothing where no dream was asked: the run is that control.
    """
    if evidence.number("dream_check", "forced") is None:
        return []
    budget = evidence.results["budget"]
    steps, required = budget["real_steps"], budget.get("control_minimum", 0)
    command = f"`dreamgym control real-play --budget {steps}` with this run's settings"
    if steps < required:
        return [
            f"Whether dreaming paid is not known: {steps:,} real steps are too few for "
            "the control without a dream (`dreamgym control real-play`), which takes "
            f"at least {required:,} here."
        ]
    if is_refused:
        return [
            "The dream was refused, so what was collected to fit it taught no policy: "
            f"{command} spends these steps on real play."
        ]
    return [
        f"Whether dreaming paid is not known: a budget pays for no control. {command} "
        "plays without a dream, and `dreamgym compare` sets it beside this run."
    ]


def _nothing_to_gain(evidence: Evidence) -> list[str]:
    """Return one sentence on the stages that began with a policy that won all games."""
    stages = [s for s in _STAGE_NAMES if evidence.number(s, "nothing_to_gain")]
    if not stages:
        return []
    return [
        f"The policy {evidence.number(stages[0], 'kept')} wins all real dev games, so "
        f"there was nothing to gain from {', '.join(stages)} (dream_check.force goes "
        "on all the same)."
    ]


def _cause(remedy: Mapping[str, Any]) -> str:
    """Return why a dream was refitted, without the details of its episodes."""
    return str(remedy["before"]).split(": ")[0]


def _change(what: str, difference: Mapping[str, Any]) -> str:
    low, high = difference["low"], difference["high"]
    text = f"{difference_text(difference)} over {difference['episodes']} games"
    if low > 0:
        return f"{what} made the policy better: {text}."
    if high < 0:
        return f"{what} made the policy worse: {text}."
    return f"{what} changed nothing that these games can show: {text}."


def _is_disappointing(evidence: Evidence) -> bool:
    """Whether nothing better than chance, or nothing better by training, came of it.

    A policy that wins all games is never disappointing unless random play does so, too.
    """
    trained = evidence.trained()
    chance = evidence.success("random") or 0.0
    if not trained or max(trained.values()) <= chance:
        return True
    if max(trained.values()) >= 1:
        return False
    if not _beats_untrained(evidence, max(trained, key=trained.__getitem__)):
        return True
    if evidence.number("expert_iteration", "nothing_to_gain"):
        return False
    gain = evidence.results.get("paired", {}).get("dream_minus_warmstart")
    return gain is None or gain["mean"] is None or gain["low"] <= 0


def _beats_untrained(evidence: Evidence, policy: str) -> bool:
    """Return whether a policy wins more than the untrained one, by more than chance.

    Also where the untrained one has won no game, or has played none.
    """
    if not evidence.success("untrained"):
        return True
    better, worse = (
        evidence.results["policies"][name]["success"] for name in (policy, "untrained")
    )
    counts = better["episodes"], worse["episodes"]
    return rate_difference(better["mean"], worse["mean"], counts)[0] > 0


def diagnosis(evidence: Evidence) -> str:
    """Return the verdict with all causes, as text of several lines."""
    out = [*outcome_sentences(evidence), *training_sentences(evidence), ""]
    likely_causes = causes(evidence)
    if evidence.results.get("preset") == TRIAL_PRESET:
        out.append(
            f"The preset {TRIAL_PRESET} tries every stage with small models that learn "
            "next to nothing; before anything else, run without `--preset "
            f"{TRIAL_PRESET}`."
        )
    if not likely_causes:
        out.append("Nothing that was measured explains more than this.")
    else:
        out.append("What may have been too little, what to change first:")
        out += [f"{i + 1}. {cause.text()}" for i, cause in enumerate(likely_causes)]
    return "\n".join(out)
