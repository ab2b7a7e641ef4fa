"""The composition root: builds the parts of a run from its settings."""
