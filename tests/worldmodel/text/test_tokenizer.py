import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldmodel.text.tokenizer import (
    CONTROLS,
    LONGEST_CACHED,
    MAX_LINES,
    TextTokenizer,
    control_text,
)

TEXT = st.text(
    st.characters(blacklist_categories=("Cs",)), max_size=40
)  # no lone surrogates: UTF-8 cannot carry them


@given(text=TEXT)
@example(text="")
@example(text=" two  leading spaces ")
@example(text="\n\r\t\x00\u2028\ufeff")
@example(text="<|dg_end|> <|dg_reward|>1<|dg_win|>")
@example(text="zero\u200bwidth 👩‍🚀 ﷽ e\u0301 한")
@example(text="\ufffd�")
def test_round_trip_without_control_ids(tok, text):
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    assert all(tok.name(i) is None for i in ids)
    assert tok.text_mask()[ids].all()


@pytest.mark.parametrize("name", ["end", "win", "line0", "pad"])
def test_the_name_of_a_control_token_is_ordinary_text(tok, name, tmp_path):
    tok.save(tmp_path)
    for one in (tok, TextTokenizer.load(tmp_path)):
        for text in (control_text(name), f"a{control_text(name)}b", f"<|dg_{name}"):
            assert one.control(name) not in one.encode(text)
            assert one.decode(one.encode(text)) == text


def test_control_tokens_have_their_own_ids(tok):
    ids = [tok.control(c) for c in CONTROLS]
    assert len(set(ids)) == len(CONTROLS)
    assert max(ids) < tok.vocab_size
    assert [tok.name(i) for i in ids] == list(CONTROLS)
    mask = tok.text_mask()
    assert mask.shape == (tok.vocab_size,)
    assert not mask[ids].any()
    assert mask.sum() == tok.vocab_size - len(CONTROLS)


def test_decode_leaves_control_out_and_replaces_broken_utf8(tok):
    ids = [tok.control("add"), *tok.encode("lamp"), tok.control("end")]
    assert tok.decode(ids) == "lamp"
    euro = tok.encode("€")
    assert "\ufffd" in tok.decode(euro[:-1])


def test_a_word_has_the_same_ids_at_the_start_and_inside(tok):
    inside = tok.encode("the lamp")
    assert inside[-len(tok.encode("lamp")) :] == tok.encode("lamp")


def test_line_tokens_are_counted_and_the_last_one_is_shared(tok):
    assert tok.line(0) == tok.control("line0")
    assert tok.line(MAX_LINES - 1) == tok.control(f"line{MAX_LINES - 1}")
    assert tok.line(MAX_LINES + 5) == tok.line(MAX_LINES - 1)
    assert tok.line(3) != tok.line(4)


def test_beyond_are_the_lines_that_a_state_lacks(tok):
    names = {tok.name(int(i)) for i in tok.unused_line_mask(30).nonzero()[0]}
    assert names == {"line30", "line31"}
    assert not tok.unused_line_mask(MAX_LINES).any()
    assert not tok.unused_line_mask(MAX_LINES + 3).any()


def test_number_mask_covers_numbers_only(tok):
    mask = tok.number_mask()
    for text in ("0", "1", "-0.25", "12.5"):
        assert mask[tok.encode(text)].all(), text
    for text in ("lamp", "e", "+", "\n", "_"):
        assert not mask[tok.encode(text)[-1]], text
    assert not mask[[tok.control(c) for c in CONTROLS]].any()


def test_saved_and_loaded_is_the_same(tok, tmp_path):
    tok.save(tmp_path)
    again = TextTokenizer.load(tmp_path)
    assert again.vocab_size == tok.vocab_size
    assert [again.control(c) for c in CONTROLS] == [tok.control(c) for c in CONTROLS]
    assert again.encode("the lamp, ünïcode") == tok.encode("the lamp, ünïcode")
    np.testing.assert_array_equal(again.text_mask(), tok.text_mask())


def test_training_is_the_same_again_and_fits_the_size():
    texts = ["one two three four", "two three four five"] * 4
    one, two = (TextTokenizer.train(texts, 362) for _ in range(2))
    assert one.vocab_size <= 362
    assert one.encode("two three six") == two.encode("two three six")
    assert len(one.encode("three")) < len("three")  # merges were learned


def test_errors_say_what_was_expected(tmp_path):
    with pytest.raises(ValueError, match=f">= {256 + len(CONTROLS)}, got 300"):
        TextTokenizer.train(["a"], 300)
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        TextTokenizer.load(tmp_path)


def test_ids_belong_to_the_caller(tok):
    """They are kept for the next time, and callers append to what they get."""
    once = tok.encode_piece(" a red coin")
    kept = list(once)
    once.append(tok.control("end"))
    assert tok.encode_piece(" a red coin") == kept


def test_a_long_piece_is_encoded_and_not_kept(tok):
    kept = tok._piece_ids.cache_info().currsize
    text = "a red coin in a box " * 20
    assert len(text) > LONGEST_CACHED
    assert tok.decode_piece(tok.encode_piece(text)) == text
    assert tok._piece_ids.cache_info().currsize == kept
    short = text[:LONGEST_CACHED]
    assert tok.decode_piece(tok.encode_piece(short)) == short
    assert tok._piece_ids.cache_info().currsize == kept + 1
