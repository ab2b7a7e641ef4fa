"""Train language agents in imagination and prove them in the real environment."""

import importlib
from typing import Any

__version__ = "0.1.0"
_PUBLIC = {
    "PRESETS": "dreamgym.pipeline.config",
    "RunConfig": "dreamgym.pipeline.config",
    "preset": "dreamgym.pipeline.config",
    "quickstart": "dreamgym.pipeline.quickstart",
    "make": "dreamgym.envs.base",
}
__all__ = [*_PUBLIC]  # noqa: PLE0604 - names of strings, all of them


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: an environment alone needs no JAX."""
    if name not in _PUBLIC:
        raise AttributeError(
            f"module 'dreamgym' has no {name!r}; have {sorted(_PUBLIC)}"
        )
    return getattr(importlib.import_module(_PUBLIC[name]), name)
