"""Timings of this machine under a run's settings, measured and cached for a day.

settings -> one update of the fit, some real steps and some answers of a server ->
Timings, cached for each machine next to its compiled programs.
"""

import contextlib
import itertools
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dreamgym.agent.behavior import BehaviorPolicy, collect, play
from dreamgym.build.episodes import games_of
from dreamgym.build.real.environments import open_counted
from dreamgym.config.budget import ESTIMATE_STEPS
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.config.stages import ServerConfig
from dreamgym.envs.counting import RealSteps
from dreamgym.run.cost import Timings
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
"""Seconds after which timings are measured again, because the load may change."""


SECONDS = 2.0
"""Maximal seconds of a measurement after compilation."""


TIMED_STEPS = ESTIMATE_STEPS
"""Maximal number of real steps that are taken to time one."""


WARM_UP = 4
"""The number of first real steps that are not timed."""


PLAYED = 4
"""Episodes whose transitions are the questions that time a server."""


def measure(
    config: RunConfig,
    cache: Path,
    mesh: Mesh | None = None,
    steps: RealSteps | None = None,
) -> Timings:
    """Return the timings of this machine, measured or from a `cache` of a day.

    The real steps that it takes, TIMED_STEPS at most (and a few episodes where a server
    is asked), are counted in `steps`.

    What a run has that is not measured: longer rows, where its texts need them. A
    server is asked as many questions as it may be asked at once.

    Raises:
      ChatError: the server did not answer.
    """
    key = {
        "model": _shape(config),
        "fit": repr(config.pretrain.fit),
        "env": config.env.id,
        "steps": config.env.max_episode_steps,
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "mesh": None if mesh is None else dict(mesh.shape),
        "server": repr(config.server),
    }
    path = cache / f"timings-{content_hash(key)[:16]}.json"
    # A file of the future was written before the clock was set back: nobody knows when.
    if path.is_file() and 0 <= time.time() - path.stat().st_mtime < FRESH:
        return Timings(**json.loads(path.read_text()))._replace(real_steps=0)
    steps = RealSteps() if steps is None else steps
    before = steps.count
    step = 0.0
    if config.env.id:
        # A server is asked about episodes, which take steps as well.
        share = 2 if config.server is not None and not config.data.episodes else 1
        left = TIMED_STEPS if steps.left is None else steps.left
        step = _step_seconds(config, steps, min(TIMED_STEPS, left // share))
    answers: dict[str, Any] = {}
    if config.server is not None:
        answers = _answers(config, config.server, steps)
    timings = Timings(step=step, **_update(config, mesh), **answers)
    timings = timings._replace(real_steps=steps.count - before)
    with atomic_write(path) as file:
        json.dump(timings._asdict(), file)
    return timings


def _shape(config: RunConfig) -> str:
    if config.model in MODELS:
        return repr(MODELS[config.model])
    path = Path(config.model) / "config.json"
    return f"{path} {path.read_text()}"


def _update(config: RunConfig, mesh: Mesh | None) -> dict[str, Any]:
    """One update's seconds, and sizes, of the fit as it will be but for its texts."""
    c = config.pretrain.fit
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
    learner = Learner(  # the fit's program
        model, c.optimizer, supervised.supervised_loss, c.compute, steps=c.steps
    )
    ids = np.random.default_rng(0).integers(0, size, c.row_tokens).tolist()
    row = Example(ids, [False] + [True] * (c.row_tokens - 1), [1] * c.row_tokens)
    tokens = rows_of(
        pack([row], c.row_tokens), np.zeros(c.batch_rows, int), c.batch_rows
    )
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
        "update": statistics.median(seconds),
        "parameters": count,
        "vocabulary": size,
        "scratch": scratch,
    }


def _step_seconds(config: RunConfig, steps: RealSteps, limit: int) -> float:
    """Seconds of a real transition under random play, resets included; 0 if unknown.

    At most `limit` steps are taken; where there are fewer than two, nothing is timed.
    Only random actions are taken: an expert's plan may be dear.
    """
    if limit < 2:
        return 0.0
    env = open_counted(config.env, steps)
    before, max_steps = steps.count, config.env.max_episode_steps
    rng = np.random.default_rng(0)
    episode_steps = min(WARM_UP, max_steps, limit)
    start, timed_from, failures = time.monotonic(), before, Counter[str]()
    try:
        tasks = games_of(env, config.env.id, "train", 8)
        for number in range(TIMED_STEPS):  # an episode has a step at least
            actor = BehaviorPolicy(env, "random", config.collect, rng, [], [])
            task = tasks[number % len(tasks)]
            play(
                env,
                task,
                actor,
                max_steps=episode_steps,
                name=f"timing-{number}",
                failures=failures,
            )
            if number == 0:  # it warms up
                start, timed_from = time.monotonic(), steps.count
            episode_steps = min(max_steps, limit - (steps.count - before))
            overtime = time.monotonic() - start > SECONDS / 2
            if episode_steps < 1 or (overtime and number):
                break
        return (time.monotonic() - start) / max(steps.count - timed_from, 1)
    finally:
        env.close()


def _answers(
    config: RunConfig, server: ServerConfig, steps: RealSteps
) -> dict[str, Any]:
    """Seconds, requests, tokens and cost of an answer; nothing of it is kept.

    Raises:
      ChatError: the server did not answer, or refused all that it was asked.
    """
    episodes = _episodes(config, steps)
    client = ChatClient(server.chat)
    experience = PromptedExperienceModel(
        client, ReplayMemory.from_episodes(episodes, capacity=1000), server.prompt
    )
    queries = [r.query for r in sample_cases(episodes, server.chat.concurrency)]
    start = time.monotonic()
    answers = experience.predict(queries)
    seconds, usage = time.monotonic() - start, client.usage
    client.close()
    if queries and not experience.answered:
        raise ChatError(answers[0].error)
    count = max(len(queries), 1)
    return {
        "answer": seconds / count,
        "requests": usage.requests / count,
        "tokens": (usage.prompt_tokens + usage.completion_tokens) / count,
        "cost": usage.cost / count,
    }


def _episodes(config: RunConfig, steps: RealSteps) -> list[Episode]:
    """A few of the settings' own, or of random play."""
    if config.data.episodes:
        return list(itertools.islice(read_episodes(config.data.episodes), PLAYED))
    if not config.env.id:
        raise RunError("nothing to ask a server about: give --env, --episodes, or both")
    env = open_counted(config.env, steps)
    try:
        tasks = games_of(env, config.env.id, "train", PLAYED)
        return collect(
            env,
            tasks,
            PLAYED,
            config.collect,
            seed=0,
            max_steps=config.env.max_episode_steps,
            steps_left=None if steps.left is None else lambda: steps.left or 0,
        )
    finally:
        env.close()
