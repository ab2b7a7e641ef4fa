"""Likely causes of a disappointing run that lie in its dream.

The scorecard and the numbers of stages -> what the experience model gets wrong, and
what to change. All are pure functions; causes.py puts them in order.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dreamgym.evaluation.diagnosis.evidence import Cause, Evidence, fit_more
from dreamgym.evaluation.dream_check import describe_unmeasured
from dreamgym.evaluation.leading_numbers import (
    FEW_ENDS,
    FEW_IDENTIFIERS,
    FEW_STATES,
    REQUIRED,
    REQUIRED_COPIES,
    ends_found,
    level_of,
)
from dreamgym.evaluation.statistics import percent

LOW_FIDELITY = 0.6
LOW_ENDS = 0.8
WEAK_ENDS = 0.95
"""The same for a cause that is named only where there is no other one."""
HIDDEN = 0.03
"""Share of the repeated steps that contradict each other above which something that
decides is hidden."""
FEW_REPEATED = 50
"""Repeated steps below which this share says little."""
ONE_LINE, MANY_TOKENS = 1.1, 30
"""Mean lines of a state up to which it counts as one line, and its tokens from which on
it is a long one."""
UNWRITABLE = 0.01
"""Share of lines and actions from which on a tokenizer does not fit them."""
MANY_MISSING = 0.2
"""Share of the wrong next states that lack a word which the state does not hold, above
which a longer fit does not help alone."""
MANY_FORGOTTEN = 0.1
"""Share of the steps that show what is forgotten from which on it is named."""
FEW_WRONG = 20
"""Wrong next states below which that share says little."""
LOW_AGREEMENT = 0.8
"""Balanced accuracy of reveals that follow from the instruction; 0.5 is chance."""


def hidden_state(evidence: Evidence) -> Cause | None:
    """Return a cause if equal steps had different results, and no lots are drawn."""
    figure = evidence.figure("hidden_state")
    if figure["count"] < FEW_REPEATED or figure["mean"] <= HIDDEN:
        return None
    if not evidence.number("collect", "deterministic"):
        return None
    return Cause(
        "hidden state",
        f"Of {figure['count']} recorded steps that were taken more than once, with the "
        f"same task, state and last actions, {percent(figure['mean'])} had another "
        "result than the others: what decides stands in none of them.",
        "Write it into the state, or let the models read more of the past "
        "(experience.history, policy.history).",
    )


def garbled_identifiers(evidence: Evidence) -> Cause | None:
    """Return a cause if identifiers of the context are not reproduced exactly."""
    figure = evidence.figure("copying", "state_unseen")
    if figure["count"] < FEW_IDENTIFIERS or figure["mean"] >= REQUIRED:
        return None
    return _garbled(figure)


def some_garbled_identifiers(evidence: Evidence) -> Cause | None:
    """Return a cause if surely fewer identifiers are reproduced than are required."""
    figure = evidence.figure("copying", "state_unseen")
    if figure["count"] < FEW_IDENTIFIERS:
        return None
    if level_of(dict(figure), REQUIRED_COPIES) != "bad":
        return None
    return _garbled(figure)


def _garbled(figure: Mapping[str, Any]) -> Cause:
    return Cause(
        "garbled identifiers",
        f"The dream reproduces {percent(figure['mean'])} of {figure['count']} "
        "identifiers and numbers that it can only copy from its context.",
        "Fit it longer (pretrain.fit.steps), or take a larger --model.",
    )


def unwritable_text(evidence: Evidence) -> Cause | None:
    """Return a cause if the tokenizer cannot write some lines or actions."""
    share = evidence.number("pretrain", "unwritable_texts") or 0.0
    if share < UNWRITABLE:
        return None
    return Cause(
        "unwritable text",
        f"The model's tokenizer cannot write {percent(share)} of the lines of states "
        "and of the actions.",
        "Take a model with a byte-level tokenizer, or write the states in the words "
        "that it has.",
    )


def long_lines(evidence: Evidence) -> Cause | None:
    """Return a cause if states are one long line, and next states are often wrong."""
    lines = evidence.number("pretrain", "lines_per_state")
    tokens = evidence.number("pretrain", "tokens_per_state") or 0
    figure = evidence.figure("exact", "predictable")
    if figure["mean"] is None or figure["mean"] >= REQUIRED:
        return None
    if not lines or lines > ONE_LINE or tokens < MANY_TOKENS:
        return None
    return Cause(
        "long lines",
        f"A state is one line of {tokens:.0f} tokens, of which the dream writes all "
        f"between the first and the last change, and {percent(figure['mean'])} of "
        f"{figure['count']} predictable next states are right.",
        "Write one fact a line: SplitLines of dreamgym.envs.wrappers splits prose and "
        "JSON.",
    )


def forgotten_states(evidence: Evidence) -> Cause | None:
    """Return a cause if many next states show what was seen and no model reads."""
    scorecard = evidence.results.get("fidelity") or {}
    share = scorecard.get("share", {}).get("forgotten", 0.0)
    figure = evidence.figure("exact", "forgotten")
    if figure["count"] < FEW_STATES or share < MANY_FORGOTTEN:
        return None
    return Cause(
        "forgotten states",
        f"{percent(share)} of the steps show again what an earlier state of the "
        "episode held and nothing that the dream reads holds: it has to invent it, and "
        f"has {percent(figure['mean'])} of these {figure['count']} next states right.",
        "Keep it in the state (KeepLines or RecentReplies of dreamgym.envs.wrappers), "
        "or let the dream read past states (experience.history_states).",
    )


def low_fidelity(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream is often wrong about predictable states."""
    return _states_below(evidence, LOW_FIDELITY)


def mediocre_states(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream is sometimes wrong about predictable states."""
    return _states_below(evidence, REQUIRED)


def _states_below(evidence: Evidence, threshold: float) -> Cause | None:
    figure = evidence.figure("exact", "predictable")
    if figure["mean"] is None or figure["count"] < FEW_STATES:
        return None
    if figure["mean"] >= threshold:
        return None
    return Cause(
        "low fidelity",
        f"The dream has {percent(figure['mean'])} of {figure['count']} predictable "
        "next states right.",
        " ".join([fit_more(evidence), *_missing_words(evidence)]),
    )


def _missing_words(evidence: Evidence) -> Iterator[str]:
    """Yield sentences on wrong next states that a longer fit cannot mend."""
    for name, which, advice in (
        (
            "earlier",
            "that earlier states of the episode hold and the present one does not",
            "Keep it in the state (KeepLines or RecentReplies of "
            "dreamgym.envs.wrappers).",
        ),
        (
            "new",
            "that the episode had not shown before",
            "If nobody could know it (what lies in a drawer), let the environment "
            'say so (info["reveals"]): else it counts as an error.',
        ),
    ):
        figure = evidence.figure("missing_words", name)
        if figure["count"] >= FEW_WRONG and figure["mean"] > MANY_MISSING:
            yield (
                f"Of {figure['count']} wrong ones, {percent(figure['mean'])} lack a "
                f"word {which}. {advice}"
            )


def low_ends(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream misses ends of episodes."""
    return _ends_below(evidence, LOW_ENDS)


def mediocre_ends(evidence: Evidence) -> Cause | None:
    """Return a cause if the dream misses some ends of episodes."""
    return _ends_below(evidence, WEAK_ENDS)


def unmeasured_dream(evidence: Evidence) -> Cause | None:
    """Return a cause if the dev episodes hold nothing to measure the dream by."""
    scorecard = evidence.results.get("fidelity")
    sentence = describe_unmeasured(scorecard) if scorecard else ""
    if not sentence:
        return None
    return Cause(
        "unmeasured dream",
        f"{sentence[0].upper()}{sentence[1:]}.",
        "More dev episodes that reach an end (collect.dev_tasks, or a larger step "
        "limit, env.max_episode_steps), and states that say what an action led to, "
        "would show whether it can be trusted.",
    )


def _ends_below(evidence: Evidence, threshold: float) -> Cause | None:
    scorecard = evidence.results.get("fidelity")
    figure = ends_found(scorecard) if scorecard else evidence.figure("done", "recall")
    if figure["mean"] is None or figure["count"] < FEW_ENDS:
        return None
    if figure["mean"] >= threshold:
        return None
    return Cause(
        "missed ends",
        f"The dream finds {percent(figure['mean'])} of {figure['count']} ends.",
        "Weigh rare rewards and ends (pretrain.rare_event_share), and "
        + ("record" if evidence.is_recorded() else "collect")
        + " more episodes that end.",
    )


def ignored_instruction(evidence: Evidence) -> Cause | None:
    """Return a cause if reveals of the dream do not show what the instruction says."""
    agree, mentioned, elsewhere = (
        evidence.figure("instruction", name) for name in ("agree", "shown", "elsewhere")
    )
    if agree["mean"] is None or agree["mean"] >= LOW_AGREEMENT:
        return None
    scorecard = evidence.results.get("fidelity") or {}
    words = ", ".join(scorecard["instruction"]["words"][:3])
    return Cause(
        "ignored instruction",
        "The dream does not show what the instruction says: where that says that "
        f"something ({words}) is there, it shows it in {percent(mentioned['mean'])} of "
        f"{mentioned['count']} reveals, and in {percent(elsewhere['mean'])} of "
        f"{elsewhere['count']} others.",
        "A policy cannot learn from it to follow the instruction. "
        + fit_more(evidence),
    )


def wrong_about_policy(evidence: Evidence) -> Cause | None:
    """Return a cause if dream and environment disagree about the warm start."""
    if not evidence.number("dream_check", "disagrees"):
        return None
    sentence = str(evidence.number("dream_check", "sentence"))
    return Cause(
        "wrong about the policy",
        f"{sentence[0].upper()}{sentence[1:]}.",
        (
            "Collect episodes like the policy's own (collect.noisy_weight), refit with "
            "them, "
            if evidence.has_expert()
            else "Refit with episodes of the policy (`dreamgym refit`), "
        )
        + "and weigh rare rewards and ends (pretrain.rare_event_share).",
    )


CHECKS = (
    hidden_state,
    forgotten_states,
    unwritable_text,
    long_lines,
    garbled_identifiers,
    low_fidelity,
    low_ends,
    ignored_instruction,
    wrong_about_policy,
)
LESSER_CHECKS = (
    mediocre_states,
    mediocre_ends,
    some_garbled_identifiers,
    unmeasured_dream,
)
"""Named only where there is no other cause."""
