"""Skills of an agent, measured on its turns and episodes as counts that add up.

(call, expected call) of each turn -> precision and recall of calls, accuracy of tools,
scores of arguments; episodes -> success, calls and steps per success. The primer on
tool calling has these measures under "Diagnostics and Monitoring" and in its stages 1
to 4.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from worldmodel.data.records import Episode
from worldmodel.text.tool_calls import (
    Call,
    argument_score,
    expected_call,
    gold_calls,
    read_call,
)


class SkillRate(NamedTuple):
    """A mean stored as hits and count, so that batches add exactly.

    Unlike data/rates.py's Rate its count may be a sum of parts, and it has no weights.
    """

    hits: float = 0.0
    count: float = 0.0

    def plus(self, other: "SkillRate") -> "SkillRate":
        """Return the rate of both together."""
        return SkillRate(self.hits + other.hits, self.count + other.count)


class Turn(NamedTuple):
    """One turn with tools available: the call, the expected call, and whether it ran.

    `called` or `expected` is None where there is no call. `executed` is None where the
    environment did not report it.
    """

    called: Call | None
    expected: Call | None
    executed: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skills:
    """Sums over turns and episodes; `a.plus(b)` has those of both, in any order.

    `rates` by name (see `measures`); `confusion[expected][called]` counts turns with an
    expected and an actual call by their tools.
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

        call_precision: of the calls made, those in turns with an expected call
        call_recall: of the turns with an expected call, those with a call
        call_rate, due_rate: turns with a call; turns with an expected call
        tool_accuracy: of the calls in turns with an expected call, those of its tool
        argument_score: of those, the score of the arguments (tool_calls.argument_score)
        valid_json, execution: of the calls made, those well-formed; those that ran, of
          the ones for which it is known
        success: of the episodes that were scored
        calls_per_success, steps_per_success: calls and steps of won episodes
        valid_action: steps with a valid action, of those where it is known
        """
        return {n: s.hits / s.count for n, s in self.rates.items() if s.count}

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


def of_turn(turn: Turn) -> Skills:
    """Return the skills that one turn shows."""
    called, expected = turn.called, turn.expected
    is_call, is_due = called is not None, expected is not None
    rates = {
        "call_precision": _rate(is_call and is_due, is_call),
        "call_recall": _rate(is_call and is_due, is_due),
        "call_rate": _rate(is_call),
        "due_rate": _rate(is_due),
    }
    if called is not None:
        rates["valid_json"] = _rate(called.valid_json)
        if turn.executed is not None:
            rates["execution"] = _rate(turn.executed)
    if called is None or expected is None:
        return Skills(rates=rates)
    same = called.tool == expected.tool
    rates["tool_accuracy"] = _rate(same)
    if same:
        score = argument_score(called.arguments, expected.arguments)
        rates["argument_score"] = _rate(score)
    return Skills(rates=rates, confusion={expected.tool: {called.tool: 1}})


def _rate(hit: float | int, of: float | int = 1) -> SkillRate:
    return SkillRate(float(hit), float(of))


def of_episode(episode: Episode) -> Skills:
    """Return the skills that an episode shows, with tools if its task expects calls.

    A call ran if the environment reports that it took the action.

    Raises:
      ValueError: the task's calls are malformed (tool_calls.gold_calls).
    """
    gold, steps = gold_calls(episode.task), episode.transitions
    invalid_flags = [x.invalid for x in steps if x.invalid is not None]
    rates = {"valid_action": _rate(invalid_flags.count(False), len(invalid_flags))}
    turns = []
    for i, x in enumerate(steps) if gold is not None else ():
        ran = None if x.invalid is None else not x.invalid
        turns.append(Turn(read_call(x.action), expected_call(gold or (), i), ran))
    if episode.success is not None:
        won = episode.success
        rates["success"] = _rate(won)
        rates["steps_per_success"] = _rate(len(steps) * won, won)
        if gold is not None:
            calls = sum(t.called is not None for t in turns)
            rates["calls_per_success"] = _rate(calls * won, won)
    return total([Skills(rates=rates), *map(of_turn, turns)])


def total(parts: Iterable[Skills]) -> Skills:
    """Return the sum of all."""
    out = Skills()
    for part in parts:
        out = out.plus(part)
    return out
