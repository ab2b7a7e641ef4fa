"""The policy, its rollouts and its early experience."""
