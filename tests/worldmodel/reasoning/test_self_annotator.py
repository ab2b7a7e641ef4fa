"""Traces by the model itself: a scripted model tells which reply is right."""

import dataclasses

import pytest

from tests import doubles, helpers
from worldmodel import reasoning
from worldmodel.data.outcomes import outcome_of
from worldmodel.experience.base import Prediction, Query
from worldmodel.reasoning import Annotator
from worldmodel.reasoning.self_annotator import RejectionSamplingAnnotator


class Script:
    """Replies by a table: action -> what is wrong with reply 0, 1, ...; "" is right.

    Each reasons with its own number and place; what comes after the table is right.
    """

    def __init__(self, episodes, table):
        self.real = {
            (e.task.id, t.state, t.action): t for e in episodes for t in e.transitions
        }
        self.table, self.asked = table, []

    def sample(self, queries, number):
        self.asked.append((number, list(queries)))
        return [self._one(q, number) for q in queries]

    def _one(self, q: Query, number: int) -> Prediction:
        t = self.real[q.task.id, q.state, q.action]
        wrongs = self.table.get(q.action, ())
        wrong = wrongs[number] if number < len(wrongs) else ""
        message = f"{number}: {q.action} at {len(q.past)}"
        result = Prediction(t.next_state, t.reward, outcome_of(t), message, 0.5, None)
        changes = {
            "": {},
            "state": {"next_state": (*t.next_state, "a cat")},
            "reward": {"reward": t.reward + 0.25},
            "outcome": {"outcome": "lose"},
            "problem": {"error": "no line begins with 'cat'"},
            "silent": {"reasoning": " "},
        }
        return result._replace(**changes[wrong])


EPISODES = [helpers.lamp_and_door("a"), helpers.lamp_and_door("b")]


def own(table, samples=4, episodes=EPISODES):
    return RejectionSamplingAnnotator(Script(episodes, table), samples=samples)


def traces(episode):
    return tuple(t.reasoning for t in episode.transitions)


def test_only_what_leads_to_the_truth_is_kept():
    table = {
        "press lamp": ("state", "reward", "outcome"),
        "nothing": ("problem", "silent"),
        "pull door": ("state",) * 4,
    }
    annotator = own(table)
    assert isinstance(annotator, Annotator)
    results = annotator.annotate(EPISODES)
    rule = reasoning.explain(EPISODES[0].transitions[2])
    for e in results:
        assert traces(e) == ("3: press lamp at 0", "2: nothing at 1", rule)
    # Drawn: 4 + 3 for what was kept, and all 4 for what was not; in two episodes.
    assert annotator.report.counts == {
        "kept": 4,
        "fallbacks": 2,
        "samples": 22,
        "tries": 14,
    }


@pytest.mark.parametrize(
    "wrong", ["state", "reward", "outcome", "problem", "silent"]
)  # each alone is enough to be refused
def test_a_reply_with_one_fault_is_refused(wrong):
    table = {t.action: (wrong,) for t in EPISODES[0].transitions}
    annotator = own(table, samples=1)
    assert annotator.annotate(EPISODES) == [reasoning.annotate(e) for e in EPISODES]
    assert annotator.report.counts["kept"] == 0
    assert annotator.report.counts["fallbacks"] == 6


def test_the_first_right_reply_ends_the_asking():
    annotator = own({"nothing": ("state",)})
    annotator.annotate(EPISODES)
    num_queries = annotator.sampler.asked
    assert [(n, [q.action for q in queries]) for n, queries in num_queries] == [
        (0, ["press lamp", "nothing", "pull door"] * 2),
        (1, ["nothing"] * 2),
    ]
    (query, *_) = num_queries[1][1]
    lit = ("the lamp is on", "the door is shut")
    past = ("press lamp",), (EPISODES[0].transitions[0].state,)
    assert query == Query(EPISODES[0].task, past[0], lit, "nothing", past[1])


def test_traces_that_are_there_are_neither_asked_nor_changed():
    steps = list(EPISODES[0].transitions)
    steps[0] = dataclasses.replace(steps[0], reasoning="mine")
    steps[2] = dataclasses.replace(steps[2], reasoning="")
    half = dataclasses.replace(EPISODES[0], transitions=tuple(steps))
    annotator = own({})
    (result,) = annotator.annotate([half])
    assert traces(result) == ("mine", "0: nothing at 1", "")
    assert [len(q) for _, q in annotator.sampler.asked] == [1]
    assert annotator.annotate([result]) == [result]
    assert len(annotator.sampler.asked) == 1
    assert annotator.report.counts["samples"] == 0
    assert annotator.annotate([]) == []


def test_the_batch_is_of_no_consequence():
    some = [doubles.expert(t) for t in doubles.tasks("train")[:12]]
    table = {"go right": ("state", "outcome"), "take coin": ("reward",)}
    whole = own(table, episodes=some).annotate(some)
    assert own(table, episodes=some).annotate(some[::-1])[::-1] == whole
    alone = own(table, episodes=some)
    assert [alone.annotate([e])[0] for e in some] == whole
    # Nothing but the traces is touched.
    bare = [reasoning.without_reasoning(e) for e in whole]
    assert bare == [reasoning.without_reasoning(e) for e in some]


def test_at_least_one_reply_has_to_be_drawn():
    with pytest.raises(ValueError, match="samples must be >= 1, got 0"):
        own({}, samples=0)
