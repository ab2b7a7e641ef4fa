"""The training loop: choose tasks, roll out, update the policy."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamgym.training.config import (
        AuxiliaryConfig,
        LoopConfig,
        MonitorConfig,
        ReplayConfig,
    )
    from dreamgym.training.loop import train
    from dreamgym.training.state import (
        LoopParts,
        Recorder,
        TrainingState,
        UpdateResult,
    )

__all__ = [
    "AuxiliaryConfig",
    "LoopConfig",
    "LoopParts",
    "MonitorConfig",
    "Recorder",
    "ReplayConfig",
    "TrainingState",
    "UpdateResult",
    "train",
]
_MODULES = {
    "train": "loop",
    "LoopParts": "state",
    "Recorder": "state",
    "TrainingState": "state",
    "UpdateResult": "state",
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported when first used: settings need no JAX."""
    if name not in __all__:
        raise AttributeError(f"module 'dreamgym.training' has no {name!r}")
    module = f"dreamgym.training.{_MODULES.get(name, 'config')}"
    return getattr(importlib.import_module(module), name)
