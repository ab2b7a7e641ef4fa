"""The command line: `main`, and one file for each group of commands."""

from dreamgym.cli.main import main

__all__ = ["main"]
