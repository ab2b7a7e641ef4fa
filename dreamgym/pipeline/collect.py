"""Stage: real episodes from train (and dev) games, as versioned JSONL.

Experts, noisy experts and random actors play distinct games; success and failure both
stay. With episodes from elsewhere this stage only checks, splits and copies them.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base, registry
from dreamgym.evaluation.evaluate import invalid
from dreamgym.pipeline.config import CollectConfig
from dreamgym.pipeline.run import Run, RunError, bar
from worldmodel.data.records import (
    Episode,
    Task,
    Transition,
    read_episodes,
    write_episodes,
)

SOURCES = ("expert", "noisy", "random")


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


def collect(
    env: gymnasium.Env,
    tasks: Sequence[Task],
    episodes: int,
    config: CollectConfig,
    *,
    seed: int,
    max_steps: int,
    show: Callable[[int], Any] = lambda _: None,
) -> list[Episode]:
    """Episodes over the tasks in turn, sources drawn by their weights.

    An environment without an expert is played at random only.
    """
    rng = np.random.default_rng(seed)
    weights = np.array([config.expert, config.noisy, config.random], float)
    if not hasattr(env, "expert"):
        weights = np.array([0.0, 0.0, 1.0])
    seen, earned = list[str](), list[str]()
    out = []
    for number in range(episodes):
        task = tasks[number % len(tasks)]
        source = SOURCES[int(rng.choice(3, p=weights / weights.sum()))]
        name = f"{source}-{number}-{task.id}"
        actor = _Actor(env, source, config, rng, seen, earned)
        episode = play(env, task, actor, max_steps=max_steps, name=name)
        show(number + 1)
        if not episode.transitions:
            continue
        out.append(dataclasses.replace(episode, source=source))
        for t in episode.transitions:
            # What was refused is no action of another place: mangled words, once
            # known, would soon be most of what is known.
            for known, counts in ((seen, not invalid(t)), (earned, t.reward > 0)):
                if counts and t.action not in known and len(known) < 2000:
                    known.append(t.action)
    return out


class _Actor:
    """Expert, noisy expert or random player of one episode."""

    def __init__(
        self,
        env: gymnasium.Env,
        source: str,
        config: CollectConfig,
        rng: np.random.Generator,
        seen: list[str],
        earned: list[str],
    ):
        self._env: Any = env
        self._config, self._rng = config, rng
        self._seen, self._earned = seen, earned
        self._noise = {"expert": 0.0, "noisy": config.noise, "random": 1.0}[source]
        self._plan: list[str] | None = None

    def __call__(self) -> str:
        if self._plan is None:
            self._plan = list(self._env.expert()) if self._noise < 1.0 else []
        if self._rng.random() >= self._noise and self._plan:
            return self._plan.pop(0)
        return self._random()

    def _random(self) -> str:
        draw = self._rng.random()
        c, valid = self._config, list(getattr(self._env, "valid_actions", list)())
        foreign = c.mangled + c.foreign
        if self._earned and foreign <= draw < foreign + c.tempting:
            return self._one(self._earned)
        if valid and draw >= foreign:
            return self._one(valid)
        if self._seen and draw >= c.mangled:
            return self._one(self._seen)
        if not self._seen:
            return self._one(valid) if valid else self._sample()
        two = self._rng.integers(len(self._seen), size=2)
        words = " ".join(self._seen[i] for i in two).split()
        return " ".join(self._rng.permutation(words)[:3])

    def _one(self, actions: Sequence[str]) -> str:
        # Not `choice`: an array of texts is as wide as its longest one.
        return str(actions[int(self._rng.integers(len(actions)))])

    def _sample(self) -> str:
        return self._env.action_space.sample()


def play(
    env: gymnasium.Env, task: Task, actor: Any, *, max_steps: int, name: str
) -> Episode:
    """One real episode; an environment that breaks leaves it unscored."""
    transitions: list[Transition] = []
    earned = 0.0
    success: bool | None = None
    try:
        task, state = base.begin(env, task)
        for number in range(max_steps):
            action = actor()
            step = base.take(env, action, earned)
            last = number + 1 == max_steps
            success = step.success
            transitions.append(
                Transition(
                    state=state, action=action, next_state=step.state,
                    rewards=step.rewards, terminated=step.terminated,
                    truncated=step.truncated or (last and not step.terminated),
                    success=step.success, invalid=step.invalid,
                    reveals=step.reveals,
                )
            )  # fmt: skip
            state, earned = step.state, earned + sum(step.rewards.values())
            if step.terminated or step.truncated:
                break
    except Exception as error:  # an environment may raise anything
        print(f"collect: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        success = None
    return Episode(
        id=name, task=task, transitions=tuple(transitions), source="real",
        success=success,
    )  # fmt: skip
