"""The part of the contract checker about copies, forks and lots of an environment."""

import dataclasses
import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence

import gymnasium
import numpy as np

from dreamgym.envs import base
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import REPLAYS, Findings
from dreamgym.envs.contract.player import (
    NONSENSE,
    Player,
    Trace,
    first_difference,
    is_json,
)
from dreamgym.envs.contract.tasks import (
    LISTS_ANEW,
    listing_difference,
    sound_tasks,
)
from dreamgym.envs.failures import declared_copies
from worldmodel.data.records import Task

COMPARED = 20
"""Steps of an episode that are compared, at most."""
FRESH_COPIES = 5
"""Copies that must play equally before `reset` is said to leave something over."""

OTHER_TASKS = "a second copy of the environment lists other tasks"
OTHER_ANSWERS = "a second copy of the environment answers differently"

SEED = 7
"""The seed with which an episode is played again."""

STATES = (1, 2, 3)
"""States of the global generators that are compared: in two, lots may fall equally."""


def check_copies(
    player: Player,
    make: Callable[[], gymnasium.Env],
    sample: Trace,
    tasks: Sequence[Task] = (),
    splits: Mapping[str, Sequence[Task]] | None = None,
) -> None:
    """Fault two copies that differ, or that change each other's answers.

    Where only one copy may be made (`max_copies`), nothing is said; where lots are
    drawn, only the tasks of the `splits` are compared.
    """
    if _allows_one_copy(player):
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
    if differs := _other_tasks(player, second, splits or {}):
        player.findings.fault(
            OTHER_TASKS,
            differs,
            "draw them with a fixed seed, random.Random(0), and not anew in each "
            "__init__: every stage of a run makes copies, and the test tasks of one "
            "could be train tasks of another",
        )
    if base.is_deterministic(player.env):
        if differs := _other_answers(second, sample):
            player.findings.fault(
                OTHER_ANSWERS,
                differs,
                "draw what belongs to a task in reset, from a generator that the task "
                "seeds, and nothing in __init__ without a fixed seed; show no number "
                "or address of the instance: a run makes several copies",
            )
        _step_in_turn(player, second, sample, tasks)
    player.add_counts(second)
    guarded(other, other.close)


def check_process(
    player: Player,
    make: Callable[[], gymnasium.Env],
    sample: Trace,
    splits: Mapping[str, Sequence[Task]],
) -> bool:
    """Fault an environment that lists or answers differently in another process.

    `make` makes it there, where texts have other hashes, so that sets have another
    order. Returns whether it was compared: not where copies in one process differ
    already, where only one may be made, or where it cannot be made there.
    """
    copies_differ = {OTHER_TASKS, OTHER_ANSWERS} & {*player.findings.faults}
    if copies_differ or _allows_one_copy(player):
        return False
    other = guarded(player.env, make)
    if isinstance(other, EnvironmentFailure):
        return False
    elsewhere = Player(other, Findings())
    differs = _other_tasks(player, elsewhere, splits)
    # A run writes tasks as JSON, too; check_options has said where that changes one.
    options = dict(sample.task.options)
    plain = is_json(options) and json.loads(json.dumps(options)) == options
    if not differs and plain and base.is_deterministic(player.env):
        differs = _other_answers(elsewhere, sample)
    reasons = " ".join(elsewhere.findings.faults)
    lost = "ConnectionError" in reasons or "EnvironmentTimeout" in reasons
    if differs and not lost:
        player.findings.fault(
            "the environment differs in another process",
            differs,
            "sort what a set holds before it is shown or drawn from, and take no "
            "hash() into ids, seeds or texts (hashlib's are the same everywhere): in "
            "each process Python hashes texts, and orders sets of them, differently; "
            "and draw nothing without a fixed seed where the module is imported",
        )
    player.add_counts(elsewhere)
    guarded(other, other.close)
    return not lost


def _other_tasks(
    player: Player, second: Player, splits: Mapping[str, Sequence[Task]]
) -> str:
    """Return where a second copy lists other tasks than those of the first, or ""."""
    lister = base.as_tasks(second.env)
    lists_anew = any(what.endswith(LISTS_ANEW) for what in player.findings.faults)
    if lister is None or lists_anew:
        return ""
    for split, first in splits.items():
        where = f"tasks({split!r})"
        again = second.call("tasks", where, functools.partial(lister.tasks, split))
        listed = None if again is None else sound_tasks(second, where, again)
        differs = "" if listed is None else listing_difference(first, listed)
        if differs:
            return f"{where}: {differs}"
    return ""


def _other_answers(second: Player, sample: Trace) -> str:
    """Return where a second copy answers an episode of the first otherwise, or ""."""
    expected = dataclasses.replace(sample, steps=sample.steps[: COMPARED + 1])
    earlier = set(second.findings.faults)
    again = second.play(sample.task, expected.actions, COMPARED, sample.seed)
    differs = None if again is None else first_difference(expected, again)
    if again is None or again.broken:  # say why, and not merely that it is shorter
        faults = second.findings.faults
        differs = next((what for what in faults if what not in earlier), differs)
    if differs is None:
        return ""
    return f"task {sample.task.id!r}, the same actions, {differs}"


def _step_in_turn(
    player: Player, second: Player, sample: Trace, tasks: Sequence[Task]
) -> None:
    """Fault two copies of which one changes what the other answers.

    In the middle of the episode, the second copy plays the same actions, and in another
    attempt it only starts another one of the `tasks`: state in the class that `reset`
    clears is seen by the second alone.
    """
    expected = sample.steps[: COMPARED + 1]
    planned = [step.action for step in expected[1:]]
    half = len(planned) // 2
    alone = dataclasses.replace(sample, steps=expected)
    others = [t for t in tasks if t.id != sample.task.id]

    def play() -> str:
        second.play(sample.task, planned, half + 1, sample.seed)
        return planned[half]

    def start() -> str:
        second.reset(others[len(others) // 2] if others else sample.task)
        return planned[half]

    for interrupt in (play, start) if planned else ():
        actions = [*planned[:half], interrupt, *planned[half + 1 :]]
        again = player.play(sample.task, actions, COMPARED, sample.seed)
        differs = None if again is None else first_difference(alone, again)
        if differs is None:
            continue
        player.findings.fault(
            "two copies of the environment disturb each other",
            f"task {sample.task.id!r}, alone and then beside another, {differs}",
            "keep the state of an episode in the instance, not in the class or module",
        )
        break


def explain_replays(
    player: Player, make: Callable[[], gymnasium.Env], trace: Trace
) -> None:
    """Say of replays that differ if `reset` leaves something over from before.

    It does where all of FRESH_COPIES play equally, each with another seed, what one
    copy plays differently. A few lots may fall equally by chance, so the other cause is
    still named.
    """
    if _allows_one_copy(player):
        return
    plays: list[Trace | None] = []
    for number in range(FRESH_COPIES):
        copy = guarded(player.env, make)
        if isinstance(copy, EnvironmentFailure):
            return
        fresh = Player(copy, Findings())
        play = fresh.play(trace.task, trace.actions, trace.length, seed=number)
        plays.append(play)
        player.add_counts(fresh)
        guarded(copy, copy.close)
    first, *others = plays
    if first is None or any(
        other is None or first_difference(first, other) is not None for other in others
    ):
        return
    finding = player.findings.faults[REPLAYS]
    player.findings.faults[REPLAYS] = finding._replace(
        where=f"{finding.where}; {FRESH_COPIES} fresh copies play it equally",
        cure="set everything that belongs to an episode in reset, a generator that "
        f"__init__ makes as well: something of the first is left; {finding.cure}",
    )


def check_fork(player: Player, sample: Trace) -> bool:
    """Fault a fork that does not go on as its original would, or that changes it.

    In the middle of an episode a fork plays nonsense, then the original plays on, then
    another fork does. Returns whether that was compared: not where lots are drawn, or
    where the environment does not fork.
    """
    env, actions = player.env, sample.actions[:COMPARED]
    forkable, half = base.as_forkable(env), len(actions) // 2
    if forkable is None or not base.is_deterministic(env) or not actions:
        return False
    before = player.play(sample.task, actions[:half], COMPARED, sample.seed)
    if before is None or before.broken or before.ended:
        return False
    where = f"task {sample.task.id!r}, forked after {half} actions"
    forks: list[Player] = []
    for _ in range(2):
        result = guarded(env, forkable.fork)
        if not isinstance(result, gymnasium.Env):
            failed = isinstance(result, EnvironmentFailure)
            player.findings.fault(
                f"fork raised {result.reason} ({result.place})"
                if failed
                else f"fork must return an environment, got {result!r:.40}",
                where,
                "return a copy that goes on from this moment, copy.deepcopy(self); or "
                "set `fork = None` where the instance holds what cannot be copied",
            )
            return True
        forks.append(Player(result, Findings()))
    first, second = forks
    first.step(sample.task, NONSENSE, half + 1)
    expected = dataclasses.replace(sample, steps=sample.steps[: len(actions) + 1])
    for other, what, kind in (
        (player, "a fork changes the environment that it was made of", "deep"),
        (second, "a fork does not go on as its original", "whole"),
    ):
        steps = list(before.steps)
        for number, action in enumerate(actions[half:], half + 1):
            if (step := other.step(sample.task, action, number)) is None:
                break
            steps.append(step)
        played = dataclasses.replace(sample, steps=tuple(steps))
        differs = first_difference(expected, played)
        if differs is not None:
            raised = [] if other is player else [*other.findings.faults][:1]
            player.findings.fault(
                what,
                "; ".join([where, *(raised or [differs])]),
                f"make a {kind} copy: copy.deepcopy(self)",
            )
            break
    for other in forks:
        player.add_counts(other)
        guarded(other.env, other.env.close)
    return True


def check_global_random(player: Player, sample: Trace) -> None:
    """Warn of lots that Python's or NumPy's global generator draws: no seed holds.

    An episode is played again with the same seed. It must differ with the states of the
    global generators, and with nothing else: a generator that the instance holds may go
    on from one episode to the next.
    """
    if base.is_deterministic(player.env):
        return
    first = _play_with(player, sample, STATES[0])
    for state in STATES[1:]:
        other = _play_with(player, sample, state)
        if first is None or other is None:
            return
        differs = first_difference(first, other)
        if differs is None:
            continue
        again = _play_with(player, sample, state)
        if again is not None and first_difference(other, again) is None:
            player.findings.warn(
                "lots are drawn from the global generator of random or np.random",
                f"task {sample.task.id!r}, the same seed and actions, {differs}",
                "draw from self.np_random after super().reset(seed=seed): the seeds of "
                "a run do not reach the global ones, so it cannot be repeated",
            )
        return


def _play_with(player: Player, sample: Trace, state: int) -> Trace | None:
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


def _allows_one_copy(player: Player) -> bool:
    """Return whether only one copy may be made; what is no number counts as one."""
    try:
        return declared_copies(player.env) == 1
    except ValueError:  # check_declarations has named it
        return True
