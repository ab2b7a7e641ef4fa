"""Lines that a reasoning trace quotes: counted, and held to while one is sampled."""

import dataclasses

import numpy as np
import pytest

from tests import helpers
from tests.worldmodel.experience.test_grammar import SHAPE
from tests.worldmodel.experience.test_local import ask
from worldmodel.data.records import Episode, Task
from worldmodel.experience import local, quotes
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.memory import ReplayMemory
from worldmodel.reasoning import rule

SHELF = (
    "shelf ball 5 spare",
    "order K6 ball wanted 3 picked 3",
    "order K7 cup wanted 2 picked 0",
    "said ok",
)


@pytest.mark.parametrize(
    ("trace", "counts"),
    [
        ("said ok pick 3 ball nothing changes", (0, 0)),
        ("pick 3 ball order K6 ball wanted 3 picked 3 as said change", (1, 0)),
        ("pick 3 ball order K6 ball wanted 3 picked 0 as said change", (1, 1)),
        ("pick 3 ball order K6 as said change", (1, 1)),
        ("pick 3 ball order as said change", (0, 0)),  # a name, and no quote
        ("pick 3 ball said ok order K7 cup wanted 2 picked 0 nothing", (1, 0)),
        ("take it: order K6 as said", (0, 0)),  # behind another action
        ("pick 3 ball shelf ball 5", (1, 1)),  # it ends within the line
    ],
)
def test_quotes_are_counted_by_hand(trace, counts):
    assert quotes.count_quotes(trace, "pick 3 ball", SHELF) == counts


def episode(traces, family):
    step = helpers.transition(SHELF, "pick 3 ball", SHELF)
    steps = tuple(dataclasses.replace(step, reasoning=x) for x in traces)
    task = Task(id="t", instruction="i", family=family, initial_state=SHELF)
    return Episode(id=family, task=task, transitions=steps, source="s", success=True)


def test_a_family_quotes_if_it_breaks_no_quote_off():
    whole = "pick 3 ball order K6 ball wanted 3 picked 3 nothing changes"
    broken = "pick 3 ball order K6 ball is all there nothing changes"
    episodes = [
        episode([whole] * quotes.MIN_QUOTES, "whole"),
        episode([whole] * quotes.MIN_QUOTES + [broken], "broken"),
        episode([whole] * 3, "few"),  # perhaps by chance
        episode(["nothing changes", None], "silent"),
    ]
    assert quotes.quoting_families(episodes) == {"whole"}


def test_traces_by_rule_break_no_quote_off():
    before = ("at hall", *SHELF)
    after = (*before[:2], "order K6 ball wanted 3 picked 2", *before[3:])
    step = helpers.transition(before, "drop K6", after)
    text = rule.explain(step)
    assert "order K6 ball wanted 3 picked 3" in text
    count, breaks = quotes.count_quotes(text, step.action, before)
    assert count
    assert not breaks


def test_the_tokens_of_a_row_are_those_of_the_lines(tok):
    row = quotes.encode_quotable(tok, "pick 3 ball", SHELF)
    parts = np.split(row.tokens, np.flatnonzero(row.ends)[:-1] + 1)
    assert [tok.decode(part.tolist()) for part in parts] == ["pick 3 ball", *SHELF]
    assert row.starts.sum() == len(SHELF)
    assert row.opening.tolist() == [True] + [False] * (len(row.tokens) - 1)
    # `said ok` has two words: behind them it has ended.
    bound = [row.binds[row.starts.nonzero()[0][i]] for i in range(len(SHELF))]
    last = parts[-1]
    assert not row.binds[-len(last) :].any()
    assert not any(bound[:3])


@pytest.mark.parametrize("enabled", [True, False])
def test_only_families_that_quote_are_held_to_it(tok, text_model, monkeypatch, enabled):
    rows = []

    def spy(*args, quotable, **settings):
        rows.append(quotable)
        return real_generate(*args, quotable=quotable, **settings)

    real_generate = local.generate
    monkeypatch.setattr(local, "generate", spy)
    config = dataclasses.replace(SHAPE, retries=0, whole_quotes=enabled)
    model = LocalExperienceModel(
        text_model, tok, ReplayMemory(), config, quoting={"lamps"}
    )
    queries = [ask(), ask()]
    queries[1] = queries[1]._replace(
        task=dataclasses.replace(queries[1].task, id="u", family="lamps")
    )
    model.predict(queries)
    if enabled:
        assert [len(row.tokens) > 0 for row in rows[0]] == [False, True]
    else:
        assert rows == [None]
