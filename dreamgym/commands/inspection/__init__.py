"""Commands that look at a run: pages, tables, causes, comparisons."""
