"""Open-loop rollouts: whole episodes dreamed from their real actions.

episode -> its actions one by one -> the model's predictions from its own states -> how
long these equal the real ones, and whether the episode ends as it really did.
"""

from collections.abc import Sequence
from typing import Any

from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State
from worldmodel.experience.base import ExperienceModel, Query
from worldmodel.fidelity.cases import kind_of

STEPS = 16
"""Steps up to which agreement is reported one by one."""


def open_loop(
    model: ExperienceModel, episodes: Sequence[Episode], *, batch: int = 64
) -> dict[str, Any]:
    """Return agreement of states and outcomes over whole episodes.

    exact: share of dreamed states equal to the real one after 1, 2, ... steps, over all
    episodes of that length; predictable: the same before an episode's first reveal.
    outcomes: of the scored episodes, how often real and dreamed success agree, both
    success rates, and the four counts (real_dreamed). `over_optimistic` is the share of
    lost episodes that the dream wins, `over_pessimistic` the share of won ones that it
    loses. A malformed reply ends an episode as lost.
    """
    exact = [Rate() for _ in range(STEPS)]
    predictable = [Rate() for _ in range(STEPS)]
    cells = {f"{a}_{b}": 0 for a in ("win", "loss") for b in ("win", "loss")}
    for start in range(0, len(episodes), batch):
        part = episodes[start : start + batch]
        for e, (states, won) in zip(part, _dream_episodes(model, part), strict=True):
            reveal = _first_reveal(e)
            for i, t in enumerate(e.transitions[:STEPS]):
                hit = i < len(states) and states[i] == t.next_state
                exact[i].add(hit)
                if i < reveal:
                    predictable[i].add(hit)
            if e.success is not None:
                real = "win" if e.success else "loss"
                cells[f"{real}_{'win' if won else 'loss'}"] += 1
    won, lost = (cells[f"{x}_win"] + cells[f"{x}_loss"] for x in ("win", "loss"))
    total = won + lost
    return {
        "episodes": len(episodes),
        "exact": [r.json() for r in exact if r.count],
        "predictable": [r.json() for r in predictable if r.count],
        "outcomes": {
            "agree": Rate.of(cells["win_win"] + cells["loss_loss"], total).json(),
            "real_success": Rate.of(won, total).json(),
            "dreamed_success": Rate.of(
                cells["win_win"] + cells["loss_win"], total
            ).json(),
            "over_optimistic": Rate.of(cells["loss_win"], lost).json(),
            "over_pessimistic": Rate.of(cells["win_loss"], won).json(),
            "cells": cells,
        },
    }


def _first_reveal(episode: Episode) -> int:
    history: list[str] = []
    for i, t in enumerate(episode.transitions):
        if kind_of(t, episode.task.instruction, history) == "reveal":
            return i
        history += t.state
    return len(episode.transitions)


def _dream_episodes(
    model: ExperienceModel, episodes: Sequence[Episode]
) -> list[tuple[list[State], bool]]:
    """Return (dreamed states, dreamed success) of each episode's actions."""
    states: list[list[State]] = [[] for _ in episodes]
    won, live = [False] * len(episodes), set(range(len(episodes)))
    step = 0
    while live:
        live = {i for i in live if step < len(episodes[i].transitions)}
        order, queries = sorted(live), []
        for i in order:
            e = episodes[i]
            state = states[i][-1] if states[i] else e.transitions[0].state
            past = tuple(t.action for t in e.transitions[:step])
            queries.append(Query(e.task, past, state, e.transitions[step].action))
        answers = model.predict(queries) if order else []
        for i, answer in zip(order, answers, strict=True):
            if answer.error is not None:
                live.discard(i)
                continue
            states[i].append(answer.next_state)
            if answer.outcome != "go":
                won[i] = answer.outcome == "win"
                live.discard(i)
        step += 1
    return list(zip(states, won, strict=True))
