"""A small ensemble of adapters on one model, for uncertainty from few data.

model -> members, each a low-rank addition fitted to a resample of the examples -> the
least probability that a member gives to an answer (LocalExperienceModel.signals).
Unlike one model's probability it is low where data were few, but not where the
environment is random: there all members are equally unsure.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from worldmodel.backbone.config import LoraConfig
from worldmodel.backbone.model import Model
from worldmodel.experience.config import EnsembleConfig
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import FitConfig, OptimizerConfig
from worldmodel.fitting.supervised import Progress, fit


def members(
    model: Model,
    examples: Sequence[Example],
    base: FitConfig,
    config: EnsembleConfig,
    *,
    seed: int,
    directory: Path,
    progress: Progress | None = None,
) -> list[Model]:
    """Fit members to bootstrap samples of the examples (Lakshminarayanan et al., 2017).

    `base` has the shape of batches and passes. The fits resume under `directory`;
    `progress` counts the updates of all members together.
    """
    optimizer = OptimizerConfig(name="adamw", learning_rate=config.learning_rate)
    settings = dataclasses.replace(
        base,
        steps=config.steps,
        eval_every=config.steps,
        optimizer=optimizer,
        lora=LoraConfig(rank=config.rank),
    )
    models = []
    for number in range(config.members):
        rng = np.random.default_rng((seed, number))
        sample = rng.integers(len(examples), size=len(examples))

        def report(
            step: int, row: dict[str, float | int], number: int = number
        ) -> None:
            if progress is not None:
                progress(number * config.steps + step, row)

        member, _ = fit(
            model,
            [examples[i] for i in sample],
            settings,
            seed=int(rng.integers(2**31)),
            directory=directory / str(number),
            progress=report,
        )
        models.append(member)
    return models
