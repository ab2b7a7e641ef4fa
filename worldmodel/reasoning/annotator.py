"""Annotators, which write reasoning traces: the interface, and one that needs no model.

episodes -> an annotator -> the same episodes with a trace for every transition.
Existing traces are kept. `teacher` asks a chat server, `self_annotator` the experience
model itself; where they fail, the trace is written by rule.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from worldmodel.data.records import Episode
from worldmodel.reasoning.rule import annotate


class Report(NamedTuple):
    """Results of a call: counts by name, and why traces were left to the rule."""

    counts: Mapping[str, int]
    problems: tuple[str, ...] = ()


@runtime_checkable
class Annotator(Protocol):
    """Anything that writes reasoning traces; `report` describes the last call."""

    report: Report

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Return the episodes, in order, with a trace wherever there was none."""
        ...


class RuleAnnotator:
    """Writes traces by rule, without a model. Reports `written`."""

    def __init__(self):
        self.report = Report({"written": 0})

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """See Annotator."""
        self.report = Report({"written": sum(map(missing_traces, episodes))})
        return [annotate(e) for e in episodes]


def missing_traces(episode: Episode) -> int:
    """Return the number of transitions without a trace."""
    return sum(t.reasoning is None for t in episode.transitions)
