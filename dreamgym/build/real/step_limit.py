"""The step limit of a run: from its setting, its environment or its episodes.

The stage `collect` decides it once and writes it into its marker; every later stage and
command reads it there, so that dream and reality are cut at the same step.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence

import gymnasium

from dreamgym.build.real.instances import instance_maker
from dreamgym.config.settings import RunConfig
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, limits, restarting
from dreamgym.envs.limits import StepLimit
from dreamgym.run.directory import Run
from worldmodel.data.records import Episode, read_episodes

SETTING = "max_episode_steps"
"""The name of the setting in group `env`, and of the number in the marker."""
LASTING = "lasting_wins"
"""The number in the marker of collection that says how its longest episodes ended."""
ENOUGH_LASTING = 3
"""Episodes until the step limit that show whether lasting is winning."""
LASTING_SHARE = 0.9
"""The share of them that must have been won."""


def step_limit(run: Run) -> int:
    """Return how many steps an episode of a run may have, once `collect` is done."""
    setting = run.config.env.max_episode_steps
    return setting or int(run.numbers("collect").get(SETTING, limits.DEFAULT))


def lasting_wins(run: Run) -> bool:
    """Return whether the real episodes that lasted until the step limit were won."""
    return bool(run.numbers("collect").get(LASTING, False))


def wins_by_lasting(episodes: Sequence[Episode], max_steps: int) -> bool:
    """Return whether recorded episodes are won by lasting until the step limit.

    At least ENOUGH_LASTING of them did, without an end, and hardly any was lost so.
    """
    won = [
        bool(e.success)
        for e in episodes
        if len(e.transitions) >= max_steps and not e.transitions[-1].terminated
    ]
    return len(won) >= ENOUGH_LASTING and sum(won) >= LASTING_SHARE * len(won)


def step_limit_from_env(config: RunConfig, env: gymnasium.Env) -> StepLimit:
    """Return the setting, else what the environment declares or its plans need."""
    if config.env.max_episode_steps:
        return StepLimit(config.env.max_episode_steps, f"the setting env.{SETTING}")
    tasks = base.tasks_of(env, config.env.id, "train", limits.PLANS)
    return limits.step_limit(env, tasks)


def step_limit_from_episodes(
    config: RunConfig, episodes: Sequence[Episode]
) -> StepLimit:
    """Return the setting, else what recorded episodes need."""
    if config.env.max_episode_steps:
        return StepLimit(config.env.max_episode_steps, f"the setting env.{SETTING}")
    return _recorded(episodes)


def _recorded(episodes: Sequence[Episode]) -> StepLimit:
    """Return what recorded episodes need.

    A recorded success is taken as a plan: the limit is the longest one with a margin,
    but not more than the longest episode, which is the limit where none succeeded.
    """
    longest = max((len(e.transitions) for e in episodes), default=0)
    won = max((len(e.transitions) for e in episodes if e.success), default=0)
    if won and limits.with_margin(won) < longest:
        reason = f"the longest success, {won} actions, with a margin"
        return StepLimit(limits.with_margin(won), reason)
    return StepLimit(max(longest, 1), "the longest episode")


def with_step_limit(config: RunConfig) -> RunConfig:
    """Return the settings of a run that has not begun, with its step limit filled in.

    The environment is reset to some tasks, in a worker where the run has workers; no
    real step is taken.
    """
    env = config.env
    steps = env.max_episode_steps or _planned(env, config.data.episodes)
    filled = dataclasses.replace(env, max_episode_steps=steps)
    return dataclasses.replace(config, env=filled)


@functools.cache
def _planned(env_config: EnvConfig, path: str) -> int:
    name = env_config.id
    if name:
        opened = restarting.open_env(name, make=instance_maker(env_config))
        with contextlib.closing(opened) as env:
            tasks = base.tasks_of(env, name, "train", limits.PLANS)
            return limits.step_limit(env, tasks).steps
    return _recorded(read_episodes(path)).steps if path else limits.DEFAULT
