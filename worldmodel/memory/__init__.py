"""Replay memory: an encoder phi, an exact index over its vectors, the store of both."""

from worldmodel.memory.encoders import Encoder, Hidden
from worldmodel.memory.episodic import EpisodicMemory
from worldmodel.memory.store import ReplayMemory

__all__ = ["Encoder", "EpisodicMemory", "Hidden", "ReplayMemory"]
