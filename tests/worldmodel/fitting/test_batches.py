import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.fitting import batches
from worldmodel.fitting.batches import Example


def marked(ids, targets: int, **rest) -> Example:
    """An example whose last `targets` ids are trained on."""
    n = len(ids)
    mask = [i >= n - targets for i in range(n)]
    return Example(list(ids), mask, [int(m) for m in mask], **rest)


def test_pack_by_hand():
    rest = {"sampler_logp": 0.0, "advantage": 0.0, "row": 9}
    # Widths 3, 4, 2 into rows of 6: the third goes behind the first one.
    out = batches.pack(
        [
            marked(
                [1, 2, 3],
                1,
                weight=0.5,
                columns={
                    "sampler_logp": [0.0, 0.0, -1.0],
                    "advantage": 2.0,
                    "row": 7,
                },
            ),
            marked([4, 5, 6, 7], 2, columns=rest),
            marked([8, 9], 1, columns=rest | {"advantage": -1.0}),
        ],
        6,
    )
    np.testing.assert_array_equal(out.ids, [[1, 2, 3, 8, 9, 0], [4, 5, 6, 7, 0, 0]])
    np.testing.assert_array_equal(
        out.position, [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]
    )
    np.testing.assert_array_equal(out.segment, [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]])
    want = np.array([[0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(out.mask, want.astype(bool))
    np.testing.assert_array_equal(out.token_type, want)
    columns = out.columns
    assert sorted(columns) == ["advantage", "row", "sampler_logp"]
    np.testing.assert_array_equal(columns["sampler_logp"][0], [0, 0, -1, 0, 0, 0])
    np.testing.assert_array_equal(columns["advantage"][0], [2, 2, 2, -1, -1, 0])
    np.testing.assert_array_equal(columns["row"][0], [7, 7, 7, 9, 9, 0])
    types = {name: x.dtype for name, x in columns.items()}
    assert types == {"advantage": "f4", "row": "i4", "sampler_logp": "f4"}
    second = batches.rows_of(out, np.array([1]), 2)
    np.testing.assert_array_equal(second.columns["row"][:, 0], [9, 0])
    np.testing.assert_array_equal(out.weight[0], [0.5, 0.5, 0.5, 1, 1, 0])


def test_examples_of_one_batch_have_the_same_columns():
    with pytest.raises(ValueError, match=r"same columns, got \['row'\] and \[\]"):
        batches.pack([marked([1, 2], 1, columns={"row": 0}), marked([3, 4], 1)], 6)


LENGTHS = st.lists(st.tuples(st.integers(2, 14), st.integers(1, 5)), max_size=12)


@given(sizes=LENGTHS)
def test_every_example_is_packed_once_and_whole(sizes):
    width, examples, n = 8, [], itertools.count(1)
    for length, targets in sizes:
        ids = [next(n) for _ in range(length)]
        examples.append(marked(ids, min(targets, length - 1)))
    out = batches.pack(examples, width)
    results = []
    for row, segments in enumerate(out.segment):
        assert (np.diff(segments[segments > 0]) >= 0).all()
        for s in range(1, segments.max(initial=0) + 1):
            span = np.flatnonzero(segments == s)
            np.testing.assert_array_equal(np.diff(span), 1)
            np.testing.assert_array_equal(out.position[row, span], range(len(span)))
            results.append((out.ids[row, span].tolist(), out.mask[row, span].tolist()))
    want = [(list(e.ids[-width:]), list(e.mask[-width:])) for e in examples]
    assert sorted(results) == sorted(want)
    assert not out.mask[out.segment == 0].any()
    rooms = []  # first fit, again
    for e in examples:
        size = min(len(e.ids), width)
        fits = [r for r, room in enumerate(rooms) if room >= size]
        row = fits[0] if fits else len(rooms)
        rooms[row:] = [rooms[row] - size, *rooms[row + 1 :]] if fits else [width - size]
        assert e.ids[-1] in out.ids[row]
    assert len(out.ids) == max(len(rooms), 1)


def test_a_long_example_loses_its_oldest_context():
    out = batches.pack([marked(range(1, 11), 3)], 5)
    np.testing.assert_array_equal(out.ids, [[6, 7, 8, 9, 10]])
    np.testing.assert_array_equal(out.position, [[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(out.mask, [[False, False, True, True, True]])


@pytest.mark.parametrize("targets", [5, 6, 10])
def test_a_target_is_never_lost_in_silence(targets):
    # 5 targets fill a row of 5, and the first of them would have no context left.
    with pytest.raises(ValueError, match="targets do not fit a row of 5"):
        batches.pack([marked(range(1, 11), targets)], 5)


def test_the_first_id_of_a_segment_is_no_target():
    # Its prediction would come from the last id of the segment before it.
    whole = Example([1, 2, 3], [True] * 3, [0] * 3)
    out = batches.pack([whole, whole], 6)
    np.testing.assert_array_equal(out.mask, [[False, True, True] * 2])


def test_weights_of_single_ids_are_cut_with_them():
    one = marked(range(1, 7), 3, weight=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    out = batches.pack([one, marked([7, 8], 1, weight=0.5)], 4)
    np.testing.assert_array_equal(out.weight, [[3, 4, 5, 6], [0.5, 0.5, 0, 0]])


def test_no_examples_are_one_row_of_padding():
    out = batches.pack([], 4)
    assert out.ids.shape == (1, 4)
    assert not out.mask.any()
    assert not out.segment.any()


def numbered(n: int) -> batches.Tokens:
    tokens = batches.blank(n, 2)
    tokens.ids[:] = np.arange(1, n + 1)[:, None]
    tokens.mask[:, 1] = True
    return tokens


def test_rows_of_pads_with_blank_rows():
    out = batches.rows_of(numbered(3), np.array([2, 0]), 4)
    np.testing.assert_array_equal(out.ids[:, 0], [3, 1, 0, 0])
    np.testing.assert_array_equal(out.mask[:, 1], [True, True, False, False])


@pytest.mark.parametrize(("n", "rows"), [(7, 3), (6, 3), (2, 4)])
def test_an_epoch_shows_every_row_once(n, rows):
    steps = -(-n // rows)
    stream = batches.epochs(numbered(n), rows, seed=1, start=0)
    orders = []
    for _ in range(4):
        ids = np.concatenate([next(stream).ids[:, 0] for _ in range(steps)])
        orders.append(tuple(ids[ids > 0].tolist()))
        assert sorted(orders[-1]) == list(range(1, n + 1))
    assert len(set(orders)) > 1  # not the same order in every epoch


@pytest.mark.parametrize("start", [1, 3, 8])
def test_a_later_start_continues_the_same_stream(start):
    whole = batches.epochs(numbered(7), 3, seed=5, start=0)
    later = batches.epochs(numbered(7), 3, seed=5, start=start)
    want = [b.ids for b in itertools.islice(whole, start, start + 5)]
    got = [b.ids for b in itertools.islice(later, 5)]
    np.testing.assert_array_equal(got, want)


def test_the_seed_decides_the_order():
    one, other = (
        next(batches.epochs(numbered(30), 30, seed=s, start=0)).ids[:, 0]
        for s in (0, 1)
    )
    assert (one != other).any()
