"""Sampled tokens of rows: what they hold, and that a loss of them is the rows' own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl.config import SurrogateConfig, UpdateConfig
from dreamgym.rl.policy_loss import policy_loss, sampled_policy_loss
from dreamgym.rl.sampled_rows import sampled_rows
from tests import doubles, helpers
from tests.dreamgym.rl import updates as base
from worldmodel.backbone.model import apply_decoder
from worldmodel.fitting.batches import Example, pack


def example(ids, mask, turn):
    return Example(ids, mask, [turn] * len(ids), columns={"advantage": float(turn)})


def test_sampled_tokens_by_hand():
    first = example([5, 6, 7, 8], [False, False, True, True], 1)
    second = example([9, 4, 3], [False, True, False], 2)
    third = example([1, 2], [False, True], 3)
    rows = pack([first, second, third], 7)  # the first two share a row
    got = sampled_rows(rows)
    assert got.tokens.ids.shape == (2, 17)
    assert got.tokens.ids[:, :4].tolist() == [[0, 7, 8, 4], [0, 2, 0, 0]]
    assert got.tokens.mask.sum(1).tolist() == [3, 1]
    assert got.tokens.mask[:, 0].tolist() == [False, False]
    assert got.tokens.segment[:, :4].tolist() == [[0, 1, 1, 2], [0, 1, 0, 0]]
    assert got.tokens.columns["advantage"][0, :4].tolist() == [0, 1, 1, 2]
    # The columns before the tokens: 7 and 8 stand in 2 and 3, and 4 in 5.
    assert got.position[:, :3].tolist() == [[1, 2, 4], [0, 0, 0]]


def test_many_turns_in_a_row_and_none():
    # As many as there are sampled tokens: their numbers stay within the columns.
    turns = [example([1, 1, 2], [False, False, True], i) for i in range(30)]
    got = sampled_rows(pack(turns, 90)).tokens
    assert got.segment.max() == 30 < got.ids.shape[1]
    none = sampled_rows(pack([example([1, 2], [False, False], 0)], 8))
    assert not none.tokens.mask.any()
    assert none.tokens.ids.shape == (1, 17)


@pytest.mark.medium
def test_the_loss_and_its_gradient_are_those_of_whole_rows():
    config = UpdateConfig(
        temperature=base.HOT, surrogate=SurrogateConfig(importance_level="turn")
    )
    rng = np.random.default_rng(0)
    given = [
        base.with_shift(e, 0.1 * rng.normal(size=len(e.ids)))
        for e in base.examples((1.0, -0.5))
    ]
    rows = pack(given, 120)
    sampled, m = sampled_rows(rows), doubles.model()
    masks = base.masks_of(doubles.policy(action_tokens=5))
    other = doubles.logits(rows.ids, rows.position, rows.segment) * 0.5
    ref = base.compiled_distribution(jnp.asarray(other), rows, masks, base.HOT)
    sampled_ref = base.reference_logp(rows, sampled, masks)
    args = {"masks": masks, "kl_weight": 0.3, "entropy_weight": 0.1, "config": config}

    def whole(params):
        output = apply_decoder(
            m.definition, params, rows.ids, rows.position, rows.segment
        )
        return policy_loss(output.logits(), rows, ref_logp=ref, **args)

    def reduced(params):
        layout = (rows.ids, rows.position, rows.segment)
        output = apply_decoder(m.definition, params, *layout, read=sampled.position)
        return sampled_policy_loss(
            output, rows, sampled=sampled, ref_logp=sampled_ref, **args
        )

    def compute(f):
        """Return the loss, its metrics and its gradient."""

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def program(params):
            ratio, metrics = f(params)
            return ratio.total, (ratio, metrics)

        (_, (ratio, metrics)), grads = program(m.params)
        return ratio, metrics, grads

    want, want_metrics, want_grads = compute(whole)
    got, metrics, grads = compute(reduced)
    np.testing.assert_allclose(got.total, want.total, rtol=1e-5)
    np.testing.assert_allclose(got.count, want.count, rtol=1e-6)
    for name, value in want_metrics.items():
        np.testing.assert_allclose(metrics[name].total, value.total, rtol=1e-4)
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want_grads))
    assert size > 1e-3
    assert helpers.distance(grads, want_grads) < 1e-5 * size
