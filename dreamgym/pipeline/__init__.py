"""The composition root: stages over a run directory."""
