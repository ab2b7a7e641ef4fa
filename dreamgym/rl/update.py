"""The trust-region update: rollouts -> packed turns -> clipped, KL-bound steps.

Only tokens that the policy sampled enter the loss; observations, forced tokens and
padding never do. Log-probabilities are taken under the sampler's own distribution: the
same temperature and allowed-token masks.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from dreamgym.rl import losses
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.trust_region import Distance, backtracked
from dreamgym.rl.watch import Weights
from worldmodel.backbone.generate import Grammar
from worldmodel.backbone.model import DecoderOutput, Model, forward
from worldmodel.backbone.sampling import shaped_logits
from worldmodel.fitting.arrays import Ratio, masked_ratio, safe_count
from worldmodel.fitting.batches import Example, Tokens, pack, rows_of
from worldmodel.fitting.learner import (
    ComputeConfig,
    Learner,
    TrainState,
    copy_params,
    merge,
    on_logits,
    require_finite,
)
from worldmodel.fitting.losses import cross_entropy, read_logp
from worldmodel.fitting.optimizer import OptimizerConfig

T = TypeVar("T")


def distribution(logits, batch: Tokens, masks, temperature: float):
    """log p [B, T - 1, V] of each token but the first, as the sampler shaped it.

    `masks` is bool [2 P, V]: row 2 p + f allows what phase p allows (f: its first
    token).
    """
    part, mask = jnp.asarray(batch.token_type)[:, 1:], jnp.asarray(batch.mask)[:, 1:]
    allowed = jnp.asarray(masks)[part] | ~mask[..., None]
    full = jnp.full(part.shape, temperature, jnp.float32)
    shaped = shaped_logits(logits[:, :-1], allowed, full, jnp.zeros_like(full))
    return jax.nn.log_softmax(shaped)


def policy_loss(
    logits, batch: Tokens, *, ref_logp, masks, kl, entropy, before=None,
    config: UpdateConfig,
):  # fmt: skip
    """The surrogate, and the terms of KL and entropy at the weights given.

    ref_logp: the reference's `distribution`; before: the learner's own log p of each
    token [B, T] before the update, where it is not what the sampler says.
    """
    c = config
    whole = distribution(logits, batch, masks, c.temperature)
    ids, mask, old, adv, weight, segment = (
        jnp.asarray(x)[:, 1:]
        for x in (
            batch.ids, batch.mask, batch.columns["sampler_logp"],
            batch.columns["advantage"], batch.weight, batch.segment,
        )
    )  # fmt: skip
    logp = jnp.take_along_axis(whole, ids[..., None], axis=-1)[..., 0]
    told = weight
    if before is not None:
        learned = jnp.asarray(before)[:, 1:]
        told = weight * losses.truncated_weight(
            learned, old, mask, c.surrogate.truncate
        )
        old = learned
    ratio = losses.log_ratio(logp, old, mask)
    if c.surrogate.ratio == "turn":
        ratio = losses.turn_log_ratio(ratio, mask, segment)
    clip = {"clip_low": c.clip_low, "clip_high": c.clip_high}
    if c.surrogate.ratio == "none":
        policy = masked_ratio(-adv * logp, mask, told)
    else:
        policy = losses.clipped_policy_loss(
            ratio, adv, mask, told, dual_clip=c.surrogate.dual_clip, **clip
        )
    policy = Ratio(policy.total, masked_ratio(jnp.ones_like(logp), mask, weight).total)
    near = masked_ratio(losses.kl_each(whole, ref_logp, mask), mask, weight)
    penalty = near
    if c.penalty.kind != "full":
        there = jnp.take_along_axis(ref_logp, ids[..., None], axis=-1)[..., 0]
        penalty = losses.sampled_kl(logp, there, mask, weight, kind=c.penalty.kind)
    safe = jnp.where(jnp.isfinite(whole), whole, 0.0)  # 0 log 0 is 0
    spread = -jnp.where(jnp.isfinite(whole), jnp.exp(safe) * safe, 0.0).sum(-1)
    spread = masked_ratio(spread, mask, weight)
    total = policy.total - entropy * spread.total
    if c.penalty.place == "loss":
        total = total + kl * penalty.total
    return Ratio(total, policy.count), {
        "policy_loss": policy,
        "kl": near,
        "entropy": spread,
        "clipped": losses.clip_fraction(ratio, mask, weight, **clip),
    }


def merged(examples: Sequence[Example]) -> list[Example]:
    """The same loss from fewer examples: equal turns once, with their weights summed.

    A group begins in one state and mostly does the same there. The clipped surrogate
    is linear in advantages of one sign, so those of one sign are averaged. Of one
    policy their log-probabilities differ by rounding at most, and the first ones are
    kept; turns of policies before (replay) have others, and stay apart. A turn with an
    advantage for each token stays as it is.
    """
    equal: dict[tuple, list[Example]] = {}
    out = []
    for e in examples:
        advantage = e.columns["advantage"]
        if isinstance(advantage, float):
            sampled = round(float(np.sum(e.columns["sampler_logp"])), 2)
            equal.setdefault((tuple(e.ids), advantage > 0, sampled), []).append(e)
        else:
            out.append(e)
    for found in equal.values():
        weights = np.array([e.weight for e in found], float)
        advantages = np.array([e.columns["advantage"] for e in found], float)
        mean = float(weights @ advantages / weights.sum())
        one = found[0]._replace(weight=float(weights.sum()))
        out.append(one.with_columns(advantage=mean))
    return out


class Updater:
    """Turns rollouts into updates of one policy, against a fixed reference."""

    def __init__(
        self,
        model: Model,
        reference: nnx.State,
        grammar: Grammar,
        config: UpdateConfig,
    ):
        self.config = config
        self._masks = np.stack(
            [np.asarray(grammar.allowed), np.asarray(grammar.first)], axis=1
        ).reshape(-1, grammar.allowed.shape[1])
        self._reference = reference
        optimizer = OptimizerConfig(
            learning_rate=config.learning_rate, warmup=config.warmup, decay=False,
            weight_decay=0.0, steps=config.warmup + 1,
        )  # fmt: skip
        self.learner = Learner(
            model,
            optimizer,
            on_logits(functools.partial(policy_loss, config=config)),
            ComputeConfig(ema=config.reference_decay),
        )
        self._beside = Learner(model, optimizer, _imitation)
        told = functools.partial(
            _distribution, model.definition, temperature=config.temperature
        )
        self._whole = jax.jit(told)
        self._logp = jax.jit(functools.partial(_chosen, told))
        self._gap = jax.jit(functools.partial(_gap, told))

    def update(
        self,
        state: TrainState,
        examples: Sequence[Example],
        *,
        seed: int,
        weights: Weights | None = None,
        beside: Sequence[Example] = (),
        visits: Sequence[float] | np.ndarray | None = None,
    ) -> tuple[TrainState, dict[str, float]]:
        """One pass over the examples in `minibatches` steps, then the trust region.

        `weights` of the loss's terms are the config's where it is None; examples
        `beside` are imitated, in a mean of their own; `visits` says how often each of
        the others counts in the gain (once where it is None), and nowhere else. The
        state given is used up.
        Metrics: those of `policy_loss`, and how far the policy moved
        (trust_region.Distance; `step`: the share of the step taken).

        Raises:
          FloatingPointError: a loss that is not finite.
          MemoryError: not even one row fits (fitting/micro.py).
        """
        tokens = self._packed(merged(examples))
        if weights is None:
            weights = Weights(kl=self.config.kl, entropy=self.config.entropy)
        old = copy_params(state.params)
        before = None
        if self.config.surrogate.truncate:
            before = self._over(tokens, lambda b: self._logp(old, b, self._masks))
        order = np.random.default_rng(seed).permutation(tokens.ids.shape[0])
        parts = np.array_split(order, min(self.config.minibatches, len(order)))
        others: list[Tokens | None] = [None] * len(parts)
        if beside and weights.beside:
            shares = [beside[i :: len(parts)] for i in range(len(parts))]
            others = [self._packed(some) if some else None for some in shares]
        total: dict[str, Ratio] = {}
        for part, other in zip(parts, others, strict=True):
            state, found = self._step(state, tokens, part, weights, before, other)
            total = merge(total, found)
        metrics = {k: float(v.value()) for k, v in total.items()}
        require_finite("loss", metrics["loss"], int(state.step))
        if visits is not None:
            tokens = self._packed(merged([
                e.with_columns(advantage=np.multiply(e.columns["advantage"], v))
                for e, v in zip(examples, visits, strict=True)
            ]))  # fmt: skip
        params, far, share = backtracked(
            old, state.params, lambda new: self.distance(new, old, tokens),
            self.config.radius or np.inf, max_turn_kl=self.config.max_turn_kl or np.inf,
        )  # fmt: skip
        told = {
            "moved": far.mean, "moved_most": far.largest, "moved_turn": far.turn,
            "moved_turn_mean": far.turn_mean,
            "gain": far.gain, "step": share,
        }  # fmt: skip
        return state._replace(params=params), metrics | told

    def distance(self, new: nnx.State, old: nnx.State, tokens: Tokens) -> Distance:
        """How far apart two policies are at the policy's tokens of packed rows."""
        none = Ratio(jnp.zeros(()), jnp.zeros(()))
        total, gain, each, largest, turn = none, none, none, 0.0, 0.0
        for found in self._pieces(
            tokens, lambda batch, _: self._gap(new, old, batch, self._masks)
        ):
            total, gain = total + found[0], gain + found[1]
            each = each + found[4]
            # np.maximum keeps what is no number; max would lose it.
            largest = float(np.maximum(largest, found[2]))
            turn = float(np.maximum(turn, found[3]))
        return Distance(
            float(total.value()), largest, turn, float(gain.value()),
            float(each.value()),
        )  # fmt: skip

    def surprise(self, examples: Sequence[Example]) -> np.ndarray:
        """log p(sampler) - log p(reference) of each example's sampled tokens, summed.

        The k1 estimate of how far a turn is from the reference, float [N].
        """
        tokens = self._packed([e.with_columns(row=i) for i, e in enumerate(examples)])
        there = self._over(
            tokens, lambda b: self._logp(self._reference, b, self._masks)
        )
        out = np.zeros(len(examples))
        gap = (tokens.columns["sampler_logp"] - there)[tokens.mask]
        np.add.at(out, tokens.columns["row"][tokens.mask], gap)
        return out

    def _packed(self, examples: Sequence[Example]) -> Tokens:
        # A turn trains in the context it was sampled in: rows grow to hold it whole.
        longest, width = max(len(e.ids) for e in examples), self.config.width
        return pack(examples, width if longest <= width else -(-longest // 64) * 64)

    def _pieces(
        self,
        tokens: Tokens,
        compute: Callable[[Tokens, np.ndarray], T],
        index: np.ndarray | None = None,
    ) -> Iterator[T]:
        """`compute(batch, index)` of all rows or of some, as many at once as fit."""
        rows = np.arange(len(tokens.ids)) if index is None else index

        def of(start: int, stop: int, size: int) -> T:
            chosen = rows[start:stop]
            return compute(rows_of(tokens, chosen, size), chosen)

        most, width = self.config.rows, tokens.ids.shape[1]
        return self.learner.microbatches.run(len(rows), most, width, of)

    def _over(
        self, tokens: Tokens, fn: Callable[[Tokens], jax.Array]
    ) -> Float[np.ndarray, "B T"]:
        """A function of batches over all rows."""
        found = self._pieces(tokens, lambda b, some: np.asarray(fn(b))[: len(some)])
        return np.concatenate(list(found))

    def _step(
        self,
        state: TrainState,
        tokens: Tokens,
        index: np.ndarray,
        weights: Weights,
        before: Float[np.ndarray, "B T"] | None,
        beside: Tokens | None,
    ):
        args = {
            "masks": self._masks, "kl": np.float32(weights.kl),
            "entropy": np.float32(weights.entropy),
        }  # fmt: skip
        reference = self._reference if state.average is None else state.average

        def gradient(batch: Tokens, chosen: np.ndarray):
            more = {"ref_logp": self._whole(reference, batch, self._masks)}
            if before is not None:
                short = len(batch.ids) - len(chosen)
                more["before"] = np.pad(before[chosen], ((0, short), (0, 0)))
            return self.learner.gradient(state.params, batch, **args, **more)

        grads, total = None, {}
        for one, found in self._pieces(tokens, gradient, index):
            grads = one if grads is None else self.learner.add_gradients(grads, one)
            total = merge(total, found)
        if beside is not None:
            grads, told = self._joined(state, grads, total, weights.beside, beside)
            total |= {"beside": told}
        return self.learner.apply(state, grads, total)

    def _joined(
        self,
        state: TrainState,
        grads: Any,
        total: dict[str, Ratio],
        weight: float,
        beside: Tokens,
    ) -> tuple[Any, Ratio]:
        """Gradients with those of imitation added, a mean against the loss's mean."""
        more, told = None, {}
        for one, found in self._pieces(
            beside, lambda batch, _: self._beside.gradient(state.params, batch)
        ):
            more = one if more is None else self._beside.add_gradients(more, one)
            told = merge(told, found)
        share = weight * total["loss"].count / safe_count(told["loss"].count)
        return _plus(grads, more, share), told["loss"]


def _imitation(readout: DecoderOutput, batch: Tokens):
    logp = read_logp(readout, batch.ids)
    return cross_entropy(logp, batch.mask, batch.weight), {}


@jax.jit
def _plus(grads, more, share):
    return jax.tree.map(lambda a, b: a + share * b, grads, more)


def _distribution(definition, params, batch: Tokens, masks, *, temperature: float):
    logits = forward(definition, params, batch.ids, batch.position, batch.segment)
    return distribution(logits, batch, masks, temperature)


def _chosen(told, params, batch: Tokens, masks):
    """log p of each token [B, T]; 0 for the first, which has no context."""
    whole, ids = told(params, batch, masks), jnp.asarray(batch.ids)[:, 1:]
    logp = jnp.take_along_axis(whole, ids[..., None], axis=-1)[..., 0]
    return jnp.pad(jnp.where(batch.mask[:, 1:], logp, 0.0), ((0, 0), (1, 0)))


def _gap(told, new, old, batch: Tokens, masks):
    """Mean KL(new || old) and mean advantage under new, then the largest KLs.

    The first two as Ratios, over tokens and over turns; the others of a token, a turn.
    """
    mask, weight, segment, ids, was, adv = (
        jnp.asarray(x)[:, 1:]
        for x in (
            batch.mask, batch.weight, batch.segment, batch.ids,
            batch.columns["sampler_logp"], batch.columns["advantage"],
        )
    )  # fmt: skip
    whole = told(new, batch, masks)
    each = losses.kl_each(whole, told(old, batch, masks), mask)
    logp = jnp.take_along_axis(whole, ids[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(losses.turn_sums(losses.log_ratio(logp, was, mask), mask, segment))
    # A turn's tokens share it between them, so that turns weigh as their tokens do.
    share = weight / jnp.maximum(
        losses.turn_sums(jnp.ones_like(each), mask, segment), 1.0
    )
    turn = losses.turn_sums(each, mask, segment)
    return (
        masked_ratio(each, mask, weight), masked_ratio(ratio * adv, mask, share),
        jnp.where(mask, each, 0.0).max(), turn.max(), masked_ratio(turn, mask, share),
    )  # fmt: skip
