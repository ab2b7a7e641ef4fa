from tests import helpers
from worldmodel.data.records import Task
from worldmodel.experience.base import Prediction, Query
from worldmodel.fidelity.cases import Case
from worldmodel.fidelity.copying import copy_accuracy

SHARES = {"trips": {"held": 1.0, "due": 1.0, "costs": 1.0, "T25": 0.1, "42": 0.1}}
STATE = ("T25 costs 42", "T68 costs 17")


def case(action: str, line: str, trace: str | None, weight: float = 1.0) -> Case:
    task = Task(id="a", instruction="go", family="trips", initial_state=STATE)
    t = helpers.transition(STATE, action, (*STATE, line), reasoning=trace)
    return Case(Query(task, (), STATE, action), t, "one_line", weight)


def answer(line: str, trace: str = "", error: str | None = None) -> Prediction:
    return Prediction((*STATE, line), 0.0, "go", trace, 1.0, error)


def brief(found) -> dict:
    return {k: (v["mean"], v["count"]) for k, v in found.items()}


def test_copy_accuracy_by_hand():
    cases = [
        case("book T25", "held T25 due 42", "T25 costs 42"),
        case("book T68", "held T68 due 17", None, weight=2.0),
    ]
    # Right: T25 and 42, then 17 but not T68; of the trace T25 only.
    answers = [answer("held T25 due 42", "T25 costs 27"), answer("held T25 due 17")]
    assert brief(copy_accuracy(cases, answers, SHARES)) == {
        "state": (4 / 6, 4),  # (1 + 1 + 2) of 1 + 1 + 2 + 2
        "state_unseen": (1 / 2, 2),  # no training episode held T68 and 17
        "reasoning": (1 / 2, 2),
        "reasoning_unseen": (None, 0),
    }


def test_lines_that_stay_are_no_copies():
    """The unchanged lines hold all identifiers, and nobody wrote them."""
    cases = [case("book T25", "held T25", None)]
    result = copy_accuracy(cases, [answer("held nothing")], SHARES)
    assert brief(result)["state"] == (0.0, 1)


def test_what_stood_nowhere_is_not_asked():
    cases = [case("book T25", "held A1 from B2", None)]
    assert brief(copy_accuracy(cases, [answer("held A1")], SHARES))["state"] == (
        None,
        0,
    )


def test_a_malformed_answer_copies_nothing():
    cases = [case("book T25", "held T25", "T25")]
    right = answer("held T25", "T25", error="the reply was cut")
    result = copy_accuracy(cases, [right], SHARES)
    assert brief(result) == {
        "state": (0.0, 1),
        "state_unseen": (None, 0),
        "reasoning": (0.0, 1),
        "reasoning_unseen": (None, 0),
    }
