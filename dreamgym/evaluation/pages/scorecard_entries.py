"""The entries of a scorecard for people: groups of figures with explanations.

scorecard (worldmodel/fidelity) -> groups of entries, each with a line on what it means.
The terminal and the page show the same, below the leading numbers (leading_numbers.py).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from dreamgym.evaluation.leading_numbers import number_text, rate_text, training_ends


class Entry(NamedTuple):
    """One line of a scorecard: its name, its value as text, what it means."""

    label: str
    value: str
    meaning: str


class Group(NamedTuple):
    """Entries that answer one question, and the question."""

    title: str
    meaning: str
    entries: tuple[Entry, ...]


def groups(scorecard: dict[str, Any]) -> list[Group]:
    """Return everything that a scorecard holds, in groups with explanations."""
    out = [
        Group(
            "Next states",
            "How often every line of the next state is right, by what really happens.",
            (*_state_entries(scorecard), *_line_entries(scorecard)),
        ),
        Group(
            "Rewards and ends",
            "Whether steps pay and episodes end as they really do.",
            tuple(_reward_entries(scorecard)),
        ),
        Group(
            "What it makes up",
            "Whether answers are well formed, and as rich as reality where something "
            "new is revealed.",
            tuple(_content_entries(scorecard)),
        ),
        Group(
            "Does it know when it is wrong?",
            "Calibration errors are best at 0; an AUROC of 1 separates right answers "
            "from wrong ones, 0.5 is chance.",
            tuple(_confidence_entries(scorecard)),
        ),
    ]
    if "open_loop" in scorecard:
        out.append(
            Group(
                "Whole episodes",
                "The dream goes on from its own states, by the actions really taken.",
                tuple(_open_loop_entries(scorecard["open_loop"])),
            )
        )
    return out


def _state_entries(scorecard: dict[str, Any]) -> Iterator[Entry]:
    exact, share = scorecard["exact"], scorecard["share"]
    yield Entry("next state exact", rate_text(exact["all"]), "over all steps")
    for kind, label, meaning in (
        ("predictable", "predictable", "what can be known from state and action"),
        ("unchanged", "nothing changes", "the real state stays as it is"),
        ("changed", "something changes", "at least one line differs"),
        ("one_line", "... one line", "exactly one line differs"),
        ("many_lines", "... many lines", "two lines or more differ"),
        ("reveal", "reveals", "the real state shows what could not be known before"),
        ("forgotten", "seen before", "an earlier state holds it, and no text it reads"),
    ):
        if kind == "forgotten" and not share.get(kind):  # none, or an earlier version
            continue
        yield Entry(
            f"  {label} ({share[kind]:.0%} of all)", rate_text(exact[kind]), meaning
        )
    facts = scorecard["kept"]
    yield Entry(
        "known facts kept",
        rate_text(facts["all"]),
        "lines that stay, and words that stay within lines that change",
    )
    yield Entry(
        "  facts, predictable",
        rate_text(facts["predictable"]),
        "the same where all can be known",
    )
    yield Entry(
        "  facts, reveals",
        rate_text(facts["reveal"]),
        "a reveal excuses only what is new",
    )
    copying = scorecard["copying"]
    for key, label, meaning in (
        (
            "state",
            "identifiers and numbers copied",
            "of those in written lines that stand in task, history, state or action",
        ),
        (
            "state_unseen",
            "... that no training episode held",
            "these can only be copied, not remembered",
        ),
        ("reasoning", "copied in the reasoning", "the same of the reasoning trace"),
        (
            "reasoning_unseen",
            "... in the reasoning, unseen in training",
            "the same where no training episode held them",
        ),
    ):
        yield Entry(label, rate_text(copying[key]), meaning)
    yield Entry(
        "baseline: repeat the state",
        rate_text(scorecard["copy"]["all"]),
        "how often it would be right to answer that nothing changes",
    )
    if "ceiling" in scorecard:
        yield Entry(
            "the real environment, replayed",
            rate_text(scorecard["ceiling"]),
            "the best that can be reached: below 100 % where transitions are random",
        )


def _line_entries(scorecard: dict[str, Any]) -> Iterator[Entry]:
    lines = scorecard["lines"]
    yield Entry(
        "changed lines: precision",
        rate_text(lines["precision"]),
        "of the lines that the dream changes, those it changes rightly",
    )
    yield Entry(
        "changed lines: recall",
        rate_text(lines["recall"]),
        "of the lines that really change, those that the dream changes rightly",
    )


def _reward_entries(scorecard: dict[str, Any]) -> Iterator[Entry]:
    reward, done = scorecard["reward"], scorecard["done"]
    near = reward["near_misses"]
    usual = f"{reward['usual']:g}"
    for label, rate, meaning in (
        ("reward right", reward["accuracy"], "over all steps"),
        (
            "unusual rewards found",
            reward["recall"],
            f"real rewards other than the usual {usual}, predicted as they are",
        ),
        (
            "unusual rewards made up",
            reward["false_positives"],
            f"predicted where it is the usual {usual}: a policy could exploit them",
        ),
        (
            f"rewarded one step too early ({near['known']} verified)",
            near,
            "a winning action before it can win, which the dream pays nevertheless",
        ),
        ("end right", done["accuracy"], "goes on, won or lost, over all steps"),
        (
            "all ends found",
            done["recall"],
            "real ends, predicted as won or lost rightly",
        ),
        (
            "ends found, predictable",
            done["predictable"],
            "the same where the next state follows from what is known",
        ),
        (
            "ends made up",
            done["false_positives"],
            "ends predicted where the episode goes on",
        ),
    ):
        yield Entry(label, rate_text(rate), meaning)
    if (ends := training_ends(scorecard)) is not None:
        yield Entry(
            "ends of training episodes found",
            rate_text(ends),
            "ends that the dream was fitted to, asked where dev episodes hold few",
        )


def _content_entries(scorecard: dict[str, Any]) -> Iterator[Entry]:
    reveals = scorecard["reveals"]
    for label, value, meaning in (
        (
            "malformed replies",
            rate_text(scorecard["malformed"]),
            "answers that are no state, reward and outcome",
        ),
        (
            "names what no one mentioned",
            rate_text(scorecard["hallucinated"]),
            "words found neither in the task, the history nor the real next state",
        ),
        (
            "reveals: in the form of a real state",
            rate_text(reveals["form"]),
            "lines begin and follow one another as in real states",
        ),
        (
            "reveals: new words, of the real number",
            number_text(reveals["informativeness"]),
            "1 is as much as reality reveals",
        ),
        (
            "reveals: distinct states, of the real number",
            number_text(reveals["diversity"]),
            "1 is as varied as reality; near 0 the dream always shows the same",
        ),
    ):
        yield Entry(label, value, meaning)
    follows = scorecard.get("instruction")
    if follows:
        words = ", ".join(follows["words"][:8]) or "none"
        yield Entry(
            "reveals: shown where the instruction says so",
            rate_text(follows["shown"]),
            f"words of the instruction that depend on the place: {words}",
        )
        yield Entry(
            "reveals: shown where it says otherwise",
            rate_text(follows["elsewhere"]),
            "the same words; a dream that ignores the instruction shows them anywhere",
        )


def _confidence_entries(scorecard: dict[str, Any]) -> Iterator[Entry]:
    confidence = scorecard["confidence"]
    yield Entry(
        "confidence: calibration error",
        number_text(confidence["calibration_error"]),
        "mean distance between confidence and share of right answers",
    )
    for name, label in (("earns", "a reward"), ("ends", "an end")):
        errors = scorecard["probabilities"][name]
        yield Entry(
            f"probability of {label}: calibration error, scaled",
            f"{number_text(errors['calibration_error'])}, "
            f"{number_text(errors['calibrated_error'])}",
            "as the model gives it, and after scaling on other tasks",
        )
    detectors = scorecard.get(
        "error_detection_auroc", {"confidence": confidence["auroc"]}
    )
    for name, value in detectors.items():
        yield Entry(
            f"wrong answers detected by {name} (AUROC)",
            number_text(value),
            "whether this signal is lower for wrong answers",
        )
    if scorecard.get("consistency") is not None:
        yield Entry(
            "consistency under other noise",
            number_text(scorecard["consistency"]),
            "share of further samples that give the same answer",
        )
    for name, statistic in scorecard.get("missing_probability", {}).items():
        yield Entry(
            f"1 - p(real next state), {name}",
            number_text(statistic["mean"]),
            "probability that the model does not give to what really happens",
        )


def _open_loop_entries(drift: dict[str, Any]) -> Iterator[Entry]:
    outcomes = drift["outcomes"]
    for key, label, meaning in (
        ("agree", "success as in reality", "won in the dream if and only if won"),
        ("real_success", "really won", "of the same episodes"),
        ("dreamed_success", "won in the dream", "of the same episodes"),
        (
            "over_optimistic",
            "lost episodes that the dream wins",
            "it is too optimistic",
        ),
        (
            "over_pessimistic",
            "won episodes that the dream loses",
            "it is too pessimistic",
        ),
        (
            "broken",
            "dreams that break off",
            "at a malformed reply; they agree with no outcome",
        ),
    ):
        if key in outcomes:  # scorecards of older versions do not have all
            yield Entry(f"open loop: {label}", rate_text(outcomes[key]), meaning)
    for name, label in (("exact", "all"), ("predictable", "predictable")):
        for step in (1, 4, 8, 16):
            if step <= len(drift[name]):
                yield Entry(
                    f"open loop, {label}: exact after {step}",
                    rate_text(drift[name][step - 1]),
                    f"the dreamed state is the real one after {step} "
                    f"step{'s' * (step > 1)}",
                )
