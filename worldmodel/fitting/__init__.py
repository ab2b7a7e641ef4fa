"""Fitting a backbone to packed tokens: batches, losses, updates, checkpoints."""
