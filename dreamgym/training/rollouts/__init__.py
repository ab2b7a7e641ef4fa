"""The rollouts of an update: their groups, collection, forks and rewards."""
