"""Texts as the cause of a wrong dream: one long line, a tokenizer without the words."""

import pytest

from dreamgym.evaluation.diagnosis import dream_causes
from dreamgym.evaluation.diagnosis.evidence import Evidence


def run(right, lines, tokens):
    scorecard = {"exact": {"predictable": {"mean": right, "count": 200}}}
    sizes = {"lines_per_state": lines, "tokens_per_state": tokens}
    return Evidence({"fidelity": scorecard}, {"pretrain": sizes})


@pytest.mark.parametrize(
    ("some", "named"),
    [
        (run(0.28, 1.0, 60.0), True),
        (run(0.95, 1.0, 60.0), False),  # it is right all the same
        (run(0.28, 7.5, 60.0), False),
        (run(0.28, 1.0, 12.0), False),  # a short line
        (run(None, 1.0, 60.0), False),
        (run(0.28, None, None), False),  # a run of an earlier version
    ],
)
def test_long_lines_are_named_where_the_dream_is_wrong(some, named):
    cause = dream_causes.long_lines(some)
    assert (cause is not None) == named
    if cause is not None:
        assert "one line of 60 tokens" in cause.sentence
        assert "28 % of 200" in cause.sentence
        assert "SplitLines" in cause.advice
    assert dream_causes.long_lines in dream_causes.CHECKS


@pytest.mark.parametrize(
    ("share", "named"), [(0.25, True), (0.002, False), (None, False)]
)
def test_a_tokenizer_that_cannot_write_the_texts_is_named(share, named):
    cause = dream_causes.unwritable_text(
        Evidence({}, {"pretrain": {"unwritable_texts": share}})
    )
    assert (cause is not None) == named
    if cause is not None:
        assert "cannot write 25 % of the lines" in cause.sentence
    assert dream_causes.unwritable_text in dream_causes.CHECKS
