"""The policy: its window, its grammar, and the record of what it sampled."""

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PolicyConfig
from tests import doubles

TASKS = [doubles.task(0, 1, 2), doubles.task(2, 1, 2), doubles.task(1, 3, 4)]
SITUATIONS = [
    (TASKS[0], (), TASKS[0].initial_state),
    (TASKS[1], ("go left", "go right", "take coin"), TASKS[1].initial_state),
    (TASKS[2], ("go right",), TASKS[2].initial_state),
]


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def act(policy, situations=SITUATIONS, *, seed=0, temperature=0.7):
    return policy.act(situations, keys(3, seed), temperature=temperature)


def test_the_window_holds_task_last_actions_and_state():
    policy, tok = doubles.policy(history=2), doubles.tokenizer()
    ids = policy.context(*SITUATIONS[1])
    text = [tok.name(i) or tok.decode([i]) for i in ids]
    assert [x for x in text if x in ("task", "past", "state")] == [
        "task",
        "past",
        "past",
        "state",
    ]
    past = [tok.control("past"), *tok.encode("go right")]
    past += [tok.control("past"), *tok.encode("take coin")]
    at = ids.index(tok.control("past"))
    assert ids[at : at + len(past)] == past  # the two last ones, the oldest first
    assert tok.decode(ids[1:at]) == "take the coin"
    assert tok.decode(ids[at + len(past) :]).count("at 2") == 1


@pytest.mark.parametrize(("history", "shown"), [(0, 0), (1, 1), (9, 3)])
def test_the_window_is_as_long_as_configured(history, shown):
    policy = doubles.policy(history=history)
    ids = policy.context(*SITUATIONS[1])
    assert ids.count(doubles.tokenizer().control("past")) == shown


def test_a_turn_is_the_record_of_what_was_sampled():
    policy, tok = doubles.policy(action_tokens=5), doubles.tokenizer()
    for turn, situation in zip(act(policy), SITUATIONS, strict=True):
        assert list(turn.context) == policy.context(*situation)
        n = len(turn.ids)
        assert n == len(turn.logp) == len(turn.sampled) == len(turn.part)
        assert turn.ids[0] == tok.control("action")
        assert turn.ids[-1] == tok.control("end")
        assert turn.sampled[0] is False  # the opener is forced
        assert turn.logp[0] == 0.0
        assert all(turn.sampled[1:-1])
        assert turn.sampled[-1] is (n < 7)  # `end` is forced after five tokens
        assert all(p < 0 for p, s in zip(turn.logp, turn.sampled, strict=True) if s)
        assert turn.part == (1, 3, *[2] * (n - 2))
        assert turn.action == tok.decode(turn.ids[1:-1]).strip()
        assert turn.thought is None
        assert all(tok.name(i) is None for i in turn.ids[1:-1])


@pytest.mark.parametrize("thought_tokens", [0, 4])
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_log_probabilities_are_those_of_the_masked_and_heated_softmax(
    thought_tokens, temperature
):
    policy = doubles.policy(action_tokens=5, thought_tokens=thought_tokens)
    tok = doubles.tokenizer()
    text = tok.text_mask()
    closers = ["action", "end"] if thought_tokens else ["end"]
    for turn in act(policy, temperature=temperature):
        ids = np.array([*turn.context, *turn.ids], np.int32)[None]
        ids = np.pad(ids, ((0, 0), (0, 64 - ids.shape[1])))  # one compiled shape
        logits = doubles.logits(ids)
        phase, start, at = 0, True, len(turn.context)
        for i, token in enumerate(turn.ids):
            if i == 0:
                continue  # the opener
            allowed = text.copy()
            allowed[tok.control(closers[phase])] = not start
            row = np.where(allowed, logits[0, at + i - 1] / temperature, -np.inf)
            logp = row - row.max() - np.log(np.exp(row - row.max()).sum())
            expected = logp[token] if turn.sampled[i] else 0.0
            np.testing.assert_allclose(turn.logp[i], expected, atol=2e-5)
            start = tok.name(token) is not None
            phase += start and phase + 1 < len(closers)


def test_a_turn_may_begin_with_a_thought():
    policy = doubles.policy(action_tokens=3, thought_tokens=4)
    tok = doubles.tokenizer()
    for turn in act(policy):
        names = [tok.name(i) for i in turn.ids if tok.name(i)]
        assert names == ["why", "action", "end"]
        split = turn.ids.index(tok.control("action"))
        assert turn.thought == tok.decode(turn.ids[1:split])
        assert turn.action == tok.decode(turn.ids[split + 1 : -1]).strip()
        assert split <= 5
        assert len(turn.ids) - split <= 5


def test_the_same_key_gives_the_same_turn_whoever_else_acts():
    policy = doubles.policy(action_tokens=5)
    turns = act(policy)
    assert turns == act(policy)
    alone = policy.act(SITUATIONS[1:2], keys(3)[1:2], temperature=0.7)
    assert alone == turns[1:2]
    other = act(policy, seed=1)
    assert [t.ids for t in other] != [t.ids for t in turns]


def test_temperature_zero_is_greedy():
    policy = doubles.policy(action_tokens=5)
    one, two = (act(policy, seed=s, temperature=0.0) for s in (0, 1))
    assert [t.ids for t in one] == [t.ids for t in two]
    turn = one[0]
    ids = np.array([[*turn.context, turn.ids[0]]], np.int32)
    row = doubles.logits(ids)[0, -1]
    best = np.where(doubles.tokenizer().text_mask(), row, -np.inf).argmax()
    assert turn.ids[1] == best


def test_replaced_parameters_act_otherwise():
    policy = doubles.policy(action_tokens=5)
    before = act(policy)
    other = policy.replace(doubles.model(7))
    assert other.config == policy.config
    assert [t.ids for t in act(other)] != [t.ids for t in before]
    assert act(policy) == before


@pytest.mark.parametrize(
    ("setting", "value"),
    [("history", -1), ("thought_tokens", -1), ("action_tokens", 0)],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=setting):
        PolicyConfig(**{setting: value})
