"""Reasoning traces: why this action in this state leads to the next one."""

from worldmodel.reasoning.annotator import Annotator, Report, RuleAnnotator
from worldmodel.reasoning.rule import (
    annotate,
    explain,
    set_rule_traces,
    without_reasoning,
)

__all__ = [
    "Annotator",
    "Report",
    "RuleAnnotator",
    "annotate",
    "explain",
    "set_rule_traces",
    "without_reasoning",
]
