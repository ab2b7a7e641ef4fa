"""A household: ALFWorld's engine."""
