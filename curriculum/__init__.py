"""Which tasks to roll out; knows outcomes, no environment and no gradient."""
