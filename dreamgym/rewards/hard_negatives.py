"""Hard negatives: won attempts with one flaw, on which a reward model is examined.

episodes of several tasks -> a won one of each -> its copies, one of each kind of flaw
-> pairs by kind (the attempt is better than its copy). They are rule-based
perturbations, as in Plan-RewardBench (arXiv:2604.08178): a copy reads like a success
and is none.

Nothing is played again. The states of a copy are those that were recorded, except that
a refused action leaves the state as it was.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dreamgym.rewards.preferences import Preference
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode, State, Transition

Attempt = tuple[Transition, ...]


class _Donors(NamedTuple):
    """What other episodes lend a copy: actions, refused actions, last steps."""

    actions: Sequence[str]
    refused: Sequence[str]
    endings: Sequence[Transition]


def hard_negatives(
    episodes: Sequence[Episode], *, seed: int
) -> dict[str, list[Preference]]:
    """Return pairs of a won attempt and a flawed copy of it, by the kind of the flaw.

    The first won episode of each task has at most one copy of each kind, and none where
    there is no such copy. Actions and endings that a copy borrows are those of the
    other episodes, of the same family where it has any. Draws depend on the seed and
    the task's id.
    """
    out: dict[str, list[Preference]] = {kind: [] for kind in KINDS}
    won = {e.task.id: e for e in reversed(episodes) if e.success}
    for name in sorted(won):
        episode = won[name]
        donors = _donors(episode, episodes)
        for number, (kind, perturb) in enumerate(KINDS.items()):
            rng = np.random.default_rng([seed, number, *name.encode()])
            if copy := perturb(episode.transitions, donors, rng):
                out[kind].append(
                    Preference(
                        task=episode.task, better=episode.transitions, worse=copy
                    )
                )
    return out


def needed_steps(attempt: Attempt) -> list[int]:
    """Return the steps without which the attempt would not come to its end.

    They change the state and lie on no detour: no state up to the one that such a step
    is taken in comes again after it. The last step is always needed.
    """
    states = [*(t.state for t in attempt), attempt[-1].next_state]
    last = len(attempt) - 1
    return [
        i
        for i, t in enumerate(attempt)
        if i == last
        or (t.next_state != t.state and not {*states[: i + 1]} & {*states[i + 1 :]})
    ]


def _donors(episode: Episode, episodes: Sequence[Episode]) -> _Donors:
    """Return what other episodes lend a copy of this one."""
    steps = episode.transitions
    used, ending = {t.action for t in steps}, _text(steps[-1])
    family = [e for e in episodes if e.task.family == episode.task.family]

    def actions(lenders: Sequence[Episode], *, refused: bool) -> list[str]:
        lent = (t for e in lenders for t in e.transitions)
        return sorted({t.action for t in lent if is_invalid(t) == refused} - used)

    def endings(lenders: Sequence[Episode]) -> list[Transition]:
        others = (e for e in lenders if e.success and e.task.id != episode.task.id)
        return [t for e in others if _text(t := e.transitions[-1]) != ending]

    return _Donors(
        actions(family, refused=False) or actions(episodes, refused=False),
        actions(family, refused=True) or actions(episodes, refused=True),
        endings(family) or endings(episodes),
    )


def _text(t: Transition) -> tuple[State, str, State]:
    """Return what a reward model reads of a step."""
    return t.state, t.action, t.next_state


def _leave_out(attempt: Attempt, donors: _Donors, rng: np.random.Generator) -> Attempt:
    """Leave a needed step out."""
    del donors
    i = int(rng.choice(needed_steps(attempt)))
    return (*attempt[:i], *attempt[i + 1 :])


def _refuse(attempt: Attempt, donors: _Donors, rng: np.random.Generator) -> Attempt:
    """Replace the action of a needed step by a refused one, which changes nothing."""
    i = int(rng.choice(needed_steps(attempt)))
    step = attempt[i]
    actions = [x for x in donors.refused if x not in step.valid_actions]
    if not actions:
        return ()
    refused = dataclasses.replace(
        step,
        action=str(rng.choice(actions)),
        next_state=step.state,
        rewards={},
        terminated=False,
        success=False,
        invalid=True,
    )
    return (*attempt[:i], refused, *attempt[i + 1 :])


def _replace(attempt: Attempt, donors: _Donors, rng: np.random.Generator) -> Attempt:
    """Replace the action of a needed step by another one, and keep what it led to."""
    i = int(rng.choice(needed_steps(attempt)))
    step = attempt[i]
    actions = [x for x in step.valid_actions if x != step.action] or donors.actions
    if not actions:
        return ()
    other = dataclasses.replace(step, action=str(rng.choice(actions)))
    return (*attempt[:i], other, *attempt[i + 1 :])


def _reverse(attempt: Attempt, donors: _Donors, rng: np.random.Generator) -> Attempt:
    """Reverse the order of the steps, if that changes the order of the actions."""
    del donors, rng
    actions = [t.action for t in attempt]
    return attempt[::-1] if actions != actions[::-1] else ()


def _end_otherwise(
    attempt: Attempt, donors: _Donors, rng: np.random.Generator
) -> Attempt:
    """Replace the last step by that of a won attempt at another task."""
    if not donors.endings:
        return ()
    return (*attempt[:-1], donors.endings[int(rng.integers(len(donors.endings)))])


KINDS: dict[str, Callable[[Attempt, _Donors, np.random.Generator], Attempt]] = {
    "step_left_out": _leave_out,
    "action_refused": _refuse,
    "action_replaced": _replace,
    "order_reversed": _reverse,
    "ending_of_another_task": _end_otherwise,
}
"""The kinds of flaws, in the order in which they are reported."""
