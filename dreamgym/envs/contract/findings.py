"""The findings of a check: faults and warnings, each with its place and advice."""

import dataclasses
from typing import Any, NamedTuple

from worldmodel.data.rates import Rate
from worldmodel.text.identifiers import COMMON_TASKS

REPLAYS = "two plays of the same actions differ"
"""The fault of an environment that draws lots and does not say so."""

REPLAYS_CURE = (
    "begin the task that options['task'] holds, and draw what belongs to it from a "
    "generator that the task seeds; make lists and dicts in reset, since those of the "
    "class are shared (each play has another seed of reset, except where the task has "
    "one: options={'seed': n}); where steps draw lots, declare `deterministic = False`"
)


class Finding(NamedTuple):
    """One fault or warning: what is wrong, where, and what to do."""

    what: str
    where: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}\n    where: {self.where}\n    do: {self.cure}"


@dataclasses.dataclass
class Findings:
    """All findings of a check; equal findings are listed once, with their count."""

    faults: dict[str, Finding] = dataclasses.field(default_factory=dict)
    warnings: dict[str, Finding] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def fault(self, what: str, where: str, cure: str) -> None:
        """Add a violation of the contract."""
        self._add(self.faults, Finding(what, where, cure))

    def warn(self, what: str, where: str, cure: str) -> None:
        """Add something that is allowed but will cause problems."""
        self._add(self.warnings, Finding(what, where, cure))

    def _add(self, kind: dict[str, Finding], finding: Finding) -> None:
        key = finding.what
        kind.setdefault(key, finding)
        self.counts[key] = self.counts.get(key, 0) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateNumbers:
    """What the states of an environment are like.

    `words` is the mean number of words of a state, `largest` the largest number.
    `reveals` is the share of the steps that show what nobody could know: as the
    environment says, else by the words of the next state (novelty.is_reveal).
    `tasks` is the number of tasks that were played: of fewer than COMMON_TASKS nobody
    knows which words are usual, so that more steps count as reveals.
    `repeated_lines` is the share of the lines of next states that stand in the state
    before. `different_outcomes` is the share of the situations met more than once
    (state, action and the actions before it, in one task) that led to different states.
    """

    words: float
    largest: int
    states: int
    tasks: int
    reveals: Rate
    repeated_lines: Rate
    different_outcomes: Rate

    def text(self) -> str:
        """Return the numbers as a few lines."""
        rows = (
            f"words: {self.words:.0f} on average, {self.largest} at most",
            f"reveals: {_share(self.reveals)} steps{self._few_tasks()}",
            f"lines that repeat: {_share(self.repeated_lines)} lines",
            f"different outcomes: {self._outcomes()}",
        )
        return "\n  ".join([f"states ({self.states}):", *rows])

    def _few_tasks(self) -> str:
        if self.tasks >= COMMON_TASKS or not self.reveals.hits:
            return ""
        played = f"{self.tasks} task{'s' * (self.tasks != 1)}"
        return (
            f", probably too many: only {played} were played, and usual words count "
            f"as new without `--tasks {COMMON_TASKS}` or more"
        )

    def _outcomes(self) -> str:
        if not self.different_outcomes.count:
            return "not tested, since no state and action were met again"
        return f"{_share(self.different_outcomes)} states and actions met again"

    def json(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "words": {
                "mean": self.words,
                "largest": self.largest,
                "count": self.states,
            },
            "tasks": self.tasks,
            "reveals": self.reveals.json(),
            "repeated_lines": self.repeated_lines.json(),
            "different_outcomes": self.different_outcomes.json(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a check: what was checked, faults and warnings.

    `steps` counts the real steps that the check took, `resets` the real resets;
    `won` has the episodes that were won and played, by who played; `states` says what
    the states are like, where any were played.
    """

    checks: tuple[str, ...]
    faults: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    steps: int
    resets: int
    won: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    states: StateNumbers | None = None

    def text(self, name: str) -> str:
        """Return the report as text."""
        count = f"{_number(self.faults, 'fault')}, {_number(self.warnings, 'warning')}"
        real = f"{self.steps} real steps, {self.resets} resets"
        verdict = "breaks" if self.faults else "keeps"
        head = f"{name} {verdict} the contract: {count} ({real})"
        body = [f"fault: {finding}" for finding in self.faults]
        body += [f"warning: {finding}" for finding in self.warnings]
        wins = [f"{who} {won} of {played}" for who, (won, played) in self.won.items()]
        lines = [f"won episodes: {', '.join(wins)}"] * bool(wins)
        if self.states is not None:
            lines.append(self.states.text())
        return "\n".join([head, f"checked: {', '.join(self.checks)}", *lines, *body])

    def json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "checks": list(self.checks),
            "steps": self.steps,
            "resets": self.resets,
            "won": {
                who: {"won": won, "played": played}
                for who, (won, played) in self.won.items()
            },
            "states": None if self.states is None else self.states.json(),
            "faults": [f._asdict() for f in self.faults],
            "warnings": [f._asdict() for f in self.warnings],
        }


def _share(rate: Rate) -> str:
    mean = rate.json()["mean"]
    return "none of 0" if mean is None else f"{mean:.0%} of {rate.count:,}"


def _number(findings: tuple[Finding, ...], word: str) -> str:
    return f"{len(findings) or 'no'} {word}{'s' * (len(findings) != 1)}"


def report(
    findings: Findings,
    checks: set[str],
    steps: int,
    resets: int,
    won: dict[str, tuple[int, int]],
    states: StateNumbers | None,
) -> Report:
    """Return the report of a check; a finding says how often it occurred."""

    def listed(kind: dict[str, Finding]) -> tuple[Finding, ...]:
        return tuple(
            f._replace(where=f"{f.where} ({findings.counts[f.what]} times)")
            if findings.counts[f.what] > 1
            else f
            for f in kind.values()
        )

    return Report(
        checks=tuple(sorted(checks)),
        faults=listed(findings.faults),
        warnings=listed(findings.warnings),
        steps=steps,
        resets=resets,
        won=won,
        states=states,
    )


def difference(first: str, second: str, width: int = 160) -> str:
    """Return two texts around the first character at which they differ."""
    at = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    begin = max(0, at - width // 4)
    parts = (repr(text[begin : begin + width]) for text in (first, second))
    return " and then ".join(parts)
