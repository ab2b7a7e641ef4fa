"""Skills of an agent, measured on its episodes as counts that add up.

calls made and expected -> precision and recall of calls, accuracy of tools, scores of
arguments, needless calls; episodes -> success, calls and steps per success. The primer
on tool calling has these measures under "Diagnostics and Monitoring" and in its stages
1 to 4.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.records import Episode
from worldmodel.text.tools.argument_score import argument_score
from worldmodel.text.tools.call_matching import Matching, match_calls
from worldmodel.text.tools.call_results import failed_calls
from worldmodel.text.tools.tool_calls import (
    Action,
    Call,
    expected_calls,
    read_action,
)
from worldmodel.text.tools.tool_schemas import ToolSchema, call_error, tool_schemas

NO_CALL = "none"
"""Stands in the confusion matrix for no call, made or expected."""


class SkillRate(NamedTuple):
    """A mean stored as hits and count, so that batches add exactly.

    Unlike data/rates.py's Rate its count may be a sum of parts, and it has no weights.
    """

    hits: float = 0.0
    count: float = 0.0

    def plus(self, other: "SkillRate") -> "SkillRate":
        """Return the rate of both together."""
        return SkillRate(self.hits + other.hits, self.count + other.count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skills:
    """Sums over episodes; `a.plus(b)` has those of both, in any order.

    `rates` by name (see `measures`); `confusion[expected][called]` counts calls by the
    tool that was expected and the tool that was called. NO_CALL stands for calls that
    were missed or not expected.
    """

    rates: Mapping[str, SkillRate] = dataclasses.field(default_factory=dict)
    confusion: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    def plus(self, other: "Skills") -> "Skills":
        """Return the sums of both together."""
        names = sorted(self.rates.keys() | other.rates.keys())
        tools = sorted(self.confusion.keys() | other.confusion.keys())
        return Skills(
            rates={
                n: self.rates.get(n, SkillRate()).plus(other.rates.get(n, SkillRate()))
                for n in names
            },
            confusion={
                t: _add_counts(self.confusion.get(t, {}), other.confusion.get(t, {}))
                for t in tools
            },
        )

    def measures(self) -> dict[str, float]:
        """Return each measure that has a count; the others are unknown.

        Of calls, matched with the expected ones (call_matching.py):
        call_precision: of the calls made, those that were expected
        call_recall: of the expected calls, those that were made
        unnecessary_calls, missed_calls: the rest of both
        repeated_calls: of the calls made, those that the episode had made before
        redundant_calls: of the calls made, those after all expected ones were made
        call_rate, due_rate: calls made, and calls expected, for each turn
        tool_accuracy: of the calls made that were expected, those of the right tool
        repeated_wrong_tool: of those of a wrong tool, those for which the episode had
          called the same wrong tool before
        argument_score: of those of the right tool, the score of the arguments
          (tool_calls.argument_score)
        valid_json, valid_schema: of the calls made, those that can be read, and those
          that fit the schema of a known tool
        execution: of the calls made, those that ran, where it is known

        Of turns and episodes:
        void_turns: turns with neither a call that can be read nor an answer
        success: of the episodes that were scored
        calls_per_success, steps_per_success: calls and steps of won episodes
        valid_action: steps with a valid action, of those where it is known
        """
        return {n: s.hits / s.count for n, s in self.rates.items() if s.count}

    def counts(self) -> dict[str, float]:
        """Return how many cases each of the measures is a mean of."""
        return {n: s.count for n, s in self.rates.items() if s.count}

    def state(self) -> dict[str, Any]:
        """Return the sums as JSON."""
        return {
            "shares": {n: list(s) for n, s in self.rates.items()},
            "confusion": {t: dict(row) for t, row in self.confusion.items()},
        }

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> "Skills":
        """Return the sums that `state` wrote."""
        return Skills(
            rates={n: SkillRate(*s) for n, s in state["shares"].items()},
            confusion={t: dict(row) for t, row in state["confusion"].items()},
        )


def _add_counts(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {k: a.get(k, 0) + b.get(k, 0) for k in sorted(a.keys() | b.keys())}


def _rate(hit: float | int, of: float | int = 1) -> SkillRate:
    return SkillRate(float(hit), float(of))


def of_episode(episode: Episode, match: str = "assignment") -> Skills:
    """Return the skills that an episode shows, with tools if its task expects calls.

    A call ran if the environment reports that it took the action. `match` is one of
    tool_calls.MATCHES.

    Raises:
      ValueError: the task's calls or tools are malformed.
    """
    expected, steps = expected_calls(episode.task), episode.transitions
    invalid_flags = [x.invalid for x in steps if x.invalid is not None]
    rates = {"valid_action": _rate(invalid_flags.count(False), len(invalid_flags))}
    won, calls, parts = bool(episode.success), 0, [Skills(rates=rates)]
    if expected is not None:
        actions = [read_action(x.action) for x in steps]
        calls = sum(len(a.calls) for a in actions)
        matching = match_calls([a.calls for a in actions], expected, match)
        failed = [
            x
            for step, action in zip(steps, actions, strict=True)
            for x in failed_calls(step, len(action.calls))
        ]
        parts.append(_of_calls(matching, actions, failed, tool_schemas(episode.task)))
    if episode.success is not None:
        rates["success"] = _rate(won)
        rates["steps_per_success"] = _rate(len(steps) * won, won)
        if expected is not None:
            rates["calls_per_success"] = _rate(calls * won, won)
    return total(parts)


def _of_calls(
    matching: Matching,
    actions: Sequence[Action],
    failed: Sequence[bool | None],
    schemas: Mapping[str, ToolSchema] | None,
) -> Skills:
    """Return the skills that the calls of an episode show.

    `failed` says of each call that was made whether it failed.
    """
    made = matching.made
    pairs = [(x.call, x.expected) for x in made if x.expected is not None]
    missed, unexpected = len(matching.missed), len(made) - len(pairs)
    right = [(call, want) for call, want in pairs if call.tool == want.tool]
    ran = [not x for x in failed if x is not None]
    num_expected, turns = len(pairs) + missed, len(actions)
    rates = {
        "call_precision": _rate(len(pairs), len(made)),
        "call_recall": _rate(len(pairs), num_expected),
        "unnecessary_calls": _rate(unexpected, len(made)),
        "missed_calls": _rate(missed, num_expected),
        "repeated_calls": _rate(_repeated([x.call for x in made]), len(made)),
        "redundant_calls": _rate(_redundant(matching), len(made)),
        "call_rate": _rate(len(made), turns),
        "due_rate": _rate(num_expected, turns),
        "tool_accuracy": _rate(len(right), len(pairs)),
        "repeated_wrong_tool": _rate(
            *_wrong([c for c, want in pairs if c.tool != want.tool])
        ),
        "argument_score": _rate(
            sum(argument_score(c.arguments, want.arguments) for c, want in right),
            len(right),
        ),
        "valid_json": _rate(sum(x.call.valid_json for x in made), len(made)),
        "execution": _rate(sum(ran), len(ran)),
        "void_turns": _rate(sum(a.void for a in actions), turns),
    }
    if schemas is not None:
        fit = sum(call_error(x.call, schemas) is None for x in made)
        rates["valid_schema"] = _rate(fit, len(made))
    confusion = [
        (x.expected.tool if x.expected else NO_CALL, x.call.tool) for x in made
    ]
    confusion += [(call.tool, NO_CALL) for _, call in matching.missed]
    counts: dict[str, dict[str, int]] = {}
    for want, called in sorted(confusion):
        row = counts.setdefault(want, {})
        row[called] = row.get(called, 0) + 1
    return Skills(rates=rates, confusion=counts)


def _repeated(calls: Sequence[Call]) -> int:
    """Return how many calls had been made before, with the same arguments."""
    return sum(call in calls[:i] for i, call in enumerate(calls))


def _redundant(matching: Matching) -> int:
    """Return how many calls came after all expected ones; none if some were missed."""
    if matching.missed:
        return 0
    positions = [i for i, x in enumerate(matching.made) if x.expected is not None]
    return len(matching.made) - 1 - max(positions, default=-1)


def _wrong(calls: Sequence[Call]) -> tuple[int, int]:
    """Return how many wrong calls repeat a wrong tool, and their number."""
    tools = [call.tool for call in calls]
    return sum(tool in tools[:i] for i, tool in enumerate(tools)), len(tools)


def total(parts: Iterable[Skills]) -> Skills:
    """Return the sum of all."""
    out = Skills()
    for part in parts:
        out = out.plus(part)
    return out
