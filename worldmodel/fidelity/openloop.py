"""The dream let run: real actions, dreamed states.

episode -> its actions one by one -> what the model makes of its own states -> how far
they stay the real ones, and whether the episode ends as it really did.
"""

from collections.abc import Sequence
from typing import Any

from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State
from worldmodel.experience.base import ExperienceModel, Query
from worldmodel.fidelity.rows import kind_of

STEPS = 16
"""Steps up to which drift is told apart."""


def drift(
    model: ExperienceModel, episodes: Sequence[Episode], *, batch: int = 64
) -> dict[str, Any]:
    """Drift and agreement of outcomes over whole episodes.

    exact: share of dreamed states equal to the real one after 1, 2, ... steps, of all
    episodes that are as long; predictable: the same before an episode's first reveal.
    outcomes: of the episodes that are scored, how often real and dreamed success agree,
    and the four cells; `over_optimistic` is the share of really lost episodes that the
    dream wins. A reply without sense ends an episode lost.
    """
    exact = [Rate() for _ in range(STEPS)]
    predictable = [Rate() for _ in range(STEPS)]
    cells = {f"{a}_{b}": 0 for a in ("win", "loss") for b in ("win", "loss")}
    for start in range(0, len(episodes), batch):
        part = episodes[start : start + batch]
        for e, (states, won) in zip(part, _dreamed(model, part), strict=True):
            fresh = _first_reveal(e)
            for i, t in enumerate(e.transitions[:STEPS]):
                hit = i < len(states) and states[i] == t.next_state
                exact[i].add(hit)
                if i < fresh:
                    predictable[i].add(hit)
            if e.success is not None:
                real = "win" if e.success else "loss"
                cells[f"{real}_{'win' if won else 'loss'}"] += 1
    lost = cells["loss_win"] + cells["loss_loss"]
    total = sum(cells.values())
    agree = cells["win_win"] + cells["loss_loss"]
    return {
        "episodes": len(episodes),
        "exact": [r.json() for r in exact if r.count],
        "predictable": [r.json() for r in predictable if r.count],
        "outcomes": {
            "agree": Rate(agree, total).json(),
            "over_optimistic": Rate(cells["loss_win"], lost).json(),
            "cells": cells,
        },
    }


def _first_reveal(episode: Episode) -> int:
    seen: list[str] = []
    for i, t in enumerate(episode.transitions):
        if kind_of(t, episode.task.instruction, seen) == "reveal":
            return i
        seen += t.state
    return len(episode.transitions)


def _dreamed(
    model: ExperienceModel, episodes: Sequence[Episode]
) -> list[tuple[list[State], bool]]:
    """(dreamed states, dreamed success) of each episode's actions."""
    states: list[list[State]] = [[] for _ in episodes]
    won, live = [False] * len(episodes), set(range(len(episodes)))
    step = 0
    while live:
        live = {i for i in live if step < len(episodes[i].transitions)}
        rows, queries = sorted(live), []
        for i in rows:
            e = episodes[i]
            here = states[i][-1] if states[i] else e.transitions[0].state
            past = tuple(t.action for t in e.transitions[:step])
            queries.append(Query(e.task, past, here, e.transitions[step].action))
        for i, answer in zip(rows, model.predict(queries) if rows else [], strict=True):
            if answer.problem is not None:
                live.discard(i)
                continue
            states[i].append(answer.next_state)
            if answer.outcome != "go":
                won[i] = answer.outcome == "win"
                live.discard(i)
        step += 1
    return list(zip(states, won, strict=True))
