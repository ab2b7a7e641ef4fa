"""Stage: real episodes from train (and dev) tasks, as versioned JSONL.

Experts, noisy experts and random actors play distinct tasks; success and failure both
stay. With episodes from elsewhere this stage only checks, splits and copies them.
"""

import dataclasses
from typing import Any

import gymnasium

from dreamgym.agent.behavior import collect
from dreamgym.build.episodes import games_of, joined, sides_of, split_by_task
from dreamgym.envs import registry
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import bar
from worldmodel.data.records import Episode, read_episodes, write_episodes


def body(run: Run) -> dict[str, Any]:
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
        "real_transitions": sum(len(e.transitions) for e in [*train, *dev]),
    }
