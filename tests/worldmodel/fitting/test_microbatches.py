"""Out of memory: the step again in smaller pieces, the same step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import helpers
from worldmodel.fitting import batches, supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import FitConfig, OptimizerConfig
from worldmodel.fitting.learner import Learner
from worldmodel.fitting.microbatches import MicroBatches, out_of_memory

WIDTH = 12
FULL = jax.errors.JaxRuntimeError(
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."
)


def scarce(learner, monkeypatch, rows):
    """A device on which a gradient of more rows than these runs out of memory."""
    tried, whole = [], learner._grad

    def gradient(params, batch, **args):
        tried.append(len(batch.ids))
        if tried[-1] > rows:
            raise FULL
        return whole(params, batch, **args)

    monkeypatch.setattr(learner, "_grad", gradient)
    return tried


def tokens(rows):
    rng = np.random.default_rng(3)
    some = [
        Example(
            rng.integers(1, 13, WIDTH).tolist(),
            [False] * 4 + [True] * 8,
            [0] * WIDTH,
            weight=float(rng.random() + 0.5),
        )
        for _ in range(rows)
    ]
    return batches.pack(some, WIDTH)


def learner_of(model):
    config = OptimizerConfig(warmup_steps=0)
    return Learner(model, config, supervised.supervised_loss, steps=9)


@pytest.mark.medium
def test_the_step_is_taken_in_pieces_that_fit_and_is_the_same(
    small_model, monkeypatch, capsys
):
    free, poor, batch = learner_of(small_model), learner_of(small_model), tokens(8)
    small = [batches.rows_of(batch, np.arange(i, i + 2), 2) for i in (0, 2, 4, 6)]
    want, metrics = free.update(free.init(), small)
    tried = scarce(poor, monkeypatch, rows=2)
    state = poor.init()
    got, result = poor.update(state, [batch])
    assert tried == [8, 4, 2, 2, 2, 2]
    helpers.assert_trees_equal(got.params, want.params)  # the same sums in their order
    assert float(result["loss"].value()) == float(metrics["loss"].value())
    assert capsys.readouterr().err == (
        "out of memory with 8 rows of 12 tokens: continuing with microbatches of 4\n"
        "out of memory with 4 rows of 12 tokens: continuing with microbatches of 2\n"
    )
    poor.update(got, [batch])  # remembered, and said no more
    assert tried[6:] == [2, 2, 2, 2]
    assert capsys.readouterr().err == ""


@pytest.mark.medium
def test_pieces_of_an_odd_batch_are_padded_and_near_the_whole(small_model, monkeypatch):
    free, poor, batch = learner_of(small_model), learner_of(small_model), tokens(7)
    want, metrics = free.update(free.init(), [batch])
    tried = scarce(poor, monkeypatch, rows=3)
    got, results = poor.update(poor.init(), [batch])
    assert tried == [7, 3, 3, 3]  # the last one holds one row and two blank ones
    assert helpers.distance(got.params, want.params) < 1e-5
    for name in ("loss", "grad_norm"):
        a, b = results[name], metrics[name]
        np.testing.assert_allclose(a.value(), b.value(), rtol=1e-5)
        np.testing.assert_allclose(a.count, b.count, rtol=1e-6)


def test_memory_that_runs_out_in_the_middle_leaves_no_row_out_and_none_twice():
    micro, seen = MicroBatches(), []

    def compute(start, stop, size):
        if size > 2 and start >= 4:  # what else is in memory has grown
            raise MemoryError
        seen.append((start, stop, size))
        return np.arange(start, stop)

    pieces = list(micro.run(11, 4, WIDTH, compute))
    np.testing.assert_array_equal(np.concatenate(pieces), np.arange(11))
    assert seen == [(0, 4, 4), (4, 6, 2), (6, 8, 2), (8, 10, 2), (10, 11, 2)]


def test_what_does_not_fit_row_by_row_is_said(small_model, monkeypatch):
    poor = learner_of(small_model)
    tried = scarce(poor, monkeypatch, rows=0)
    state = poor.init()
    with pytest.raises(MemoryError, match=r"with 1 row of 12 tokens.*--remat"):
        poor.update(state, [tokens(4)])
    assert tried == [4, 2, 1]
    assert np.isfinite(jax.tree.leaves(state.params)[0]).all()  # not used up


def test_devices_that_share_rows_keep_a_row_each():
    micro, tried = MicroBatches(min_rows=4), []

    def compute(*piece):
        tried.append(piece[-1])
        raise FULL

    with pytest.raises(MemoryError, match="4 rows"):
        list(micro.run(24, 24, WIDTH, compute))
    assert tried == [24, 12, 4]  # multiples of 4 only


@pytest.mark.parametrize(
    "error", [ValueError("RESOURCE_EXHAUSTED"), jax.errors.JaxRuntimeError("INTERNAL")]
)
def test_other_errors_are_not_tried_again(error):
    calls = []

    def compute(*piece):
        calls.append(piece)
        raise error

    assert not out_of_memory(error)
    with pytest.raises(type(error)):
        list(MicroBatches().run(8, 8, WIDTH, compute))
    assert len(calls) == 1


def test_an_error_that_comes_when_the_program_runs_is_met():
    """Dispatch returns before a device has run: the first run of a shape is awaited."""
    micro, sizes = MicroBatches(), []

    def fails(x):
        if x.size > 2:
            raise MemoryError("RESOURCE_EXHAUSTED: Out of memory")
        return x

    def compute(*piece):
        *_, size = piece
        sizes.append(size)
        shape = jax.ShapeDtypeStruct((size,), jnp.float32)
        return jax.jit(lambda x: jax.pure_callback(fails, shape, x))(jnp.ones(size))

    total = sum(float(x.sum()) for x in micro.run(4, 4, WIDTH, compute))
    assert total == 4.0
    assert sizes == [4, 2, 2]


@pytest.mark.medium
def test_a_fit_that_runs_out_of_memory_ends_as_one_of_small_batches(
    small_model, tmp_path, monkeypatch, capsys
):
    """Held-out losses and the steps after it, too."""
    rng = np.random.default_rng(0)
    some = [
        Example(
            rng.integers(1, 13, WIDTH).tolist(), [False] * 4 + [True] * 8, [0] * WIDTH
        )
        for _ in range(24)
    ]
    config = FitConfig(steps=4, batch_rows=8, row_tokens=WIDTH, eval_every=2)

    def fit(name):
        return supervised.fit(
            small_model,
            some[:16],
            config,
            seed=1,
            directory=tmp_path / name,
            held_out=some[16:],
        )

    want, curve = fit("free")

    class Poor(Learner):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            scarce(self, monkeypatch, rows=4)
            value = self._value

            def evaluated(params, batch):
                if len(batch.ids) > 4:
                    raise FULL
                return value(params, batch)

            monkeypatch.setattr(self, "_value", evaluated)

    monkeypatch.setattr(supervised, "Learner", Poor)
    got, results = fit("poor")
    assert capsys.readouterr().err.count("continuing with microbatches of 4") == 1
    assert helpers.distance(got.params, want.params) < 1e-4
    for a, b in zip(results, curve, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
        np.testing.assert_allclose(a["held_out/loss"], b["held_out/loss"], rtol=1e-5)
