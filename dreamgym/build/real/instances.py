"""Instances of a run's environment: in this process, or each in a worker."""

import functools
from collections.abc import Callable

import gymnasium

from dreamgym.config.stages import EnvConfig
from dreamgym.envs import registry
from dreamgym.envs.workers.env import process_env, ray_env, shared_env
from worldmodel.data.processes import process_count


def instance_maker(config: EnvConfig) -> Callable[[str], gymnasium.Env]:
    """Return what makes an environment of a name: here, or in a worker."""
    seconds, memory = config.start_seconds, config.worker_memory_gb
    partial = functools.partial
    if not config.workers and process_count() == 1:
        return partial(registry.start, seconds=seconds)
    if not config.workers:
        return partial(shared_env, start_seconds=seconds)
    if config.fleet == "ray":
        cpus = config.worker_cpus
        return partial(ray_env, memory_gb=memory, cpus=cpus, start_seconds=seconds)
    return partial(process_env, memory_gb=memory, start_seconds=seconds)
