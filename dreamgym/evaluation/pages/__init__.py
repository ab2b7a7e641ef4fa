"""What people look at: pages of one file each, tables in the terminal, plots."""
