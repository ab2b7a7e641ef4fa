"""The presets: whole runs by name, and what a pretrained model changes in them.

A preset is a function whose docstring states its cost and its result.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from curriculum.config import CurriculumConfig
from dreamgym.agent.config import BranchConfig, CollectConfig, PlanConfig
from dreamgym.config.fine_tuning import RealIterationConfig, TransferConfig
from dreamgym.config.overrides import changed_by
from dreamgym.config.settings import RunConfig
from dreamgym.config.stages import (
    BcConfig,
    DreamCheckConfig,
    EnvConfig,
    EvaluateConfig,
    ExpertIterationConfig,
    FidelityConfig,
    PretrainConfig,
    ServerConfig,
    TrainConfig,
)
from dreamgym.rl.config import ALGORITHMS, UpdateConfig
from dreamgym.training.config import LoopConfig, MonitorConfig
from worldmodel.backbone.config import LoraConfig
from worldmodel.experience.config import ExperienceConfig
from worldmodel.fitting.config import ComputeConfig, FitConfig, OptimizerConfig

Loop = TypeVar("Loop", bound=LoopConfig)


def _fit(steps: int, *, every: int, context: float) -> FitConfig:
    return FitConfig(
        steps=steps,
        batch_rows=8,
        row_tokens=256,
        eval_every=every,
        context_loss_weight=context,
        optimizer=OptimizerConfig(name="muon", learning_rate=0.02),
    )


MONITOR = MonitorConfig(real_eval_every=10, real_eval_tasks=64)
"""Real dev games watch over training in the dream, and choose the policy it ends with.
With 32 of them the choice was mostly luck (docs/LOG.md, 2026-11-24)."""


def tiny() -> RunConfig:
    """62 s on 2 cores, 32 s with a warm compilation cache; proves the machinery.

    It learns next to nothing: none of its dream's next states is right (README).
    """
    loop: dict[str, Any] = {
        "updates": 1,
        "tasks_per_update": 4,
        "group_size": 4,
        "update": UpdateConfig(batch_rows=8),
        "curriculum": CurriculumConfig(proposals_per_update=2, generated_share=0.25),
    }
    return RunConfig(
        preset="tiny",
        model="nano",
        env=EnvConfig(num_envs=16),
        experience=ExperienceConfig(retries=0),  # mostly senseless: asked once
        collect=CollectConfig(
            train_tasks=24,
            episodes=60,
            dev_tasks=6,
            expert_weight=0.1,
            random_weight=0.8,
        ),
        pretrain=PretrainConfig(fit=_fit(30, every=15, context=0.2)),
        fidelity=FidelityConfig(transitions=40),
        bc=BcConfig(
            fit=_fit(30, every=15, context=0.1), max_demonstrations=20, min_wins=5
        ),
        branch=BranchConfig(episodes=4),
        # Every stage is to run: no dream of this size is worth to train in.
        dream_check=DreamCheckConfig(force=True),
        expert_iteration=ExpertIterationConfig(
            rounds=1, tasks=8, rollouts_per_task=1, fresh_tasks=8
        ),
        train=TrainConfig(
            **loop, monitor=MonitorConfig(real_eval_every=1, real_eval_tasks=4)
        ),
        transfer=TransferConfig(**loop, real_transitions=100),
        evaluate=EvaluateConfig(tasks=8),
    )


def default() -> RunConfig:
    """8,400 real steps up to expert iteration; half an hour where two cores are busy.

    Seeds 0 to 2, 320 games: warmstart 62 to 72 %, expert iteration 69 to 91 %, planner
    83 to 96 % with 11,500 real steps, real play with 15,600 real steps 68 to 86 %
    (docs/RESULTS.md).
    """
    return RunConfig(
        preset="default",
        collect=CollectConfig(
            train_tasks=400,
            episodes=400,
            dev_tasks=40,
            expert_weight=0.07,
            random_weight=0.83,
        ),
        pretrain=PretrainConfig(fit=_fit(1500, every=375, context=0.2)),
        bc=BcConfig(fit=_fit(400, every=50, context=0.1)),
        branch=BranchConfig(episodes=12),
        expert_iteration=ExpertIterationConfig(rounds=3),
        train=TrainConfig(updates=10, tasks_per_update=12, monitor=MONITOR),
        transfer=TransferConfig(
            updates=100,
            tasks_per_update=12,
            real_transitions=1500,
            method="expert_iteration",
            iteration=RealIterationConfig(plan=PlanConfig(method="auto")),
        ),
        planner=PlanConfig(method="auto"),
    )


def small() -> RunConfig:
    """Much longer than `default`; not measured since expert iteration and markers.

    Before them an hour or so on one core, 3.9 GB. Three seeds, 960 games: bc 40 %,
    warmstart 45 %, dream 56 %; dream minus warmstart +0.109 [+0.072, +0.148]
    (docs/LOG.md, 2026-11-22).
    """
    return RunConfig(
        preset="small",
        model="milli",
        collect=CollectConfig(
            train_tasks=1180,
            episodes=5000,
            expert_weight=0.01,
            noisy_weight=0.1,
            random_weight=0.89,
        ),
        pretrain=PretrainConfig(fit=_fit(4000, every=1000, context=0.2)),
        fidelity=FidelityConfig(transitions=1000),
        bc=BcConfig(fit=_fit(400, every=50, context=0.1)),
        branch=BranchConfig(episodes=100),
        expert_iteration=ExpertIterationConfig(rounds=3),
        train=TrainConfig(updates=30, monitor=MONITOR),
        transfer=TransferConfig(updates=200, real_transitions=6000),
        evaluate=EvaluateConfig(tasks=320),
    )


def with_fits(config: RunConfig, **parts: Any) -> RunConfig:
    """Return the run with fields of its supervised fits (pretrain and bc) replaced."""
    pretrain = dataclasses.replace(config.pretrain.fit, **parts)
    bc = dataclasses.replace(config.bc.fit, **parts)
    return dataclasses.replace(
        config,
        pretrain=dataclasses.replace(config.pretrain, fit=pretrain),
        bc=dataclasses.replace(config.bc, fit=bc),
    )


def with_algorithm(config: RunConfig, name: str) -> RunConfig:
    """The run with the update that goes by a name, in the dream and in the real one.

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {name!r}; have {sorted(ALGORITHMS)}")
    changes = ALGORITHMS[name].items()
    return changed_by(
        config,
        {f"{x}.update.{k}": v for x in ("train", "transfer") for k, v in changes},
    )


RUN_CONTROLS: dict[str, dict[str, Any]] = {
    "shuffled": {"pretrain.permute_outcomes": True},
    # What collection and selection leave over is played in the real environment, and
    # what is won is imitated. It collects less, so that it has more to play. A single
    # real update of two rollouts stands where training in the dream would.
    "real-play": {
        "train.environment": "real",
        "train.updates": 1,
        "train.tasks_per_update": 1,
        "train.group_size": 2,
        "transfer.method": "expert_iteration",
        "planner.method": "none",
        "budget.collect": 0.3,
        "budget.score": 0.0,
        "budget.branch": 0.05,
        "budget.select": 0.1,
    },
}
"""Controls of a whole run by name, as changes to its settings.

`shuffled` fits the experience model to permuted outcomes and must not gain. `real-play`
plays and imitates without a dream, for a budget of real steps: from 5,000 on the
strongest method without one that we know.
"""


def with_control(config: RunConfig, name: str) -> RunConfig:
    """Return the control of a run that goes by a name.

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    if name not in RUN_CONTROLS:
        raise ValueError(f"unknown control {name!r}; have {sorted(RUN_CONTROLS)}")
    return changed_by(config, RUN_CONTROLS[name])


def for_pretrained(config: RunConfig, *, lora: LoraConfig | None) -> RunConfig:
    """The run with the steps that a pretrained model takes.

    The presets' are for a million parameters from scratch. Here AdamW takes 1e-4 (1e-3
    on low-rank additions: to orthogonalise hundreds of small matrices would cost
    minutes of compilation), reinforcement 1e-5. Customary sizes, not tuned.
    """
    optimizer = OptimizerConfig(learning_rate=1e-4 if lora is None else 1e-3)
    config = with_fits(config, lora=lora, optimizer=optimizer)
    if lora is not None:  # tokens that the model did not know have to be learnt
        config = with_fits(config, compute=ComputeConfig(extra_trainable=("embed",)))
    return dataclasses.replace(
        config, train=_gentle(config.train), transfer=_gentle(config.transfer)
    )


def for_server(config: RunConfig, server: ServerConfig) -> RunConfig:
    """Return the run with a chat server as its dream.

    Expert iteration and the planner are off: they would ask the server tens of
    thousands of questions. `expert_iteration.rounds` and `planner.method` turn them on.
    """
    off = dataclasses.replace(config.expert_iteration, rounds=0)
    return dataclasses.replace(
        config, server=server, expert_iteration=off, planner=PlanConfig()
    )


def _gentle(loop: Loop) -> Loop:
    update = dataclasses.replace(loop.update, learning_rate=1e-5)
    return dataclasses.replace(loop, update=update)


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "tiny": tiny,
    "default": default,
    "small": small,
}


def preset(
    name: str, settings: Mapping[str, Any] | None = None, **fields: Any
) -> RunConfig:
    """Return a preset by name, with settings replaced.

    Args:
      name: of PRESETS.
      settings: values by dotted name.
      fields: fields of RunConfig, whole groups among them.

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; have {sorted(PRESETS)}")
    config = dataclasses.replace(PRESETS[name](), **fields)
    return changed_by(config, settings or {})
