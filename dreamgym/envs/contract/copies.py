"""The part of the contract checker that steps two copies of an environment in turn."""

import dataclasses
from collections.abc import Callable

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Player, Trace, first_difference

COMPARED = 20
"""Steps of an episode that are compared, at most."""


def check_copies(
    player: Player, make: Callable[[], gymnasium.Env], sample: Trace
) -> None:
    """Step two copies in turn: neither may change what the other answers.

    Where lots are drawn, or only one copy may be made (`max_copies`), nothing is said.
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

    def interrupt() -> str:
        second.play(sample.task, planned, half + 1)
        return planned[half]

    actions = [*planned[:half], interrupt, *planned[half + 1 :]] if planned else []
    again = player.play(sample.task, actions, COMPARED)
    alone = dataclasses.replace(sample, steps=expected)
    differs = None if again is None else first_difference(alone, again)
    if differs is not None:
        player.findings.fault(
            "two copies of the environment disturb each other",
            f"task {sample.task.id!r}, alone and then beside another, {differs}",
            "keep the state of an episode in the instance, not in the class or module",
        )
    player.steps, player.resets = (
        player.steps + second.steps,
        player.resets + second.resets,
    )
    other.close()
