"""The numbers of a scorecard that decide whether to trust a dream, and its verdict.

scorecard (worldmodel/fidelity) -> leading numbers with their intervals -> a sentence.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.evaluation.statistics import wilson_of

Rate = dict[str, Any]
"""{mean, count, effective}, see worldmodel/data/rates.py."""
REQUIRED = 0.9
"""What a leading number should reach, by the lower end of its interval."""
REQUIRED_COPIES = 0.99
"""The same for the identifiers copied: one wrong character breaks a call."""
STATES = "right next states"
NO_BETTER = (
    "To repeat the state would be right at least as often, so this share alone does "
    "not show that it knows what changes."
)
NO_CHANGES = (
    "Nothing changes in the steps that the right next states are counted in: they do "
    "not show whether the dream knows what changes."
)
FEW_STATES = 8
"""Next states below which a dream is not trusted, however right they are."""
FEW_ENDS = 8
"""Ends that follow from what is known below which all ends are counted."""
FEW_IDENTIFIERS = 20
"""Identifiers that no training episode held below which copying decides little."""


class Part(NamedTuple):
    """A rate of a leading number: its name, the rate, and what its interval says.

    `level` is "good" where the whole interval is at least `required`, "bad" where it is
    below, "open" where it holds `required`, and "unknown" without a case.
    """

    label: str
    rate: Rate | None
    level: str
    required: float = REQUIRED

    @property
    def percent(self) -> str:
        """The rate alone."""
        if self.rate is None or self.rate["mean"] is None:
            return "–"  # noqa: RUF001
        return f"{100 * self.rate['mean']:.0f} %"

    @property
    def interval_text(self) -> str:
        """The 95 % interval."""
        if self.rate is None or self.rate["mean"] is None:
            return ""
        low, high = interval(self.rate)
        return f"{100 * low:.0f} to {100 * high:.0f} %"

    @property
    def cases_text(self) -> str:
        """The number of cases."""
        count = 0 if self.rate is None else self.rate["count"]
        return f"{count} case{'s' * (count != 1)}"


class Leading(NamedTuple):
    """One of the numbers that decide, in one part or two."""

    title: str
    meaning: str
    parts: tuple[Part, ...]


def interval(rate: Rate) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate by its effective number of cases."""
    return wilson_of(rate["mean"], max(rate["effective"], 1.0))


def rate_text(rate: Rate | None) -> str:
    """Format a rate with its Wilson interval and number of cases.

    The interval is that of the effective number of cases, where these weigh unequally.
    """
    if rate is None or rate["mean"] is None:
        return "- (n=0)"
    low, high = interval(rate)
    return f"{rate['mean']:6.1%} [{low:.1%}, {high:.1%}] n={rate['count']}"


def number_text(value: float | None) -> str:
    """Return a number for people, a dash where it is unknown."""
    return "-" if value is None else f"{value:.3f}"


def level_of(rate: Rate, required: float) -> str:
    """Return the level of a rate that has cases; see Part."""
    low, high = interval(rate)
    return "good" if low >= required else "bad" if high < required else "open"


def _part(label: str, rate: Rate | None, required: float = REQUIRED) -> Part:
    if rate is None or rate["mean"] is None:
        return Part(label, rate, "unknown", required)
    return Part(label, rate, level_of(rate, required), required)


def ends_found(scorecard: Mapping[str, Any]) -> Rate:
    """Return the share of the real ends that the dream finds.

    Ends at which the next state reveals what nobody could know are left out, unless
    fewer than FEW_ENDS are left then.
    """
    ends = scorecard["done"]
    part = ends.get("predictable")
    return part if part and part["count"] >= FEW_ENDS else ends["recall"]


def training_ends(scorecard: Mapping[str, Any]) -> Rate | None:
    """Return the share of the ends of training episodes that the dream finds.

    It is measured where the dev episodes hold fewer than FEW_ENDS: a dream that has not
    learned these finds hardly any others. None where it was not measured.
    """
    return scorecard.get("training_ends")


def leading(scorecard: dict[str, Any]) -> list[Leading]:
    """Return the numbers that decide whether a dream can be used.

    The one about the instruction is left out where no reveal follows from it, the one
    about identifiers where next states hold hardly any.
    """
    outcomes = scorecard.get("open_loop", {}).get("outcomes", {})
    numbers = [
        Leading(
            "Right next states",
            "Share of the steps of whole episodes after which every line of the state "
            "is right. Steps that reveal what nobody could know are left out."
            f"{_baseline_text(scorecard)}",
            (_part(STATES, scorecard["exact"]["predictable"]),),
        ),
        Leading(
            "Rewards and ends found",
            "Share of the real unusual rewards, and of the real ends of episodes, that "
            "the dream gives at the same step (ends that reveal what nobody could know "
            "are left out). Without them it has nothing to teach.",
            (
                _part("rewards found", scorecard["reward"]["recall"]),
                _part("ends found", ends_found(scorecard)),
            ),
        ),
        Leading(
            "Agreement on success",
            "Share of whole episodes, dreamed from their first state by the actions "
            "really taken, that are won in the dream if and only if they were really "
            "won. After a step that reveals what nobody could know they go on from the "
            "real state.",
            (_part("agreement on success", outcomes.get("agree")),),
        ),
    ]
    if (ends := training_ends(scorecard)) is not None and ends["count"]:
        numbers.insert(
            2,
            Leading(
                "Ends of training episodes found",
                "Share of the ends of the episodes that the dream was fitted to. The "
                "dev episodes hold too few to judge by; an end that was not learned "
                "from these is hardly found elsewhere.",
                (_part("ends of training episodes found", ends),),
            ),
        )
    copied = scorecard.get("copying", {}).get("state_unseen")
    if copied is not None and copied["count"] >= FEW_IDENTIFIERS:
        numbers.insert(
            1,
            Leading(
                "Identifiers copied",
                "Share of the identifiers and numbers that no training episode held, "
                "and that stand in task, history, state or action, that the next state "
                "reproduces exactly. They cannot be remembered, only copied.",
                (_part("identifiers copied", copied, REQUIRED_COPIES),),
            ),
        )
    follows = scorecard.get("instruction", {}).get("agree")
    if follows is not None and follows["count"]:
        numbers.insert(
            -1,
            Leading(
                "Reveals as the instruction says",
                "Balanced accuracy, 50 % for a dream that ignores the instruction: "
                "does a reveal show what the instruction says is there, and not show "
                "it elsewhere?",
                (_part("reveals as the instruction says", follows),),
            ),
        )
    return numbers


def _baseline(scorecard: Mapping[str, Any]) -> Rate | None:
    """Return how often it would be right to repeat the state, without reveals."""
    rate = scorecard.get("copy", {}).get("predictable")
    return rate if rate and rate["count"] else None


def _baseline_text(scorecard: Mapping[str, Any]) -> str:
    rate = _baseline(scorecard)
    if rate is None:
        return ""
    return f" To repeat the state would be right in {_percent(rate['mean'])}."


def _is_baseline(scorecard: Mapping[str, Any]) -> bool:
    """Return whether the dream's next states are no better than the state repeated."""
    baseline, right = _baseline(scorecard), scorecard["exact"]["predictable"]
    return baseline is not None and right["mean"] <= baseline["mean"]


def verdict(scorecard: dict[str, Any]) -> str:
    """Return a sentence or two on whether policies can be trained in this dream.

    `real_games` of a scorecard, if it has it, is what real games say of its run; it
    follows where the scorecard says not to trust the dream.
    """
    parts = [part for number in leading(scorecard) for part in number.parts]
    sentence = _verdict(parts)
    if low_numbers(scorecard) and scorecard.get("real_games"):
        sentence += f" {scorecard['real_games']}"
    baseline = _baseline(scorecard)
    if baseline is not None and baseline["mean"] == 1.0:
        return f"{sentence} {NO_CHANGES}"
    if _is_baseline(scorecard) and not any(p.level == "bad" for p in parts):
        return f"{sentence} {NO_BETTER}"
    return sentence


def low_numbers(scorecard: dict[str, Any]) -> str:
    """Return which leading numbers are surely too low, as text; '' if none is."""
    return _low_numbers([part for x in leading(scorecard) for part in x.parts])


def _low_numbers(parts: Sequence[Part]) -> str:
    low: dict[float, list[str]] = {}
    for p in (p for p in parts if p.level == "bad"):
        low.setdefault(p.required, []).append(f"{p.label} ({p.percent})")
    return ", ".join(
        f"{_listed(labels)} {'are' if len(labels) > 1 else 'is'} below "
        f"{_percent(required)}"
        for required, labels in low.items()
    )


def _verdict(parts: Sequence[Part]) -> str:
    low = _low_numbers(parts)
    open_parts = [p for p in parts if p.level in ("open", "unknown")]
    if not low and not open_parts:
        return (
            "A policy can be trained in this dream: every leading number is at least "
            f"{_percent(REQUIRED)}, by its 95 % interval."
        )
    undecided = ""
    if open_parts:
        about = _listed([f"{p.label} ({_evidence_text(p)})" for p in open_parts])
        undecided = f"the cases do not decide about {about}"
    if low:
        return f"Do not trust this dream yet: {low}" + (
            f", and {undecided}." if open_parts else "."
        )
    required = {p.required for p in open_parts}
    return (
        f"Nothing speaks against this dream, but {undecided}: the intervals reach "
        f"below {_listed([_percent(x) for x in sorted(required)])}."
    )


def _evidence_text(part: Part) -> str:
    """Return a rate and the cases that it is of, where they do not decide about it.

    Cases of unequal weight decide as little as the fewer ones that they stand for.
    """
    if part.level == "unknown" or part.rate is None:
        return "no case"
    count, effective = part.rate["count"], round(part.rate["effective"])
    weight = f", which weigh as much as {effective}" if effective < count else ""
    return f"{part.percent} of {count}{weight}"


def is_trusted(scorecard: dict[str, Any]) -> bool:
    """Return whether every leading number that is known reaches REQUIRED.

    Their intervals may reach below it, but none may be below what is required. Fewer
    than FEW_STATES next states are trusted in no case.
    """
    if scorecard["exact"]["predictable"]["count"] < FEW_STATES:
        return False
    parts = [part for number in leading(scorecard) for part in number.parts]
    means = [p.rate["mean"] for p in parts if p.rate and p.rate["mean"] is not None]
    low = any(part.level == "bad" for part in parts)
    return bool(means) and min(means) >= REQUIRED and not low


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _listed(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def headlines(scorecard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, value) of the leading numbers, a baseline and known facts kept.

    Those on the policies' own episodes come first, if the scorecard has any.
    """
    for name, part in scorecard.get("on_policy", {}).items():
        for label, value in _leading_lines(part):
            yield f"{label}, episodes of {name}", value
    yield from _leading_lines(scorecard)


def _leading_lines(scorecard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for number in leading(scorecard):
        for part in number.parts:
            if part.rate is not None:
                yield part.label, rate_text(part.rate)
            if part.label == STATES and _baseline(scorecard):
                yield "the state repeated (baseline)", rate_text(_baseline(scorecard))
            if part.label == STATES and (facts := scorecard.get("kept")):
                yield "known facts kept", rate_text(facts["all"])
