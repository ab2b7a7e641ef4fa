"""The one loop, dream or real: choose tasks, roll out, update the policy."""

from dreamgym.training.config import BesideConfig, LoopConfig, ReplayConfig
from dreamgym.training.learn import Learned, learn, turn_example
from dreamgym.training.loop import Hooks, Parts, train
from dreamgym.training.progress import Progress

__all__ = [
    "BesideConfig",
    "Hooks",
    "Learned",
    "LoopConfig",
    "Parts",
    "Progress",
    "ReplayConfig",
    "learn",
    "train",
    "turn_example",
]
