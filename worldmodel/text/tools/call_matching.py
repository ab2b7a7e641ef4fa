"""Which of the calls that were made is which of the calls that were expected.

calls made and expected, step by step -> pairs of both, calls that are not expected, and
calls that were missed. Three rules:
  step        the calls of step i with those expected at step i
  order       in the same order, so that extra calls between them shift nothing
  assignment  whatever the order, each call with the one it resembles most (bipartite
              matching, as in MatchTIR)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from worldmodel.text.tools.argument_score import argument_score
from worldmodel.text.tools.tool_calls import MATCHES, Call

OTHER_TOOL = 0.01
"""The similarity of calls of different tools. They are compared where nothing better is
left: a wrong tool, and not one call too many and another too few."""
EARLIER = 1e-6
"""What a step's delay costs, so that of equal calls the first one is matched."""

Calls = Sequence[Sequence[Call]]
"""The calls of each step."""


class MatchedCall(NamedTuple):
    """A call that was made at a step; `expected` is None where it was not expected."""

    step: int
    call: Call
    expected: Call | None


class Matching(NamedTuple):
    """Calls made, in their order, and expected calls that nothing was matched with.

    `missed` has the step of each, by the list of expected calls.
    """

    made: tuple[MatchedCall, ...]
    missed: tuple[tuple[int, Call], ...]


def match_calls(made: Calls, expected: Calls, match: str) -> Matching:
    """Match calls by one of MATCHES.

    Raises:
      ValueError: there is no such rule.
    """
    if match not in MATCHES:
        raise ValueError(f"match must be one of {MATCHES}, got {match!r}")
    if match == "step":
        steps = max(len(made), len(expected))
        parts = [
            _match(_at(made, i), _at(expected, i), _assignment) for i in range(steps)
        ]
        return Matching(
            tuple(x for p in parts for x in p.made),
            tuple(x for p in parts for x in p.missed),
        )
    rule = _in_order if match == "order" else _assignment
    return _match(_numbered(made), _numbered(expected), rule)


def _numbered(calls: Calls) -> list[tuple[int, Call]]:
    return [(i, call) for i, step in enumerate(calls) for call in step]


def _at(calls: Calls, step: int) -> list[tuple[int, Call]]:
    return [(step, call) for call in calls[step]] if step < len(calls) else []


def _match(
    made: list[tuple[int, Call]],
    expected: list[tuple[int, Call]],
    rule: Callable[[np.ndarray], list[tuple[int, int]]],
) -> Matching:
    similarity = np.array(
        [[_similarity(a, b) for _, b in expected] for _, a in made], float
    ).reshape(len(made), len(expected))
    similarity -= EARLIER * np.arange(len(made))[:, None]
    pairs = dict(rule(similarity))
    return Matching(
        tuple(
            MatchedCall(step, call, expected[pairs[i]][1] if i in pairs else None)
            for i, (step, call) in enumerate(made)
        ),
        tuple(x for j, x in enumerate(expected) if j not in pairs.values()),
    )


def _similarity(made: Call, expected: Call) -> float:
    if made.tool != expected.tool:
        return OTHER_TOOL
    return 1.0 + argument_score(made.arguments, expected.arguments)


def _assignment(similarity: Float[np.ndarray, "M E"]) -> list[tuple[int, int]]:
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def _in_order(similarity: Float[np.ndarray, "M E"]) -> list[tuple[int, int]]:
    """Return the pairs of the most similar alignment, none of which cross."""
    m, e = similarity.shape
    best = np.zeros((m + 1, e + 1))
    for i in range(m - 1, -1, -1):
        for j in range(e - 1, -1, -1):
            paired = similarity[i, j] + best[i + 1, j + 1]
            best[i, j] = max(paired, best[i + 1, j], best[i, j + 1])
    pairs, i, j = [], 0, 0
    while i < m and j < e:
        if best[i, j] == similarity[i, j] + best[i + 1, j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs
