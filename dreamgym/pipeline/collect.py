"""Stage: real episodes from train (and dev) games, as versioned JSONL.

Experts, noisy experts and random actors play distinct games; success and failure both
stay. With episodes from elsewhere this stage only checks, splits and copies them.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from dreamgym.agent.behavior import collect
from dreamgym.envs import base, registry
from dreamgym.pipeline.run import Run, RunError, bar
from worldmodel.data.records import (
    Episode,
    Task,
    read_episodes,
    write_episodes,
)


def stage(run: Run) -> dict[str, Any]:
    """Write episodes.jsonl (train) and dev.jsonl into the run.

    Raises:
      RunError: nothing to learn from, or nothing to measure it on.
    """
    if run.config.refit:
        return _write(run, *joined(Run.open(run.config.refit), run.config.episodes))
    if run.config.episodes:
        return _from_file(run)
    if not run.config.env:
        raise RunError("nothing to learn from: give --env, --episodes, or both")
    env = registry.make(run.config.env)
    try:
        return _from_env(run, env)
    finally:
        env.close()


def _from_file(run: Run) -> dict[str, Any]:
    path = run.config.episodes
    train, dev = sides_of(read_episodes(path), path)
    if not train:
        raise RunError(f"{path}: expected an episode of split 'train', got none")
    if not dev:
        train, dev = split_by_task(train, share=0.1)
    return _write(run, train, dev)


def sides_of(
    episodes: Sequence[Episode], path: str | Path
) -> tuple[list[Episode], list[Episode]]:
    """(train, dev) episodes; of other splits it is said that they are left out.

    Raises:
      RunError: neither is there, or a task is on both sides.
    """
    splits = Counter(e.task.split for e in episodes)
    for split in sorted(splits.keys() - {"train", "dev"}):
        print(
            f"collect: {path}: {splits[split]} episodes of split {split!r} are left "
            "out: train is learned from, dev chosen by", file=sys.stderr,
        )  # fmt: skip
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
    """Hold out every n-th task, whole: no task is on both sides."""
    tasks = list(dict.fromkeys(e.task.id for e in episodes))
    if len(tasks) < 2:
        raise RunError(
            f"expected episodes of at least 2 tasks to hold some out, got {len(tasks)}"
        )
    every = max(2, round(1 / share))
    held = set(tasks[every - 1 :: every]) or {tasks[-1]}
    return (
        [e for e in episodes if e.task.id not in held],
        [
            dataclasses.replace(e, task=dataclasses.replace(e.task, split="dev"))
            for e in episodes
            if e.task.id in held
        ],
    )


def joined(source: Run, path: str) -> tuple[list[Episode], list[Episode]]:
    """(train, dev) episodes of a source run and of a file of new ones.

    A task keeps the side it had in the source; of the tasks it did not know, those
    that say `dev` and, where none does, a tenth are held out. Unknown tasks of another
    split (test) are left out, which is said.

    Raises:
      RunError: as sides_of.
    """
    train = read_episodes(source.path("episodes.jsonl"))
    dev = read_episodes(source.path("dev.jsonl"))
    sides = {e.task.id: "train" for e in train} | {e.task.id: "dev" for e in dev}
    taken = {e.id for e in (*train, *dev)}
    found = [_moved(e, sides.get(e.task.id, e.task.split)) for e in read_episodes(path)]
    fresh, held = sides_of(found, path)
    unknown = [e for e in fresh if e.task.id not in sides]
    chosen = any(e.task.id not in sides for e in held)
    if not chosen and len({e.task.id for e in unknown}) > 1:
        left, out = split_by_task(unknown, share=0.1)
        fresh = [e for e in fresh if e.task.id in sides] + left
        held += out
    for side, new in ((train, fresh), (dev, held)):
        for e in new:
            side.append(_renamed(e, taken))
            taken.add(side[-1].id)
    return train, dev


def _moved(episode: Episode, split: str) -> Episode:
    return dataclasses.replace(
        episode, task=dataclasses.replace(episode.task, split=split)
    )


def _renamed(episode: Episode, taken: set[str]) -> Episode:
    """The episode under an id that is free: two collections may number alike."""
    name, number = episode.id, 1
    while name in taken:
        number += 1
        name = f"{episode.id}#{number}"
    return dataclasses.replace(episode, id=name)


def _from_env(run: Run, env: gymnasium.Env) -> dict[str, Any]:
    c, seed = run.config.collect, run.config.seed
    name = run.config.env
    train = games_of(env, name, "train", c.games)
    dev = games_of(env, name, "dev", c.dev_games)
    steps = run.config.max_steps
    with bar(c.episodes + len(dev) * 2, "collect", "episode") as show:
        found = collect(
            env, train, c.episodes, c, seed=seed, max_steps=steps, show=show
        )
        # Each actor as often as another: with few demonstrations to learn from there
        # must still be enough to tell where imitation is at its best.
        even = dataclasses.replace(c, expert=1.0, noisy=1.0, random=1.0)
        held = collect(
            env, dev, 2 * len(dev), even, seed=seed + 1, max_steps=steps,
            show=lambda n: show(c.episodes + n),
        )  # fmt: skip
    for split, episodes in (("train", found), ("dev", held)):
        if not episodes:
            raise RunError(
                f"environment {name!r}: expected a step of at least 1 {split} game, "
                "got none; how each broke is told above"
            )
    return _write(run, found, held)


def games_of(env: gymnasium.Env, name: str, split: str, count: int) -> list[Task]:
    """At most `count` tasks of a split, one at least.

    Raises:
      RunError: the environment has none.
    """
    found = base.tasks_of(env, name, split, count)
    if not found:
        raise RunError(
            f"environment {name!r}: expected at least 1 task of split {split!r}, got "
            f"none from tasks({split!r}); episodes of train are learnt from, those of "
            "dev tell how well"
        )
    return found


def _write(run: Run, train: list[Episode], dev: list[Episode]) -> dict[str, Any]:
    write_episodes(run.path("episodes.jsonl"), train)
    write_episodes(run.path("dev.jsonl"), dev)
    return {
        "episodes": len(train),
        "games": len({e.task.id for e in train}),
        "transitions": sum(len(e.transitions) for e in train),
        "successes": sum(bool(e.success) for e in train),
        "dev_episodes": len(dev),
        "dev_transitions": sum(len(e.transitions) for e in dev),
    }
