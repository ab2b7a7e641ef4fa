"""The trust-region update: rollouts -> packed turns -> clipped, KL-bound steps.

Only tokens that the policy sampled enter the loss; observations, forced tokens and
padding never do. Log-probabilities are taken under the sampler's own distribution: the
same temperature and allowed-token masks.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dreamgym.rl import losses
from worldmodel.backbone.generate import Grammar
from worldmodel.backbone.model import Model, forward
from worldmodel.backbone.sampling import shaped_logits
from worldmodel.fitting.arrays import Ratio, masked_ratio
from worldmodel.fitting.batches import Example, Tokens, pack, rows_of
from worldmodel.fitting.learner import (
    ComputeConfig,
    Learner,
    OptimizerConfig,
    TrainState,
    merge,
    on_logits,
    require_finite,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoConfig:
    """Group-relative policy optimisation with clipping and a KL term.

    Unlike the paper the advantage is not divided by the group's std unless
    `divide_by_std`, and the loss is a mean over all tokens of the batch, not over each
    rollout: neither length nor difficulty weighs (arXiv:2503.20783). `discount` is a
    turn's (advantages.py). The KL's reference is the policy that training began with;
    with `reference_decay` above 0 it follows as a moving average of that decay a
    minibatch. The step grows over `warmup` minibatches: before it knows
    the gradient's noise, Adam moves every parameter by the whole step.
    """

    learning_rate: float = 1e-3
    warmup: int = 20
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.02
    reference_decay: float = 0.0
    discount: float = 0.9
    temperature: float = 1.0
    divide_by_std: bool = False
    minibatches: int = 4
    rows: int = 16
    width: int = 256

    def __post_init__(self):
        if not 0 < self.clip_low < 1 or self.clip_high <= 0:
            raise ValueError(
                "clip_low must be in (0, 1) and clip_high > 0, got "
                f"{self.clip_low} and {self.clip_high}"
            )
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], got {self.discount}")
        if self.kl < 0 or self.temperature <= 0:
            raise ValueError(
                f"kl must be >= 0 and temperature > 0, got {self.kl}, "
                f"{self.temperature}"
            )
        if min(self.minibatches, self.rows, self.width, self.warmup) < 1:
            raise ValueError("minibatches, rows, width and warmup must be >= 1")


def distribution(logits, batch: Tokens, masks, temperature: float):
    """log p [B, T - 1, V] of each token but the first, as the sampler shaped it.

    `masks` is bool [2 P, V]: row 2 p + f allows what phase p allows (f: its first
    token).
    """
    part, mask = jnp.asarray(batch.part)[:, 1:], jnp.asarray(batch.mask)[:, 1:]
    allowed = jnp.asarray(masks)[part] | ~mask[..., None]
    full = jnp.full(part.shape, temperature, jnp.float32)
    shaped = shaped_logits(logits[:, :-1], allowed, full, jnp.zeros_like(full))
    return jax.nn.log_softmax(shaped)


def grpo_loss(logits, batch: Tokens, *, ref_logp, masks, config: GrpoConfig):
    """Clipped surrogate plus the KL term to the reference's `distribution`."""
    c = config
    whole = distribution(logits, batch, masks, c.temperature)
    ids, mask, old, adv, weight = (
        jnp.asarray(x)[:, 1:]
        for x in (batch.ids, batch.mask, batch.logp, batch.adv, batch.weight)
    )
    logp = jnp.take_along_axis(whole, ids[..., None], axis=-1)[..., 0]
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    policy = losses.clipped_policy_loss(logp, old, adv, mask, weight, **clip)
    kl = losses.kl_divergence(whole, ref_logp, mask, weight)
    safe = jnp.where(jnp.isfinite(whole), whole, 0.0)  # 0 log 0 is 0
    entropy = -jnp.where(jnp.isfinite(whole), jnp.exp(safe) * safe, 0.0).sum(-1)
    return Ratio(policy.total + c.kl * kl.total, policy.count), {
        "policy_loss": policy,
        "kl": kl,
        "entropy": masked_ratio(entropy, mask, weight),
        "clipped": losses.clip_fraction(logp, old, mask, weight, **clip),
    }


def merged(examples: Sequence[Example]) -> list[Example]:
    """The same loss from fewer examples: equal turns once, with their number as weight.

    A group begins in one state and mostly does the same there. The clipped surrogate
    is linear in advantages of one sign, so those of one sign are averaged. Log-
    probabilities of equal turns differ by rounding at most; the first ones are kept.
    """
    equal: dict[tuple, list[Example]] = {}
    for e in examples:
        equal.setdefault((tuple(e.ids), e.adv > 0), []).append(e)
    return [
        found[0]._replace(
            adv=sum(e.adv for e in found) / len(found), weight=float(len(found))
        )
        for found in equal.values()
    ]


class Updater:
    """Turns rollouts into updates of one policy, against a fixed reference."""

    def __init__(
        self, model: Model, reference: nnx.State, grammar: Grammar, config: GrpoConfig
    ):
        self.config = config
        self._masks = np.stack(
            [np.asarray(grammar.allowed), np.asarray(grammar.first)], axis=1
        ).reshape(-1, grammar.allowed.shape[1])
        self._reference = reference
        optimizer = OptimizerConfig(
            learning_rate=config.learning_rate, warmup=config.warmup, decay=False,
            weight_decay=0.0,
        )  # fmt: skip
        self.learner = Learner(
            model,
            optimizer,
            on_logits(functools.partial(grpo_loss, config=config)),
            ComputeConfig(ema=config.reference_decay),
        )
        self._ref_logp = jax.jit(
            functools.partial(
                _distribution, model.definition, temperature=config.temperature
            )
        )

    def update(
        self, state: TrainState, examples: Sequence[Example], *, seed: int
    ) -> tuple[TrainState, dict[str, float]]:
        """One pass over the examples in `minibatches` steps.

        Raises:
          FloatingPointError: a loss that is not finite.
        """
        examples = merged(examples)
        # A turn trains in the context it was sampled in: rows grow to hold it whole.
        longest, width = max(len(e.ids) for e in examples), self.config.width
        tokens = pack(examples, width if longest <= width else -(-longest // 64) * 64)
        order = np.random.default_rng(seed).permutation(tokens.ids.shape[0])
        total: dict[str, Ratio] = {}
        for part in np.array_split(order, min(self.config.minibatches, len(order))):
            state, found = self._step(state, tokens, part)
            total = merge(total, found)
        metrics = {k: float(v.value()) for k, v in total.items()}
        require_finite("loss", metrics["loss"], int(state.step))
        return state, metrics

    def _step(self, state, tokens: Tokens, index: np.ndarray):
        rows = self.config.rows
        grads, total = None, {}
        for at in range(0, len(index), rows):
            batch = rows_of(tokens, index[at : at + rows], rows)
            reference = self._reference if state.average is None else state.average
            ref = self._ref_logp(reference, batch, self._masks)
            one, found = self.learner.gradient(
                state.params, batch, ref_logp=ref, masks=self._masks
            )
            grads = one if grads is None else self.learner.added(grads, one)
            total = merge(total, found)
        return self.learner.apply(state, grads, total)


def _distribution(definition, params, batch: Tokens, masks, *, temperature: float):
    logits = forward(definition, params, batch.ids, batch.position, batch.segment)
    return distribution(logits, batch, masks, temperature)
