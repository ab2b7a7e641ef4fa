"""Demonstrations: the episodes that a policy imitates.

won episodes of any actor -> without detours -> at most one for each task -> where few
tasks were won, the parts of other episodes that earned most -> in tasks with tools, a
mixture of kinds: those that make no call, a call, calls of several tools, calls of
several arguments
"""

import dataclasses
import itertools
import random
from collections.abc import Collection, Mapping, Sequence

from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode, State, Transition
from worldmodel.text.tools.tool_calls import read_action

KINDS = ("no_call", "call", "tool", "arguments")
"""Kinds of demonstrations in tasks with tools: each shows what those before do not."""


def expert_episodes(
    episodes: Sequence[Episode], limit: int, *, shortens: bool = False
) -> list[Episode]:
    """Return successful expert episodes, or any successful ones; one for each task.

    `shortens`: where no expert was successful, the shortest episode of each task is
    taken, without its detours. Else the last one is taken, as it is.
    """
    successes = [e for e in episodes if e.success]
    experts = [e for e in successes if e.source == "expert"]
    if shortens and not experts:
        return shortened_wins(successes)[:limit]
    return list({e.task.id: e for e in experts or successes}.values())[:limit]


def random_success(episodes: Sequence[Episode]) -> float:
    """Return the share of random players' scored episodes that were won, or 0."""
    played = [e.success for e in episodes if e.source == "random"]
    won = [success for success in played if success is not None]
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
    """Return the shortest won episode of each task, without its detours.

    One whose actions all count as invalid stays as it is.
    """
    shortest: dict[str, Episode] = {}
    for e in episodes:
        if e.success:
            short = without_detours(e)
            short = short if short.transitions else e
            other = shortest.get(e.task.id)
            if other is None or len(short.transitions) < len(other.transitions):
                shortest[e.task.id] = short
    return list(shortest.values())


def solutions(
    episodes: Sequence[Episode], min_wins: int, won_tasks: Collection[str] = ()
) -> list[Episode]:
    """Return the shortened wins, and where they are few the parts that earned most.

    Args:
      min_wins: the number of won tasks below which the `best_parts` are returned, too.
      won_tasks: the tasks that were won elsewhere, by id; they count as well.
    """
    wins = shortened_wins(episodes)
    if len({e.task.id for e in wins} | set(won_tasks)) >= min_wins:
        return wins
    return [*wins, *best_parts(episodes)]


def best_parts(episodes: Sequence[Episode], *, shortens: bool = True) -> list[Episode]:
    """Return for each task that was not won the part of an episode that earned most.

    A part begins with the episode and ends where the sum of rewards is highest; with
    `shortens` it has no detours. It counts if it earned more than 0, and more than the
    one that earned least of all: what every episode earns shows nothing. Unscored
    episodes are left out.
    """
    won = {e.task.id for e in episodes if e.success}
    parts = [_highest_part(e) for e in episodes if e.success is not None]
    if shortens:
        parts = [without_detours(part) for part in parts]
    lowest = max(min((e.episode_return for e in parts), default=0.0), 0.0)
    best: dict[str, Episode] = {}
    for part in parts:
        # The margin: sums of the same rewards in another order differ by rounding.
        if part.task.id in won or part.episode_return <= lowest + 1e-9:
            continue
        other = best.get(part.task.id)
        if other is None or _worth(part) > _worth(other):
            best[part.task.id] = part
    return list(best.values())


def _worth(part: Episode) -> tuple[float, int]:
    """Return what parts of one task are ranked by: what they earned, then brevity."""
    return part.episode_return, -len(part.transitions)


def _highest_part(episode: Episode) -> Episode:
    """Return the episode up to where its sum of rewards is highest for the first time.

    Without a step where that is the sum of none.
    """
    sums = [0.0, *itertools.accumulate(t.reward for t in episode.transitions)]
    end = sums.index(max(sums))
    return dataclasses.replace(episode, transitions=episode.transitions[:end])


def without_surpassed(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes without parts of tasks of which another one shows more.

    A win shows more than a part of an episode, and of two parts the one that earned
    more does. Wins are all kept.
    """
    won = {e.task.id for e in episodes if e.success}
    best: dict[str, int] = {}
    for i, e in enumerate(episodes):
        other = best.get(e.task.id)
        if other is None or e.episode_return > episodes[other].episode_return:
            best[e.task.id] = i
    return [
        e
        for i, e in enumerate(episodes)
        if e.success or (e.task.id not in won and best[e.task.id] == i)
    ]


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


def demonstration_kind(episode: Episode) -> str | None:
    """Return the kind (KINDS) of a demonstration, None where its task has no tools.

    The primer on tool calling begins with examples of four kinds: tool use is
    forbidden, it is required, it needs the right tool, it needs valid arguments. A
    demonstration counts as the last of these that it shows.
    """
    if not {"tools", "calls"} & episode.task.options.keys():
        return None
    calls = [c for t in episode.transitions for c in read_action(t.action).calls]
    if not calls:
        return "no_call"
    if any(len(call.arguments) > 1 for call in calls):
        return "arguments"
    return "tool" if len({call.tool for call in calls}) > 1 else "call"


def draw_mixture(
    episodes: Sequence[Episode], shares: Mapping[str, float], *, seed: int
) -> list[Episode]:
    """Return as many demonstrations as these shares of KINDS allow, in their order.

    The shares are relative to their sum and hold up to less than one demonstration of
    each kind. Demonstrations in tasks without tools are all kept, as all are where no
    share is above 0.

    Raises:
      ValueError: there is no demonstration of a kind that has a share.
    """
    total = sum(shares.values())
    if not total:
        return list(episodes)
    kinds = [demonstration_kind(e) for e in episodes]
    wanted = {kind: share / total for kind, share in shares.items() if share > 0}
    if missing := [kind for kind in wanted if kind not in kinds]:
        counts = {kind: kinds.count(kind) for kind in KINDS}
        raise ValueError(f"no demonstration is of kind {missing[0]!r}, got {counts}")
    size = min(kinds.count(kind) / share for kind, share in wanted.items())
    rng, numbers = random.Random(seed), list[int]()
    for kind in KINDS:
        members = [i for i, other in enumerate(kinds) if other == kind]
        # 1e-9: 0.29 * 100 is just short of 29.
        numbers += rng.sample(members, int(size * wanted.get(kind, 0.0) + 1e-9))
    numbers += [i for i, kind in enumerate(kinds) if kind is None]
    return [episodes[i] for i in sorted(numbers)]
