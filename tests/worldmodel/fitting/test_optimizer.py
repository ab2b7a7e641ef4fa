import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.fitting import optimizer
from worldmodel.fitting.config import OptimizerConfig


def adamw_by_loop(c: OptimizerConfig, x, grads, rate):
    """AdamW (arXiv:1711.05101) with clipping by norm, in plain NumPy."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, raw in enumerate(grads):
        g = raw * min(1.0, c.max_grad_norm / np.linalg.norm(raw))
        m, v = 0.9 * m + 0.1 * g, c.beta2 * v + (1 - c.beta2) * g * g
        step = m / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - c.beta2 ** (t + 1))) + 1e-8)
        x = x - rate(t) * (step + c.weight_decay * x)
    return x


@pytest.mark.medium
@pytest.mark.parametrize("decay", [True, False])
def test_the_optimizer_matches_a_loop(decay):
    c = OptimizerConfig(
        learning_rate=0.1,
        warmup_steps=3,
        cosine_decay=decay,
        weight_decay=0.1,
        max_grad_norm=1.5,
    )

    def rate(t):
        if t < 3:
            return 0.1 * (t + 1) / 4  # never 0: the first update counts
        cosine = 0.5 * (1 + np.cos(np.pi * (t - 3) / 5))
        return 0.001 + 0.099 * cosine if decay else 0.1

    x = np.array([1.0, -2.0])
    grads = np.random.default_rng(0).normal(scale=2.0, size=(8, 2))
    tx = optimizer.optimizer(c, 8)
    params = jnp.asarray(x, jnp.float32)
    state = tx.init(params)
    for g in grads:
        change, state = tx.update(jnp.asarray(g, jnp.float32), state, params)
        params = params + change
    np.testing.assert_allclose(params, adamw_by_loop(c, x, grads, rate), rtol=1e-4)


@pytest.mark.parametrize("decay", [True, False])
def test_without_warmup_the_first_step_is_a_whole_one(decay):
    # Adam's first step is lr * sign(g); weight decay adds lr * 0.01 * 2 = 0.002.
    c = OptimizerConfig(learning_rate=0.1, warmup_steps=0, cosine_decay=decay)
    tx = optimizer.optimizer(c, 10)
    x = jnp.array([2.0, 2.0])
    change, _ = tx.update(jnp.array([0.3, -0.4]), tx.init(x), x)
    np.testing.assert_allclose(change, [-0.102, 0.098], rtol=1e-4)


@pytest.mark.medium
def test_muon_turns_matrices_and_leaves_vectors_to_adam():
    # The gradient's singular values differ by 10; those of Muon's step nearly agree
    # (the Newton-Schulz iteration stops near 1), in the directions of the gradient.
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in "lr")
    grads = {
        "w": jnp.asarray(left * [1.0, 0.5, 0.2, 0.1] @ right.T, jnp.float32),
        "b": jnp.array([0.3, -0.4]),
    }
    params = jax.tree.map(jnp.zeros_like, grads)
    step = {}
    for kind in ("muon", "adamw"):
        c = OptimizerConfig(
            name=kind, learning_rate=0.1, warmup_steps=0, max_grad_norm=9.0
        )
        tx = optimizer.optimizer(c, 10)
        step[kind], _ = tx.update(grads, tx.init(params), params)
    # Adam's first step is lr * sign(g). Muon's Adam looks ahead by Nesterov, with
    # m = 0.1 g: 0.9 m / (1 - 0.9^2) + g = 1.4737 g.
    ahead = 0.1 * (0.09 / 0.19 + 1)
    np.testing.assert_allclose(step["muon"]["b"], [-ahead, ahead], rtol=1e-4)
    np.testing.assert_allclose(step["adamw"]["b"], [-0.1, 0.1], rtol=1e-4)
    turned = {k: -left.T @ np.asarray(v["w"], float) @ right for k, v in step.items()}
    size = np.diag(turned["muon"])
    assert (size > 0).all()
    assert size.max() < 2 * size.min()
    np.testing.assert_allclose(turned["muon"], np.diag(size), atol=1e-2 * size.max())
    assert np.abs(turned["adamw"] - np.diag(np.diag(turned["adamw"]))).max() > 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "sgd"}, "name must be 'adamw' or 'muon', got 'sgd'"),
        (
            {"learning_rate": 0.0},
            "learning_rate and max_grad_norm must be > 0, got 0.0 and 1.0",
        ),
        ({"max_grad_norm": -1.0}, "must be > 0"),
        ({"warmup_steps": -1}, "warmup_steps must be >= 0, got -1"),
    ],
)
def test_a_wrong_optimizer_is_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**change)
