"""Real environments, one file each; what they need beyond the core is an extra."""
