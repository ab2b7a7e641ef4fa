"""The optimiser: its settings and the gradient transformation made of them.

OptimizerConfig -> clipping, a schedule, AdamW or Muon -> optax.GradientTransformation.
"""

import functools
from typing import Any

import optax
import optax.contrib

from worldmodel.fitting.config import OptimizerConfig


@functools.lru_cache(maxsize=64)  # equal arguments, one object: `learner.bind`
def optimizer(
    config: OptimizerConfig, steps: int | None = None
) -> optax.GradientTransformation:
    """Return the gradient transformation of a config for a fit of so many steps.

    Without `steps` the rate cannot decay, and a fit may end before it has risen.

    Raises:
      ValueError: the rate decays, and over how many steps is not said.
    """
    c = config
    warmup = c.warmup_steps if steps is None else min(c.warmup_steps, max(steps - 1, 1))
    if c.cosine_decay:
        if steps is None:
            raise ValueError("cosine_decay needs the number of steps, got None")
        rate: Any = optax.warmup_cosine_decay_schedule(
            # Not from 0: the first step would change nothing.
            c.learning_rate / (warmup + 1),
            c.learning_rate,
            warmup,
            max(steps, warmup + 1),
            c.learning_rate * 0.01,
        )
    else:
        rate = optax.linear_schedule(
            c.learning_rate / (warmup + 1), c.learning_rate, max(warmup, 1)
        )
    if c.name == "muon":
        step = optax.contrib.muon(rate, adam_b2=c.beta2, weight_decay=c.weight_decay)
    else:
        step = optax.adamw(rate, b2=c.beta2, weight_decay=c.weight_decay)
    # Clipped before the moments are updated: one outlier would otherwise stay in
    # Adam's second moment for about 1 / (1 - beta2) steps.
    return optax.chain(optax.clip_by_global_norm(c.max_grad_norm), step)
