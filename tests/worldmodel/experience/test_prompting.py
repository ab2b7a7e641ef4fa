"""Replies of a server are read: what is taken, what is an error, and how sure it is."""

import json
import math
import random

import numpy as np
import pytest

from tests.worldmodel.experience.test_prompted import GOOD, HERE, LIT, SAID
from worldmodel.chat.protocol import (
    ChatReply,
    Token,
)
from worldmodel.data.outcomes import OUTCOMES
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience import prompting


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, (LIT, 0.5, "go")),
        ({"reward": 1}, (LIT, 1.0, "go")),
        ({"reward": -2.5e-3, "outcome": "lose"}, (LIT, -0.0025, "lose")),
        ({"next_state": ["  a  ", "", "ё", " "]}, (("  a", "ё"), 0.5, "go")),
        ({"reasoning": ""}, (LIT, 0.5, "go")),
    ],
)
def test_a_reply_is_read(changes, want):
    reply = json.dumps(GOOD | changes)
    for text in (reply, f" {reply}\n", f"```json\n{reply}\n```"):
        result = prompting.read_reply(text)
        assert result.error is None
        assert (result.next_state, result.reward, result.outcome) == want


@pytest.mark.parametrize(
    "changes",
    [
        {"reasoning": None},
        {"reasoning": ["a"]},
        {"reasoning": "\ud800"},
        {"next_state": "a"},
        {"next_state": [1]},
        {"next_state": ["a\nb"]},
        {"next_state": [["a"]]},
        {"next_state": ["a\u2028b"]},
        {"next_state": {"1": "a"}},
        {"next_state": ["\udc00"]},
        {"reward": None},
        {"reward": "1"},
        {"reward": True},
        {"reward": [1]},
        {"reward": 10**400},
        {"reward": math.inf},
        {"reward": math.nan},
        {"outcome": "draw"},
        {"outcome": None},
        {"outcome": ["go"]},
        {"outcome": {"go": 1}},
        {"done": True},
    ],
)
def test_a_reply_of_no_sense_is_a_problem(changes):
    result = prompting.read_reply(json.dumps(GOOD | changes))
    assert result.error is not None
    result.error.encode()
    assert (result.next_state, result.reward, result.outcome) == ((), 0.0, "go")
    assert prompting.read_reply(SAID.replace("0.5", "1e999")).error is not None


@pytest.mark.parametrize("lines", [[], ["", " "]])
def test_a_state_may_be_empty(lines):
    """Whether it may in its family is for the format of the states to say."""
    reply = prompting.read_reply(json.dumps(GOOD | {"next_state": lines}))
    assert (reply.next_state, reply.error) == ((), None)


def test_a_variation_may_lack_an_instruction_where_tasks_have_none():
    text = json.dumps({"instruction": "", "initial_state": ["a"]})
    assert prompting.read_variation(text) is None
    assert prompting.read_variation(text, has_instruction=False) == ("", ("a",))
    nothing = json.dumps({"instruction": "go", "initial_state": []})
    assert prompting.read_variation(nothing) is None


PIECES = (
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\\",
    "\\u",
    "\\ud800",
    "null",
    "NaN",
    "1e999",
    "true",
    "-",
    "```",
    "```json\n",
    "\n",
    "\x00",
    "\ud800",
    "\u2028",
    '"reward"',
    '"next_state"',
    '"outcome"',
    "win",
    "9" * 5000,
    "[" * 2000,
    "é",
    " ",
)


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = rng.choice(
            [
                text[:i] + rng.choice(PIECES) + text[i:],
                text[:i] + text[min(j, i + 3) :],
                text[:i] + text[j:] + text[i:j],
                text[:i] + rng.choice(PIECES) + text[min(j, i + 8) :],
                text[:j],
            ]
        )
    return text


def test_reading_never_raises_and_keeps_its_promises():
    rng, good = random.Random(0), {True: 0, False: 0}
    variation = json.dumps({"instruction": "go", "initial_state": list(HERE)})
    for number in range(12_000):
        text = mutated(SAID, rng)
        if number % 4 == 0:
            text = "".join(rng.choices(PIECES, k=rng.randint(0, 30)))
        result = prompting.read_reply(text)
        good[result.error is None] += 1
        assert math.isfinite(result.reward)
        assert result.outcome in OUTCOMES
        if result.error is None:
            assert result.next_state
            assert all(
                x.strip() and len(x.splitlines()) == 1 for x in result.next_state
            )
            "".join((*result.next_state, result.reasoning)).encode()
        else:
            assert result.next_state == ()
            result.error.encode()
        tokens = tuple(Token(3, -0.1) for _ in range(5))
        assert not prompting.confidence(ChatReply(text, tokens)) > 1.0
        drawn = prompting.read_variation(mutated(variation, rng))
        assert drawn is None or (drawn.instruction and drawn.state)
    assert min(good.values()) > 100


# --- confidence ------------------------------------------------------------------


def pieces(*parts: tuple[str, float]) -> ChatReply:
    text = "".join(p for p, _ in parts)
    return ChatReply(text, tuple(Token(len(p.encode()), x) for p, x in parts))


def test_confidence_is_of_what_follows_the_reasoning():
    head = ('{"reasoning": "é \\"next_state\\" ', -7.0), ('now", ', -3.0)
    tail = (('"next_state": ["a"]', -0.25), (', "reward": 0, "outcome": "go"}', -0.5))
    got = prompting.confidence(pieces(*head, *tail))
    np.testing.assert_allclose(got, math.exp(-0.75))
    end = ("", -1.0)  # the token that ends the answer is a part of it
    got = prompting.confidence(pieces(*head, *tail, end))
    np.testing.assert_allclose(got, math.exp(-1.75))
    assert math.isnan(prompting.confidence(pieces(*head, *tail)._replace(tokens=None)))
    late = pieces(('{"reward": 0, "reasoning": "a", "next_state": [], "outcome"', -1.0))
    assert math.isnan(prompting.confidence(late))


def test_seed_tasks_are_shown_with_how_often_they_were_won():
    tasks = [
        Task(id=f"t{i}", instruction=f"do {i}", initial_state=(f"at {i}",))
        for i in range(3)
    ]
    group = [
        SeedTask(t, success) for t, success in zip(tasks, (0.25, None, 1), strict=True)
    ]
    system, user = prompting.vary_messages(group)
    assert "every second\ntime" in system.content
    sections = user.content.split("TASK\n")[1:]
    won = ["in 25 % of tries", "not tried yet", "in 100 % of tries"]
    assert len(sections) == 3
    for i, (section, text) in enumerate(zip(sections, won, strict=True)):
        assert f'"do {i}"' in section
        assert f"WON\n{text}\n" in section
        assert f"at {i}" in section
