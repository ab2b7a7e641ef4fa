"""Misspelt words: how many, and which stay."""

import random

import pytest

from dreamgym.envs.suites.scenario.typos import misspell

TEXT = "set the weight of crate Tavo to 42, then move crate Sipo to depot Kire"


@pytest.mark.parametrize("seed", range(20))
def test_names_numbers_short_words_and_what_is_kept_stay(seed):
    text, count = misspell(TEXT, 1.0, random.Random(seed), keep={"depot"})
    before, after = TEXT.split(), text.split()
    assert len(before) == len(after)
    changed = {b for b, a in zip(before, after, strict=True) if a != b}
    assert changed <= {"weight", "crate", "then", "move"}
    assert len([b for b, a in zip(before, after, strict=True) if a != b]) == count
    assert count >= 3
    for b, a in zip(before, after, strict=True):
        assert a[0] == b[0]
        assert abs(len(a) - len(b)) <= 1


def test_the_rate_is_a_probability():
    assert misspell(TEXT, 0.0, random.Random(0)) == (TEXT, 0)
    words = " ".join(["weight"] * 2000)
    _, count = misspell(words, 0.2, random.Random(0))
    assert 320 <= count <= 480  # 400, sd 18; an exchange of equal letters is none
