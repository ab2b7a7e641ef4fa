"""Estimates what a run will take before it starts: seconds, memory, disk, as ranges.

settings, the timings that was measured here (timings.py) -> seconds by stage, bytes,
questions to a server. How stages compare with a fit's update was measured on runs of
the presets (docs/LOG.md, 2026-11-21 and 22: 1 to 2 M parameters on 2 CPU cores);
elsewhere that is a guess, and so are the ranges.
"""

import dataclasses
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from curriculum.sampler import max_generated
from dreamgym.agent.config import FLOORS
from dreamgym.build.rewards import needs_reward_model
from dreamgym.build.timings import Timings
from dreamgym.config.settings import RunConfig
from dreamgym.envs import limits
from dreamgym.rewards.config import RewardModelConfig
from dreamgym.run.directory import RunError
from dreamgym.stages.table import STAGES
from dreamgym.training.config import LoopConfig
from worldmodel.data.records import read_episodes
from worldmodel.experience.base import SAMPLES

PREFERENCES = RewardModelConfig()


UPDATES = {
    "pretrain": 1.0,  # an update
    "bc": 1.1,  # an update: dev losses are taken more often
    "warmstart": 1.1,  # an update
    "ensemble": 1.0,  # an update
    "fidelity": 0.33,  # a dev transition
    "train": 1.1 / 16,  # a step that a rollout may take
    "dream_check": 1.1 / 16,  # a step that an episode in the dream may take
    "evaluate": 0.25,  # a test game
    "transfer": 0.05,  # a real transition
}
"""Seconds of a stage's unit, as multiples of those of an update of the fit."""


COMPILED = {
    "pretrain": 10,
    "fidelity": 4,
    "bc": 4,
    "warmstart": 4,
    "train": 60,
    "evaluate": 5,
    "transfer": 30,
}
"""Seconds that compiling took where nothing was compiled before; so at most these."""


RANKED = 0.05
"""Updates of the fit that a transition costs in each update of a reward model."""


LOWEST, HIGHEST = 0.7, 1.5
"""Times what is estimated: the ranges. Measured runs of presets lay within them."""


NEW = 0.6
"""Share of the steps a rollout may take that ask what was not answered before."""


LENGTH = 0.84
"""Mean length of a collected episode as a share of the most steps."""


PROCESS, TRANSITION = 1.4e9, 14e3
"""Bytes of a process with its programs, and of a transition in its several forms."""


WRITTEN, PLOTS = 730, 4e6
"""Bytes of a transition in an episodes file, and of plots, tables and curves."""


def compiled(stage: str) -> float | int:
    """Return the seconds that compiling takes at most where nothing was compiled."""
    if stage in REAL_LOOPS:
        return COMPILED["transfer"]
    if stage == "evaluate/untrained":  # the others find what it compiled
        return COMPILED["evaluate"]
    return COMPILED.get(stage, 0)


class Estimate(NamedTuple):
    """Seconds by stage (without compiling), peak memory and disk in bytes.

    For a run behind a chat server also the number of requests, the tokens and the cost.
    """

    seconds: dict[str, float]
    memory: float
    disk: float
    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0


def estimate_run(
    config: RunConfig,
    timings: Timings,
    collected: int | None = None,
    *,
    fine_tune: bool,
) -> Estimate:
    """Return the estimate of a whole run; `collected` is its number of transitions.

    A step limit that is left to the environment is taken to be the usual one.
    """
    steps = config.env.max_episode_steps or limits.DEFAULT
    env = dataclasses.replace(config.env, max_episode_steps=steps)
    c, e = dataclasses.replace(config, env=env), config.evaluate
    if collected is None:
        episodes = c.collect.episodes + 2 * c.collect.dev_tasks
        collected = round(episodes * LENGTH * c.env.max_episode_steps)
    real = bool(c.env.id)
    units = {
        "collect": collected * (real and not c.data.episodes),
        "pretrain": 0 if c.server is not None else c.pretrain.fit.steps,
        "ensemble": c.ensemble.members * c.ensemble.steps,
        "fidelity": c.fidelity.transitions,
        "bc": c.bc.fit.steps,
        "warmstart": c.bc.fit.steps * (c.warmstart.method != "bc"),
        "train": _steps(c.train, c.env.max_episode_steps),
        "dream_check": _dream_check_steps(c),
        **_real_steps(c, collected, fine_tune=real and fine_tune),
    }
    seconds = {k: n * UPDATES.get(k, 0.0) * timings.update for k, n in units.items()}
    seconds["collect"] = units["collect"] * timings.step
    game = UPDATES["evaluate"] * timings.update
    game += LENGTH * c.env.max_episode_steps * timings.step
    dev_games = _dev_games(c)
    for stage in ("warmstart", "train"):
        seconds[stage] += dev_games.get(stage, 0) * game
    if c.train.environment == "real":
        seconds["train"] += units["train"] * timings.step
    for name in STAGES:
        if name.startswith("evaluate/") and real:
            played = e.tasks * LENGTH * c.env.max_episode_steps * timings.step
            model_tasks = e.tasks * (name.partition("/")[2] not in FLOORS)
            seconds[name] = model_tasks * UPDATES["evaluate"] * timings.update + played
    for name in REAL_LOOPS:
        if name in units:
            each = UPDATES["transfer"] * timings.update + timings.step
            seconds[name] = units[name] * each + dev_games.get(name, 0) * game
    if any(needs_reward_model(loop.reward) for loop in (c.train, c.transfer)):
        ranked = 2 * PREFERENCES.batch_pairs * LENGTH * c.env.max_episode_steps
        seconds["reward_model"] = PREFERENCES.steps * ranked * RANKED * timings.update
    if not fine_tune:
        seconds = {k: s for k, s in seconds.items() if STAGES[k].command != "transfer"}
    answers = _answers(c, units["fidelity"], units["train"], units["dream_check"])
    for stage, count in answers.items():
        seconds[stage] += count * timings.answer
    weights = 4.0 * timings.parameters
    loop = c.train.update
    # Fit: parameters, two moments, the best ones, a gradient. Loop: the experience
    # model, the policy now, before and as it began, two moments, a gradient.
    logits = 4.0 * loop.batch_rows * loop.row_tokens * timings.vocabulary
    share = (
        loop.batch_rows
        * loop.row_tokens
        / (c.pretrain.fit.batch_rows * c.pretrain.fit.row_tokens)
    )
    fit, rl = 5 * weights + timings.scratch, 7 * weights + 5 * logits
    rl += timings.scratch * share
    policies = 4 + 3 * (real and fine_tune)
    models = (1 + c.ensemble.members + policies) * weights
    played = policies * e.tasks * LENGTH * c.env.max_episode_steps * real
    checkpoints = 2 * 4 * weights  # the one before goes when the new one is whole
    return Estimate(
        seconds,
        PROCESS + TRANSITION * collected + max(fit, rl),
        models + checkpoints + WRITTEN * (collected + played) + PLOTS,
        *(
            sum(answers.values()) * x
            for x in (timings.requests, timings.tokens, timings.cost)
        ),
    )


def _answers(
    c: RunConfig, fidelity: int, steps: int, checked: int
) -> dict[str, float | int]:
    """Answers that stages want of a server, by stage."""
    if c.server is None:
        return {}
    if c.train.environment == "real":
        steps = 0
    invents = c.train.environment == "dream" and max_generated(
        c.train.curriculum, c.train.tasks_per_update
    )
    proposals = (
        c.train.updates * c.train.curriculum.proposals_per_update if invents else 0
    )
    each = 1 + SAMPLES * (c.uncertainty.signal == "self_consistency")
    return {
        "fidelity": each * fidelity,
        "dream_check": each * NEW * checked,
        "train": each * NEW * steps + proposals,
    }


def _steps(loop: LoopConfig, max_steps: int) -> int:
    """Steps that the rollouts of a loop may take: half of those that `resample` may."""
    groups = (
        loop.tasks_per_update * (1 + loop.max_resample_rounds / 2)
        + loop.forks_per_update
    )
    steps = round(loop.updates * groups * loop.group_size * max_steps)
    return min(steps, loop.max_transitions) if loop.max_transitions else steps


def _dream_check_steps(c: RunConfig) -> int:
    """Steps that the dev games may take in the dream."""
    if c.train.environment == "real":
        return 0
    return c.train.monitor.real_eval_tasks * c.env.max_episode_steps


REAL_LOOPS = ("s2r", "real_only", "real_only_total")


def _dev_games(c: RunConfig) -> dict[str, int]:
    """The real dev games that choose between policies, by stage."""
    every, games = c.train.monitor.real_eval_every, c.train.monitor.real_eval_tasks
    if not (c.env.id and every):
        return {}
    return {
        "warmstart": 2 * games * (c.warmstart.method != "bc"),
        "train": -(-c.train.updates // every) * games,
        **dict.fromkeys(REAL_LOOPS, games),
    }


def _real_steps(c: RunConfig, collected: int, *, fine_tune: bool) -> dict[str, int]:
    """Return the transitions of fine-tuning and its controls, as budgets allow."""
    if not fine_tune:
        return {}
    n, limit = c.transfer.real_transitions, _steps(c.transfer, c.env.max_episode_steps)
    budgets = {"s2r": n, "real_only": n, "real_only_total": n + collected}
    return {name: min(budget, limit) for name, budget in budgets.items()}


def recorded_transitions(config: RunConfig) -> int | None:
    """Return the number of given transitions; None if the run collects them."""
    if not config.data.episodes:
        return None
    return sum(len(e.transitions) for e in read_episodes(config.data.episodes))


def ranges(
    estimate: Estimate, done: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Return (low, high) of seconds for stages not `done`, memory and disk bytes."""
    remaining = {k: s for k, s in estimate.seconds.items() if k not in done and s}
    high = sum((HIGHEST * s + compiled(k) for k, s in remaining.items()), 0.0)
    return {
        "seconds": (LOWEST * sum(remaining.values()), high),
        "memory": (LOWEST * estimate.memory, HIGHEST * estimate.memory),
        "disk": (LOWEST * estimate.disk, HIGHEST * estimate.disk),
        "requests": (LOWEST * estimate.requests, HIGHEST * estimate.requests),
        "tokens": (LOWEST * estimate.tokens, HIGHEST * estimate.tokens),
        "cost": (LOWEST * estimate.cost, HIGHEST * estimate.cost),
    }


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
    rows = [
        f"  {name:15} {time_of(LOWEST * s)} to {time_of(HIGHEST * s + compiled(name))}"
        for name, s in estimate.seconds.items()
        if s
    ]
    return "\n".join([summary(estimate), *rows])


def warnings(estimate: Estimate, root: Path, memory: int | None) -> list[str]:
    """Return warnings if `memory` bytes or the disk under `root` may not suffice.

    Raises:
      RunError: the disk is too small even for the least that was estimated.
    """
    out, intervals = [], ranges(estimate)
    place = next(p for p in (root, *root.absolute().parents) if p.exists())
    run_files = root.rglob("*") if (root / "manifest.json").is_file() else ()
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
