"""Tool environments from a seed: a scenario, functions over it, tasks, a verifier."""
