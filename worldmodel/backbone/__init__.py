"""The decoder-only language model: parameters, streams, weights."""
