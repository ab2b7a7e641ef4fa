"""A program that trains a policy with and without devices of its own for rollouts.

    python rollout_mesh_probe.py OUT.json

Run by test_rollout_mesh.py on 4 simulated devices. Each way to train writes its curve,
its parameters, what the experience model predicted, and which devices computed.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path

import jax
import numpy as np

from curriculum.config import CurriculumConfig
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.agent.policy import Policy
from dreamgym.build.loop_checkpoint import LoopCheckpoint
from dreamgym.config.presets import preset
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.update import Updater
from dreamgym.training import LoopParts, TrainingState
from dreamgym.training.config import LoopConfig
from tests import doubles
from tests.dreamgym.training.common import Recorder
from worldmodel.backbone.mesh import make_meshes, parse_mesh, shard
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.memory import ReplayMemory

TASKS = doubles.tasks("train")[4:40:9]
CONFIG = LoopConfig(
    updates=4,
    tasks_per_update=2,
    group_size=8,
    update=UpdateConfig(
        advantage_estimator="batch_mean",
        learning_rate=3e-3,
        warmup_steps=1,
        batch_rows=8,
        row_tokens=64,
        num_minibatches=2,
    ),
    curriculum=CurriculumConfig(proposals_per_update=0, generated_share=0.0),
)


class Killed(LoopCheckpoint):
    """A checkpoint of a process that is killed when two updates have been saved."""

    def record(self, progress, trajectories, rewarded):
        super().record(progress, trajectories, rewarded)
        if progress.update == 2:
            raise InterruptedError


class Dream:
    """The corridor's rules, next to a real model whose predictions are noted."""

    def __init__(self, mesh):
        memory = ReplayMemory(capacity=100)
        rows = [(t.id, x) for t in TASKS for x in doubles.expert(t).transitions]
        memory.add([t for t, _ in rows], [x for _, x in rows])
        model = doubles.model(1)
        self._model = LocalExperienceModel(
            model if mesh is None else shard(model, mesh),
            doubles.tokenizer(),
            memory,
            ExperienceConfig(reasoning_tokens=8, state_tokens=16, retries=0),
        )
        self._rules, self.predictions = doubles.RuleModel(), []

    def predict(self, queries):
        answers = self._model.predict(queries)
        self.predictions += [[a.reasoning, a.error, a.confidence] for a in answers]
        return self._rules.predict(queries)


def numbers(devices) -> list[int]:
    return sorted({d.id for d in devices})


def devices_of(tree) -> list[int]:
    return numbers(d for x in jax.tree.leaves(tree) for d in x.devices())


class Ways:
    """The ways to train, from one policy; `acting` is where and who acted."""

    def __init__(self):
        self._policy = doubles.cloned(doubles.ACTIONS, TASKS)
        self._updaters = {}  # of each mesh, compiled once
        self.acting: set[tuple[str, tuple[int, ...], int]] = set()
        act = Policy.act

        def noting(policy, *args, **more):
            name = threading.current_thread().name
            where = devices_of(policy.model.params)
            new = numbers(jax.numpy.zeros(2).devices())
            self.acting.add((name, tuple(where), new[0]))
            return act(policy, *args, **more)

        Policy.act = noting

    def train(self, lag, mesh="", rollouts="", saver=None, restored=False):
        """Return what one way of training leaves."""
        self.acting.clear()
        texts = (mesh, rollouts)
        learning, acting = make_meshes(*(parse_mesh(x) if x else None for x in texts))
        policy = self._policy
        if learning is not None:
            policy = policy.replace(shard(policy.model, learning))
        updater = self._updaters.get(mesh) or Updater(
            policy.model, policy.model.params, policy.grammar(1.0), CONFIG.update
        )
        self._updaters[mesh] = updater
        pool = pool_of(TASKS, CONFIG.curriculum)
        state = TrainingState(0, updater.learner.init(), pool, 0, [])
        if restored:
            state = saver.restore(state)
            assert state.update == 2
            assert (state.pending is not None) == bool(lag)
        dream = Dream(learning if acting is None else acting)
        end = training.train(
            policy,
            DreamVectorEnv(dream, 16, max_steps=3),
            updater,
            state,
            CONFIG,
            seed=0,
            recorder=Recorder() if saver is None else saver,
            rollout_lag=lag,
            parts=LoopParts(rollout_mesh=acting),
        )
        assert end.update == CONFIG.updates
        leaves = jax.tree.leaves(end.policy.params)
        return {
            "curve": end.curve,
            "params": np.concatenate([np.ravel(x) for x in leaves]).tolist(),
            "predictions": dream.predictions,
            "learning": devices_of(end.policy),
            "acting": sorted(self.acting),
        }

    def resumed(self, lag, mesh="", rollouts=""):
        """Return what is left by a loop that was killed after two updates."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                with Killed(Path(folder), None, preset("tiny")) as saver:
                    self.train(lag, mesh, rollouts, saver)
            except InterruptedError:
                with LoopCheckpoint(Path(folder), None, preset("tiny")) as saver:
                    return self.train(lag, mesh, rollouts, saver, restored=True)
        raise AssertionError("nothing stopped it")


APART = {"one": ("", "data=1"), "two": ("fsdp=2", "fsdp=2")}
"""Meshes to learn and to roll out on: of one device each, and of two."""


def main() -> None:
    """Train in every way and write OUT.json."""
    ways, out = Ways(), {}
    for lag in (0, 1):
        out[f"{lag}/shared"] = ways.train(lag)
        for name, meshes in APART.items():
            out[f"{lag}/{name}"] = ways.train(lag, *meshes)
    for name, meshes in APART.items():
        out[f"resumed/{name}"] = ways.resumed(1, *meshes)
    Path(sys.argv[1]).write_text(json.dumps(out), encoding="utf-8")


if __name__ == "__main__":
    main()
