"""The policy: its window, its grammar, and the record of what it sampled."""

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience.examples import demonstration_example
from dreamgym.agent.policy import Situation
from tests import doubles
from worldmodel.fitting import supervised
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.text import prompts

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


def test_the_window_ends_with_the_actions_that_the_environment_lists():
    tok = doubles.tokenizer()
    task, past, state = SITUATIONS[0]
    listed = ("go left", "go right", "take coin")
    plain = doubles.policy().context(task, past, state)
    two = doubles.policy(admissible_actions=2).context(task, past, state, listed)
    added = [i for a in listed[:2] for i in (tok.control("add"), *tok.encode(a))]
    assert two == [*plain, *added]
    every = doubles.policy(admissible_actions=9)
    assert every.context(task, past, state, listed).count(tok.control("add")) == 3
    # Off by default, and nothing is added where nothing is listed.
    assert doubles.policy().context(task, past, state, listed) == plain
    assert every.context(task, past, state) == plain
    # Two lists in one state are two situations.
    turns = every.act(
        [
            Situation(task, past, state, listed),
            Situation(task, past, state, listed[:1]),
            (task, past, state),
        ],
        keys(3),
        temperature=0.7,
    )
    assert [t.context.count(tok.control("add")) for t in turns] == [3, 1, 0]


@pytest.mark.parametrize(("history", "shown"), [(0, 0), (1, 1), (9, 3)])
def test_the_window_is_as_long_as_configured(history, shown):
    policy = doubles.policy(history=history)
    ids = policy.context(*SITUATIONS[1])
    assert ids.count(doubles.tokenizer().control("past")) == shown


@pytest.mark.medium
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


@pytest.mark.medium
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
            thinking = closers[phase] == "action"
            # A thought may be empty, an action may not.
            allowed[tok.control(closers[phase])] = not start or thinking
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
        assert turn.thought == (tok.decode(turn.ids[1:split]) or None)
        assert turn.action == tok.decode(turn.ids[split + 1 : -1]).strip()
        assert split <= 5
        assert len(turn.ids) - split <= 5


def test_a_thought_may_be_empty_and_an_action_may_not():
    tok = doubles.tokenizer()
    grammar = doubles.policy(thought_tokens=4).grammar(1.0)
    assert [bool(x) for x in grammar.first[:, tok.control("action")]] == [
        False,
        True,
        False,
    ]
    assert not grammar.first[:, tok.control("end")].any()
    assert prompts.parse_turn(tok, prompts.turn_ids(tok, "fly", thinks=True)) == (
        "fly",
        None,
    )


def fitted(policy, examples, tmp_path):
    """The policy after a fit that learns a few examples by heart."""
    config = supervised.FitConfig(
        steps=120,
        batch_rows=2,
        row_tokens=64,
        eval_every=120,
        optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=5),
    )
    model, _ = supervised.fit(
        policy.model, examples, config, seed=0, directory=tmp_path
    )
    return policy.replace(model)


@pytest.mark.medium
def test_a_policy_writes_at_play_the_thought_that_it_learned(tmp_path):
    """SR's thought before its action where one was learned, none where none was."""
    policy = doubles.policy(action_tokens=6, thought_tokens=16)
    first, second = (Situation(*s) for s in SITUATIONS[:2])
    examples = [
        demonstration_example(policy, first, "go right", "the coin is east"),
        demonstration_example(policy, second, "go left"),
    ]
    actor = fitted(policy, examples, tmp_path)
    turns = actor.act([first, second], keys(2), temperature=0.0)
    assert [t.thought for t in turns] == ["the coin is east", None]
    assert [t.action for t in turns] == ["go right", "go left"]
    tok = policy.tokenizer
    assert [t.ids[0] for t in turns] == [tok.control("why")] * 2
    assert turns[1].ids[1] == tok.control("action")
    # What it samples is what it was trained on: the forced `why` carries no loss.
    for turn, example in zip(turns, examples, strict=True):
        assert [*turn.context, *turn.ids] == list(example.ids)
        assert turn.example().mask == list(example.mask)


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
