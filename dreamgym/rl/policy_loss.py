"""The loss of the policy on packed tokens, and the terms of an update's size.

logits -> the sampler's distribution -> log-probabilities of tokens -> surrogate, KL
penalty and entropy bonus (losses.py). Functions of arrays, to be compiled by update.py,
which gives them the sampled tokens of rows (sampled_rows.py).
"""

import functools

import chex
import jax
import jax.numpy as jnp

from dreamgym.rl import losses
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.sampled_rows import SampledRows
from worldmodel.backbone.model import DecoderOutput, apply_decoder
from worldmodel.backbone.sampling import shaped_logits
from worldmodel.fitting.arrays import Ratio, masked_ratio
from worldmodel.fitting.batches import Tokens


def distribution(logits, batch: Tokens, masks, temperature: float):
    """Return log p [B, T - 1, V] of each token but the first, under the sampler.

    `masks` is bool [2 P, V]: row 2 p + f allows the tokens of phase p of the grammar,
    where f is 1 for the first token of the phase. `batch.token_type` numbers its rows.
    """
    chex.assert_rank(logits, 3)
    chex.assert_equal_shape_prefix([logits, batch.token_type, batch.mask], 2)
    chex.assert_shape(masks, (None, logits.shape[-1]))
    # The logits at a column predict the next token: logits lose their last column,
    # everything that describes tokens its first.
    token_type = jnp.asarray(batch.token_type)[:, 1:]
    mask = jnp.asarray(batch.mask)[:, 1:]
    # Other columns allow every token: without any, their softmax would be NaN.
    allowed = jnp.asarray(masks)[token_type] | ~mask[..., None]
    full = jnp.full(token_type.shape, temperature, jnp.float32)
    shaped = shaped_logits(logits[:, :-1], allowed, full, jnp.zeros_like(full))
    return jax.nn.log_softmax(shaped)


def policy_loss(
    logits,
    batch: Tokens,
    *,
    masks,
    kl_weight,
    entropy_weight,
    ref_logp=None,
    learner_logp=None,
    config: UpdateConfig,
):
    """Return the surrogate with KL penalty and entropy bonus, and its metrics.

    `ref_logp` is the reference's `distribution`; without it there is neither a KL
    penalty nor the metric `kl`. `learner_logp` [B, T] is the learner's
    log p of each token before the update, where it may differ from the sampler's. The
    batch has the columns `sampler_logp` and `advantage`.
    """
    c = config
    log_probs = distribution(logits, batch, masks, c.temperature)
    ids, mask, old_logp, advantage, weight, segment = (
        jnp.asarray(x)[:, 1:]
        for x in (
            batch.ids,
            batch.mask,
            batch.columns["sampler_logp"],
            batch.columns["advantage"],
            batch.weight,
            batch.segment,
        )
    )
    logp = _picked(log_probs, ids)
    # The ratio is to the learner before the update where that is known: PPO clips how
    # far the policy moved, and the weight corrects for the sampler's other arithmetic.
    loss_weight = weight
    if learner_logp is not None:
        sampler_logp, old_logp = old_logp, jnp.asarray(learner_logp)[:, 1:]
        loss_weight = weight * losses.truncated_importance_weight(
            old_logp, sampler_logp, mask, c.surrogate.importance_cap
        )
    ref = None if ref_logp is None else _picked(ref_logp, ids)
    sampled = functools.partial(
        _sampled_token_loss,
        old_logp=old_logp,
        ref_logp=ref,
        advantage=advantage,
        mask=mask,
        weight=weight,
        loss_weight=loss_weight,
        segment=segment,
        kl_weight=kl_weight,
        config=c,
    )
    metrics = {}
    if c.surrogate.logit_gradient_cap:
        slope, _ = jax.grad(sampled, has_aux=True)(logp)
        scale = losses.logit_gradient_norm(log_probs, logp)
        # A weight counts tokens: the cap is on the gradient of each of them.
        bound = c.surrogate.logit_gradient_cap * weight
        logp, limited = losses.limited_gradient(logp, slope, scale, bound)
        share = masked_ratio(limited.astype(logp.dtype), mask, weight)
        metrics["limited_token_share"] = share
    total, (policy, log_ratios) = sampled(logp)
    # The importance weight scales the loss of a token, not how often it counts.
    count = masked_ratio(jnp.ones_like(logp), mask, weight).total
    if ref_logp is not None:
        # The exact KL is reported; the penalty may be an estimate of it.
        kl = masked_ratio(losses.token_kl(log_probs, ref_logp, mask), mask, weight)
        if c.kl_penalty.placement == "loss" and c.kl_penalty.estimator == "full":
            total = total + kl_weight * kl.total
        metrics["kl"] = kl
    entropy = masked_ratio(losses.token_entropy(log_probs), mask, weight)
    return Ratio(total - entropy_weight * entropy.total, count), metrics | {
        "policy_loss": Ratio(policy.total, count),
        "entropy": entropy,
        "clip_fraction": losses.clip_fraction(
            log_ratios, mask, weight, clip_low=c.clip_low, clip_high=c.clip_high
        ),
    }


def _picked(log_probs, ids):
    """Return log p [B, T] of these ids, of log p [B, T, V] of all."""
    return jnp.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]


def _sampled_token_loss(
    logp,
    *,
    old_logp,
    ref_logp,
    advantage,
    mask,
    weight,
    loss_weight,
    segment,
    kl_weight,
    config: UpdateConfig,
):
    """Return what the loss reads from log p of the sampled tokens alone.

    That is the surrogate plus a KL penalty that is estimated from these tokens, where
    there is a reference. The second value is the surrogate as a Ratio, and the log
    ratios.
    """
    c = config
    log_ratios = losses.log_ratio(logp, old_logp, mask)
    if c.surrogate.importance_level == "turn":
        log_ratios = losses.turn_log_ratio(log_ratios, mask, segment)
    if c.surrogate.importance_level == "none":
        # REINFORCE (Williams, 1992): the gradient of log p, without a ratio to clip.
        policy = masked_ratio(-advantage * logp, mask, loss_weight)
    else:
        policy = losses.clipped_policy_loss(
            log_ratios,
            advantage,
            mask,
            loss_weight,
            clip_low=c.clip_low,
            clip_high=c.clip_high,
            dual_clip=c.surrogate.dual_clip,
        )
    total = policy.total
    kind = c.kl_penalty.estimator
    if ref_logp is not None and c.kl_penalty.placement == "loss" and kind != "full":
        penalty = losses.sampled_kl(logp, ref_logp, mask, weight, kind=kind)
        total = total + kl_weight * penalty.total
    return total, (policy, log_ratios)


def sampled_policy_loss(
    output: DecoderOutput, rows: Tokens, *, sampled: SampledRows, config, **args
):
    """Return the `policy_loss` of rows whose decoder was read at `sampled.position`."""
    del rows  # the decoder read them
    return policy_loss(output.logits(), sampled.tokens, config=config, **args)


def decoder_log_probs(
    definition, params, rows: Tokens, sampled: SampledRows, masks, *, temperature: float
):
    """Return the `distribution` of a decoder at the sampled tokens of rows."""
    layout = (rows.ids, rows.position, rows.segment)
    output = apply_decoder(definition, params, *layout, read=sampled.position)
    return distribution(output.logits(), sampled.tokens, masks, temperature)


def token_logp(distribution_of, params, rows: Tokens, sampled: SampledRows, masks):
    """Return log p of each sampled token [B, S]; 0 in the blank first column.

    `distribution_of` is `decoder_log_probs` of a decoder at a temperature.
    """
    log_probs, batch = distribution_of(params, rows, sampled, masks), sampled.tokens
    ids = jnp.asarray(batch.ids)[:, 1:]
    logp = _picked(log_probs, ids)
    return jnp.pad(jnp.where(batch.mask[:, 1:], logp, 0.0), ((0, 0), (1, 0)))


def sampled_entropy(distribution_of, params, rows: Tokens, sampled: SampledRows, masks):
    """Return the entropy at each sampled token [B, S]; 0 in the blank first column.

    `distribution_of` is `decoder_log_probs` of a decoder at a temperature.
    """
    entropy = losses.token_entropy(distribution_of(params, rows, sampled, masks))
    masked = jnp.where(sampled.tokens.mask[:, 1:], entropy, 0.0)
    return jnp.pad(masked, ((0, 0), (1, 0)))


def size_terms(distribution_of, new, old, rows: Tokens, sampled: SampledRows, masks):
    """Return the terms of an UpdateSize on rows, for two sets of parameters.

    They are the mean KL of tokens and the mean advantage of turns as Ratios, the
    largest KL of a token and of a turn, and the mean KL of turns as a Ratio.
    `distribution_of` is `decoder_log_probs` of a decoder at a temperature.
    """
    batch = sampled.tokens
    mask, weight, segment, ids, sampler_logp, advantage = (
        jnp.asarray(x)[:, 1:]
        for x in (
            batch.mask,
            batch.weight,
            batch.segment,
            batch.ids,
            batch.columns["sampler_logp"],
            batch.columns["advantage"],
        )
    )
    new_log_probs, old_log_probs = (
        distribution_of(params, rows, sampled, masks) for params in (new, old)
    )
    kl = losses.token_kl(new_log_probs, old_log_probs, mask)
    logp = _picked(new_log_probs, ids)
    log_ratios = losses.log_ratio(logp, sampler_logp, mask)
    # A turn is one action, so its ratio is the product over its tokens.
    ratio = jnp.exp(losses.turn_sums(log_ratios, mask, segment))
    # Each token has its share of its turn's weight, so that a turn's terms count once.
    tokens = losses.turn_sums(jnp.ones_like(kl), mask, segment)
    share = weight / jnp.maximum(tokens, 1.0)
    turn_kl = losses.turn_sums(kl, mask, segment)
    return (
        masked_ratio(kl, mask, weight),
        masked_ratio(ratio * advantage, mask, share),
        jnp.where(mask, kl, 0.0).max(),
        turn_kl.max(),
        masked_ratio(turn_kl, mask, share),
    )
