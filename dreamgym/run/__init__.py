"""A run directory, whatever is computed in it."""
