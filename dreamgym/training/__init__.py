"""The one loop, dream or real: choose tasks, roll out, update the policy."""

from dreamgym.training.config import BesideConfig, LoopConfig, ReplayConfig
from dreamgym.training.learn import Learned, learn, turn_example
from dreamgym.training.loop import Hooks, pool_of, train
from dreamgym.training.progress import Progress

__all__ = [
    "BesideConfig",
    "Hooks",
    "Learned",
    "LoopConfig",
    "Progress",
    "ReplayConfig",
    "learn",
    "pool_of",
    "train",
    "turn_example",
]
