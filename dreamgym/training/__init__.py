"""The training loop: choose tasks, roll out, update the policy."""

from dreamgym.training.config import BesideConfig, LoopConfig, ReplayConfig
from dreamgym.training.learn import learn
from dreamgym.training.loop import train
from dreamgym.training.monitor import WatchConfig
from dreamgym.training.state import (
    LoopParts,
    Recorder,
    TrainingState,
    UpdateResult,
)

__all__ = [
    "BesideConfig",
    "LoopConfig",
    "LoopParts",
    "Recorder",
    "ReplayConfig",
    "TrainingState",
    "UpdateResult",
    "WatchConfig",
    "learn",
    "train",
]
