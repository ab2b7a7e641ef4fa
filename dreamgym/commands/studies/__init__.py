"""Studies: a grid of runs, its table and its curves."""
