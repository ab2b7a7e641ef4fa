"""Small worlds, records and models for the tests."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers import pre_tokenizers

from curriculum.pool import TaskPool
from curriculum.value import task_value
from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.model import Model, create, forward
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tokenizer import TextTokenizer

TEXTS = (
    "the lamp is off",
    "the lamp is on",
    "the door is shut",
    "the door is open",
    "press lamp",
    "pull door",
    "make it bright",
    "go through the door",
    "nothing",
    "the lamp change",
    "the door change earns 0.5 and wins",
    "0 1 -1 0.25",
)


def record(
    pool: TaskPool, task_id: str, successes: Sequence[bool], update: int
) -> float:
    """Take in one group's scored outcomes; returns their variance."""
    pool.record_batch([(task_id, successes)], update)
    return task_value(successes)


def byte_letters() -> list[str]:
    """The letters that a byte-level BPE writes bytes with."""
    return pre_tokenizers.ByteLevel.alphabet()


def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(TEXTS * 3, 392)


def config(vocab: int, **changes) -> ModelConfig:
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 24,
    }
    return ModelConfig(vocab_size=vocab, **(shape | changes))


HYBRID = {
    "model_type": "lfm2",
    "layer_types": ("conv", "full_attention"),
    "qk_norm": True,
}
"""Changes that make a config of two layers a hybrid of the LFM2 family."""


def lively_model(config: ModelConfig, *, seed: int = 0, embed: float = 20.0) -> Model:
    """A random model whose every parameter matters, however silent a fresh one is.

    Norms are off 1, every layer writes as much as it reads, logits are of size 1.
    """
    model = create(config, seed=seed)

    def stir(x):
        if x.shape == (config.vocab_size, config.hidden_size):
            return embed * x
        if x.ndim == 2:
            return x * x.shape[0] ** -0.5 / x.std()
        return x + 0.2 * jnp.cos(jnp.arange(x.size, dtype=x.dtype))

    return model._replace(params=jax.tree.map(stir, model.params))


def stirred_lora(model: Model, *, seed: int = 1) -> Model:
    """The model with additions that matter: B is no longer zero."""
    flat, key = [], jax.random.key(seed)
    for number, (path, leaf) in enumerate(nnx.to_flat_state(model.params)):
        noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape)
        value = leaf.replace(0.3 * noise) if path[-1] == "lora_b" else leaf
        flat.append((path, value))
    return model._replace(params=nnx.from_flat_state(flat))


@functools.partial(jax.jit, static_argnums=0)
def packed_pass(definition, params, ids, positions, segments):
    """The training path, compiled."""
    return forward(definition, params, ids, positions, segments)


def full_pass(model: Model, ids, width: int = 32) -> np.ndarray:
    """Logits [T, V] of one sequence, computed in one piece without a cache."""
    row = np.zeros((1, width), np.int32)
    segment = np.zeros((1, width), np.int32)
    row[0, : len(ids)], segment[0, : len(ids)] = ids, 1
    positions = np.arange(width, dtype=np.int32)[None]
    logits = packed_pass(model.definition, model.params, row, positions, segment)
    return np.asarray(logits[0, : len(ids)])


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def assert_trees_equal(a, b) -> None:
    """Bit for bit."""
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(left) == len(right)
    for x, y in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def distance(a, b) -> float:
    """The largest difference between two trees."""
    return max(
        float(np.abs(np.asarray(x) - np.asarray(y)).max())
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# --- records -----------------------------------------------------------------


def transition(
    state=("the lamp is off",),
    action="press lamp",
    next_state=("the lamp is on",),
    reward=0.0,
    **rest,
) -> Transition:
    return Transition(
        state=tuple(state),
        action=action,
        next_state=tuple(next_state),
        rewards={"reward": float(reward)},
        **rest,
    )


def episode(name: str, task: Task, transitions) -> Episode:
    steps = tuple(transitions)
    return Episode(
        id=name, task=task, transitions=steps, source="test", success=steps[-1].success
    )


def lamp_and_door(task: str = "room-1", family: str = "room") -> Episode:
    """Three chained steps: a change, no change, a winning one."""
    dark, lit = (
        ("the lamp is off", "the door is shut"),
        (
            "the lamp is on",
            "the door is shut",
        ),
    )
    out = ("the lamp is on", "the door is open")
    about = Task(
        id=task,
        instruction="go through the door",
        env="room",
        family=family,
        initial_state=dark,
    )
    steps = (
        transition(dark, "press lamp", lit, 0.5),
        transition(lit, "nothing", lit),
        transition(lit, "pull door", out, 1.0, terminated=True, success=True),
    )
    return episode(f"{task}-run", about, steps)


def won_episode(*steps, task="t", name="e"):
    """Return an episode of (state, action) steps; the last one wins."""
    made = [
        transition((here,), action, (there,), reward=0.0)
        for (here, action), (there, _) in itertools.pairwise(steps)
    ]
    last = dataclasses.replace(
        transition((steps[-1][0],), steps[-1][1], ("done",), reward=1.0),
        terminated=True,
        success=True,
    )
    base = lamp_and_door()
    return episode(name, dataclasses.replace(base.task, id=task), [*made, last])


@contextlib.contextmanager
def file_size_limit(size):
    """No file becomes larger: what writes more gets an error, as on a full disk."""
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
