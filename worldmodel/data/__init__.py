"""What happened, on disk: records, their readers and importers, what is in them."""
