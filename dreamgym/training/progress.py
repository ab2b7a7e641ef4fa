"""Where the loop stands: what a checkpoint must hold to go on bit for bit."""

from typing import Any, NamedTuple

from curriculum.lesson_tracker import LessonTracker
from curriculum.pool import TaskPool
from dreamgym.rl import watch
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState


class Progress(NamedTuple):
    """After `update` updates: the policy, the tasks, the curve, what is replayed.

    `stages` says where the curriculum's stages stand, where it has any; `halted` why
    training is over before its last update. `best` is the policy that did best on real
    dev games, the first one until any were played, where it is kept (rl/watch.py).
    """

    update: int
    state: TrainState
    pool: TaskPool
    transitions: int
    curve: list[dict[str, Any]]
    critic: TrainState | None = None
    replay: tuple[Example, ...] = ()
    stages: LessonTracker | None = None
    halted: str = ""
    best: TrainState | None = None

    @property
    def result(self) -> TrainState:
        """What training ends with: the best where that is kept, else the last."""
        if self.best is None or watch.best(self.curve) is None:
            return self.state
        return self.best
