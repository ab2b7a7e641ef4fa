import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.experience.base import Prediction
from worldmodel.fidelity import measures, rows
from worldmodel.fidelity.openloop import drift
from worldmodel.text.prompts import outcome_of

A, B, C, D = "one lamp", "two doors", "three cats", "four dogs"


def test_overlap_by_hand():
    # B goes and D comes; it is said that B goes and C comes again.
    assert measures.overlap((A, B, C), (A, C, D), (A, C, C)) == (1, 2, 2)
    assert measures.overlap((A, B), (A, B), (A, B)) == (0, 0, 0)
    assert measures.overlap((A,), (A, A), (A, A, A)) == (1, 2, 1)  # counted, not a set
    assert measures.overlap((A, B), (B, A), (A, B)) == (0, 0, 0)  # order is no line


def test_auroc_by_hand():
    right = np.array([True, True, False, False])
    assert measures.auroc(np.array([0.9, 0.8, 0.2, 0.1]), right) == 1.0
    assert measures.auroc(np.array([0.1, 0.2, 0.8, 0.9]), right) == 0.0
    assert measures.auroc(np.array([0.5, 0.5, 0.5, 0.5]), right) == 0.5
    # Pairs won: 0.9 beats both, 0.3 beats 0.1 and loses to 0.6.
    assert measures.auroc(np.array([0.9, 0.3, 0.6, 0.1]), right) == 0.75
    assert measures.auroc(np.array([0.9]), np.array([True])) is None
    assert measures.auroc(np.array([]), np.array([], bool)) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_auroc_counts_pairs(cases):
    score = np.array([s for s, _ in cases], float)
    right = np.array([r for _, r in cases])
    pairs = [(a > b) + (a == b) / 2 for a in score[right] for b in score[~right]]
    got = measures.auroc(score, right)
    assert (got is None) == (not pairs)
    if got is not None:
        assert got == pytest.approx(np.mean(pairs))


def test_calibration_by_hand():
    # Two at 0.05, one right; two at 1, both right: gaps 0.45 and 0.
    bins = measures.reliability(
        np.array([0.05, 0.05, 1.0, 1.0]), np.array([True, False, True, True])
    )
    assert [(b["confidence"], b["right"], b["count"]) for b in bins] == [
        (0.05, 0.5, 2), (1.0, 1.0, 2),
    ]  # fmt: skip
    assert measures.calibration_error(bins) == pytest.approx(0.225)
    assert measures.calibration_error([]) is None


# --- rows --------------------------------------------------------------------


def test_lines_that_change_are_counted():
    def kind(before, after):
        words = "one two three four lamp doors cats dogs"
        return rows.kind_of(helpers.transition(before, "x", after), words)

    assert kind((A, B), (A, B)) == "same"
    assert kind((A, B), (A, C)) == "one_line"
    assert kind((A, B), (A, B, C)) == "one_line"
    assert kind((A, B), (A,)) == "one_line"
    assert kind((A, B), (C, D)) == "many_lines"
    assert kind((A,), (A, B, C)) == "many_lines"
    assert kind((A,), (A, "five birds")) == "reveal"


def won(*steps, task="t", name="e"):
    """An episode of (state, action); the last step wins."""
    made = [
        helpers.transition((here,), action, (there,), reward=0.0)
        for (here, action), (there, _) in itertools.pairwise(steps)
    ]
    last = dataclasses.replace(
        helpers.transition((steps[-1][0],), steps[-1][1], ("done",), reward=1.0),
        terminated=True, success=True,
    )  # fmt: skip
    base = helpers.lamp_and_door()
    return helpers.episode(name, dataclasses.replace(base.task, id=task), [*made, last])


def test_a_near_miss_is_the_winning_action_one_step_early():
    e = won(("start", "walk"), ("room", "take coin"))
    (case,) = rows.near_misses([e], 9)
    assert case.query.state == ("start",)
    assert case.query.action == "take coin"
    assert case.query.past == ()
    assert not case.known


def test_what_the_records_say_of_a_near_miss_counts():
    e = won(("start", "walk"), ("room", "take coin"))
    fails = helpers.transition(("start",), "take coin", ("start",), reward=0.0)
    known = helpers.episode("k", e.task, [fails])
    (case,) = rows.near_misses([e, known], 9)
    assert case.known
    # It wins there as well: no near miss.
    wins = won(("start", "take coin"), name="w")
    assert rows.near_misses([e, wins], 9) == []


def test_no_near_miss_without_a_step_that_matters():
    assert rows.near_misses([won(("room", "take coin"))], 9) == []
    idle = won(("room", "wait"), ("room", "take coin"))
    assert rows.near_misses([idle], 9) == []
    assert rows.near_misses([helpers.lamp_and_door()], 0) == []


# --- open loop ---------------------------------------------------------------


class Scripted:
    """Answers a chain of states by (state, action); unknown ones stay."""

    def __init__(self, episodes, change=None):
        self.known = {(t.state, t.action): t for e in episodes for t in e.transitions}
        self.change, self.asked = change, []

    def predict(self, queries):
        self.asked += queries
        out = []
        for q in queries:
            t = self.known.get((q.state, q.action))
            if t is None:
                out.append(Prediction(q.state, 0.0, "go", "", 1.0, None))
                continue
            p = Prediction(t.next_state, t.reward, outcome_of(t), "", 1.0, None)
            out.append(self.change(p, q) if self.change else p)
        return out

    def vary(self, tasks, *, key):
        del key
        return [None] * len(tasks)


LONG = won(("start", "walk"), ("room", "turn"), ("wall", "take coin"))
LOST = dataclasses.replace(
    helpers.episode("lost", LONG.task, LONG.transitions[:2]), success=False
)


def test_the_truth_does_not_drift():
    found = drift(Scripted([LONG]), [LONG, LOST])
    assert [r["mean"] for r in found["exact"]] == [1.0, 1.0, 1.0]
    assert [r["count"] for r in found["exact"]] == [2, 2, 1]
    assert found["outcomes"]["agree"] == {"mean": 1.0, "count": 2}
    assert found["outcomes"]["cells"] == {
        "win_win": 1, "win_loss": 0, "loss_win": 0, "loss_loss": 1,
    }  # fmt: skip
    assert found["outcomes"]["over_optimistic"] == {"mean": 0.0, "count": 1}


def test_one_error_is_carried_on():
    def stray(p, q):
        return p._replace(next_state=("fog",)) if q.action == "turn" else p

    model = Scripted([LONG], stray)
    found = drift(model, [LONG])
    assert [r["mean"] for r in found["exact"]] == [1.0, 0.0, 0.0]
    assert model.asked[-1].state == ("fog",)  # its own state, not the real one
    assert model.asked[-1].past == ("walk", "turn")
    assert found["outcomes"]["cells"]["win_loss"] == 1


def test_a_dream_that_wins_early_is_over_optimistic():
    def win(p, q):
        return p._replace(outcome="win") if q.action == "turn" else p

    model = Scripted([LONG], win)
    found = drift(model, [LONG, LOST])
    assert found["outcomes"]["over_optimistic"] == {"mean": 1.0, "count": 1}
    assert found["exact"][2]["mean"] == 0.0  # it ended before the third step
    assert max(len(q.past) for q in model.asked) == 1


def test_nonsense_ends_an_episode_lost():
    model = Scripted([LONG], lambda p, _: p._replace(problem="odd", outcome="win"))
    found = drift(model, [LONG])
    assert found["exact"][0]["mean"] == 0.0
    assert found["outcomes"]["cells"]["win_loss"] == 1
    assert len(model.asked) == 1


def test_predictable_steps_end_at_a_reveal():
    # "start", "room" and "wall" are new words each time: the first step reveals.
    found = drift(Scripted([LONG]), [LONG])
    assert found["predictable"] == []
    words = dataclasses.replace(LONG.task, instruction="start room wall take coin done")
    told = dataclasses.replace(LONG, task=words)
    assert [r["count"] for r in drift(Scripted([told]), [told])["predictable"]] == [
        1, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("real", "kept"), [(True, []), (False, [True]), (None, [False])]
)
def test_a_near_miss_is_tried_where_that_can_be_done(real, kept):
    e, asked = won(("start", "walk"), ("room", "take coin")), []

    def replay(query):
        asked.append(query)
        return real

    assert [c.known for c in rows.near_misses([e, e], 9, replay)] == kept
    assert {(q.past, q.state, q.action) for q in asked} == {
        ((), ("start",), "take coin")
    }


def test_confidence_beyond_the_bins_is_of_the_first_or_the_last():
    bins = measures.reliability(np.array([-0.3, 0.05, 1.0, 1.2]), np.ones(4, bool))
    assert [(b["count"], round(b["confidence"], 3)) for b in bins] == [
        (2, -0.125), (2, 1.1),
    ]  # fmt: skip
