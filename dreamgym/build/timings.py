"""How fast this machine is under a run's settings: measured, and kept for a day.

settings -> one update of the fit, some real steps, some answers of a server, timed ->
Pace, kept for each machine beside its compiled programs.
"""

import contextlib
import dataclasses
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from dreamgym.agent.behavior import collect
from dreamgym.build.episodes import games_of
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.config.stages import ServerConfig
from dreamgym.envs import registry
from dreamgym.run.directory import RunError
from worldmodel.backbone import lora
from worldmodel.backbone.mesh import shard
from worldmodel.backbone.model import create
from worldmodel.backbone.weights import load_model
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatError
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Episode, atomic_write, read_episodes
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.fidelity.cases import sample_cases
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example, pack, rows_of
from worldmodel.fitting.learner import Learner
from worldmodel.memory import ReplayMemory

FRESH = 24 * 3600.0
"""Seconds after which is measured again: a machine is not always as busy."""


SECONDS = 2.0
"""How long is measured, at most, once everything is compiled."""


PLAYED = 8
"""Episodes that give a server something to be asked about."""


class Pace(NamedTuple):
    """What was measured here.

    update: seconds of a fit's update; step: of a real transition (0 without an
    environment); parameters: of the model; vocabulary; scratch: bytes of a gradient
    beside parameters and gradient. Of a server: seconds of an answer, as many at a
    time as its settings say; requests (some are repeated), tokens and cost of one.
    """

    update: float
    step: float
    parameters: int
    vocabulary: int
    scratch: int
    answer: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0


def measured(config: RunConfig, cache: Path, mesh: Mesh | None = None) -> Pace:
    """The pace of this machine under these settings; kept in `cache` for a day.

    What a run has that is not measured: longer rows, where its texts need them. A
    server is asked as many questions as it may be asked at once.

    Raises:
      ChatError: the server did not answer.
    """
    told = {
        "model": _shape(config), "fit": repr(config.pretrain), "env": config.env,
        "steps": config.max_steps, "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(), "jax": jax.__version__,
        "mesh": None if mesh is None else dict(mesh.shape),
        "server": repr(config.server),
    }  # fmt: skip
    path = cache / f"pace-{content_hash(told)[:16]}.json"
    if path.is_file() and time.time() - path.stat().st_mtime < FRESH:
        return Pace(**json.loads(path.read_text()))
    step = _step_seconds(config) if config.env else 0.0
    asked: dict[str, Any] = {}
    if config.server is not None:
        asked = _answers(config, config.server)
    pace = Pace(step=step, **_update(config, mesh), **asked)
    with atomic_write(path) as file:
        json.dump(pace._asdict(), file)
    return pace


def _shape(config: RunConfig) -> str:
    if config.model in MODELS:
        return repr(MODELS[config.model])
    path = Path(config.model) / "config.json"
    return f"{path} {path.read_text()}"


def _update(config: RunConfig, mesh: Mesh | None) -> dict[str, Any]:
    """One update's seconds, and sizes, of the fit as it will be but for its texts."""
    c = config.pretrain
    if config.model in MODELS:
        shape = MODELS[config.model]
        model = create(shape.model(shape.vocab_size), seed=0)
    else:
        model, _ = load_model(config.model)
    if mesh is not None:
        model = shard(model, mesh)
    size = model.config.vocab_size
    count = sum(x.size for x in jax.tree.leaves(model.params))
    if c.lora is not None:
        model = lora.attach(model, c.lora, seed=0)
    optimizer = dataclasses.replace(c.optimizer, steps=c.steps)  # the fit's program
    learner = Learner(model, optimizer, supervised.supervised_loss, c.compute)
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
    env = registry.make(config.env)
    try:
        tasks = games_of(env, config.env, "train", 8)
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


def _answers(config: RunConfig, server: ServerConfig) -> dict[str, Any]:
    """Seconds, requests, tokens and cost of an answer; nothing of it is kept.

    Raises:
      ChatError: the server did not answer, or refused all that it was asked.
    """
    episodes = _episodes(config)
    client = ChatClient(server.chat)
    experience = PromptedExperienceModel(
        client, ReplayMemory.from_episodes(episodes, capacity=1000), server.prompt
    )
    asked = [r.query for r in sample_cases(episodes, server.chat.concurrency)]
    start = time.monotonic()
    found = experience.predict(asked)
    seconds, usage = time.monotonic() - start, client.usage
    client.close()
    if asked and not experience.answered:
        raise ChatError(found[0].error)
    count = max(len(asked), 1)
    return {
        "answer": seconds / count, "requests": usage.requests / count,
        "tokens": (usage.prompt_tokens + usage.completion_tokens) / count,
        "cost": usage.cost / count,
    }  # fmt: skip


def _episodes(config: RunConfig) -> list[Episode]:
    """A few of the settings' own, or of random play."""
    if config.episodes:
        return list(itertools.islice(read_episodes(config.episodes), PLAYED))
    if not config.env:
        raise RunError("nothing to ask a server about: give --env, --episodes, or both")
    env = registry.make(config.env)
    try:
        tasks = games_of(env, config.env, "train", PLAYED)
        return collect(
            env, tasks, PLAYED, config.collect, seed=0, max_steps=config.max_steps
        )
    finally:
        env.close()
