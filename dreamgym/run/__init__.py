"""A run directory: its files, stages, progress display and trackers."""
