"""Run directories in which no stage has written anything yet.

A first command may fail before its first stage begins, at an environment that cannot be
made for instance. What it leaves are the settings, a lock and the seconds that it took.
"""

from pathlib import Path

from dreamgym.run.lock import NAME

_SECONDS = "stages/*.seconds"


def has_begun(root: Path) -> bool:
    """Return whether a run directory holds anything that a stage has written.

    Unfinished files and those of a tracker are not counted.
    """
    left = {root / "manifest.json", root / NAME, *root.glob(_SECONDS)}
    return any(
        path.is_file() and path not in left and path.suffix != ".tmp"
        for path in root.rglob("*")
        if path.relative_to(root).parts[0] != "tensorboard"
    )


def forget_attempts(root: Path) -> None:
    """Remove the seconds of attempts that wrote nothing."""
    for path in root.glob(_SECONDS):
        path.unlink(missing_ok=True)
