"""Success with intervals, paired comparisons, plots and tables."""
