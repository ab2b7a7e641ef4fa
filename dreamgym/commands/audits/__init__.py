"""Commands that look into finished runs: cards, causes, other games and other words."""
