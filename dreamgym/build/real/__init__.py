"""The real environments of a run: opened, counted, limited, timed and played."""
