"""The command line: `main`, and one file a group of commands."""

from dreamgym.cli.main import main

__all__ = ["main"]
