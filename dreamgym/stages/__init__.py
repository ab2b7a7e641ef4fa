"""One file a stage of a run; nothing imports them but the table."""
