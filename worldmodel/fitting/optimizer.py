"""The optimiser: its settings and the gradient transformation made of them.

OptimizerConfig -> clipping, a schedule, AdamW or Muon -> optax.GradientTransformation.
"""

import dataclasses
from typing import Any

import optax
import optax.contrib


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimiser, learning-rate schedule and gradient clipping.

    The rate warms up and decays by a cosine to a hundredth; gradients are clipped by
    their global norm. A rate that stays large to the end leaves rare events too
    improbable where batches are small, because normalised updates follow most batches
    rather than their mean (docs/LOG.md).

    `kind` "muon" orthogonalises the updates of matrices (arXiv:2502.16982) and uses
    Adam elsewhere; "adamw" uses Adam everywhere.
    """

    kind: str = "adamw"
    learning_rate: float = 2e-3
    warmup: int = 20
    steps: int = 1000
    decay: bool = True
    weight_decay: float = 0.01
    clip: float = 1.0
    beta2: float = 0.98

    def __post_init__(self):
        if self.kind not in ("adamw", "muon"):
            raise ValueError(f"kind must be 'adamw' or 'muon', got {self.kind!r}")
        if self.learning_rate <= 0 or self.clip <= 0:
            raise ValueError(
                "learning_rate and clip must be > 0, got "
                f"{self.learning_rate} and {self.clip}"
            )
        if self.steps < 1 or self.warmup < 0:
            raise ValueError(
                f"steps must be >= 1 and warmup >= 0, got {self.steps}, {self.warmup}"
            )


def optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return the gradient transformation of a config."""
    c = config
    warmup = min(c.warmup, max(c.steps - 1, 1))
    if c.decay:
        rate: Any = optax.warmup_cosine_decay_schedule(
            c.learning_rate / (warmup + 1), c.learning_rate, warmup,
            max(c.steps, warmup + 1),
            c.learning_rate * 0.01,
        )  # fmt: skip
    else:
        rate = optax.linear_schedule(
            c.learning_rate / (warmup + 1), c.learning_rate, max(warmup, 1)
        )
    if c.kind == "muon":
        step = optax.contrib.muon(rate, adam_b2=c.beta2, weight_decay=c.weight_decay)
    else:
        step = optax.adamw(rate, b2=c.beta2, weight_decay=c.weight_decay)
    return optax.chain(optax.clip_by_global_norm(c.clip), step)
