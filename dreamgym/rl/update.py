"""The trust-region update: rollouts -> packed turns -> clipped, KL-bound steps.

Only tokens that the policy sampled enter the loss; observations, forced tokens and
padding never do. Log-probabilities are taken under the sampler's own distribution: the
same temperature and allowed-token masks.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from dreamgym.rl import losses
from dreamgym.rl.advantages import BASELINES
from dreamgym.rl.critic import CriticConfig
from dreamgym.rl.trust_region import Distance, backtracked
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
    copied,
    merge,
    on_logits,
    require_finite,
)


def _among(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {tuple(known)}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """Which probabilities are compared, and what weighs the same in the loss.

    `ratio` of a "token", or the mean of its "turn" (GSPO, arXiv:2507.18071, with
    `average` "turn"). `average` says what counts alike, whatever its length: a "token",
    a "turn" or an "episode" (as in the paper of GRPO). `dual_clip` above 1 bounds what
    a bad token costs; `truncate` above 0 weighs tokens by how likely the learner finds
    what the sampler drew, at most so much (for samplers of another precision).
    """

    ratio: str = "token"
    average: str = "token"
    dual_clip: float = 0.0
    truncate: float = 0.0

    def __post_init__(self):
        _among("ratio", self.ratio, ("token", "turn"))
        _among("average", self.average, ("token", "turn", "episode"))
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or > 1, got {self.dual_clip}")
        if self.truncate < 0:
            raise ValueError(f"truncate must be >= 0, got {self.truncate}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyConfig:
    """How the distance to the reference is measured and where it is paid.

    `kind` "full" is over the vocabulary, "k1" and "k3" from the sampled token
    (losses.py). `place` "loss", or "reward": k1 of the turn, taken off before
    advantages. With a `target` above 0 the weight follows: up where the distance is
    larger, down where it is smaller (controllers.py).
    """

    kind: str = "full"
    place: str = "loss"
    target: float = 0.0

    def __post_init__(self):
        _among("kind", self.kind, ("full", "k1", "k3"))
        _among("place", self.place, ("loss", "reward"))
        if self.target < 0:
            raise ValueError(f"target must be >= 0, got {self.target}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """A policy update: whose advantage, which ratio, how far a step may go.

    The defaults are GRPO (arXiv:2402.03300) with what came after: the advantage is not
    divided by the group's std unless `divide_by_std`, and the loss is a mean over all
    tokens of the batch, so that neither length nor difficulty weighs (Dr. GRPO,
    arXiv:2503.20783); what was good may grow further than what was bad (clip-higher,
    arXiv:2503.14476). `baseline` "others" is RLOO, "batch" REINFORCE with a baseline,
    "critic" PPO with GAE over turns (critic.py). `discount` is a turn's
    (advantages.py).

    `kl` weighs the distance to a reference, the policy that training began with; with
    `reference_decay` above 0 it follows as a moving average of that decay a minibatch.
    `entropy` times the entropy is added to the gain.

    After an update its KL(new || old) is measured, in nats; with `radius` above 0 one
    whose mean is larger is halved until it is not (trust_region.py).

    The step grows over `warmup` minibatches: before it knows the gradient's noise, Adam
    moves every parameter by the whole step.
    """

    baseline: str = "group"
    critic: CriticConfig = CriticConfig()
    divide_by_std: bool = False
    discount: float = 0.9
    surrogate: SurrogateConfig = SurrogateConfig()
    clip_low: float = 0.2
    clip_high: float = 0.28
    entropy: float = 0.0
    kl: float = 0.02
    penalty: PenaltyConfig = PenaltyConfig()
    reference_decay: float = 0.0
    radius: float = 0.0
    temperature: float = 1.0
    learning_rate: float = 1e-3
    warmup: int = 20
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
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")
        for name in ("kl", "entropy", "radius"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if min(self.minibatches, self.rows, self.width, self.warmup) < 1:
            raise ValueError("minibatches, rows, width and warmup must be >= 1")
        _among("baseline", self.baseline, (*BASELINES, "critic"))


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


def policy_loss(
    logits, batch: Tokens, *, ref_logp, masks, kl, before=None, config: UpdateConfig
):
    """The clipped surrogate, the KL term at weight `kl`, and the entropy's.

    ref_logp: the reference's `distribution`; before: the learner's own log p of each
    token [B, T] before the update, where it is not what the sampler says.
    """
    c = config
    whole = distribution(logits, batch, masks, c.temperature)
    ids, mask, old, adv, weight, segment = (
        jnp.asarray(x)[:, 1:]
        for x in (
            batch.ids, batch.mask, batch.logp, batch.adv, batch.weight, batch.segment
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
    entropy = -jnp.where(jnp.isfinite(whole), jnp.exp(safe) * safe, 0.0).sum(-1)
    spread = masked_ratio(entropy, mask, weight)
    total = policy.total - c.entropy * spread.total
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
    is linear in advantages of one sign, so those of one sign are averaged. Log-
    probabilities of equal turns differ by rounding at most; the first ones are kept.
    """
    equal: dict[tuple, list[Example]] = {}
    for e in examples:
        equal.setdefault((tuple(e.ids), e.adv > 0), []).append(e)
    out = []
    for found in equal.values():
        weights = np.array([e.weight for e in found], float)
        adv = float(weights @ [e.adv for e in found] / weights.sum())
        out.append(found[0]._replace(adv=adv, weight=float(weights.sum())))
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
            weight_decay=0.0,
        )  # fmt: skip
        self.learner = Learner(
            model,
            optimizer,
            on_logits(functools.partial(policy_loss, config=config)),
            ComputeConfig(ema=config.reference_decay),
        )
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
        kl: float | None = None,
    ) -> tuple[TrainState, dict[str, float]]:
        """One pass over the examples in `minibatches` steps, then the trust region.

        `kl` is the KL term's weight now, the config's where it is None. The state given
        is used up. Metrics: those of `policy_loss`, and how far the policy moved
        (`moved`, `moved_most`: KL in nats; `step`: the share of the step taken).

        Raises:
          FloatingPointError: a loss that is not finite.
        """
        tokens = self._packed(merged(examples))
        kl = self.config.kl if kl is None else kl
        old = copied(state.params)
        before = None
        if self.config.surrogate.truncate:
            before = self._over(tokens, lambda b: self._logp(old, b, self._masks))
        order = np.random.default_rng(seed).permutation(tokens.ids.shape[0])
        total: dict[str, Ratio] = {}
        for part in np.array_split(order, min(self.config.minibatches, len(order))):
            state, found = self._step(state, tokens, part, kl, before)
            total = merge(total, found)
        metrics = {k: float(v.value()) for k, v in total.items()}
        require_finite("loss", metrics["loss"], int(state.step))
        params, far, share = backtracked(
            old, state.params, lambda new: self.distance(new, old, tokens),
            self.config.radius or np.inf,
        )  # fmt: skip
        told = {"moved": far.mean, "moved_most": far.largest, "step": share}
        return state._replace(params=params), metrics | told

    def distance(self, new: nnx.State, old: nnx.State, tokens: Tokens) -> Distance:
        """KL(new || old) at the policy's tokens of packed rows."""
        total, largest = Ratio(jnp.zeros(()), jnp.zeros(())), 0.0
        for batch in self._batches(tokens):
            one, most = self._gap(new, old, batch, self._masks)
            total, largest = total + one, max(largest, float(most))
        return Distance(float(total.value()), largest)

    def surprise(self, examples: Sequence[Example]) -> np.ndarray:
        """log p(sampler) - log p(reference) of each example's sampled tokens, summed.

        The k1 estimate of how far a turn is from the reference, float [N].
        """
        numbered = [e._replace(adv=float(i)) for i, e in enumerate(examples)]
        tokens = self._packed(numbered)
        there = self._over(
            tokens, lambda b: self._logp(self._reference, b, self._masks)
        )
        out = np.zeros(len(examples))
        gap = (tokens.logp - there)[tokens.mask]
        np.add.at(out, tokens.adv[tokens.mask].astype(int), gap)
        return out

    def _packed(self, examples: Sequence[Example]) -> Tokens:
        # A turn trains in the context it was sampled in: rows grow to hold it whole.
        longest, width = max(len(e.ids) for e in examples), self.config.width
        return pack(examples, width if longest <= width else -(-longest // 64) * 64)

    def _batches(self, tokens: Tokens) -> Iterator[Tokens]:
        count, rows = tokens.ids.shape[0], self.config.rows
        for at in range(0, count, rows):
            yield rows_of(tokens, np.arange(at, min(at + rows, count)), rows)

    def _over(
        self, tokens: Tokens, fn: Callable[[Tokens], jax.Array]
    ) -> Float[np.ndarray, "B T"]:
        """A function of batches over all rows."""
        found = [np.asarray(fn(batch)) for batch in self._batches(tokens)]
        return np.concatenate(found)[: tokens.ids.shape[0]]

    def _step(
        self,
        state: TrainState,
        tokens: Tokens,
        index: np.ndarray,
        kl: float,
        before: Float[np.ndarray, "B T"] | None,
    ):
        rows = self.config.rows
        grads, total = None, {}
        for at in range(0, len(index), rows):
            chosen = index[at : at + rows]
            batch = rows_of(tokens, chosen, rows)
            reference = self._reference if state.average is None else state.average
            more = {"ref_logp": self._whole(reference, batch, self._masks)}
            if before is not None:
                short = rows - len(chosen)
                more["before"] = np.pad(before[chosen], ((0, short), (0, 0)))
            one, found = self.learner.gradient(
                state.params, batch, masks=self._masks, kl=np.float32(kl), **more
            )
            grads = one if grads is None else self.learner.added(grads, one)
            total = merge(total, found)
        return self.learner.apply(state, grads, total)


def _distribution(definition, params, batch: Tokens, masks, *, temperature: float):
    logits = forward(definition, params, batch.ids, batch.position, batch.segment)
    return distribution(logits, batch, masks, temperature)


def _chosen(told, params, batch: Tokens, masks):
    """log p of each token [B, T]; 0 for the first, which has no context."""
    whole, ids = told(params, batch, masks), jnp.asarray(batch.ids)[:, 1:]
    logp = jnp.take_along_axis(whole, ids[..., None], axis=-1)[..., 0]
    return jnp.pad(jnp.where(batch.mask[:, 1:], logp, 0.0), ((0, 0), (1, 0)))


def _gap(told, new, old, batch: Tokens, masks):
    """(mean KL(new || old) as a Ratio, the largest) at the policy's tokens."""
    mask, weight = jnp.asarray(batch.mask)[:, 1:], jnp.asarray(batch.weight)[:, 1:]
    each = losses.kl_each(told(new, batch, masks), told(old, batch, masks), mask)
    return masked_ratio(each, mask, weight), jnp.where(mask, each, 0.0).max()
