"""Episodes of a run: reading them, splitting them, and choosing demonstrations."""

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dreamgym.agent.demonstrations import (
    best_parts,
    draw_mixture,
    expert_episodes,
    solutions,
    without_detours,
)
from dreamgym.envs import base
from dreamgym.run.directory import Run, RunError
from worldmodel import reasoning
from worldmodel.data.records import Episode, Task, read_episodes
from worldmodel.fidelity.hidden_state import hidden_state
from worldmodel.text.names import (
    Groups,
    interchangeable_names,
    load_names,
    with_declared,
)

NAMES = "names.json"
"""The file with the names that stand for each other in copies of examples."""
HELD_OUT_TASKS = 3
"""Tasks of a recording that are held out at least, if it has five times as many."""
ENOUGH_REPEATED = 50
"""Repeated steps without a contradiction that show an environment without lots."""
CONTRADICTIONS = 3
"""Repeated steps with another result that show lots; fewer may be slips of a log."""
CONTRADICTING_SHARE = 0.03
"""The share of the repeated steps that these must exceed."""


def read_names(run: Run) -> dict[str, Groups]:
    """Return the groups of names that stand for each other, by family."""
    return load_names(run.path(NAMES))


def names_with(run: Run, played: Sequence[Episode]) -> dict[str, Groups]:
    """Return the groups of names, by the collected episodes and those played since.

    More episodes show more: names of which the collection held too little are found.
    What a trial has accepted stays, unless the episodes played speak against it.
    """
    if not run.config.pretrain.exchange_names:
        return {}
    played = [*read(run)[0], *played]
    names = interchangeable_names(played, trial_names=read_names(run))
    return with_declared(names, run.config.pretrain.names, played)


def sides_of(
    episodes: Sequence[Episode], path: str | Path
) -> tuple[list[Episode], list[Episode]]:
    """Return (train, dev) episodes; other splits are left out with a message.

    Raises:
      RunError: both are empty, or a task is in both.
    """
    splits = Counter(e.task.split for e in episodes)
    for split in sorted(splits.keys() - {"train", "dev"}):
        print(
            f"collect: {path}: {splits[split]} episodes of split {split!r} are left "
            "out: train is learned from, dev chosen by",
            file=sys.stderr,
        )
    train = [e for e in episodes if e.task.split == "train"]
    dev = [e for e in episodes if e.task.split == "dev"]
    if not train and not dev:
        raise RunError(f"{path}: expected episodes of split 'train' or 'dev', got none")
    if both := {e.task.id for e in train} & {e.task.id for e in dev}:
        raise RunError(
            f"{path}: expected each task in one split, got {len(both)} in train and "
            f"dev (such as {min(both)!r}): scores on them would measure memory"
        )
    return train, dev


def split_by_task(
    episodes: Sequence[Episode], *, share: float
) -> tuple[list[Episode], list[Episode]]:
    """Hold out a share of the tasks with all their episodes, so that none is in both.

    These are at least HELD_OUT_TASKS, but at most a fifth of the tasks where `share` is
    smaller, and at least one. Won, lost and unscored tasks are held out in proportion,
    and so are families; from each of these outcomes that has three tasks, one is held
    out if there is room. The same episodes are always split in the same way.

    Raises:
      RunError: there are fewer than 2 tasks.
    """
    count = len({e.task.id for e in episodes})
    if count < 2:
        raise RunError(
            f"expected episodes of at least 2 tasks to hold some out, got {count}"
        )
    size = max(1, count // max(2, round(1 / share)), min(HELD_OUT_TASKS, count // 5))
    dev_tasks = _spread_tasks(_tasks_by_outcome(episodes), size)
    return (
        [e for e in episodes if e.task.id not in dev_tasks],
        [
            dataclasses.replace(e, task=dataclasses.replace(e.task, split="dev"))
            for e in episodes
            if e.task.id in dev_tasks
        ],
    )


def _tasks_by_outcome(episodes: Sequence[Episode]) -> list[list[str]]:
    """Return the ids of the won, of the lost and of the unscored tasks, by family.

    A task is won if one of its episodes was, else lost if one of them was scored.
    """
    by_task: dict[str, list[Episode]] = {}
    for e in episodes:
        by_task.setdefault(e.task.id, []).append(e)
    families = {e.task.family: None for e in episodes}
    order = {family: i for i, family in enumerate(families)}
    groups: list[list[str]] = [[], [], []]
    for name in sorted(by_task, key=lambda n: order[by_task[n][0].task.family]):
        outcomes = {e.success for e in by_task[name]}
        groups[0 if True in outcomes else 1 if False in outcomes else 2].append(name)
    return groups


def _spread_tasks(groups: Sequence[Sequence[str]], size: int) -> set[str]:
    """Return `size` names, in proportion from each group and spread over its order.

    A group of three names or more comes first if nothing is taken from it yet, and the
    last one that is left in a group is taken only where no group has more.
    """
    counts = [0] * len(groups)

    def rank(i: int) -> tuple[bool, bool, float]:
        left = len(groups[i]) - counts[i]
        # Webster's method of dividing seats: the group with the largest quotient.
        share = len(groups[i]) / (2 * counts[i] + 1)
        return left > 1, not counts[i] and left >= 3, share if left else 0.0

    for _ in range(size):
        # Of equal ranks the last one wins: what was won is worth more to learn from.
        counts[max(range(len(groups)), key=lambda i: (rank(i), i))] += 1
    return {
        group[(i + 1) * len(group) // count - 1]
        for group, count in zip(groups, counts, strict=True)
        for i in range(count)
    }


def recorded_determinism(episodes: Sequence[Episode]) -> bool | None:
    """Return whether recordings show that an environment is deterministic, or None.

    It draws lots if steps that were recorded with the same task, the same actions
    before, the same state and the same action have different results: at least
    CONTRADICTIONS of them, and more than CONTRADICTING_SHARE. It is deterministic if
    ENOUGH_REPEATED steps were recorded with the same task, state and action, after
    whatever actions, and each had the same result as its equals. Otherwise the
    recordings do not decide it.
    """
    # The state may not hold all that decides, so that only equal pasts prove lots.
    longest = max((len(e.transitions) for e in episodes), default=0)
    replayed = hidden_state(episodes, history=longest)
    enough = replayed.hits >= CONTRADICTIONS
    if enough and replayed.hits > CONTRADICTING_SHARE * replayed.count:
        return False
    repeated = hidden_state(episodes, history=0)
    return True if repeated.count >= ENOUGH_REPEATED and not repeated.hits else None


def joined(source: Run, path: str) -> tuple[list[Episode], list[Episode]]:
    """Return (train, dev) episodes of a source run and of a file of new episodes.

    A task of the source run keeps its split. Of the new tasks, those of split `dev` are
    held out, or a tenth if there are none. New tasks of other splits (test) are left
    out with a message.

    Raises:
      RunError: as sides_of.
    """
    train = read_episodes(source.path("episodes.jsonl"))
    dev = read_episodes(source.path("dev.jsonl"))
    sides = {e.task.id: "train" for e in train} | {e.task.id: "dev" for e in dev}
    used_ids = {e.id for e in (*train, *dev)}
    additions = [
        _moved(e, sides.get(e.task.id, e.task.split)) for e in read_episodes(path)
    ]
    fresh_train, fresh_dev = sides_of(additions, path)
    unknown = [e for e in fresh_train if e.task.id not in sides]
    # Only new tasks count: further episodes of known dev tasks hold out nothing new.
    has_dev_split = any(e.task.id not in sides for e in fresh_dev)
    if not has_dev_split and len({e.task.id for e in unknown}) > 1:
        new_train, out = split_by_task(unknown, share=0.1)
        fresh_train = [e for e in fresh_train if e.task.id in sides] + new_train
        fresh_dev += out
    for side, new in ((train, fresh_train), (dev, fresh_dev)):
        for e in new:
            side.append(_renamed(e, used_ids))
            used_ids.add(side[-1].id)
    return train, dev


def _moved(episode: Episode, split: str) -> Episode:
    task = dataclasses.replace(episode.task, split=split)
    return dataclasses.replace(episode, task=task)


def _renamed(episode: Episode, used_ids: set[str]) -> Episode:
    """Return the episode with an unused id: two collections may number alike."""
    name, number = episode.id, 1
    while name in used_ids:
        number += 1
        name = f"{episode.id}#{number}"
    return dataclasses.replace(episode, id=name)


def games_of(env: gymnasium.Env, name: str, split: str, count: int) -> list[Task]:
    """Return between 1 and `count` tasks of a split.

    Raises:
      RunError: the environment has none.
    """
    tasks = base.tasks_of(env, name, split, count)
    if not tasks:
        raise RunError(
            f"environment {name!r}: expected at least 1 task of split {split!r}, got "
            f"none from tasks({split!r}); episodes of train are learnt from, those of "
            "dev tell how well"
        )
    return tasks


def recorded_episodes(path: Path) -> list[Episode]:
    """Return the episodes that a stage wrote; none if the file is missing or empty."""
    if not path.is_file() or not path.stat().st_size:
        return []
    return read_episodes(path)


def read(run: Run) -> tuple[list[Episode], list[Episode]]:
    """Return (train, dev) episodes of the run, with its reasoning traces if any."""
    c = run.config.experience
    style = c.reasoning_style if c.reasoning else ""
    train, dev = run.path("episodes.jsonl"), run.path("dev.jsonl")
    return [*_read(train, _version(train), style)], [*_read(dev, _version(dev), style)]


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what differs between versions of a file; None if there is no file."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


# A stage reads the same episodes up to a dozen times, and their traces take a second.
@functools.lru_cache(maxsize=2)
def _read(path: Path, version: Any, style: str) -> tuple[Episode, ...]:
    """Return the episodes of a version of a file, with traces by rule unless "".

    Traces of other writers are left out, too, where `style` is "".
    """
    del version  # it is only there to be compared
    return tuple(
        reasoning.set_rule_traces(e, enabled=bool(style), style=style or "words")
        for e in read_episodes(path)
    )


def nested_subset(
    episodes: Sequence[Episode], share: float, *, seed: int
) -> list[Episode]:
    """Return a share of the episodes in order, at least one.

    For the same seed a smaller share is a subset of a larger one.
    """
    count = max(round(share * len(episodes)), 1)
    order = np.random.default_rng(seed).permutation(len(episodes))[:count]
    return [episodes[i] for i in sorted(order)]


def broken_counts(episodes: Sequence[Episode]) -> dict[str, int]:
    """Count the episodes that ended with an error by reason, most frequent first."""
    return dict(Counter(e.error for e in episodes if e.error).most_common())


def nothing_to_imitate(episodes: Sequence[Episode]) -> str:
    """Return a message that no episode succeeded: how they ended, and what to do."""
    scored = [e for e in episodes if e.success is not None and e.transitions]
    cut = sum(e.transitions[-1].truncated for e in scored)
    steps = max((len(e.transitions) for e in scored), default=0)
    unscored = sum(e.success is None and not e.error for e in episodes)
    broken = len(episodes) - len(scored) - unscored
    counts = broken_counts(episodes)
    reasons = [f"{n} times {r}" for r, n in counts.items()]
    parts = [
        f"{cut} were cut at the step limit (at most {steps} steps)",
        f"{len(scored) - cut} ended without success",
        f"{broken} broke" + (f" ({'; '.join(reasons[:3])})" if reasons else ""),
    ]
    if unscored:
        parts.append(f"{unscored} do not say whether they were won")
    planned = sum(e.source == "expert" for e in episodes)
    cure = "a sound expert()"
    if cut:
        cure = "a step limit that is long enough (env.max_episode_steps)"
    if not planned:
        cure = (
            "an environment with expert(), or with rewards on the way (bc.min_wins), "
            "or --episodes with successes"
        )
    if unscored > len(episodes) / 2:
        cure = (
            "episodes that say which were won (`success`; `dreamgym judge FILE` asks "
            "a large model)"
        )
    return (
        f"no successful episode to imitate among the collected {len(episodes)}, of "
        f"which {planned} were an expert's: {', '.join(parts)}. Imitation needs {cure}"
    )


def demonstrations(run: Run) -> tuple[list[Episode], list[Episode]]:
    """Return the expert episodes of a run, and those of its dev episodes.

    They are what is branched, and what the held-out loss of imitation is measured on.
    Where no expert won an episode, others' wins take their place: without their detours
    in an environment that is known to be deterministic, unless `bc.imitate` is
    "experts". Where nobody won one, the parts of episodes that earned most do.

    Raises:
      RunError: none of the collected episodes was won, and no part of one earned more
        than others.
    """
    c = run.config.bc
    train, dev = read(run)
    experts = _all_demonstrations(run)[: c.max_demonstrations]
    if not experts:
        raise RunError(nothing_to_imitate(train))
    return (
        nested_subset(experts, c.demonstration_share, seed=run.config.seed),
        expert_episodes(dev, c.max_demonstrations, shortens=_shortens(run)),
    )


def _all_demonstrations(run: Run) -> list[Episode]:
    """Return what `demonstrations` chooses from."""
    train, shortens = read(run)[0], _shortens(run)
    experts = expert_episodes(train, len(train), shortens=shortens)
    if not experts and run.config.bc.min_wins:
        return best_parts(train, shortens=shortens)
    return experts


def _shortens(run: Run) -> bool:
    """Return whether wins of others than experts are imitated without detours."""
    deterministic = run.numbers("collect").get("deterministic", False)
    return deterministic and run.config.bc.imitate != "experts"


def known_solutions(run: Run) -> list[Episode]:
    """Return what the collection shows of its tasks: an episode of each, mostly won.

    These are the demonstrations and, unless `bc.imitate` is "experts", what other
    actors won in further tasks of a deterministic environment: elsewhere they may have
    been lucky. Where these are fewer than `bc.min_wins`, the parts of episodes that
    earned most in other tasks follow; their `success` is false. "corrected" leaves the
    detours of the demonstrations out as well.

    Raises:
      RunError: there is no demonstration (`demonstrations`).
    """
    imitable, _ = demonstrations(run)
    deterministic = run.numbers("collect").get("deterministic", False)
    if run.config.bc.imitate != "experts" and deterministic:
        if run.config.bc.imitate == "corrected":
            imitable = [without_detours(e) for e in imitable]
        # Where an expert solved the task, a detour of random play has nothing to add,
        # also where a share of the demonstrations leaves the expert's episode out.
        expert_ids = {e.task.id for e in _all_demonstrations(run)}
        others = solutions(read(run)[0], run.config.bc.min_wins)
        imitable = [*imitable, *(e for e in others if e.task.id not in expert_ids)]
    return imitable


def won_solutions(run: Run) -> list[Episode]:
    """Return the known solutions that were won, from which rollouts may begin.

    Raises:
      RunError: none of the collected episodes was won.
    """
    won = [e for e in known_solutions(run) if e.success]
    if not won:
        raise RunError(
            f"no successful episode among the {len(read(run)[0])} collected ones: "
            "curriculum.demonstration_starts and curriculum.guided_retries begin in "
            "won episodes or are guided by them; leave them out, or collect some that "
            "are won"
        )
    return won


def imitated_episodes(run: Run) -> list[Episode]:
    """Return the episodes that the run's policies imitate.

    These are the known solutions, with `bc.mixture` drawn in shares of their kinds.

    Raises:
      RunError: there is no demonstration (`demonstrations`), or none of a kind that
        has a share.
    """
    imitable, shares = known_solutions(run), run.config.bc.mixture.shares
    try:
        return draw_mixture(imitable, shares, seed=run.config.seed)
    except ValueError as error:
        raise RunError(f"bc.mixture: {error}") from None


def plan_lengths(run: Run) -> dict[str, int]:
    """Return for each task of the training episodes the fewest steps to success."""
    out: dict[str, int] = {}
    for e in read(run)[0]:
        if e.success:
            steps = len(e.transitions)
            out[e.task.id] = min(out.get(e.task.id, steps), steps)
    return out
