"""The presets: whole runs by name, and what a pretrained model changes in them.

A preset is a function whose docstring states its cost and its result.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from curriculum.sampler import CurriculumConfig
from dreamgym.agent.behavior import CollectConfig
from dreamgym.config.overrides import changed_by
from dreamgym.config.settings import RunConfig
from dreamgym.config.stages import EvaluateConfig, WarmstartConfig
from dreamgym.rl.config import ALGORITHMS, UpdateConfig
from dreamgym.training import LoopConfig
from worldmodel.backbone.model import LoraConfig
from worldmodel.experience.grammar import ExperienceConfig
from worldmodel.fitting.optimizer import OptimizerConfig
from worldmodel.fitting.supervised import FitConfig


def _fit(steps: int, *, every: int, context: float) -> FitConfig:
    return FitConfig(
        steps=steps, rows=8, width=256, eval_every=every, context_weight=context,
        optimizer=OptimizerConfig(kind="muon", learning_rate=0.02),
    )  # fmt: skip


def tiny() -> RunConfig:
    """62 s on 2 cores, 32 s with a warm compilation cache; proves the machinery.

    It learns next to nothing: success 0 % on 8 games (docs/LOG.md, 2026-11-21).
    """
    loop = LoopConfig(
        updates=1, tasks=4, group_size=4, update=UpdateConfig(rows=8),
        curriculum=CurriculumConfig(proposals=2, generated_share=0.25),
    )  # fmt: skip
    return RunConfig(
        preset="tiny",
        max_steps=8,
        model="nano",
        experience=ExperienceConfig(retries=0),  # mostly senseless: asked once
        collect=CollectConfig(
            games=24, episodes=60, dev_games=6, expert=0.1, random=0.8
        ),
        pretrain=_fit(30, every=15, context=0.2),
        warmstart=WarmstartConfig(
            fit=_fit(30, every=15, context=0.1), experts=20, branched=4
        ),
        dream=loop,
        transfer=loop,
        transfer_budget=100,
        evaluate=EvaluateConfig(games=8, fidelity=40, slots=16),
    )


def default() -> RunConfig:
    """9:49 minutes on 2 cores, compilation included (2.2 GB when last measured).

    Seed 0, 120 games: bc 42 %, warmstart 45 %, dream 43 %; dream minus warmstart
    -0.017 [-0.092, +0.058] (docs/LOG.md, 2026-11-22).
    """
    loop = LoopConfig(updates=10, tasks=12)
    return RunConfig(
        preset="default",
        pretrain=_fit(1500, every=375, context=0.2),
        warmstart=WarmstartConfig(fit=_fit(200, every=25, context=0.1)),
        dream=loop,
        transfer=dataclasses.replace(loop, updates=100),
        transfer_budget=1500,
    )


def small() -> RunConfig:
    """An hour or so on one core, 3.9 GB; the dream beats warmstart and bc.

    Three seeds, 960 games: bc 40 %, warmstart 45 %, dream 56 %; dream minus warmstart
    +0.109 [+0.072, +0.148] (docs/LOG.md, 2026-11-22).
    """
    loop = LoopConfig(updates=30)
    return RunConfig(
        preset="small",
        model="milli",
        collect=CollectConfig(
            games=1180, episodes=5000, expert=0.01, noisy=0.1, random=0.89
        ),
        pretrain=_fit(4000, every=1000, context=0.2),
        warmstart=WarmstartConfig(fit=_fit(200, every=25, context=0.1), branched=100),
        dream=loop,
        transfer=dataclasses.replace(loop, updates=200),
        transfer_budget=6000,
        evaluate=EvaluateConfig(games=320, fidelity=1000),
    )


def with_fits(config: RunConfig, **parts: Any) -> RunConfig:
    """The run with fields of its supervised fits (pretrain and warm start) replaced."""
    warm = dataclasses.replace(config.warmstart.fit, **parts)
    return dataclasses.replace(
        config,
        pretrain=dataclasses.replace(config.pretrain, **parts),
        warmstart=dataclasses.replace(config.warmstart, fit=warm),
    )


def with_algorithm(config: RunConfig, name: str) -> RunConfig:
    """The run with the update that goes by a name, in the dream and in the real one.

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {name!r}; have {sorted(ALGORITHMS)}")
    loops = ("dream", "transfer")
    told = ALGORITHMS[name].items()
    return changed_by(config, {f"{x}.update.{k}": v for x in loops for k, v in told})


def for_pretrained(config: RunConfig, *, lora: LoraConfig | None) -> RunConfig:
    """The run with the steps that a pretrained model takes.

    The presets' are for a million parameters from scratch. Here AdamW takes 1e-4 (1e-3
    on low-rank additions: to orthogonalise hundreds of small matrices would cost
    minutes of compilation), reinforcement 1e-5. Customary sizes, not tuned.
    """
    optimizer = OptimizerConfig(learning_rate=1e-4 if lora is None else 1e-3)
    config = with_fits(config, lora=lora, optimizer=optimizer)
    loops = {"dream": _gentle(config.dream), "transfer": _gentle(config.transfer)}
    return dataclasses.replace(config, **loops)


def _gentle(loop: LoopConfig) -> LoopConfig:
    update = dataclasses.replace(loop.update, learning_rate=1e-5)
    return dataclasses.replace(loop, update=update)


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "tiny": tiny,
    "default": default,
    "small": small,
}


def preset(name: str, **changes: Any) -> RunConfig:
    """A preset by name, with top-level fields replaced.

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; have {sorted(PRESETS)}")
    return dataclasses.replace(PRESETS[name](), **changes)
