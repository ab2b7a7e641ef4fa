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
from dreamgym.rl.config import PenaltyConfig, SurrogateConfig, UpdateConfig
from dreamgym.rl.critic import Critic, CriticConfig
from dreamgym.rl.update import Updater
from dreamgym.training import LoopConfig, LoopParts, ReplayConfig, TrainingState
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


ARM = Task(id="arm", instruction="take the coin", family="arm",
           initial_state=("said ok",))  # fmt: skip


def undecided() -> Policy:
    return doubles.cloned(WORDS, (ARM,))


def share_of_good(policy, seed):
    envs = Bandit(64, lambda action: action == GOOD)
    found = rollout(
        policy, envs, [ARM] * 64, key=jax.random.key(seed + 77), temperature=1.0
    )
    return np.mean([t.episode.success for t in found])


def learned(seed, pay, *, loop=None, **settings):
    update = {
        "learning_rate": 6e-3, "kl": 0.0, "rows": 8, "width": 64, "minibatches": 1,
        "warmup": 1,
    }  # fmt: skip
    size = {"updates": 20, "tasks": 2, "group_size": 16} | (loop or {})
    config = LoopConfig(**size, update=UpdateConfig(**(update | settings)))
    start, c = undecided(), config.update
    tasks = [ARM, dataclasses.replace(ARM, id="arm2")]
    learner = Updater(start.model, start.model.params, start.grammar(1.0), c)
    critic = None
    if c.baseline == "critic":
        critic = Critic(start.model, c.critic, rows=c.rows, width=c.width)
    progress = TrainingState(
        0, learner.learner.init(), pool_of(tasks, config.curriculum), 0, [],
        None if critic is None else critic.init(),
    )  # fmt: skip
    end = training.train(
        start,
        Bandit(32, pay),
        learner,
        progress,
        config,
        seed=seed,
        recorder=Recorder(),
        parts=LoopParts(critic=critic),
    )
    policy = start.replace(start.model._replace(params=end.policy.params))
    return share_of_good(policy, seed), end


def finds(seed, **settings):
    """Whether what pays is found; and where every action pays alike, nothing."""
    found, _ = learned(seed, lambda action: action == GOOD, **settings)
    rng = np.random.default_rng(seed)
    # The same rate, and no news in it.
    control, _ = learned(seed, lambda _: bool(rng.random() < 0.25), **settings)
    return found, control


def test_grpo_finds_what_pays_and_only_where_it_is_told():
    """Noise drives a policy to some arm, now and then to this one: not on average."""
    seeds = (0, 1, 2)
    assert all(0.05 < share_of_good(undecided(), seed) < 0.55 for seed in seeds)
    results = [finds(seed) for seed in seeds]
    assert min(found for found, _ in results) > 0.9
    assert np.mean([control for _, control in results]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"baseline": "critic"},
        {"baseline": "critic",
         "critic": CriticConfig(trunk="own")},
        {"baseline": "others"}, {"baseline": "batch"},
        {"surrogate": SurrogateConfig(ratio="turn", average="turn")},
        {"normalize_advantages": "group", "credit": "episode",
         "surrogate": SurrogateConfig(average="episode")},
        {"credit": "state"},
        {"surrogate": SurrogateConfig(dual_clip=3.0, truncate=2.0),
         "minibatches": 4, "entropy": 0.001},
        {"kl": 0.01, "penalty": PenaltyConfig(kind="k3")},
        {"kl": 0.01, "penalty": PenaltyConfig(place="reward", target=0.5)},
        {"radius": 0.05},
        {"baseline": "others", "surrogate": SurrogateConfig(ratio="none")},
        {"baseline": "critic",
         "critic": CriticConfig(over="token"),
         "loop": {"tasks": 32, "group_size": 1}},
        {"baseline": "success", "surrogate": SurrogateConfig(ratio="none"),
         "loop": {"replay": ReplayConfig(share=0.5)}},
        {"baseline": "pairs", "beta": 0.5, "learning_rate": 1e-2,
         "surrogate": SurrogateConfig(ratio="none", average="episode")},
        {"loop": {"replay": ReplayConfig(share=1.0), "resample": 1}},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items())[:60],
)  # fmt: skip
def test_its_relatives_find_it_too(settings):
    found, control = finds(0, **settings)
    assert found > 0.85
    assert control < 0.65


def test_no_update_leaves_the_trust_region():
    def moves(**settings):
        _, end = learned(0, lambda action: action == GOOD, **settings)
        return [row for row in end.curve if "moved" in row]  # else nothing to learn

    free = moves(radius=0.0, max_turn_kl=0.0)
    radius = max(row["moved"] for row in free) / 4
    held = moves(radius=radius)
    assert max(row["moved"] for row in held) <= radius
    assert min(row["step"] for row in held) < 1.0
    assert all(row["moved"] <= row["moved_most"] for row in free)
