"""The stages of a run, one per file; only stages/table.py imports them."""
