"""Searches of plans in the dream: the trees of PUCT and of A*."""
