"""Hard negatives: won attempts with one flaw, on which a reward model is examined.

won attempts at several tasks -> copies of each, one of each kind of flaw -> pairs by
kind (the attempt is better than its copy). They are rule-based perturbations, as in
Plan-RewardBench (arXiv:2604.08178): a copy reads like a success and is none.

Nothing is played again. The states of a copy are those that were recorded, except that
a refused action leaves the state as it was.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dreamgym.rewards.preferences import Preference
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Transition

Attempt = tuple[Transition, ...]


class _Donors(NamedTuple):
    """What other attempts lend a copy: actions, refused actions, last steps."""

    actions: Sequence[str]
    refused: Sequence[str]
    endings: Sequence[Transition]


def hard_negatives(
    pairs: Sequence[Preference], *, seed: int
) -> dict[str, list[Preference]]:
    """Return pairs of a won attempt and a flawed copy of it, by the kind of the flaw.

    The won attempts are the better ones of `pairs` whose last step says success; each
    has at most one copy of a kind, and none where there is no such copy. Actions and
    endings of copies are those of other attempts of `pairs`, of the same family where
    it has any. Draws depend on the seed and the place of the pair.
    """
    out: dict[str, list[Preference]] = {kind: [] for kind in KINDS}
    for number, pair in enumerate(pairs):
        attempt = pair.better
        if attempt[-1].success is not True:
            continue
        donors = _donors(pair, pairs)
        for kind_number, (kind, perturb) in enumerate(KINDS.items()):
            rng = np.random.default_rng((seed, number, kind_number))
            if copy := perturb(attempt, donors, rng):
                out[kind].append(Preference(task=pair.task, better=attempt, worse=copy))
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


def _donors(pair: Preference, pairs: Sequence[Preference]) -> _Donors:
    """Return what attempts at other tasks, and the worse one at this, lend a copy."""
    others = [p for p in pairs if p.task.id != pair.task.id]
    family = [p for p in others if p.task.family == pair.task.family]

    def first(choose: Callable[[Sequence[Preference]], list]) -> list:
        return choose([pair, *family]) or choose([pair, *others])

    used = {t.action for t in pair.better}

    def actions(chosen: Iterable[Preference], *, refused: bool) -> list[str]:
        steps = (t for p in chosen for x in (p.better, p.worse) for t in x)
        return sorted({t.action for t in steps if is_invalid(t) == refused} - used)

    def endings(chosen: Iterable[Preference]) -> list[Transition]:
        steps = [p.better[-1] for p in chosen if p is not pair]
        return [t for t in steps if t.success is True and not _reads_alike(t, pair)]

    return _Donors(
        first(lambda chosen: actions(chosen, refused=False)),
        first(lambda chosen: actions(chosen, refused=True)),
        first(endings),
    )


def _reads_alike(ending: Transition, pair: Preference) -> bool:
    own = pair.better[-1]
    return (ending.state, ending.action, ending.next_state) == (
        own.state,
        own.action,
        own.next_state,
    )


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
