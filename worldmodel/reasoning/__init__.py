"""Reasoning traces: why this action in this state leads to the next one."""

from worldmodel.reasoning.rule import annotate, bare, explain, reveals

__all__ = ["annotate", "bare", "explain", "reveals"]
