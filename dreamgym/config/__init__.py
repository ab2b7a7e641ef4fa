"""Every setting of a run, and nothing else."""
