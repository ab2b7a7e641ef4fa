import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import helpers
from worldmodel.backbone import generate as gen
from worldmodel.backbone import streams as token_streams
from worldmodel.backbone.grammar import Grammar
from worldmodel.backbone.layers import Placement
from worldmodel.backbone.mesh import MeshConfig, make_mesh
from worldmodel.backbone.model import apply_decoder, empty_cache
from worldmodel.backbone.sampling import shaped_logits
from worldmodel.backbone.streams import Streams

V, CAPACITY, MOST, WIDTH = 13, 32, 8, 6
RAGGED = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]


def rows(*sets) -> np.ndarray:
    out = np.zeros((len(sets), V), bool)
    for row, ids in zip(out, sets, strict=True):
        row[list(ids)] = True
    return out


def grammar(limits=(3, 2), temperature=(0.8, 1.3), min_p=(0.0, 0.05)) -> Grammar:
    """Tokens 0-9 until 10 closes; then 2-9, the first one even, until 11 closes."""
    return Grammar(
        rows([*range(11)], [*range(2, 10), 11]),
        rows(range(10), [2, 4, 6, 8]),
        rows([10], [11]),
        np.array([10, 11], np.int32),
        np.array(limits, np.int32),
        np.array(temperature, np.float32),
        np.array(min_p, np.float32),
    )


def anything(temperature=1.0, tokens=range(V)) -> Grammar:
    """One phase without an end."""
    free = rows(tokens)
    return Grammar(
        free,
        free,
        np.zeros((1, V), bool),
        np.array([0], np.int32),
        np.array([99], np.int32),
        np.array([temperature], np.float32),
        np.zeros(1, np.float32),
    )


def keys(seed=0, batch=3):
    return jax.random.split(jax.random.key(seed), batch)


def streams(model, runs=RAGGED) -> Streams:
    out = Streams(model, len(runs), CAPACITY)
    out.append(runs, columns=WIDTH)
    return out


def greedy(stream: Streams):
    return stream.sample(anything(0.0), keys(), max_tokens=MOST)


def assert_same(a, b):
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_allclose(a.logp, b.logp, atol=1e-5)


def replay(model, g: Grammar, prompt, out, b) -> None:
    """Check one stream against the full forward pass, token by token."""
    phase = count = 0
    n = int(out.length[b])
    written = out.ids[b, :n].tolist()
    logits = helpers.full_pass(model, [*prompt, *written])[len(prompt) - 1 :]
    for t, token in enumerate(written):
        assert (out.phase[b, t], out.first[b, t]) == (phase, count == 0)
        if count >= g.max_tokens[phase]:
            assert (token, out.sampled[b, t]) == (g.forced_token[phase], False)
            assert out.logp[b, t] == 0.0
        else:
            allowed = (g.first if count == 0 else g.allowed)[phase]
            assert allowed[token]
            assert out.sampled[b, t]
            p = np.exp(helpers.log_softmax(logits[t] / g.temperature[phase])) * allowed
            p = np.where(p >= g.min_p[phase] * p.max(), p, 0.0)
            np.testing.assert_allclose(
                out.logp[b, t], np.log(p[token] / p.sum()), atol=2e-4
            )
        closed = bool(g.closing_tokens[phase, token])
        assert (t == n - 1) == (closed and phase == 1)
        phase, count = (phase + 1, 0) if closed else (phase, count + 1)
    assert not out.ids[b, n:].any()
    assert not out.sampled[b, n:].any()
    assert not out.logp[b, n:].any()


@pytest.mark.medium
def test_samples_are_those_of_the_full_forward_pass(family_model):
    # Twice: the second run continues behind what was sampled, through the cache.
    s, g = streams(family_model), grammar()
    texts = [list(r) for r in RAGGED]
    for turn in range(2):
        out = s.sample(g, keys(turn), max_tokens=MOST)
        for b, text in enumerate(texts):
            replay(family_model, g, text, out, b)
            text.extend(out.ids[b, : out.length[b]].tolist())
        if turn == 0:
            more = [[2], [3, 4], [5, 6, 7, 8]]
            s.append(more, columns=WIDTH)
            texts = [t + m for t, m in zip(texts, more, strict=True)]
    assert s.lengths.tolist() == [len(t) for t in texts]


def test_some_streams_are_forced_to_close(family_model):
    out = streams(family_model).sample(grammar(limits=(1, 1)), keys(), max_tokens=MOST)
    for b, prompt in enumerate(RAGGED):
        replay(family_model, grammar(limits=(1, 1)), prompt, out, b)
    # One free token a phase, neither closing (first excludes it): both closings forced.
    np.testing.assert_array_equal(out.length, 4)
    np.testing.assert_array_equal(out.ids[:, [1, 3]], [[10, 11]] * 3)
    np.testing.assert_array_equal(out.sampled[:, :4], [[True, False] * 2] * 3)


def test_greedy_takes_the_most_probable_token_whatever_the_key(family_model):
    out = greedy(streams(family_model))
    other = streams(family_model).sample(anything(0.0), keys(7), max_tokens=MOST)
    assert_same(out, other)
    assert len(set(out.ids.ravel().tolist())) > 3  # no single repeated token
    for b, prompt in enumerate(RAGGED):
        logits = helpers.full_pass(family_model, [*prompt, *out.ids[b].tolist()])
        best = logits[len(prompt) - 1 : -1].argmax(-1)
        np.testing.assert_array_equal(out.ids[b], best)


def test_banned_tokens_are_taken_from_one_stream_alone(family_model):
    free = greedy(streams(family_model))
    banned = np.zeros((3, V), bool)
    banned[1, free.ids[1, 0]] = True
    out = streams(family_model).sample(
        anything(0.0), keys(), max_tokens=MOST, banned=banned
    )
    np.testing.assert_array_equal(out.ids[[0, 2]], free.ids[[0, 2]])
    assert free.ids[1, 0] not in out.ids[1]
    logits = helpers.full_pass(family_model, RAGGED[1])[-1].copy()
    logits[free.ids[1, 0]] = -np.inf
    assert out.ids[1, 0] == logits.argmax()
    left = helpers.log_softmax(logits)[out.ids[1, 0]]  # renormalised over what is left
    np.testing.assert_allclose(out.logp[1, 0], left, atol=2e-4)


def test_the_key_decides_a_sample(family_model):
    one, same, other = (
        streams(family_model).sample(anything(1.5), keys(s), max_tokens=MOST)
        for s in (0, 0, 1)
    )
    assert_same(one, same)
    assert (one.ids != other.ids).any()


def test_every_token_of_a_stream_has_noise_of_its_own(family_model):
    # So hot that noise alone decides: one noise for all steps would repeat one token.
    out = streams(family_model).sample(anything(1e6), keys(6), max_tokens=MOST)
    assert all(len(set(row.tolist())) > 2 for row in out.ids)
    assert len({tuple(row.tolist()) for row in out.ids}) == 3


@pytest.mark.medium
def test_tokens_come_as_often_as_their_probability(family_model):
    # 256 streams of one context: counts within 4.5 standard deviations of n p.
    n = 256
    s = Streams(family_model, n, 8)
    s.append([[4]] * n, columns=1)
    out = s.sample(anything(2.0), keys(3, n), max_tokens=1)
    p = np.exp(helpers.log_softmax(helpers.full_pass(family_model, [4])[0] / 2.0))
    count = np.bincount(out.ids[:, 0], minlength=V)
    assert (np.abs(count - n * p) <= 4.5 * np.sqrt(n * p * (1 - p)) + 0.5).all()
    np.testing.assert_allclose(out.logp[:, 0], np.log(p)[out.ids[:, 0]], atol=1e-4)


def test_runs_appended_in_pieces_are_one_run(family_model):
    whole = greedy(streams(family_model))
    s = streams(family_model, [[1, 2], [6], [7]])
    s.append([[3], [], [8, 9]], columns=WIDTH)
    s.append([[4, 5], [], []], columns=WIDTH)
    assert s.lengths.tolist() == [5, 1, 3]
    assert_same(greedy(s), whole)


def test_an_empty_run_leaves_a_stream_as_it_is(family_model):
    s = streams(family_model)
    s.append([[2], [], []], columns=WIDTH)
    got, want = greedy(s), greedy(streams(family_model))
    np.testing.assert_array_equal(got.ids[1:], want.ids[1:])
    np.testing.assert_allclose(got.logp[1:], want.logp[1:], atol=1e-5)
    assert (got.ids[0] != want.ids[0]).any()


def test_rewind_then_append_is_a_fresh_start(family_model):
    s = streams(family_model)
    s.sample(anything(), keys(5), max_tokens=MOST)
    s.rewind([2, 1, 0])
    assert s.lengths.tolist() == [2, 1, 0]
    s.append([[9, 9, 9], [3], [4, 4]], columns=WIDTH)
    fresh = streams(family_model, [[1, 2, 9, 9, 9], [6, 3], [4, 4]])
    assert_same(greedy(s), greedy(fresh))


def test_rewind_gives_the_columns_back(family_model):
    s = streams(family_model)
    for _ in range(5):  # 6 + 8 columns a turn would not fit 32 twice
        s.sample(anything(), keys(), max_tokens=MOST)
        s.rewind([1, 1, 1])
        s.append([[2, 3, 4, 5], [2], [3]], columns=WIDTH)
    assert s.lengths.tolist() == [5, 2, 2]


def test_inactive_streams_write_nothing_and_go_on_later(family_model):
    s = streams(family_model)
    active = np.array([False, True, True])
    out = s.sample(anything(0.0), keys(), max_tokens=MOST, active=active)
    want = greedy(streams(family_model))
    assert out.length.tolist() == [0, MOST, MOST]
    assert not out.ids[0].any()
    np.testing.assert_array_equal(out.ids[1:], want.ids[1:])
    assert s.lengths.tolist() == [5, 1 + MOST, 3 + MOST]
    later = s.sample(anything(0.0), keys(), max_tokens=MOST, active=~active)
    assert len(set(want.ids[0].tolist())) > 2
    np.testing.assert_array_equal(later.ids[0], want.ids[0])
    np.testing.assert_allclose(later.logp[0], want.logp[0], atol=1e-5)


@pytest.mark.medium
def test_a_text_does_not_depend_on_the_batch_around_it(family_model):
    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    k, g = keys(2, 4), grammar()
    there = gen.generate(family_model, prompts, g, k, max_tokens=MOST)
    order = [3, 0]
    here = gen.generate(
        family_model,
        [prompts[i] for i in order],
        g,
        k[np.array(order)],
        max_tokens=MOST,
    )
    for got, i in zip(here, order, strict=True):
        np.testing.assert_array_equal(got.ids, there[i].ids)
        np.testing.assert_array_equal(got.logp, there[i].logp)
    for prompt, out in zip(prompts, there, strict=True):
        replay(family_model, g, prompt, out, 0)


def test_more_prompts_than_a_batch_are_all_answered(family_model):
    last = gen.BATCHES[-1]
    prompts = [[1 + i % 9, 1 + i % 7] for i in range(last + 3)]
    k, g = keys(4, len(prompts)), grammar()
    out = gen.generate(family_model, prompts, g, k, max_tokens=MOST)
    assert len(out) == len(prompts)
    for i in (0, last - 1, last, last + 2):
        replay(family_model, g, prompts[i], out[i], 0)
    alone = gen.generate(family_model, prompts[last:], g, k[last:], max_tokens=MOST)
    for a, b in zip(out[last:], alone, strict=True):
        # The padding behind a text depends on where its batch pauses, the text not.
        n = int(b.length[0])
        assert int(a.length[0]) == n
        np.testing.assert_array_equal(a.ids[:, :n], b.ids[:, :n])


def test_shaped_logits_by_hand():
    # Weights 4, 2, 1 and a forbidden 100. min_p 0.3 cuts below 1.2: 4/6 and 2/6 stay.
    # At temperature 1/2 the weights are 16, 4, 1 and the cut is 4.8: one token stays.
    logits = jnp.log(jnp.array([[4.0, 2.0, 1.0, 100.0]] * 3))
    allowed = jnp.array([[True, True, True, False]] * 3)
    got = shaped_logits(
        logits, allowed, jnp.array([1.0, 0.5, 0.0]), jnp.array([0.3, 0.3, 0.0])
    )
    want = [[4 / 6, 2 / 6, 0, 0], [1, 0, 0, 0], [4 / 7, 2 / 7, 1 / 7, 0]]
    np.testing.assert_allclose(np.exp(helpers.log_softmax(got)), want, atol=1e-6)


def test_bucket_by_hand():
    assert [token_streams.bucket(n, 8) for n in (0, 1, 8, 9, 17)] == [8, 8, 8, 16, 24]


def test_errors_say_what_does_not_fit(family_model):
    s = Streams(family_model, 3, CAPACITY)
    with pytest.raises(
        ValueError, match="stream 0 has nothing to continue from: append"
    ):
        s.sample(anything(), keys(), max_tokens=1)
    s.append([[1], [], [2]], columns=WIDTH)
    with pytest.raises(ValueError, match="stream 1 has nothing to continue from"):
        s.sample(anything(), keys(), max_tokens=1)
    s = streams(family_model)
    with pytest.raises(ValueError, match="expected 3 runs, got 1"):
        s.append([[1]])
    with pytest.raises(ValueError, match="a run of 7 ids in 6 columns"):
        s.append([[1] * 7, [1], [1]], columns=WIDTH)
    with pytest.raises(
        ValueError, match=r"stream \d: 32 more tokens do not fit, \d of 32"
    ):
        s.sample(anything(), keys(), max_tokens=32)
    for bad in ([6, 1, 1], [1, 1], [-1, 1, 1]):
        with pytest.raises(ValueError, match="lengths must be"):
            s.rewind(bad)
    assert_same(greedy(s), greedy(streams(family_model)))  # nothing was spoiled


def test_a_rewound_stream_takes_the_next_text(family_model):
    # The second stream starts over with another text, the others go on: all as if
    # each had stood alone.
    s = streams(family_model)
    first = greedy(s)
    kept = [int(n) for n in s.lengths]
    s.rewind([kept[0], 0, kept[2]])
    s.append([[4], [7, 8, 9, 2], [5]], columns=WIDTH)
    second = greedy(s)
    for b, run in enumerate(([*RAGGED[0], *first.ids[0].tolist(), 4], [7, 8, 9, 2])):
        alone = Streams(family_model, 3, CAPACITY)
        alone.append([run, [1], [1]], columns=CAPACITY - MOST)
        np.testing.assert_array_equal(greedy(alone).ids[0], second.ids[b])


def test_an_empty_run_leaves_a_stream_where_it_was(family_model):
    one, two = streams(family_model), streams(family_model)
    one.append([[], [3], []], columns=WIDTH)
    assert (one.lengths - two.lengths).tolist() == [0, 1, 0]
    a, b = greedy(one), greedy(two)
    np.testing.assert_array_equal(a.ids[[0, 2]], b.ids[[0, 2]])
    np.testing.assert_array_equal(a.logp[[0, 2]], b.logp[[0, 2]])  # bit for bit


def test_a_text_in_pieces_is_the_whole_text(family_model):
    whole = streams(family_model).sample(anything(1.0), keys(), max_tokens=9)
    s = streams(family_model)
    parts = [
        s.sample(anything(1.0), keys(), max_tokens=n, resume=i > 0)
        for i, n in enumerate((2, 4, 3))
    ]
    got = np.concatenate([p.ids for p in parts], axis=1)
    np.testing.assert_array_equal(got, whole.ids)
    assert not np.array_equal(parts[1].ids[:, :2], parts[0].ids)


def test_a_phase_goes_on_in_the_next_piece(family_model):
    # Two tokens of a first phase of three, then the rest: 5 is forced at its end.
    limit = np.array([3, 99], np.int32)
    free, never = rows(range(V)), np.zeros((1, V), bool)
    close = never.copy()
    close[0, 5] = True
    grammar = Grammar(
        np.repeat(free & ~close, 2, 0),
        np.repeat(free & ~close, 2, 0),
        np.concatenate([close, never]),
        np.array([5, 0], np.int32),
        limit,
        np.ones(2, np.float32),
        np.zeros(2, np.float32),
    )
    s = streams(family_model)
    one = s.sample(grammar, keys(), max_tokens=2)
    assert s.live.all()
    two = s.sample(grammar, keys(), max_tokens=4, resume=True)
    assert one.phase.max() == 0
    np.testing.assert_array_equal(two.ids[:, 1], [5, 5, 5])
    np.testing.assert_array_equal(two.sampled[:, 1], [False] * 3)
    np.testing.assert_array_equal(two.phase[0], [0, 0, 1, 1])


def test_a_run_may_be_padded_over_the_edge(small_model):
    # 30 of 32 tokens stand; a run of 2, padded to 6 columns, still fits.
    runs = [[1 + i % 9 for i in range(30)], [2] * 30, [3, 1] * 15]
    one, two = (Streams(small_model, 3, 32) for _ in range(2))
    one.append(runs, columns=32)
    one.append([[4, 5]] * 3, columns=6)
    two.append([[*r, 4, 5] for r in runs], columns=32)
    np.testing.assert_allclose(one._state.logits, two._state.logits, atol=1e-5)


@pytest.mark.medium
def test_long_caches_are_read_in_blocks(small_model):
    run = [[1 + (i * i) % 11 for i in range(150)]]
    whole = Streams(small_model, 1, 300)
    whole.append(run)
    blocks = Streams(small_model, 1, 513)
    assert (whole.capacity, blocks.capacity) == (300, 1024)
    blocks.append([run[0][:100]])
    blocks.append([run[0][100:]])
    np.testing.assert_allclose(blocks._state.logits, whole._state.logits, atol=1e-5)
    a, b = (
        s.sample(anything(0.0), keys(batch=1), max_tokens=5) for s in (whole, blocks)
    )  # token by token, in whole blocks
    np.testing.assert_allclose(a.logp, b.logp, atol=1e-5)


@pytest.mark.medium
def test_a_long_run_compiles_a_handful_of_times(small_model):
    def compiled():
        return token_streams._append._cache_size() + token_streams._sample._cache_size()

    grammar, rng = anything(1.0), np.random.default_rng(0)
    sizes = [(int(n), int(m)) for n, m in rng.integers(1, (120, 60), (40, 2))]
    start, seen = compiled(), []
    for n, m in sizes:
        prompts = [[1 + i % 9] * n for i in range(int(rng.integers(1, 16)))]
        most = token_streams.bucket(m, 32)
        gen.generate(
            small_model, prompts, grammar, keys(batch=len(prompts)), max_tokens=most
        )
        seen.append(compiled() - start)
    # Two lengths of reply; of each, a program of prefill for each prompt bucket and one
    # that samples.
    assert seen[-1] <= 6
    assert {token_streams.bucket(n) for n, _ in sizes} == {64, 128}


@pytest.mark.medium
def test_a_stream_that_ends_gives_its_place_to_the_next_prompt(
    small_model, monkeypatch
):
    # 11 prompts through 4 streams, on one and on two threads: each text is that of its
    # prompt alone, also where a forced end or the token limit cuts it.
    prompts = [[1 + i % 9] * (1 + i % 7) for i in range(11)]
    noise, g = keys(4, len(prompts)), grammar(limits=(9, 5))
    banned = np.zeros((len(prompts), V), bool)
    banned[np.arange(len(prompts)), np.arange(len(prompts)) % 8] = True
    texts = {}
    for plan in ((4, 1), (4, 2), (16, 1)):
        monkeypatch.setattr(gen, "_plan", lambda *_, plan=plan: plan)
        texts[plan] = gen.generate(
            small_model, prompts, g, noise, max_tokens=12, banned=banned
        )
        assert len(texts[plan]) == len(prompts)
    lengths = [int(s.length[0]) for s in texts[16, 1]]
    assert len(set(lengths)) > 1
    for plan in ((4, 1), (4, 2)):
        for a, b, n in zip(texts[plan], texts[16, 1], lengths, strict=True):
            assert int(a.length[0]) == n
            for name in ("ids", "sampled", "phase", "first"):
                np.testing.assert_array_equal(
                    getattr(a, name)[0, :n], getattr(b, name)[0, :n]
                )
            np.testing.assert_allclose(a.logp[0, :n], b.logp[0, :n], atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("distinct", [1, 3, 20])
def test_equal_prompts_are_prefilled_once(monkeypatch, distinct):
    model = helpers.lively_model(helpers.config(V))
    prompts = [[1 + i % distinct, 2, 3] for i in range(40)]
    g, k = grammar(), keys(5, 40)
    expected = [
        gen.generate(model, [p], g, k[i : i + 1], max_tokens=MOST)[0]
        for i, p in enumerate(prompts)
    ]
    rows, append = [], Streams.append

    def spy(self, runs, **kwargs):
        rows.extend(tuple(run) for run in runs if len(run) > 1)
        append(self, runs, **kwargs)

    monkeypatch.setattr(Streams, "append", spy)
    out = gen.generate(model, prompts, g, k, max_tokens=MOST)
    assert sorted(rows) == sorted({tuple(p) for p in prompts})
    for a, b in zip(out, expected, strict=True):
        n = int(a.length[0])
        assert n == int(b.length[0])
        np.testing.assert_array_equal(a.ids[0, :n], b.ids[0, :n])
        np.testing.assert_allclose(a.logp[0, :n], b.logp[0, :n], atol=1e-5)


@pytest.mark.medium
def test_streams_without_an_end_stop_at_the_limit_when_places_are_refilled(
    small_model, monkeypatch
):
    monkeypatch.setattr(gen, "_plan", lambda *_: (2, 1))
    out = gen.generate(
        small_model, [[1], [2], [3], [4], [5]], anything(), keys(0, 5), max_tokens=7
    )
    assert [int(s.length[0]) for s in out] == [7] * 5


def test_replaced_streams_are_those_of_the_source(small_model):
    target, source = streams(small_model), streams(small_model, [[9, 8], [7], [5, 6]])
    target.sample(anything(), keys(1), max_tokens=2)
    target.replace([2, 0], source, [0, 1])
    assert target.lengths.tolist() == [1, 3, 2]
    expected = greedy(streams(small_model, [[7], [6], [9, 8]]))
    active = np.array([True, False, True])
    got = target.sample(anything(0.0), keys(), max_tokens=MOST, active=active)
    for row in (0, 2):
        np.testing.assert_array_equal(got.ids[row], expected.ids[row])
    with pytest.raises(
        ValueError, match="expected 3 streams of 32 tokens, got 2 of 32"
    ):
        target.replace([0], Streams(small_model, 2, CAPACITY), [0])


def test_sampling_pauses_when_enough_streams_have_ended(small_model):
    one, whole = (streams(small_model) for _ in range(2))
    limit = np.array([1, 3, 6])
    first = one.sample(anything(), keys(), max_tokens=6, limit=limit, enough=1)
    assert first.length.tolist() == [1, 3, 3]
    rest = one.sample(anything(), keys(), max_tokens=3, limit=limit - 3, resume=True)
    assert rest.length.tolist() == [0, 0, 3]
    text = whole.sample(anything(), keys(), max_tokens=6, limit=limit)
    both = np.concatenate([first.ids[2, :3], rest.ids[2, :3]])
    np.testing.assert_array_equal(both, text.ids[2])


@pytest.mark.medium
def test_one_token_of_a_run_is_that_of_all_of_them(family_model):
    model = family_model
    decoder = nnx.merge(model.definition, model.params)
    ids = jnp.asarray([[1, 2, 3, 4], [5, 6, 0, 0]])
    place = Placement(
        jnp.broadcast_to(jnp.arange(4)[None], (2, 4)), count=jnp.array([4, 2])
    )
    cache = empty_cache(model.config, 2, 8, "float32")
    every, whole_cache = decoder(ids, place, cache)
    last, last_cache = decoder(ids, place, cache, read=jnp.array([[3], [1]]))
    expected = jnp.stack([every[0, 3], every[1, 1]])[:, None]
    np.testing.assert_allclose(last, expected, atol=1e-5)
    for a, b in zip(
        jax.tree.leaves(last_cache), jax.tree.leaves(whole_cache), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("remat", [False, True])
def test_some_tokens_of_packed_rows_are_those_of_all_of_them(family_model, remat):
    model = family_model
    ids = np.arange(1, 13).reshape(2, 6)
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0]])
    positions = np.array([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 0]])
    read = np.array([[2, 3, 5], [0, 4, 4]])

    def hidden(params, read=None):
        layout = (model.definition, params, ids, positions, segments)
        return apply_decoder(*layout, remat=remat, read=read).hidden

    every = hidden(model.params)
    expected = np.take_along_axis(np.asarray(every), read[..., None], 1)
    np.testing.assert_allclose(hidden(model.params, read), expected, atol=1e-5)
    # The gradient as well, which goes through the keys and values of all tokens.
    grads = [
        jax.grad(f)(model.params)
        for f in (
            lambda p: (hidden(p, read) ** 2).sum(),
            lambda p: (jnp.take_along_axis(hidden(p), read[..., None], 1) ** 2).sum(),
        )
    ]
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads[1]))
    assert helpers.distance(*grads) < 1e-5 * size


def test_a_step_copies_no_cache():
    """A copy of the caches at every step took half of a small model's time."""
    model = helpers.lively_model(helpers.config(V, **helpers.HYBRID))
    batch = Streams(model, 3, 40)
    args = (model.definition, model.params, batch._state, anything(), keys())
    limit, active = np.full(3, 8, np.int32), np.ones(3, bool)
    rest = (limit, 0, 16, active, None, None, None, None)
    program = token_streams._sample.lower(*args, *rest)
    copies = [x for x in program.compile().as_text().splitlines() if " copy(" in x]
    caches = {x.shape for x in jax.tree.leaves(batch._state.cache)}
    assert caches == {(3, 40, 16), (3, 2, 40, 8)}
    shapes = {",".join(map(str, shape)) for shape in caches}
    assert not [x for x in copies if any(f"[{shape}]" in x for shape in shapes)]


@pytest.mark.parametrize(
    ("size", "prompts", "cores", "plan"),
    [
        (1_000, 5, 4, (8, 1)),  # fewer prompts than a batch has streams
        (1_000, 17, 4, (8, 3)),  # three batches of 8, each on a core
        (1_000, 500, 2, (8, 2)),  # no more batches at a time than cores
        (gen.SMALL_MODEL, 500, 2, (8, 2)),
        (gen.SMALL_MODEL + 1, 5, 2, (16, 1)),
        (gen.SMALL_MODEL + 1, 17, 2, (64, 1)),
        (gen.SMALL_MODEL + 1, 500, 2, (64, 1)),
    ],
)
def test_small_models_sample_few_streams_on_each_core(
    monkeypatch, size, prompts, cores, plan
):
    monkeypatch.setattr(gen.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(gen.jax, "default_backend", lambda: "cpu")
    model = helpers.lively_model(helpers.config(32))
    model = model._replace(params={"w": np.zeros(size)}, mesh=None)
    assert gen._plan(model, prompts) == plan
    on_one = model._replace(mesh=make_mesh(MeshConfig()))
    assert gen._plan(on_one, prompts) == plan
