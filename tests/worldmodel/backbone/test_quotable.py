"""What sampled text may quote: by hand, against a reference, in any batch."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from tests import helpers
from tests.worldmodel.backbone.test_generate import V, anything, keys
from worldmodel.backbone import generate as gen
from worldmodel.backbone.grammar import Quotable

OPENING, TEXTS, FREE = (
    [1, 4],
    [[2, 3, 4], [2, 3, 5, 2, 3], [6], [3, 1, 4]],
    [2, 2, 1, 2],
)
ROW = Quotable.of(OPENING, TEXTS, FREE)
EVERYTHING = set(range(V))


def allowed_after(text, row=ROW, width=20):
    batch = Quotable.stack([row], width)
    places = jnp.zeros((1, width), bool)
    for token in text:
        places = batch.advance(places, jnp.array([token], jnp.int32))
    return set(np.flatnonzero(batch.allowed_tokens(places, V)[0]).tolist())


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ([], EVERYTHING),
        ([2, 3], EVERYTHING),  # nothing is quoted before the opening
        ([1, 4], EVERYTHING),
        ([1, 4, 2], EVERYTHING),  # one token may mean something else
        ([1, 4, 2, 3], {4, 5}),
        ([1, 4, 2, 3, 5], {2}),
        ([1, 4, 2, 3, 4], EVERYTHING),  # at the end of a text
        ([1, 4, 2, 3, 4, 2, 3], {4, 5}),  # behind it another one
        ([1, 4, 6, 2, 3], {4, 5}),  # also behind one that is free throughout
        ([1, 4, 7, 2, 3], EVERYTHING),  # not behind something else
        ([1, 4, 2, 3, 9, 2, 3], EVERYTHING),
        ([7, 7, 1, 4, 2, 3], {4, 5}),  # the opening may stand anywhere
        ([1, 4, 3, 1], {4}),
        ([1, 4, 3, 1, 4], EVERYTHING),
    ],
)
def test_what_may_follow_by_hand(text, allowed):
    assert allowed_after(text) == allowed


def reference(text):
    """What may follow, from all ways to read the end of the text as quotes."""
    following, free = set(), False
    for start in range(len(text)):
        stack = [text[start:][len(OPENING) :]] if text[start:][:2] == OPENING else []
        while stack:
            rest = stack.pop()
            free |= not rest
            for quoted, n in zip(TEXTS, FREE, strict=True):
                if rest[: len(quoted)] == quoted:
                    stack.append(rest[len(quoted) :])
                elif n <= len(rest) < len(quoted) and quoted[: len(rest)] == rest:
                    following.add(quoted[len(rest)])
    return EVERYTHING if free or not following else following


@pytest.mark.medium
def test_all_short_texts_are_read_as_by_a_reference():
    bound = 0
    for tail in itertools.product([1, 2, 3, 4, 5, 6], repeat=4):
        text = [1, 4, *tail]
        assert allowed_after(text) == reference(text), text
        bound += reference(text) != EVERYTHING
    assert bound == 6


def test_a_row_without_an_opening_allows_everything():
    nothing = Quotable.of([], TEXTS, FREE)
    assert len(nothing.tokens) == 0
    assert allowed_after([1, 4, 2, 3], nothing) == EVERYTHING


@pytest.mark.medium
def test_what_is_sampled_goes_on_with_what_it_quotes(monkeypatch):
    # 11 prompts through 4 streams, on one and on two threads: each text is that of its
    # prompt alone, and quotes what the row of its prompt says.
    model = helpers.lively_model(helpers.config(V))
    one = Quotable.of([1], [[2, 3, 1, 2]], [1])
    two = Quotable.of([2], [[3, 3, 1], [1]], [1, 1])
    rows = [one if i % 2 else two for i in range(11)]
    prompts = [[1 + i % 9] * (1 + i % 7) for i in range(11)]
    grammar, noise, most = anything(tokens=[1, 2, 3]), keys(3, 11), 24
    texts = {}
    for plan in ((4, 1), (4, 2), (16, 1)):
        monkeypatch.setattr(gen, "_plan", lambda *_, plan=plan: plan)
        out = gen.generate(
            model, prompts, grammar, noise, max_tokens=most, quotable=rows
        )
        texts[plan] = [x.ids[0, : int(x.length[0])].tolist() for x in out]
    assert texts[4, 1] == texts[4, 2] == texts[16, 1]
    bound = 0
    for text, row in zip(texts[16, 1], rows, strict=True):
        for n, token in enumerate(text):
            allowed = allowed_after(text[:n], row)
            assert token in allowed
            bound += allowed != EVERYTHING
    assert bound > 5
    plain = gen.generate(model, prompts, grammar, noise, max_tokens=most)
    assert [x.ids[0].tolist() for x in plain] != texts[16, 1]


@pytest.mark.medium
def test_only_the_first_phase_is_held_to_its_quotes():
    model = helpers.lively_model(helpers.config(V))
    free = np.ones((2, V), bool)
    close = np.zeros((2, V), bool)
    close[0, 1] = True
    grammar = anything()._replace(
        allowed=free,
        first=free,
        closing_tokens=close,
        forced_token=np.array([1, 1], np.int32),
        max_tokens=np.array([0, 99], np.int32),  # the opening is forced, and closes
        temperature=np.ones(2, np.float32),
        min_p=np.zeros(2, np.float32),
    )
    row = Quotable.of([1], [[2, 3, 4]] + [[x, 5] for x in range(6, V)], [1] * 8)
    (out,) = gen.generate(
        model, [[5]], grammar, keys(0, 1), max_tokens=60, quotable=[row]
    )
    assert out.phase[0].tolist() == [0] + [1] * 59
    text = out.ids[0].tolist()
    violated = [
        n for n, token in enumerate(text) if token not in allowed_after(text[:n], row)
    ]
    assert violated


@pytest.mark.medium
def test_a_quote_that_the_grammar_forbids_does_not_stop_the_text():
    model = helpers.lively_model(helpers.config(V))
    row = Quotable.of([1], [[2, 3, 9]], [2])  # 9 is not allowed below
    grammar = anything(tokens=[1, 2, 3])
    (out,) = gen.generate(
        model, [[5]], grammar, keys(0, 1), max_tokens=40, quotable=[row]
    )
    text = out.ids[0].tolist()
    assert len(text) == 40
    assert set(text) <= {1, 2, 3}
    assert np.isfinite(out.logp).all()
