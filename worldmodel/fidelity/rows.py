"""What a scorecard asks: held-out transitions, and near misses made from them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, State, Transition
from worldmodel.experience.base import Query
from worldmodel.text.novelty import novel_words as reveals

KINDS = ("same", "one_line", "many_lines", "reveal")


class Row(NamedTuple):
    """One question, its real answer, and of what kind that is."""

    query: Query
    transition: Transition
    kind: str


class NearMiss(NamedTuple):
    """A winning action asked one step too early. `known`: it really fails there."""

    query: Query
    known: bool


Replay = Callable[[Query], bool | None]
"""Whether a query's action is really rewarded; None where that cannot be told."""


def kind_of(t: Transition, instruction: str, past_states: Sequence[str] = ()) -> str:
    """same, one_line, many_lines or reveal: what the next state asks of a predictor.

    What reveals something the environment knows best; where it does not say, it is a
    word that nobody said before. A change of one line is one that left the state, one
    that came, or both.
    """
    if t.next_state == t.state:
        return "same"
    reveal = t.reveals
    if reveal is None:
        known = (*t.state, *past_states)
        reveal = bool(reveals(known, t.action, instruction, t.next_state))
    if reveal:
        return "reveal"
    gone, come = _less(t.state, t.next_state), _less(t.next_state, t.state)
    return "one_line" if max(gone, come) <= 1 else "many_lines"


def _less(one: State, other: State) -> int:
    left = list(other)
    lost = 0
    for line in one:
        if line in left:
            left.remove(line)
        else:
            lost += 1
    return lost


def distinct(episodes: Sequence[Episode], limit: int) -> list[Row]:
    """Distinct (task, state, action), taken in turn from the episodes."""
    rows: dict[tuple, Row] = {}
    longest = max((len(e.transitions) for e in episodes), default=0)
    for step in range(longest):
        for e in episodes:
            if step >= len(e.transitions) or len(rows) >= limit:
                continue
            t = e.transitions[step]
            seen = [line for x in e.transitions[:step] for line in x.state]
            kind = kind_of(t, e.task.instruction, seen)
            row = Row(_query(e, step, t.action), t, kind)
            rows.setdefault((e.task.id, t.state, t.action), row)
    return list(rows.values())


def _query(episode: Episode, step: int, action: str) -> Query:
    past = tuple(x.action for x in episode.transitions[:step])
    return Query(episode.task, past, episode.transitions[step].state, action)


def near_misses(
    episodes: Sequence[Episode], limit: int, replay: Replay | None = None
) -> list[NearMiss]:
    """Won episodes with the step before the winning one left out.

    The winning action is asked in the state in which that step was still to be done.
    What really happens there is in the records, or found by `replay`, or else presumed:
    no reward, no win (of 90 such cases of two games 6 were rewarded: the spared step
    had not been needed; docs/LOG.md, 2026-11-22). Left out are states that the spared
    step does not change, and those where the action is known to be rewarded.
    """
    known = {(e.task.id, t.state, t.action): t for e in episodes for t in e.transitions}
    out: dict[tuple, NearMiss] = {}
    for e in episodes:
        won = [i for i, t in enumerate(e.transitions) if t.success and t.reward > 0]
        if not won or won[0] == 0 or len(out) >= limit:
            continue
        last, spared = e.transitions[won[0]], e.transitions[won[0] - 1]
        if spared.state == last.state or spared.action == last.action:
            continue
        key = (e.task.id, spared.state, last.action)
        query, real = _query(e, won[0] - 1, last.action), known.get(key)
        paid = None if real is None else real.success or real.reward > 0
        if paid is None and replay is not None and key not in out:
            paid = replay(query)
        if not paid:
            out.setdefault(key, NearMiss(query, paid is not None))
    return list(out.values())
