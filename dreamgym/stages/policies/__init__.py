"""Stages that make a policy, or choose how it acts."""
