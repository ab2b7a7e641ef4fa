import dataclasses
import math

import chex
import numpy as np
import pytest

from tests import helpers
from worldmodel.fitting import checkpoint, supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import ComputeConfig, OptimizerConfig

WIDTH = 12


def counting(n=12) -> list[Example]:
    """After k comes k + 1, over 13 tokens."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(n):
        start, length = rng.integers(0, 6), rng.integers(4, 7)
        ids = list(range(start, start + length))
        out.append(Example(ids, [False] + [True] * (length - 1), [0] * length))
    return out


def fit_config(**changes) -> supervised.FitConfig:
    base = {
        "steps": 9,
        "batch_rows": 4,
        "row_tokens": WIDTH,
        "eval_every": 3,
        "optimizer": OptimizerConfig(learning_rate=0.02, warmup_steps=2),
    }
    return supervised.FitConfig(**(base | changes))


@pytest.fixture(scope="module")
def uninterrupted(small_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("fit")
    return supervised.fit(
        small_model,
        counting(),
        fit_config(),
        seed=1,
        directory=root,
        held_out=counting(5),
    )


class Killed(Exception):
    pass


def test_a_fit_lowers_its_loss(uninterrupted, small_model):
    model, curve = uninterrupted
    assert [row["step"] for row in curve] == [3, 6, 9]
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    assert curve[-1]["held_out/loss"] < curve[0]["held_out/loss"]
    assert helpers.distance(model.params, small_model.params) > 0.01


@pytest.mark.medium
def test_a_fit_compiles_once_resumed_or_not(small_model, tmp_path, monkeypatch):
    """One program for the updates and one for held-out losses, whatever the batch."""
    loss = supervised.supervised_loss
    for steps in (5, 9):  # the second fit goes on at step 5 from a checkpoint
        chex.clear_trace_counter()
        once = chex.assert_max_traces(loss, n=2)
        monkeypatch.setattr(supervised, "supervised_loss", once)
        _, curve = supervised.fit(
            small_model,
            counting(),
            fit_config(steps=steps, eval_every=1),
            seed=1,
            directory=tmp_path,
            held_out=counting(5),
        )
        assert len(curve) == steps
    with pytest.raises(AssertionError, match="traced"):
        supervised.fit(  # what the assertion says of rows of another width
            small_model,
            counting(),
            fit_config(steps=1, row_tokens=2 * WIDTH),
            seed=1,
            directory=tmp_path / "wider",
        )


@pytest.mark.medium
def test_equal_fits_share_their_program(small_model, tmp_path, monkeypatch):
    """A run fits many policies: the second one of equal settings traces nothing."""
    once = chex.assert_max_traces(supervised.supervised_loss, n=2)
    monkeypatch.setattr(supervised, "supervised_loss", once)
    fits = [
        supervised.fit(
            helpers.lively_model(small_model.config, seed=seed),
            counting(),
            fit_config(steps=3, eval_every=1),
            seed=seed,
            directory=tmp_path / str(seed),
            held_out=counting(5),
        )[0]
        for seed in (1, 2)
    ]
    assert helpers.distance(fits[0].params, fits[1].params) > 0.01
    with pytest.raises(AssertionError, match="traced"):
        supervised.fit(  # other settings of the pass have a program of their own
            small_model,
            counting(),
            fit_config(steps=3, compute=ComputeConfig(dtype="bfloat16")),
            seed=1,
            directory=tmp_path / "bfloat16",
        )


@pytest.mark.medium
def test_another_rate_or_length_is_another_fit(small_model, tmp_path):
    """What is shared are programs of equal settings alone."""

    def distance(rate, steps):
        optimizer = OptimizerConfig(learning_rate=rate, warmup_steps=0)
        config = fit_config(steps=steps, optimizer=optimizer)
        folder = tmp_path / f"{rate}-{steps}"
        fitted, _ = supervised.fit(
            small_model, counting(), config, seed=1, directory=folder
        )
        return helpers.distance(fitted.params, small_model.params)

    first = distance(1e-2, 1)
    assert distance(1e-3, 1) < 0.5 * first  # Adam's first step is the rate itself
    assert distance(1e-2, 3) > 1.5 * first


@pytest.mark.medium
@pytest.mark.parametrize(("at", "kind"), [(3, "adamw"), (6, "adamw"), (3, "muon")])
def test_a_killed_fit_goes_on_bit_for_bit(
    uninterrupted, small_model, tmp_path, at, kind
):
    optimizer = OptimizerConfig(name=kind, learning_rate=0.02, warmup_steps=2)

    def go(directory, progress=None):
        return supervised.fit(
            small_model,
            counting(),
            fit_config(optimizer=optimizer),
            seed=1,
            directory=tmp_path / directory,
            held_out=counting(5),
            progress=progress,
        )

    def kill(step, row):
        del row
        if step == at:
            raise Killed

    whole = uninterrupted if kind == "adamw" else go("whole")
    with pytest.raises(Killed):
        go("killed", kill)
    assert checkpoint.steps(tmp_path / "killed") == [at]
    steps = []
    model, curve = go("killed", lambda step, _: steps.append(step))
    assert steps == list(range(at + 3, 10, 3))  # nothing was done again
    helpers.assert_trees_equal(model.params, whole[0].params)
    assert curve == whole[1]
    again, same = go("killed", lambda *_: pytest.fail("nothing is left to do"))
    helpers.assert_trees_equal(again.params, model.params)
    assert same == curve


def test_the_context_is_trained_on_at_its_own_weight():
    example = Example([5, 6, 7, 8], [False, False, True, True], [0, 0, 1, 2])
    got = supervised.with_context_loss(example, 0.25)
    assert got.ids == [5, 6, 7, 8]
    assert got.token_type == [supervised.CONTEXT, supervised.CONTEXT, 1, 2]
    row = supervised.pack([got], WIDTH)
    np.testing.assert_array_equal(row.mask[0, :4], [False, True, True, True])
    np.testing.assert_array_equal(row.weight[0, :4], [0.25, 0.25, 1.0, 1.0])
    with pytest.raises(ValueError, match="context_loss_weight must be >= 0, got -1"):
        fit_config(context_loss_weight=-1.0)


def of_length(*lengths):
    return [Example([1] * n, [False] * (n - 1) + [True], [0] * n) for n in lengths]


@pytest.mark.parametrize(
    ("lengths", "wide", "kept"),
    [
        ((3, WIDTH), WIDTH, 2),
        ((3, WIDTH + 1), 64, 2),
        ((64, 3, 65), 8 * WIDTH, 3),
        ((3, 8 * WIDTH, 8 * WIDTH + 1), 8 * WIDTH, 2),
    ],
)
def test_rows_are_as_wide_as_the_longest_example_needs(lengths, wide, kept, capsys):
    assert supervised.row_tokens_for(of_length(*lengths), WIDTH) == wide
    held = supervised.drop_too_long(of_length(*lengths), wide, positions=1000)
    assert held == of_length(*lengths)[:kept]
    message = f"1 of {len(lengths)} examples are longer than {wide} tokens"
    assert (message in capsys.readouterr().err) == (kept < len(lengths))


def test_examples_beyond_the_positions_of_the_model_are_left_out(
    small_model, tmp_path, capsys
):
    config = dataclasses.replace(small_model.config, max_position_embeddings=WIDTH)
    short = small_model._replace(config=config)
    supervised.fit(
        short, of_length(3, WIDTH + 1), fit_config(steps=1), seed=0, directory=tmp_path
    )
    assert f"1 of 2 examples are longer than {WIDTH} tokens" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"all positions .*max_position_embeddings"):
        supervised.fit(
            short, of_length(WIDTH + 1), fit_config(), seed=0, directory=tmp_path / "2"
        )


def test_an_example_that_fits_no_row_at_all_is_an_error(small_model, tmp_path):
    enough = math.ceil(999 / 8)
    limit = f"longer than {8 * WIDTH} tokens: shorten"
    with pytest.raises(ValueError, match=rf"{limit} .*999 tokens.* to {enough}$"):
        supervised.fit(
            small_model, of_length(999), fit_config(), seed=0, directory=tmp_path
        )


@pytest.mark.medium
def test_a_fit_reads_long_examples_whole(small_model, tmp_path):
    # The answer stands in the first id alone, far beyond a row's width.
    def record(first):
        n = WIDTH + 5
        return Example(
            [first] + [9] * (n - 2) + [first], [False] * (n - 1) + [True], [0] * n
        )

    config = fit_config(steps=60, eval_every=60, batch_rows=2)
    _, curve = supervised.fit(
        small_model,
        [record(1), record(2)],
        config,
        seed=0,
        directory=tmp_path,
        held_out=[record(1), record(2)],
    )
    assert curve[-1]["held_out/loss"] < 0.5 * np.log(2)


def test_a_fit_with_context_learns_the_context(small_model, tmp_path):
    # The context counts up, the target is always 3: only the whole loss knows both.
    examples = [
        Example([k, k + 1, k + 2, 3], [False] * 3 + [True], [0] * 4) for k in range(6)
    ]
    held = [e._replace(mask=[False, True, True, False]) for e in examples]
    loss = {}
    for weight in (0.0, 1.0):
        _, curve = supervised.fit(
            small_model,
            examples,
            fit_config(context_loss_weight=weight),
            seed=0,
            directory=tmp_path / str(weight),
            held_out=held,
        )
        loss[weight] = curve[-1]["held_out/loss"]
    assert loss[1.0] < 0.7 * loss[0.0]


def test_the_seed_decides_the_order_of_a_fit(uninterrupted, small_model, tmp_path):
    model, _ = supervised.fit(
        small_model, counting(), fit_config(), seed=2, directory=tmp_path
    )
    assert helpers.distance(model.params, uninterrupted[0].params) > 1e-4


def test_held_out_examples_decide_nothing(small_model, tmp_path, uninterrupted):
    """Held out is the opposite of what is fitted: every update makes it worse."""
    backwards = [e._replace(ids=e.ids[::-1]) for e in counting(5)]
    model, curve = supervised.fit(
        small_model,
        counting(),
        fit_config(),
        seed=1,
        directory=tmp_path,
        held_out=backwards,
    )
    losses = [row["held_out/loss"] for row in curve]
    assert losses[0] == min(losses) < losses[-1]
    helpers.assert_trees_equal(model.params, uninterrupted[0].params)


def test_held_out_losses_do_not_depend_on_the_rows(small_model):
    tokens = supervised.pack(counting(16), WIDTH)
    learner = supervised.Learner(
        small_model, OptimizerConfig(), supervised.supervised_loss, steps=9
    )
    params = learner.init().params
    one = supervised.evaluate(learner, params, tokens, 4)
    assert tokens.ids.shape[0] % 3 or tokens.ids.shape[0] % 4  # a part is left over
    two = supervised.evaluate(learner, params, tokens, 3)
    assert one.keys() == two.keys() == {"held_out/loss", "held_out/loss/reasoning"}
    for key, value in one.items():
        np.testing.assert_allclose(two[key], value, rtol=1e-5)
    # All targets are of part 0, so that its loss is the whole one.
    np.testing.assert_allclose(*one.values(), rtol=1e-5)


def test_examples_that_fit_no_row_have_no_held_out_loss(small_model):
    config = fit_config()
    losses = supervised.held_out_losses(small_model, counting(2), config)
    assert losses["held_out/loss"] > 0
    (long,) = [
        e._replace(ids=e.ids * 1000, mask=e.mask * 1000, token_type=e.token_type * 1000)
        for e in counting(1)
    ]
    both = supervised.held_out_losses(small_model, [*counting(2), long], config)
    np.testing.assert_allclose(both["held_out/loss"], losses["held_out/loss"])
    assert supervised.held_out_losses(small_model, [long], config) == {}


def test_a_loss_that_is_not_finite_stops_the_fit(small_model, tmp_path):
    bad = [e._replace(weight=float("nan")) for e in counting()]
    with pytest.raises(FloatingPointError, match="loss is nan at update 3"):
        supervised.fit(small_model, bad, fit_config(), seed=0, directory=tmp_path)
    assert checkpoint.steps(tmp_path) == []  # nothing spoiled was kept


def test_nothing_to_fit_is_an_error(small_model, tmp_path):
    with pytest.raises(ValueError, match="nothing to fit"):
        supervised.fit(small_model, [], fit_config(), seed=0, directory=tmp_path)
    for name in ("steps", "batch_rows", "row_tokens", "eval_every"):
        with pytest.raises(ValueError, match="must be >= 1"):
            fit_config(**{name: 0})
