"""Environments whose actions are tool calls."""
