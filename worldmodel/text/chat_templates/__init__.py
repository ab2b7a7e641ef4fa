"""Chat templates of somebody else, rendered at a bounded cost."""
