"""The part of the contract checker about copies of an environment, and about forks."""

import dataclasses
from collections.abc import Callable, Sequence

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import REPLAYS, Findings
from dreamgym.envs.contract.player import NONSENSE, Player, Trace, first_difference
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


def explain_replays(
    player: Player, make: Callable[[], gymnasium.Env], trace: Trace
) -> None:
    """Say of replays that differ if `reset` leaves something over from before.

    It does where two fresh copies play equally what one copy plays differently.
    """
    if getattr(player.env.unwrapped, "max_copies", 2) < 2:
        return
    plays = []
    for _ in range(2):
        copy = guarded(player.env, make)
        if isinstance(copy, EnvironmentFailure):
            return
        fresh = Player(copy, Findings())
        plays.append(fresh.play(trace.task, trace.actions, trace.length))
        player.steps, player.resets = (
            player.steps + fresh.steps,
            player.resets + fresh.resets,
        )
        copy.close()
    first, second = plays
    if first is None or second is None or first_difference(first, second) is not None:
        return
    known = player.findings.faults[REPLAYS]
    player.findings.faults[REPLAYS] = known._replace(
        where=f"{known.where}; two fresh copies play it equally",
        cure="set everything that belongs to an episode in reset: the second episode "
        "still has something of the first",
    )


def check_fork(player: Player, sample: Trace) -> None:
    """Fault a fork that does not go on as its original would, or that changes it.

    In the middle of an episode a fork plays nonsense, then the original plays on, then
    another fork does. Where lots are drawn, nothing is said.
    """
    env, actions = player.env, sample.actions[:COMPARED]
    half = len(actions) // 2
    if not base.is_deterministic(env) or not actions:
        return

    def fork() -> Player | None:
        forkable = base.as_forkable(env)
        other = guarded(env, lambda: None if forkable is None else forkable.fork())
        if isinstance(other, EnvironmentFailure):
            player.findings.fault(
                f"fork raised {other.reason} ({other.place})",
                f"task {sample.task.id!r}, after {half} actions",
                "return a copy that goes on from this moment, copy.deepcopy(self)",
            )
        return Player(other, Findings()) if isinstance(other, gymnasium.Env) else None

    before = player.play(sample.task, actions[:half], COMPARED)
    first, second = fork(), fork()
    if before is None or before.broken or before.ended or not (first and second):
        return
    first.step(sample.task, NONSENSE, half + 1)
    expected = dataclasses.replace(sample, steps=sample.steps[: len(actions) + 1])
    for other, what, cure in (
        (player, "a fork changes the environment that it was made of", "deep"),
        (second, "a fork does not go on as its original", "whole"),
    ):
        steps = list(before.steps)
        for number, action in enumerate(actions[half:], half + 1):
            if (step := other.step(sample.task, action, number)) is None:
                break
            steps.append(step)
        played = dataclasses.replace(sample, steps=tuple(steps))
        if (differs := first_difference(expected, played)) is not None:
            player.findings.fault(
                what,
                f"task {sample.task.id!r}, forked after {half} actions, {differs}",
                f"make a {cure} copy: copy.deepcopy(self)",
            )
            break
    for other in (first, second):
        player.steps += other.steps
        other.env.close()
