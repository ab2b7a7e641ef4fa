"""Two runs, two episodes, or two methods side by side."""
