"""Settings to parts: the composition root."""
