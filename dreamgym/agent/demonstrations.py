"""Demonstrations: the episodes that a policy imitates.

won episodes of any actor -> without detours -> at most one for each task
"""

import dataclasses
from collections.abc import Sequence

from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode, State, Transition


def expert_episodes(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """Return successful expert episodes, or any successful ones; one for each task."""
    successes = [e for e in episodes if e.success]
    candidates = [e for e in successes if e.source == "expert"] or successes
    return list({e.task.id: e for e in candidates}.values())[:limit]


def random_success(episodes: Sequence[Episode]) -> float:
    """Return the share of random players' scored episodes that were won, or 0."""
    played = [e for e in episodes if e.source == "random" and e.error is None]
    won = [bool(e.success) for e in played]
    return sum(won) / len(won) if won else 0.0


def valid_steps(episodes: Sequence[Episode]) -> list[Episode]:
    """Return random players' episodes without invalid actions, those with any left.

    What is left is play without an aim, as the environment allows it. The step after an
    invalid action starts from the state that reports the error.
    """
    played = [
        dataclasses.replace(
            e, transitions=tuple(t for t in e.transitions if not is_invalid(t))
        )
        for e in episodes
        if e.source == "random"
    ]
    return [e for e in played if e.transitions]


def shortened_wins(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the shortest won episode of each task, without its detours."""
    shortest: dict[str, Episode] = {}
    for e in episodes:
        if e.success:
            short = without_detours(e)
            other = shortest.get(e.task.id)
            if other is None or len(short.transitions) < len(other.transitions):
                shortest[e.task.id] = short
    return list(shortest.values())


def without_detours(episode: Episode) -> Episode:
    """Return an episode without invalid actions, and without loops.

    A loop is what lies between two visits of the same state. The step after an invalid
    action starts from the state before it, which may differ by the error that was
    reported. The result is a path that could have been played where the environment is
    deterministic and its states are complete; an environment that hides something may
    answer it otherwise.
    """
    path: list[Transition] = []
    state: State | None = None
    for t in episode.transitions:
        if state is None:
            state = t.state
        if is_invalid(t):
            continue
        visited = (i for i, x in enumerate(path) if x.state == state)
        path = path[: next(visited, len(path))]
        path.append(dataclasses.replace(t, state=state))
        state = t.next_state
    return dataclasses.replace(episode, transitions=tuple(path))
