"""The part of the contract checker that looks for rewards that mislead.

A score pays what a step earns on top of all that was paid before. So an action that
does nothing pays, after a step, what that step paid and what it pays itself at the
start of an episode; a reward of its own pays only the latter.
"""

import math
from collections.abc import Iterator, Sequence

from dreamgym.envs import limits
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import NONSENSE, Player, Trace

REPEATED = 3
"""Actions that do nothing, which show by themselves that their costs add up."""


def check_unearned(
    findings: Findings, others: Sequence[Trace], planned: Sequence[Trace]
) -> None:
    """Warn of an episode that is not won and pays more than a won one of its task.

    Only so many of its steps count as an episode of a run would have.

    Args:
      others: episodes of random play and of nonsense.
      planned: episodes of the expert.
    """
    best = {t.task.id: t for t in planned if t.won}
    for trace in others:
        won = best.get(trace.task.id)
        if won is None or trace.won:
            continue
        earned = _total(trace, limits.with_margin(won.length))
        if earned <= _total(won) + 1e-6:
            continue
        findings.warn(
            "an episode that is not won pays more than the expert's",
            f"task {trace.task.id!r}: {earned:g} after "
            f"{min(trace.length, limits.with_margin(won.length))} actions, and the "
            f"expert's {_total(won):g}",
            "let winning pay most, and let doing nothing cost what a step costs: a "
            "policy that is trained on rewards learns to prefer the other",
        )
        return


def _total(trace: Trace, steps: int | None = None) -> float:
    return sum(
        step.reward for step in trace.steps[: None if steps is None else steps + 1]
    )


def check_cumulative(player: Player, nonsense: Trace, trace: Trace, limit: int) -> None:
    """Warn of a reward that is paid again for an action that does nothing.

    Args:
      nonsense: an episode of actions that do nothing.
      trace: another episode of the same task.
    """
    rewards = [step.reward for step in nonsense.steps[1:]]
    idle = rewards[0] if rewards else 0.0
    if idle and len(rewards) >= REPEATED and _adds_up(rewards[:REPEATED]):
        _warn(
            player,
            f"task {trace.task.id!r}, actions that do nothing paid "
            f"{', '.join(f'{x:g}' for x in rewards[:REPEATED])}",
        )
        return
    costs = set()
    for number, reward in _moments(trace):
        probe = [*trace.actions[:number], NONSENSE]
        again = player.play(trace.task, probe, limit, trace.seed)
        last = None if again is None or again.broken else again.last
        if not last or last.action != NONSENSE:
            return
        if not math.isclose(last.reward, reward + idle, abs_tol=1e-9):
            return
        costs.add(reward)
        # Where a place costs something at every step, one moment alone looks alike.
        if reward > 0 or len(costs) > 1:
            _warn(
                player,
                f"task {trace.task.id!r}, step {number} paid {reward:g}, and an "
                f"action that does nothing then paid {last.reward:g}",
            )
            return


def _adds_up(rewards: list[float]) -> bool:
    """Whether each reward is one more of the first."""
    return all(
        math.isclose(reward, count * rewards[0], abs_tol=1e-9)
        for count, reward in enumerate(rewards, start=1)
    )


def _moments(trace: Trace) -> Iterator[tuple[int, float]]:
    """The first step that pays, else the first two whose costs differ.

    The last step is left out: after it nothing can be tried.
    """
    costs = set[float]()
    steps = list(enumerate(trace.steps[1:-1], start=1))
    if gains := [(number, step.reward) for number, step in steps if step.reward > 0]:
        yield gains[0]
        return
    for number, step in steps:
        if step.reward and step.reward not in costs and len(costs) < 2:
            costs.add(step.reward)
            yield number, step.reward


def _warn(player: Player, where: str) -> None:
    player.findings.warn(
        "rewards look like a cumulative score",
        where,
        "return what the step earned: score - score before; leave it where each step "
        "does cost more than the one before",
    )
