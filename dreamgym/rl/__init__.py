"""Trust-region updates on arrays."""
