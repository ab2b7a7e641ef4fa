import dataclasses

import jax
import numpy as np
import pytest

from worldmodel.backbone.generate import generate
from worldmodel.data import outcomes
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.grammar import (
    REWARD_TOKENS,
    reply_grammar,
    variation_grammar,
)
from worldmodel.text import prompts
from worldmodel.text.task_variations import variation_ids

SHAPE = ExperienceConfig(reasoning_tokens=6, state_tokens=10, demonstrations=1)
HERE = ("the lamp is off", "the door is shut")


def task(name="t1") -> Task:
    return Task(id=name, instruction="make it bright", family="room", env="room")


def test_each_part_is_cut_as_its_setting_says_and_numbers_are_greedy(tok):
    config = dataclasses.replace(
        SHAPE, reasoning_min_p=0.2, state_min_p=0.4, temperature=0.7
    )
    grammar = reply_grammar(tok, config)
    np.testing.assert_allclose(grammar.min_p, [0.2, 0.4, 0.0, 0.0])
    np.testing.assert_allclose(grammar.temperature, [0.7, 0.7, 0.0, 0.0])


def test_a_reward_that_is_no_number_is_a_problem_and_earns_nothing(tok):
    # The grammar can write "--", "1-" or "1 1": told, and never taken for a reward.
    grammar = reply_grammar(tok, SHAPE)
    more = np.array(grammar.allowed[2])
    more[tok.control("outcome")] = False
    read = {True: 0, False: 0}
    for one in np.flatnonzero(grammar.first[2]).tolist():
        for two in ([], *([i] for i in np.flatnonzero(more).tolist())):
            reply = [tok.control("reward"), one, *two, tok.control("go")]
            answer = prompts.parse_reply(tok, reply, HERE)
            try:
                value = float(tok.decode([one, *two]))
            except ValueError:
                assert answer.error is not None
                assert answer.reward == 0.0
                read[False] += 1
            else:
                assert answer.error is None
                assert answer.reward == value
                read[True] += 1
    assert min(read.values()) > 0


def phases_of(tok, ids):
    """A reply's ids split where `next`, `reward` and `outcome` open a part."""
    at = [ids.index(tok.control(n)) for n in ("next", "reward", "outcome")]
    return ids[: at[0]], ids[at[0] : at[1]], ids[at[1] : at[2]], ids[at[2] :]


@pytest.mark.medium
def test_replies_keep_to_the_grammar(tok, text_model):
    grammar = reply_grammar(tok, SHAPE)
    n = 16
    context = prompts.query_ids(tok, task(), (), [], HERE, "press lamp", history=2)
    keys = jax.random.split(jax.random.key(0), n)
    text, number = tok.text_mask(), tok.number_mask()
    openers = {tok.line(i) for i in range(32)} | {
        tok.control("add"),
        tok.control("full"),
    }
    same = {tok.control("same")}
    for out in generate(text_model, [context] * n, grammar, keys, max_tokens=30):
        ids = out.ids[0, : out.length[0]].tolist()
        why, script, value, end = phases_of(tok, ids)
        assert 1 <= len(why) <= SHAPE.reasoning_tokens
        assert text[why].all()
        assert len(script) <= 2 + SHAPE.state_tokens
        assert len(script) == 1 or script[1] in openers
        assert all(i in openers | same or text[i] for i in script[1:])
        assert 2 <= len(value) <= 2 + 8
        assert number[value[1:]].all()
        assert [tok.name(i) in outcomes.OUTCOMES for i in end] == [False, True]


@pytest.mark.medium
def test_variations_keep_to_the_grammar(tok, text_model):
    most = 10
    grammar = variation_grammar(tok, SHAPE, most, 20)
    about = dataclasses.replace(
        task("s0"), options={"level": 3}, initial_state=HERE, lineage=("s",)
    )
    context = variation_ids(tok, [SeedTask(about)])
    keys = jax.random.split(jax.random.key(2), 16)
    for out in generate(text_model, [context] * 16, grammar, keys, max_tokens=32):
        names = [tok.name(i) for i in out.ids[0, : out.length[0]].tolist()]
        assert names[0] is None
        at = names.index("state")
        assert names[at + 1] == "line0"
        assert names[-1] == "end"
        assert names.count("end") == names.count("state") == 1
        assert at <= most


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"history": -1}, "must be >= 0, got -1, 1, 160 and 7"),
        ({"demonstrations": -2}, "got 2, -2, 160 and 7"),
        ({"retries": -1}, "got 2, 1, 160 and -1"),
        ({"state_tokens": 0}, "must be >= 1"),
        ({"temperature": -0.1}, "got -0.1, 0.1 and 0.03"),
        ({"reasoning_min_p": 1.5}, r"state_min_p in \[0, 1\], got 1.0, 1.5 and 0.03"),
        ({"state_min_p": -0.5}, "got 1.0, 0.1 and -0.5"),
    ],
)
def test_a_wrong_config_is_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        ExperienceConfig(**change)


def test_a_reply_as_long_as_its_room_is_whole(tok, text_model):
    grammar = reply_grammar(tok, SHAPE)
    context = prompts.query_ids(tok, task(), (), [], HERE, "press lamp", history=2)
    keys = jax.random.split(jax.random.key(0), 16)
    for out in generate(text_model, [context] * 16, grammar, keys, max_tokens=30):
        n = out.length[0]
        forced = out.phase[0, :n][~out.sampled[0, :n]]
        for phase, room in ((1, SHAPE.state_tokens), (2, REWARD_TOKENS)):
            # What closes a phase is one token more.
            assert (phase in forced) == ((out.phase[0, :n] == phase).sum() > room + 1)


def test_rewards_have_the_room_that_the_data_need(tok):
    ids = tok.encode(outcomes.number_text(-12345.678))
    assert len(ids) > REWARD_TOKENS
    wide = reply_grammar(tok, SHAPE, len(ids))
    usual = reply_grammar(tok, SHAPE)
    assert (wide.max_tokens[2], usual.max_tokens[2]) == (
        len(ids) + 1,
        REWARD_TOKENS + 1,
    )
