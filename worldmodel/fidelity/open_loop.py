"""Open-loop rollouts: whole episodes dreamed from their real actions.

episode -> its actions one by one -> the model's predictions from its own states -> how
long these equal the real ones, and whether the episode ends as it really did. What a
step reveals nobody could know, and what is forgotten stands in nothing that the model
reads: there the episode goes on from the real state.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from worldmodel.data.hashing import content_seed
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State
from worldmodel.experience.base import ExperienceModel, Query, states_read
from worldmodel.fidelity.cases import unpredictable_steps

STEPS = 16
"""Steps up to which agreement is reported one by one."""

_ENDS = ("win", "loss")
_DREAMED = (*_ENDS, "broken")


def episodes_within(episodes: Sequence[Episode], steps: int | None) -> list[Episode]:
    """Return one episode, and as many more as fit into `steps` steps in all.

    Which ones depends on their content alone.
    """
    order = sorted(episodes, key=lambda e: content_seed("open loop", e.id))
    selection, total = [], 0
    for e in order:
        total += len(e.transitions)
        if selection and steps is not None and total > steps:
            break
        selection.append(e)
    return selection


def open_loop(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    *,
    recorded: Sequence[Episode] | None = None,
    stochastic: bool = False,
    batch: int = 64,
) -> dict[str, Any]:
    """Return agreement of states and outcomes over whole episodes.

    An episode is dreamed by its real actions, each from the state that the model wrote
    before. After a step that reveals something, or shows again what is forgotten, it
    goes on from the real state instead:
    a dream that shows another room or price is not wrong, and there the real actions
    would mean something else.

    exact: share of dreamed states equal to the real one after 1, 2, ... steps, over all
    episodes of that length; predictable: the same without these steps.
    outcomes: of the scored episodes, how often real and dreamed success agree, both
    success rates, and the four counts (real_dreamed). `over_optimistic` is the share of
    lost episodes that the dream wins, `over_pessimistic` the share of won ones that it
    loses. A game that is won without an end, by lasting until the step limit, is won in
    a dream that goes on as long. A malformed reply breaks the dream of an episode off,
    which agrees with no outcome; `broken` is the share of these.

    Args:
      recorded: all episodes that say what can be known; None: these ones.
      stochastic: whether the transitions of the environment are random.
    """
    recorded = episodes if recorded is None else recorded
    revealing = unpredictable_steps(
        episodes, recorded, stochastic=stochastic, states_read=states_read(model)
    )
    exact = [Rate() for _ in range(STEPS)]
    predictable = [Rate() for _ in range(STEPS)]
    cells = Counter[str]()
    for start in range(0, len(episodes), batch):
        part = episodes[start : start + batch]
        reveals = revealing[start : start + batch]
        dreamed = _dream_episodes(model, part, reveals)
        for e, steps, (states, won) in zip(part, reveals, dreamed, strict=True):
            for i, t in enumerate(e.transitions[:STEPS]):
                hit = i < len(states) and states[i] == t.next_state
                exact[i].add(hit)
                if i not in steps:
                    predictable[i].add(hit)
            if e.success is not None:
                dreamed_end = "broken" if won is None else "win" if won else "loss"
                cells[f"{'win' if e.success else 'loss'}_{dreamed_end}"] += 1
    return {
        "episodes": len(episodes),
        "exact": [r.json() for r in exact if r.count],
        "predictable": [r.json() for r in predictable if r.count],
        "outcomes": _outcomes(cells),
    }


def _outcomes(cells: Counter[str]) -> dict[str, Any]:
    """Return the shares that follow from the counts of (real success)_(dreamed)."""
    won, lost = (sum(cells[f"{x}_{end}"] for end in _DREAMED) for x in _ENDS)
    total = won + lost
    return {
        "agree": Rate.of(cells["win_win"] + cells["loss_loss"], total).json(),
        "real_success": Rate.of(won, total).json(),
        "dreamed_success": Rate.of(cells["win_win"] + cells["loss_win"], total).json(),
        "over_optimistic": Rate.of(cells["loss_win"], lost).json(),
        "over_pessimistic": Rate.of(cells["win_loss"], won).json(),
        "broken": Rate.of(cells["win_broken"] + cells["loss_broken"], total).json(),
        "cells": {f"{a}_{b}": cells[f"{a}_{b}"] for a in _ENDS for b in _DREAMED},
    }


def _dream_episodes(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    reveals: Sequence[frozenset[int]],
) -> list[tuple[list[State], bool | None]]:
    """Return (dreamed states, dreamed success) of each episode's actions.

    The success of a dream that a malformed reply has broken off is None. `reveals` are
    the steps of each after which it goes on from the real state.
    """
    states: list[list[State]] = [[] for _ in episodes]
    continued: list[list[State]] = [[e.transitions[0].state] for e in episodes]
    # Some games are won by lasting until the step limit, which no answer tells.
    won: list[bool | None] = [
        bool(e.success) and not e.transitions[-1].terminated for e in episodes
    ]
    live = set(range(len(episodes)))
    step = 0
    while live:
        live = {i for i in live if step < len(episodes[i].transitions)}
        order, queries = sorted(live), []
        for i in order:
            e = episodes[i]
            past = tuple(t.action for t in e.transitions[:step])
            # The states of the dream, not the real ones: it reads what it wrote.
            *past_states, state = continued[i]
            action = e.transitions[step].action
            queries.append(Query(e.task, past, state, action, tuple(past_states)))
        answers = model.predict(queries) if order else []
        for i, answer in zip(order, answers, strict=True):
            if answer.error is not None:
                won[i] = None
                live.discard(i)
                continue
            states[i].append(answer.next_state)
            real = episodes[i].transitions[step].next_state
            continued[i].append(real if step in reveals[i] else answer.next_state)
            if answer.outcome != "go":
                won[i] = answer.outcome == "win"
                live.discard(i)
        step += 1
    return list(zip(states, won, strict=True))
