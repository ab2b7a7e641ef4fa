"""What a run's numbers say: causes of a disappointing run, and its verdict."""
