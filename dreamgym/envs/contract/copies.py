"""The part of the contract checker that steps two copies of an environment in turn."""

import dataclasses
from collections.abc import Callable, Sequence

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Player, Trace, first_difference
from worldmodel.data.records import Task

COMPARED = 20
"""Steps of an episode that are compared, at most."""


def check_copies(
    player: Player,
    make: Callable[[], gymnasium.Env],
    sample: Trace,
    tasks: Sequence[Task] = (),
) -> None:
    """Step two copies in turn: neither may change what the other answers.

    In the middle of the episode, the other copy plays the same actions, and in another
    attempt it only starts another one of the `tasks`: state in the class that `reset`
    clears is seen by the second alone. Where lots are drawn, or only one copy may be
    made (`max_copies`), nothing is said.
    """
    single = getattr(player.env.unwrapped, "max_copies", 2) < 2
    if single or not base.is_deterministic(player.env):
        return
    other = guarded(player.env, make)
    if isinstance(other, EnvironmentFailure):
        player.findings.fault(
            f"a second copy cannot be made: {other.reason} ({other.place})",
            "__init__",
            "a run makes several copies, without arguments, in one process",
        )
        return
    second = Player(other, Findings())
    expected = sample.steps[: COMPARED + 1]
    planned = [step.action for step in expected[1:]]
    half = len(planned) // 2
    alone = dataclasses.replace(sample, steps=expected)
    others = [t for t in tasks if t.id != sample.task.id]

    def play() -> str:
        second.play(sample.task, planned, half + 1)
        return planned[half]

    def start() -> str:
        second.reset(others[len(others) // 2] if others else sample.task)
        return planned[half]

    for interrupt in (play, start) if planned else ():
        actions = [*planned[:half], interrupt, *planned[half + 1 :]]
        again = player.play(sample.task, actions, COMPARED)
        differs = None if again is None else first_difference(alone, again)
        if differs is None:
            continue
        player.findings.fault(
            "two copies of the environment disturb each other",
            f"task {sample.task.id!r}, alone and then beside another, {differs}",
            "keep the state of an episode in the instance, not in the class or module",
        )
        break
    player.steps, player.resets = (
        player.steps + second.steps,
        player.resets + second.resets,
    )
    other.close()
