"""What a run will take: seconds, memory and disk, told before it begins, as ranges.

settings, one timed update and a few timed real episodes (kept for each machine beside
compiled programs) -> seconds by stage, bytes. How stages compare with a fit's update
was measured on runs of the presets (docs/LOG.md, 2026-11-21 and 22: 1 to 2 M parameters
on 2 CPU cores); elsewhere that is a guess, and so are the ranges.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import statistics
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dreamgym.envs import base
from dreamgym.pipeline.collect import collect
from dreamgym.pipeline.config import MODELS, RunConfig
from dreamgym.pipeline.run import RunError
from worldmodel import pretrain
from worldmodel.backbone import lora
from worldmodel.backbone.model import create
from worldmodel.backbone.weights import load_model
from worldmodel.fitting.batches import Example, pack, rows_of
from worldmodel.fitting.learner import Learner
from worldmodel.text.records import read_episodes, replacing

UPDATES = {
    "pretrain": 1.0,  # an update
    "warmstart": 1.1,  # an update: dev losses are taken more often
    "ensemble": 1.0,  # an update
    "fidelity": 0.33,  # a dev transition
    "train": 1.1 / 16,  # a step that a rollout may take
    "evaluate": 0.25,  # a test game
    "transfer": 0.05,  # a real transition
}
"""Seconds of a stage's unit, as multiples of those of an update of the fit."""
COMPILED = {
    "pretrain": 10, "fidelity": 4, "warmstart": 8, "train": 60, "evaluate": 5,
    "transfer": 30,
}  # fmt: skip
"""Seconds that compiling took where nothing was compiled before; so at most these."""
LOWEST, HIGHEST = 0.7, 1.5
"""Times what is estimated: the ranges. Measured runs of presets lay within them."""
LENGTH = 0.84
"""Mean length of a collected episode as a share of the most steps."""
PROCESS, TRANSITION = 1.4e9, 14e3
"""Bytes of a process with its programs, and of a transition in its several forms."""
WRITTEN, PLOTS = 730, 4e6
"""Bytes of a transition in an episodes file, and of plots, tables and curves."""
FRESH = 24 * 3600.0
"""Seconds after which is measured again: a machine is not always as busy."""
SECONDS = 2.0
"""How long is measured, at most, once everything is compiled."""


class Pace(NamedTuple):
    """What was measured here.

    update: seconds of a fit's update; step: of a real transition (0 without an
    environment); parameters: of the model; vocabulary; scratch: bytes of a gradient
    beside parameters and gradient.
    """

    update: float
    step: float
    parameters: int
    vocabulary: int
    scratch: int


class Estimate(NamedTuple):
    """Seconds by stage (without compiling), and bytes: most memory, disk."""

    seconds: dict[str, float]
    memory: float
    disk: float


def estimated(
    config: RunConfig, pace: Pace, collected: int | None = None, *, fine_tune: bool
) -> Estimate:
    """Of a whole run; `collected` transitions where they are known already."""
    c, e = config, config.evaluate
    if collected is None:
        episodes = c.collect.episodes + 2 * c.collect.dev_games
        collected = round(episodes * LENGTH * c.max_steps)
    real = bool(c.env)
    units = {
        "collect": collected * (real and not c.episodes),
        "pretrain": 0 if c.server is not None else c.pretrain.steps,
        "ensemble": c.ensemble.members * c.ensemble.steps,
        "fidelity": e.fidelity,
        "warmstart": 2 * c.warmstart.fit.steps,
        "train": c.dream.updates * c.dream.tasks * c.dream.group_size * c.max_steps,
        "evaluate": 4 * e.games * real,
        "transfer": _real_steps(c, collected) * (real and fine_tune),
    }
    seconds = {k: n * UPDATES.get(k, 0.0) * pace.update for k, n in units.items()}
    seconds["collect"] = units["collect"] * pace.step
    if real:
        seconds["evaluate"] += 4 * e.games * LENGTH * c.max_steps * pace.step
    if real and fine_tune:
        games = 3 * e.games
        seconds["transfer"] += games * UPDATES["evaluate"] * pace.update
        seconds["transfer"] += units["transfer"] * pace.step
    weights = 4.0 * pace.parameters
    loop = c.dream.update
    # Fit: parameters, two moments, the best ones, a gradient. Loop: the experience
    # model, the policy now, before and as it began, two moments, a gradient.
    logits = 4.0 * loop.rows * loop.width * pace.vocabulary
    share = loop.rows * loop.width / (c.pretrain.rows * c.pretrain.width)
    fit, rl = 5 * weights + pace.scratch, 7 * weights + 5 * logits
    rl += pace.scratch * share
    policies = 4 + 3 * (real and fine_tune)
    kept = (1 + c.ensemble.members + policies) * weights
    played = policies * e.games * LENGTH * c.max_steps * real
    checkpoints = 2 * 4 * weights  # the one before goes when the new one is whole
    return Estimate(
        seconds,
        PROCESS + TRANSITION * collected + max(fit, rl),
        kept + checkpoints + WRITTEN * (collected + played) + PLOTS,
    )


def _real_steps(c: RunConfig, collected: int) -> int:
    """Transitions of fine-tuning and its two controls, as budgets and updates allow."""
    t, n = c.transfer, c.transfer_budget
    most = t.updates * t.tasks * t.group_size * c.max_steps
    return 2 * min(n, most) + min(n + collected, most)


def measured(config: RunConfig, cache: Path) -> Pace:
    """The pace of this machine under these settings; kept in `cache` for a day.

    What a run has that is not measured: longer rows, where its texts need them.
    """
    told = {
        "model": _shape(config), "fit": repr(config.pretrain), "env": config.env,
        "steps": config.max_steps, "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(), "jax": jax.__version__,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    path = cache / f"pace-{key}.json"
    if path.is_file() and time.time() - path.stat().st_mtime < FRESH:
        return Pace(**json.loads(path.read_text()))
    step = _step_seconds(config) if config.env else 0.0
    pace = Pace(step=step, **_update(config))
    with replacing(path) as file:
        json.dump(pace._asdict(), file)
    return pace


def _shape(config: RunConfig) -> str:
    if config.model in MODELS:
        return repr(MODELS[config.model])
    path = Path(config.model) / "config.json"
    return f"{path} {path.read_text()}"


def _update(config: RunConfig) -> dict[str, Any]:
    """One update's seconds, and sizes, of the fit as it will be but for its texts."""
    c = config.pretrain
    if config.model in MODELS:
        shape = MODELS[config.model]
        model = create(shape.model(shape.vocab_size), seed=0)
    else:
        model, _ = load_model(config.model)
    size = model.config.vocab_size
    count = sum(x.size for x in jax.tree.leaves(model.params))
    if c.lora is not None:
        model = lora.attach(model, c.lora, seed=0)
    optimizer = dataclasses.replace(c.optimizer, steps=c.steps)  # the fit's program
    learner = Learner(model, optimizer, pretrain.supervised_loss, c.compute)
    ids = np.random.default_rng(0).integers(0, size, c.width).tolist()
    row = Example(ids, [False] + [True] * (c.width - 1), [1] * c.width)
    tokens = rows_of(pack([row], c.width), np.zeros(c.rows, int), c.rows)
    state = learner.init()
    scratch = 0
    with contextlib.suppress(RuntimeError):  # a compiler that does not tell
        scratch = learner.scratch(state.params, tokens)
    state, _ = learner.update(state, [tokens])  # compiled
    jax.block_until_ready(state.params)
    seconds, start = [], time.monotonic()
    while not seconds or time.monotonic() - start < SECONDS:
        before = time.monotonic()
        state, _ = learner.update(state, [tokens])
        jax.block_until_ready(state.params)
        seconds.append(time.monotonic() - before)
    return {
        "update": statistics.median(seconds), "parameters": count, "vocabulary": size,
        "scratch": scratch,
    }  # fmt: skip


def _step_seconds(config: RunConfig) -> float:
    """Seconds of a real transition under random play, the environment's start aside."""
    env = base.make(config.env)
    try:
        tasks = base.tasks_of(env, config.env, "train", 8)
        done, start = 0, 0.0
        for number in range(1000):
            if number == 1:  # the first one warms up
                done, start = 0, time.monotonic()
            played = collect(
                env, tasks, 1, config.collect, seed=number, max_steps=config.max_steps
            )
            done += sum(len(e.transitions) for e in played)
            if number and time.monotonic() - start > SECONDS / 2:
                break
        return (time.monotonic() - start) / max(done, 1)
    finally:
        env.close()


def known(config: RunConfig) -> int | None:
    """Transitions of the settings' own episodes; None where they are collected."""
    if not config.episodes:
        return None
    return sum(len(e.transitions) for e in read_episodes(config.episodes))


def spans(
    estimate: Estimate, done: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Least and most of seconds (of stages not `done`), memory and disk, in bytes."""
    left = {k: s for k, s in estimate.seconds.items() if k not in done and s}
    most = sum(HIGHEST * s + COMPILED.get(k, 0) for k, s in left.items())
    return {
        "seconds": (LOWEST * sum(left.values()), most),
        "memory": (LOWEST * estimate.memory, HIGHEST * estimate.memory),
        "disk": (LOWEST * estimate.disk, HIGHEST * estimate.disk),
    }


def told(estimate: Estimate, done: Collection[str] = ()) -> str:
    """One line of ranges."""
    found = spans(estimate, done)
    (low, high), (least, most) = found["seconds"], found["memory"]
    return (
        f"estimate: {time_of(low)} to {time_of(high)}, {_size(least)} to "
        f"{_size(most)} of memory, {_size(found['disk'][1])} of disk at most"
    )


def table(estimate: Estimate) -> str:
    """Seconds of each stage, then the line of ranges."""
    rows = [
        f"  {name:10} {time_of(LOWEST * s)} to "
        f"{time_of(HIGHEST * s + COMPILED.get(name, 0))}"
        for name, s in estimate.seconds.items()
        if s
    ]
    return "\n".join([told(estimate), *rows])


def warnings(estimate: Estimate, root: Path, memory: int | None) -> list[str]:
    """What may not suffice: `memory` bytes of the machine, the disk under `root`.

    Raises:
      RunError: the disk is too small even for the least that was estimated.
    """
    out, found = [], spans(estimate)
    place = next(p for p in (root, *root.absolute().parents) if p.exists())
    there = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    room = shutil.disk_usage(place).free + there
    least, most = found["disk"]
    if room < most:
        told = f"disk: {_size(room)} for a run of {_size(least)} to {_size(most)}"
        if room < least:
            raise RunError(f"{told} at {place}: make room or choose another --run-dir")
        out.append(f"{told} at {place} may be too little")
    if memory is not None and memory < found["memory"][1]:
        out.append(
            f"memory: the machine has {_size(memory)}, which may be too little; "
            "--remat, fewer rows (--set pretrain.rows=4) or a smaller --model need less"
        )
    return out


def machine_memory() -> int | None:
    """Bytes of this machine, or of the share a container gives; None: not known."""
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        return None
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    share = Path("/sys/fs/cgroup/memory.max")
    if share.is_file() and (text := share.read_text().strip()).isdigit():
        size = min(size, int(text))
    return size


def time_of(seconds: float | int) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(size: float | int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
