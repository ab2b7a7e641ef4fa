"""How models read and write states: grids with their columns, numbers as changes."""
