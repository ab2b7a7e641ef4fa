"""Environments behind one contract, real and dreamed."""
