"""Web pages of MiniWoB++ in a real browser."""
