"""The part of the contract checker that asks where an environment draws its lots."""

import random

import numpy as np

from dreamgym.envs import base
from dreamgym.envs.contract.player import Player, Trace, first_difference

SEED = 7
"""The seed with which an episode is played again."""

STATES = (1, 2, 3)
"""States of the global generators that are compared: in two, lots may fall equally."""


def check_global_random(player: Player, sample: Trace) -> None:
    """Warn of lots that Python's or NumPy's global generator draws: no seed holds.

    An episode is played again with the same seed. It must differ with the states of the
    global generators, and with nothing else: a generator that the instance holds may go
    on from one episode to the next.
    """
    if base.is_deterministic(player.env):
        return
    first = _play(player, sample, STATES[0])
    for state in STATES[1:]:
        other = _play(player, sample, state)
        if first is None or other is None:
            return
        differs = first_difference(first, other)
        if differs is None:
            continue
        again = _play(player, sample, state)
        if again is not None and first_difference(other, again) is None:
            player.findings.warn(
                "lots are drawn from the global generator of random or np.random",
                f"task {sample.task.id!r}, the same seed and actions, {differs}",
                "draw from self.np_random after super().reset(seed=seed): the seeds of "
                "a run do not reach the global ones, so it cannot be repeated",
            )
        return


def _play(player: Player, sample: Trace, state: int) -> Trace | None:
    """Play an episode with the global generators in a state; None where it is broken.

    The states before are put back.
    """
    before, numpy_before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(state)
    np.random.seed(state)  # noqa: NPY002
    try:
        trace = player.play(sample.task, sample.actions, sample.length, SEED)
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)  # noqa: NPY002
    return None if trace is None or trace.broken else trace
