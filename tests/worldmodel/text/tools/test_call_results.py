"""Calls at once: which of them failed, as far as the lines of a state tell."""

import pytest

from tests import helpers
from worldmodel.text.tools.call_results import failed_calls


@pytest.mark.parametrize(
    ("lines", "count", "invalid", "failed"),
    [
        (("result ok",), 1, False, [False]),
        (("result error: no",), 1, True, [True]),
        (("result ok", "result ok"), 2, None, [None, None]),
        (("result error: a", "result error: b"), 2, True, [True, True]),
        (("door open", "result ok", "result error: b"), 2, False, [False, True]),
        # Some results are out of sight: the first, or nobody knows which.
        (
            ("earlier results 1", "result ok", "result ok"),
            3,
            False,
            [None, False, False],
        ),
        (("earlier results 3", "result ok"), 2, False, [None, None]),
        # No ToolEnv; then one line a sentence, with a failure and without.
        (("done",), 2, False, [False, False]),
        (("result A.", "result b.", "result error: no."), 2, False, [None, None]),
        (("result A.", "result b.", "result c."), 2, False, [False, False]),
        # A line was left out, and the call of the other one may be any.
        (("result ok", "(2 lines left out)"), 2, False, [None, None]),
    ],
)
def test_which_calls_of_an_action_failed(lines, count, invalid, failed):
    step = helpers.transition(("door shut",), "x", lines, invalid=invalid)
    assert failed_calls(step, count) == failed


def test_calls_behind_the_one_that_ended_the_episode_were_not_made():
    step = helpers.transition((), "x", ("result ok",), invalid=False, terminated=True)
    assert failed_calls(step, 2) == [False, None]
