"""Who writes reasoning traces: the interface, and the writer that costs nothing.

episodes -> an annotator -> the same episodes, every transition with its reasoning.
Traces that are there already are kept. `teacher` asks a chat server,
`self_annotator` the experience model itself; where they fail, the trace is the rule's.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from worldmodel.data.records import Episode
from worldmodel.reasoning.rule import annotate


class Report(NamedTuple):
    """What came of a call: numbers by name, and why traces were left to the rule."""

    counts: Mapping[str, int]
    problems: tuple[str, ...] = ()


@runtime_checkable
class Annotator(Protocol):
    """Anything that writes reasoning traces. `report` tells of the last call."""

    report: Report

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes, in order, with a trace wherever there is none."""
        ...


class RuleAnnotator:
    """Traces by rule: no model, no cost. Reports `written`."""

    def __init__(self):
        self.report = Report({"written": 0})

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """See Annotator."""
        self.report = Report({"written": sum(map(missing, episodes))})
        return [annotate(e) for e in episodes]


def missing(episode: Episode) -> int:
    """How many of its transitions have no trace."""
    return sum(t.reasoning is None for t in episode.transitions)
