"""Environments in processes of their own: the parent's side, the worker's, messages."""
