"""TextWorld's own games, compiled on demand: tw-cooking and Coin Collector."""
