"""What happened, as records, lines, tokens and prompts."""
