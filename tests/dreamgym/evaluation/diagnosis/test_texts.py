"""Texts as the cause of a wrong dream: long lines, words that nothing holds."""

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


def missing(count=60, **shares):
    rates = {name: {"mean": share, "count": count} for name, share in shares.items()}
    scorecard = {"exact": {"predictable": {"mean": 0.5, "count": 200}}}
    return Evidence({"fidelity": scorecard | {"missing_words": rates}}, {})


@pytest.mark.parametrize(
    ("some", "words"),
    [
        (missing(earlier=0.43, new=0.1), ["43 % lack a word that earlier states"]),
        (missing(earlier=0.1, new=0.26), ["26 % lack a word that the episode had not"]),
        (missing(earlier=0.43, new=0.26), ["KeepLines", 'info["reveals"]']),
        (missing(earlier=0.1, new=0.1), []),
        (missing(earlier=0.9, new=0.9, count=10), []),
        (missing(), []),  # a scorecard of an earlier version
    ],
)
def test_words_that_the_state_does_not_hold_are_named(some, words):
    cause = dream_causes.low_fidelity(some)
    assert cause.advice.startswith("Fit it longer")
    for word in words:
        assert word in cause.advice
    assert ("lack a word" in cause.advice) == bool(words)


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


@pytest.mark.parametrize(
    ("share", "count", "named"),
    [(0.3, 60, True), (0.05, 60, False), (0.3, 5, False), (None, 0, False)],
)
def test_states_that_forget_are_named(share, count, named):
    scorecard = {"exact": {"forgotten": {"mean": 0.02, "count": count}}}
    card = None if share is None else scorecard | {"share": {"forgotten": share}}
    cause = dream_causes.forgotten_states(Evidence({"fidelity": card}, {}))
    assert (cause is not None) == named
    if cause is not None:
        assert cause.sentence.startswith("30 % of the steps show again what an earlier")
        assert "2 % of these 60 next states" in cause.sentence
        assert "KeepLines" in cause.advice
    assert dream_causes.forgotten_states in dream_causes.CHECKS
