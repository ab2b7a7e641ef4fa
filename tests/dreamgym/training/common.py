"""What tests of training share: small settings, a state, a loop, a stand-in updater."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from curriculum.config import CurriculumConfig, DemonstrationStartsConfig
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.update import Updater
from dreamgym.training import TrainingState
from dreamgym.training import learn as learning
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.groups import Rollouts
from tests import doubles

UPDATE = UpdateConfig(
    batch_rows=8,
    row_tokens=80,
    num_minibatches=1,
    warmup_steps=1,
    normalize_advantages="none",
)


CONFIG = LoopConfig(
    updates=3,
    tasks_per_update=2,
    group_size=2,
    update=UPDATE,
    curriculum=CurriculumConfig(proposals_per_update=0, generated_share=0.0),
)


WIN, LOSE = ["go right", "take coin"], ["go left"]


def with_(config=CONFIG, **settings):
    names = {f.name for f in dataclasses.fields(UpdateConfig)}
    update = {k: settings.pop(k) for k in list(settings) if k in names}
    return dataclasses.replace(
        config, update=dataclasses.replace(config.update, **update), **settings
    )


@functools.cache
def updater(config=UPDATE):
    policy = doubles.policy()
    return Updater(policy.model, policy.model.params, policy.grammar(1.0), config)


def fresh(tasks, config=CONFIG):
    return TrainingState(
        0, updater().learner.init(), pool_of(tasks, config.curriculum), 0, []
    )


def with_starts(config, **settings):
    """The settings, with groups of rollouts that begin in demonstrations."""
    starts = DemonstrationStartsConfig(**settings)
    curriculum = dataclasses.replace(config.curriculum, demonstration_starts=starts)
    return dataclasses.replace(config, curriculum=curriculum)


class UpdateCalls:
    """What an updater was given."""

    def __init__(self):
        self.examples, self.weights, self.auxiliary, self.loss = [], [], [], 0.5
        self.visits = []


def learn(rows, config, *, forked=(), **more):
    tasks = list({t.episode.task.id: t.episode.task for t in rows}.values())
    progress = more.pop("progress", None) or fresh(tasks, config)
    return learning.learn(
        updater(), progress, Rollouts(list(rows), list(forked)), config, seed=0, **more
    )


def pair(at=0, goal=1, end=2):
    task = doubles.task(at, goal, end)
    return [doubles.trajectory(task, WIN), doubles.trajectory(task, LOSE)]


class Recorder:
    def __init__(self):
        self.seen, self.rewarded = [], []

    def record(self, progress, trajectories, rewarded):
        self.seen.append((progress, trajectories))
        self.rewarded.append(rewarded)


def loop(config, progress=None, **more):
    tasks = doubles.tasks("train")[:8]
    coin = iter([True, False] * 1000)

    def fickle(task, past, state):
        if past or next(coin):
            return doubles.expert_rule(task, past, state)
        return "go left" if state[0] == "at 0" else "take nothing"

    return training.train(
        doubles.Scripted(fickle),
        DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9),
        updater(),
        progress or fresh(tasks, config),
        config,
        seed=3,
        recorder=Recorder(),
        **more,
    )


uniforms = jax.jit(jax.vmap(jax.random.uniform))


def softmax(table):
    weights = np.exp(np.asarray(table))
    return weights / weights.sum(1, keepdims=True)


class Tabular(doubles.Scripted):
    """A policy with a logit for each place and action: it learns in milliseconds.

    `place` is the row of the table for a state.
    """

    def __init__(self, table, actions, place, turns=None):
        super().__init__(doubles.expert_rule)
        self.model = doubles.model()._replace(params=table)
        self.actions, self.place = actions, place
        self.turns = {} if turns is None else turns

    def replace(self, model):
        return Tabular(model.params, self.actions, self.place, self.turns)

    def act(self, situations, keys, *, temperature):
        del temperature
        chances = softmax(self.model.params)
        draws = np.asarray(uniforms(keys))
        out = []
        for (task, past, state, *_), draw in zip(situations, draws, strict=False):
            row = self.place(state)
            last = len(self.actions) - 1
            choice = min(int((np.cumsum(chances[row]) < draw).sum()), last)
            if (row, choice) not in self.turns:
                turn = doubles.turn(self, task, past, state, self.actions[choice])
                self.turns[row, choice] = turn
            out.append(self.turns[row, choice])
        return out

    def learn(self, examples):
        """Return the logits after a step along the policy gradient."""
        places = {turn.context + turn.ids: at for at, turn in self.turns.items()}
        table = np.array(self.model.params)
        chances = softmax(table)
        for example in examples:
            row, choice = places[tuple(example.ids)]
            step = 0.5 * example.columns["advantage"]
            table[row] -= step * chances[row]
            table[row, choice] += step
        return jnp.asarray(table)

    def take_updates(self, monkeypatch):
        """Let updates be those of the table; return the first state of the policy."""

        def update(updater, state, examples, **_):
            del updater
            now = self.replace(self.model._replace(params=state.params))
            row = {"kl": 0.0, "update_kl": 0.0, "entropy": 1.0}
            return state._replace(params=now.learn(examples)), row

        monkeypatch.setattr(Updater, "update", update)
        return updater().learner.init()._replace(params=self.model.params)
