"""The loop learns what pays, and nothing from rewards without information."""

import dataclasses

import jax
import numpy as np
import pytest

from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import rollout
from dreamgym.envs.base import Step
from dreamgym.envs.vector import VectorEnv
from dreamgym.rl.config import (
    CriticConfig,
    KLPenaltyConfig,
    SurrogateConfig,
    UpdateConfig,
)
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.training import LoopParts, TrainingState
from dreamgym.training.config import LoopConfig, ReplayConfig
from tests import doubles
from tests.dreamgym.training.common import Recorder
from worldmodel.data.records import Task

WORDS = ("go left", "go right", "take coin", "goal 2")


GOOD = "go right"


class Bandit(VectorEnv):
    """One step an episode; `pay(action)` is the reward and the success."""

    def __init__(self, size, pay):
        self.size, self._pay, self._live = size, pay, [False] * size
        self.transitions = 0

    def reset(self, *, options):
        mask = options.get("reset_mask", [True] * self.size)
        self._live = [a or b for a, b in zip(mask, self._live, strict=True)]
        return [t.initial_state if t else None for t in options["tasks"]]

    def step(self, actions):
        out = [None] * self.size
        for i, action in enumerate(actions):
            if self._live[i] and action is not None:
                paid = self._pay(action)
                out[i] = Step(
                    ("said ok",), {"pay": float(paid)}, True, False, paid, None, None
                )
                self._live[i] = False
                self.transitions += 1
        return out


ARM = Task(
    id="arm", instruction="take the coin", family="arm", initial_state=("said ok",)
)


def undecided() -> Policy:
    return doubles.cloned(WORDS, (ARM,))


def share_of_good(policy, seed):
    envs = Bandit(64, lambda action: action == GOOD)
    results = rollout(
        policy, envs, [ARM] * 64, key=jax.random.key(seed + 77), temperature=1.0
    )
    return np.mean([t.episode.success for t in results])


def learned(seed, pay, *, loop=None, rollout_lag=0, **settings):
    update = {
        "learning_rate": 6e-3,
        "kl_penalty": KLPenaltyConfig(coefficient=0.0),
        "batch_rows": 8,
        "row_tokens": 64,
        "num_minibatches": 1,
        "warmup_steps": 1,
    }
    size = {"updates": 20, "tasks_per_update": 2, "group_size": 16} | (loop or {})
    config = LoopConfig(**size, update=UpdateConfig(**(update | settings)))
    start, c = undecided(), config.update
    tasks = [ARM, dataclasses.replace(ARM, id="arm2")]
    learner = Updater(start.model, start.model.params, start.grammar(1.0), c)
    critic = None
    if c.advantage_estimator == "gae":
        critic = Critic(start.model, c.critic, rows=c.batch_rows, width=c.row_tokens)
    progress = TrainingState(
        0,
        learner.learner.init(),
        pool_of(tasks, config.curriculum),
        0,
        [],
        None if critic is None else critic.init(),
    )
    end = training.train(
        start,
        Bandit(32, pay),
        learner,
        progress,
        config,
        seed=seed,
        recorder=Recorder(),
        rollout_lag=rollout_lag,
        parts=LoopParts(critic=critic),
    )
    policy = start.replace(start.model._replace(params=end.policy.params))
    return share_of_good(policy, seed), end


def finds(seed, **settings):
    """Whether what pays is found; and where every action pays alike, nothing."""
    result, _ = learned(seed, lambda action: action == GOOD, **settings)
    rng = np.random.default_rng(seed)
    # The same rate, and no news in it.
    control, _ = learned(seed, lambda _: bool(rng.random() < 0.25), **settings)
    return result, control


@pytest.mark.medium
def test_grpo_finds_what_pays_and_only_where_it_is_told():
    """Noise drives a policy to some arm, now and then to this one: not on average."""
    seeds = (0, 1, 2)
    assert all(0.05 < share_of_good(undecided(), seed) < 0.55 for seed in seeds)
    results = [finds(seed) for seed in seeds]
    assert min(item for item, _ in results) > 0.9
    assert np.mean([control for _, control in results]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"advantage_estimator": "gae"},
        {"advantage_estimator": "gae", "critic": CriticConfig(network="separate")},
        {"advantage_estimator": "leave_one_out"},
        {"advantage_estimator": "batch_mean"},
        {
            "surrogate": SurrogateConfig(
                importance_level="turn", loss_aggregation="turn"
            )
        },
        {
            "normalize_advantages": "group",
            "credit": "episode",
            "surrogate": SurrogateConfig(loss_aggregation="episode"),
        },
        {"credit": "state"},
        {
            "surrogate": SurrogateConfig(dual_clip=3.0, importance_cap=2.0),
            "num_minibatches": 4,
            "entropy_coefficient": 0.001,
        },
        {"kl_penalty": KLPenaltyConfig(coefficient=0.01, estimator="k3")},
        {
            "kl_penalty": KLPenaltyConfig(
                coefficient=0.01, placement="reward", target=0.5
            )
        },
        {"max_update_kl": 0.05},
        {
            "advantage_estimator": "leave_one_out",
            "surrogate": SurrogateConfig(importance_level="none"),
        },
        {
            "advantage_estimator": "gae",
            "critic": CriticConfig(value_level="token"),
            "loop": {"tasks_per_update": 32, "group_size": 1},
        },
        {
            "advantage_estimator": "success_filter",
            "surrogate": SurrogateConfig(importance_level="none"),
            "loop": {"replay": ReplayConfig(ratio=0.5)},
        },
        {
            "advantage_estimator": "preference_pairs",
            "dpo_beta": 0.5,
            "learning_rate": 1e-2,
            "surrogate": SurrogateConfig(
                importance_level="none", loss_aggregation="episode"
            ),
        },
        {"loop": {"replay": ReplayConfig(ratio=1.0), "max_resample_rounds": 1}},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items())[:60],
)
def test_its_relatives_find_it_too(settings):
    result, control = finds(0, **settings)
    assert result > 0.85
    assert control < 0.65


@pytest.mark.medium
def test_no_update_leaves_the_trust_region():
    def moves(**settings):
        _, end = learned(0, lambda action: action == GOOD, **settings)
        return [row for row in end.curve if "update_kl" in row]  # else nothing to learn

    free = moves(max_update_kl=0.0, max_turn_kl=0.0)
    radius = max(row["update_kl"] for row in free) / 4
    held = moves(max_update_kl=radius)
    assert max(row["update_kl"] for row in held) <= radius
    assert min(row["step_fraction"] for row in held) < 1.0
    assert all(row["update_kl"] <= row["update_kl_max"] for row in free)
