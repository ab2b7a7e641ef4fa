"""What tests of training share: small settings, a state, a loop, a stand-in updater."""

import dataclasses
import functools

from curriculum.config import CurriculumConfig
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.update import Updater
from dreamgym.training import TrainingState
from dreamgym.training import learn as learning
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts import Rollouts
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
        self.seen = []

    def record(self, progress, trajectories, rewarded):
        del rewarded
        self.seen.append((progress, trajectories))


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
