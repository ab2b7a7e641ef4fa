"""One file a command: a function usable from Python."""
