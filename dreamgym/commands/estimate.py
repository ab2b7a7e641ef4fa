"""Estimates what a run will take before it starts: seconds, memory, disk, as ranges.

settings, the timings that were measured here (build/timings.py) -> the cost of each
stage (`Stage.cost`) -> their sums -> ranges. The costs were calibrated on runs of the
presets on 2 CPU cores; on other machines they are a guess, and so are the ranges.
"""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from dreamgym.config.budget import division
from dreamgym.config.settings import RunConfig
from dreamgym.envs import limits
from dreamgym.run.cost import EPISODE_SHARE, Cost, Timings, Workload
from dreamgym.run.directory import RunError
from dreamgym.run.view import readable
from dreamgym.stages.table import STAGES, is_in_run
from worldmodel.data.records import read_episodes

LOWEST, HIGHEST = 0.7, 1.5
"""The ranges, as multiples of an estimate. Measured runs of presets lay within them."""

PROCESS, TRANSITION = 1.4e9, 14e3
"""Bytes of a process with its programs, and of a transition in its several forms."""

PLOTS = 4e6
"""Bytes of plots, tables and curves."""


class Estimate(NamedTuple):
    """The cost of each stage, the peak memory and the disk space of a run in bytes.

    For a run behind a chat server also the number of requests, the tokens and the cost.
    """

    stages: dict[str, Cost]
    memory: float
    disk: float
    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0

    @property
    def seconds(self) -> dict[str, float | int]:
        """The seconds of each stage, without those of compiling."""
        return {name: cost.seconds for name, cost in self.stages.items()}


def estimate_run(
    config: RunConfig,
    timings: Timings,
    collected: int | None = None,
    *,
    fine_tune: bool,
    controls: bool = True,
) -> Estimate:
    """Return the estimate of a whole run; `collected` is its number of transitions.

    A step limit that is left to the environment is taken to be the usual one. Without
    `fine_tune` the stages of the command `transfer` are left out, without `controls`
    those of them that fine-tune without a dream.
    """
    workload = workload_of(config, timings, collected)
    costs = {
        name: stage.cost(readable(config, stage.reads, f"cost of {name!r}"), workload)
        for name, stage in STAGES.items()
        if is_in_run(name, config, controls=controls)
        and (fine_tune or stage.command != "transfer")
    }
    answers = sum(cost.answers for cost in costs.values())
    # A checkpoint holds the parameters and the moments; the one before goes when the
    # new one is whole.
    checkpoints = 2 * 4 * workload.model_bytes
    return Estimate(
        costs,
        memory=PROCESS
        + TRANSITION * workload.transitions
        + max(cost.memory for cost in costs.values()),
        disk=checkpoints + sum(cost.disk for cost in costs.values()) + PLOTS,
        requests=answers * timings.requests,
        tokens=answers * timings.tokens,
        cost=answers * timings.cost,
    )


def workload_of(config: RunConfig, timings: Timings, collected: int | None) -> Workload:
    """Return the workload of a run; `collected` is its number of transitions."""
    max_steps = config.env.max_episode_steps or limits.DEFAULT
    if collected is None and config.budget.real_steps:
        collected = division(config.budget)["collect"]
    elif collected is None:
        episodes = config.collect.episodes + 2 * config.collect.dev_tasks
        collected = round(episodes * EPISODE_SHARE * max_steps)
    fit = config.pretrain.fit
    return Workload(timings, collected, max_steps, fit.batch_rows * fit.row_tokens)


def recorded_transitions(config: RunConfig) -> int | None:
    """Return the number of given transitions; None if the run collects them."""
    if not config.data.episodes:
        return None
    return sum(len(e.transitions) for e in read_episodes(config.data.episodes))


def ranges(
    estimate: Estimate, done: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Return (low, high) of seconds for stages not `done`, memory and disk bytes."""
    remaining = [c for name, c in estimate.stages.items() if name not in done]
    low = LOWEST * sum(cost.seconds for cost in remaining)
    return {
        "seconds": (low, sum(map(_highest_seconds, remaining))),
        "memory": (LOWEST * estimate.memory, HIGHEST * estimate.memory),
        "disk": (LOWEST * estimate.disk, HIGHEST * estimate.disk),
        "requests": (LOWEST * estimate.requests, HIGHEST * estimate.requests),
        "tokens": (LOWEST * estimate.tokens, HIGHEST * estimate.tokens),
        "cost": (LOWEST * estimate.cost, HIGHEST * estimate.cost),
    }


def _highest_seconds(cost: Cost) -> float:
    """Return the seconds of a stage at most; nothing is compiled for no work."""
    compiled = cost.compile_seconds if cost.seconds else 0.0
    return HIGHEST * cost.seconds + compiled


def summary(estimate: Estimate, done: Collection[str] = ()) -> str:
    """Return the ranges in one line."""
    intervals = ranges(estimate, done)
    (low, high), (memory_low, memory_high) = intervals["seconds"], intervals["memory"]
    line = (
        f"estimate: {time_of(low)} to {time_of(high)}, {_size(memory_low)} to "
        f"{_size(memory_high)} of memory, {_size(intervals['disk'][1])} of disk at most"
    )
    if estimate.requests:
        fewest, many = intervals["requests"]
        line += f"; {fewest:,.0f} to {many:,.0f} questions to the server"
        line += f" ({intervals['tokens'][1] / 1e6:,.1f} M tokens at most"
        line += (
            f", {intervals['cost'][1]:,.2f} at its prices)" if estimate.cost else ")"
        )
    return line


def table(estimate: Estimate) -> str:
    """Return the time of each stage, and the line of ranges, as text."""
    stages = {name: cost for name, cost in estimate.stages.items() if cost.seconds}
    width = max(map(len, stages), default=0)
    rows = [
        f"  {name:{width}} {time_of(LOWEST * cost.seconds)} to "
        f"{time_of(_highest_seconds(cost))}"
        for name, cost in stages.items()
    ]
    return "\n".join([summary(estimate), *rows])


def warnings(estimate: Estimate, root: Path, memory: int | None) -> list[str]:
    """Return warnings if `memory` bytes or the disk under `root` may not suffice.

    Raises:
      RunError: the disk is too small even for the least that was estimated.
    """
    out, intervals = [], ranges(estimate)
    # The run directory may not exist yet: its disk is that of the nearest folder above.
    place = next(p for p in (root, *root.absolute().parents) if p.exists())
    run_files = root.rglob("*") if (root / "manifest.json").is_file() else ()
    # What a run that continues has written already is part of its estimate.
    occupied = sum(p.stat().st_size for p in run_files if p.is_file())
    room = shutil.disk_usage(place).free + occupied
    low, high = intervals["disk"]
    if room < high:
        message = f"disk: {_size(room)} for a run of {_size(low)} to {_size(high)}"
        if room < low:
            raise RunError(
                f"{message} at {place}: make room or choose another --run-dir"
            )
        out.append(f"{message} at {place} may be too little")
    if memory is not None and memory < intervals["memory"][1]:
        out.append(
            f"memory: the machine has {_size(memory)}, which may be too little; "
            "--remat, fewer rows (--set pretrain.fit.batch_rows=4 --set "
            "train.update.batch_rows=4) or a smaller --model need less"
        )
    return out


def machine_memory() -> int | None:
    """Return the memory of this machine or container in bytes; None if unknown."""
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        return None
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # In a container the machine's memory is more than the process may use.
    share = Path("/sys/fs/cgroup/memory.max")
    if share.is_file() and (text := share.read_text().strip()).isdigit():
        size = min(size, int(text))
    return size


def time_of(seconds: float | int) -> str:
    """Return a duration as text, in a suitable unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(size: float | int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
