"""Shared by the tests of the update: turns, updaters, and compiled losses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from dreamgym.rl.config import (
    KLPenaltyConfig,
    SurrogateConfig,
    UpdateConfig,
)
from dreamgym.rl.policy_loss import distribution, policy_loss
from dreamgym.rl.sampled_rows import sampled_rows
from dreamgym.rl.update import Updater
from tests import doubles, helpers
from worldmodel.fitting.batches import pack

HOT = 0.7
COLUMNS = {"advantage": np.float32, "sampler_logp": np.float32}
SITUATIONS = [
    (t, past, t.initial_state)
    for t in doubles.tasks("train")[:4]
    for past in ((), ("go right", "take coin"))
]


@functools.cache
def turns(thought_tokens=0):
    policy = doubles.policy(action_tokens=5, thought_tokens=thought_tokens)
    keys = jax.random.split(jax.random.key(3), len(SITUATIONS))
    return tuple(policy.act(SITUATIONS, keys, temperature=HOT))


def grouped(settings):
    """Settings of the parts of an UpdateConfig, by their own names."""
    out = dict(settings)
    for name, part in (("surrogate", SurrogateConfig), ("kl_penalty", KLPenaltyConfig)):
        known = {f.name for f in dataclasses.fields(part)} & set(out)
        if known:
            out[name] = part(**{k: out.pop(k) for k in known})
    return out


@functools.cache
def updater(*, reference=0, thought_tokens=0, **settings):
    policy = doubles.policy(action_tokens=5, thought_tokens=thought_tokens)
    settings = {
        "batch_rows": 4,
        "row_tokens": 80,
        "num_minibatches": 1,
        "warmup_steps": 1,
    } | settings
    settings = {"temperature": HOT} | grouped(settings)
    config = UpdateConfig(**settings)
    grammar = policy.grammar(config.temperature)
    return Updater(policy.model, doubles.model(reference).params, grammar, config)


def examples(advantages=(1.0, -1.0), **settings):
    some = turns(**settings)
    return [
        t.example(advantage=advantages[i % len(advantages)]) for i, t in enumerate(some)
    ]


def with_shift(example, change):
    """The example as if its sampler had given other log-probabilities."""
    return example.with_columns(
        sampler_logp=np.asarray(example.columns["sampler_logp"]) + change
    )


def logits_of(params, tokens):
    """The logits of packed rows, compiled once for each shape."""
    layout = (tokens.ids, tokens.position, tokens.segment)
    return helpers.packed_pass(doubles.model().definition, params, *layout)


def masks_of(policy, temperature=HOT):
    g = policy.grammar(temperature)
    return np.stack([g.allowed, g.first], 1).reshape(-1, g.allowed.shape[1])


# One program for each shape: without it every operation is compiled for itself.
compiled_distribution = jax.jit(distribution, static_argnames="temperature")
compiled_policy_loss = jax.jit(policy_loss, static_argnames="config")


@functools.partial(jax.jit, static_argnames="temperature")
def logp_of(logits, tokens, masks, temperature):
    """log p of each token under the sampler's distribution, [B, T]."""
    whole = distribution(logits, tokens, masks, temperature)
    picked = jnp.take_along_axis(whole, tokens.ids[:, 1:, None], -1)[..., 0]
    return jnp.pad(picked, ((0, 0), (1, 0)))


def distance(a, b):
    gaps = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), a, b)
    return max(jax.tree.leaves(gaps))


def reference_logp(tokens, sampled, masks):
    """The distribution of a reference, at the sampled tokens of rows."""
    ref = doubles.logits(tokens.ids, tokens.position, tokens.segment) * 0.5
    ref = np.take_along_axis(np.asarray(ref), sampled.position[..., None], 1)
    return compiled_distribution(jnp.asarray(ref), sampled.tokens, masks, HOT)


def gradient(kl=0.0, given=None, **settings):
    learner = updater(reference=1, **settings)
    tokens = pack(examples() if given is None else given, 80)
    sampled = sampled_rows(tokens)
    masks = masks_of(doubles.policy(action_tokens=5))
    more = (
        {"learner_logp": sampled.tokens.columns["sampler_logp"] + 1.0}
        if learner.config.surrogate.importance_cap
        else {}
    )
    return learner.learner.gradient(
        learner.learner.init().params,
        tokens,
        read=sampled.position,
        sampled=sampled,
        ref_logp=reference_logp(tokens, sampled, masks),
        masks=masks,
        kl_weight=np.float32(kl),
        entropy_weight=np.float32(settings.get("entropy_coefficient", 0.0)),
        **more,
    )
