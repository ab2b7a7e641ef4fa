"""Strict actions: whatever a policy samples is a call of a known tool or an answer."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience.examples import bc_examples
from dreamgym.agent.policy import Policy
from dreamgym.agent.strict_actions import strict_actions
from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.model import create, forward
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.references import reference_rule
from worldmodel.text.token_bytes import token_bytes
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.tools.action_automaton import action_automaton
from worldmodel.text.tools.tool_calls import read_action, write_answer, write_call
from worldmodel.text.tools.tool_schemas import ToolSchema, call_error, schemas_of

TOOLS = {
    tool.name: tool
    for tool in (
        ToolSchema(
            "put",
            {
                "key": {"type": "string"},
                "value": {"type": "integer"},
                "mode": {"enum": ["new", "newer", 2]},
            },
            frozenset({"key", "value"}),
        ),
        ToolSchema("get_all", {}),
        ToolSchema("get", {"key": {"type": ["string", "null"]}}),
        ToolSchema("any", {"x": {}}, frozenset({"x"})),
        ToolSchema(
            "nested",
            {
                "rows": {"type": "array", "items": {"type": "number"}},
                "at": {
                    "type": "object",
                    "properties": {"on": {"type": "boolean"}},
                    "required": ["on"],
                    "additionalProperties": False,
                },
            },
        ),
        ToolSchema("free", {}, others=True),
    )
}


def accepts(automaton, text: str) -> bool:
    state = 0
    for byte in f" {text}".encode():
        state = automaton.next_state[state, byte]
        if state < 0:
            return False
    return bool(automaton.final[state])


@functools.cache
def automaton():
    return action_automaton(TOOLS)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("put", {"key": "a", "value": 0}),
        ("put", {"key": 'é "\\ \u2028 ☃', "value": -12, "mode": "newer"}),
        ("put", {"key": "", "value": 10, "mode": 2}),
        ("get_all", {}),
        ("get", {}),
        ("get", {"key": None}),
        ("any", {"x": {"a": [True, None]}}),
        ("any", {"x": [1.5, "b"]}),
        ("nested", {"rows": [], "at": {"on": True}}),
        ("nested", {"rows": [1, -0.25]}),
        ("free", {}),
        ("free", {"a": 1, "b": {"c": "d"}}),
    ],
)
def test_calls_that_fit_are_accepted(tool, arguments):
    text = write_call(tool, arguments)
    assert accepts(automaton(), text)
    assert accepts(automaton(), f"{text}\n{text}")
    assert not accepts(automaton(), text[:-1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go north",
        "news {}",
        "put {}",
        'put {"key": "a"}',
        'put {"value": 1, "key": "a"}',  # in the order of the schema only
        'put {"key": "a", "value": 1.5}',
        'put {"key": "a", "value": 01}',
        'put {"key": "a", "value": 1, "mode": "ne"}',
        'put {"key": "a", "value": 1, "wrong": 2}',
        'put {"key": "a", "value": 1e999}',
        'put {"key": "\n", "value": 1}',
        'get {"key": 3}',
        "get_all {}\n",
        "get_al {}",
        'nested {"at": {}}',
        f"get_all {{}}\n{write_answer('x')}",  # an answer stands alone
    ],
)
def test_what_does_not_fit_is_not_accepted(text):
    assert not accepts(automaton(), text)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=8), st.integers(-(10**9), 10**9))
def test_every_text_and_number_can_be_written(text, number):
    # json.dumps writes control characters as \u00XX, which the automaton leaves out.
    plain = all((c >= " " and c != "\x7f") or c in "\n\t\r\b\f" for c in text)
    call = write_call("put", {"key": text, "value": number})
    assert accepts(automaton(), call) == plain or "\x7f" in text
    assert accepts(automaton(), write_answer(text)) == plain or "\x7f" in text


def walks(machine, count):
    """Return texts that random steps through an automaton write."""
    rng, texts = np.random.default_rng(0), []
    while len(texts) < count:
        state, text = 0, b""
        while len(text) < 60:
            ways = np.flatnonzero(machine.next_state[state, :256] >= 0)
            if machine.final[state] and (not len(ways) or rng.random() < 0.5):
                texts.append(text.decode(errors="replace")[1:])
                break
            printable = ways[(ways >= 0x20) & (ways < 0x7F) | (ways == ord("\n"))]
            # Short texts: a quotation mark ends one.
            ends = printable[printable == ord('"')]
            drawn = ends if len(ends) and rng.random() < 0.5 else printable
            text += bytes([int(rng.choice(drawn))])
            state = machine.next_state[state, text[-1]]
    return texts


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
EITHER = [{"required": ["x"]}, {"required": ["y"]}]
CHAIN = {
    "type": "object",
    "properties": {"k": WHOLE, "next": {"$ref": "#/$defs/K"}},
    "required": ["k"],
}


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"anyOf": EITHER, "properties": {"x": WHOLE, "y": WHOLE}}, {"x": 1}),
        ({"type": "object", "oneOf": EITHER, "properties": {"a": WHOLE}}, {"x": "b"}),
        (
            {"anyOf": EITHER, "properties": {"x": TEXT}, "additionalProperties": False},
            {"x": "b"},
        ),
        ({"anyOf": [TEXT, WHOLE], "enum": ["a", 2.5, 3]}, 3),
        ({"anyOf": [{"type": "number"}, TEXT], "type": "integer"}, 7),
        ({"type": "string", "enum": ["x", 3]}, "x"),
        ({"type": ["string", "null"], "const": None}, None),
        ({"type": "object", "required": ["b"]}, {"b": True}),
        ({"anyOf": [{"type": "null"}, WHOLE, False], "type": "integer"}, 1),
        ({"properties": {"a": {"type": "null", "enum": [1]}, "b": WHOLE}}, {"b": 1}),
        ({"const": 1, "anyOf": [{"const": 2}, {"const": 1}]}, 1),
        ({"anyOf": [{"oneOf": [WHOLE, TEXT]}], "oneOf": [TEXT]}, "a"),
        ({"type": "object", "properties": {"a": False}}, {}),
        (
            {
                "type": "object",
                "properties": {"a": WHOLE, "b": WHOLE},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            {"b": 3},
        ),
        ({"properties": {"a": False, "b": WHOLE}, "type": "object"}, {"b": 1}),
        (
            {
                "anyOf": [{"items": WHOLE}, {"type": "null"}],
                "type": "array",
                "items": {"enum": [1, 2, "c"]},
            },
            [2],
        ),
        # Types that JSON does not have, references, parts that all must hold, null.
        ({"type": "float"}, 1.5),
        ({"type": "any"}, {"a": [1.5]}),
        ({"type": ["tuple", "null"], "items": {"type": "any"}}, [1, "a"]),
        ({"type": "dict", "properties": {"k": WHOLE}, "required": None}, {"k": 1}),
        ({"$ref": "#/$defs/K"}, {"k": 1, "next": {"a": 2}}),
        ({"type": "array", "items": {"$ref": "#/$defs/K"}}, [{"k": 1}, {"k": 2}]),
        ({"allOf": [{"$ref": "#/$defs/K"}, {"properties": {"next": False}}]}, {"k": 1}),
    ],
)
def test_every_call_that_can_be_written_fits_its_schema(schema, written):
    parameters = {"properties": {"v": schema}, "required": ["v"], "$defs": {"K": CHAIN}}
    tools = schemas_of([{"name": "f", "parameters": parameters}], "tools")
    machine = action_automaton(tools)
    assert accepts(machine, write_call("f", {"v": written}))
    texts = [x for x in walks(machine, 60) if not x.startswith("answer")]
    assert len(texts) > 20
    for text in texts:
        for call in read_action(text).calls:
            assert call_error(call, tools) is None, text


@pytest.mark.parametrize("value", [{"k": "no"}, {}, 3, [{"k": 1}]])
def test_the_fields_behind_a_reference_are_held(value):
    parameters = {"properties": {"v": {"$ref": "#/$defs/K"}}, "$defs": {"K": CHAIN}}
    tools = schemas_of([{"name": "f", "parameters": parameters}], "tools")
    call = write_call("f", {"v": value})
    assert not accepts(action_automaton(tools), call)
    assert "v does not fit" in (call_error(read_action(call).calls[0], tools) or "")


def test_further_arguments_fit_their_schema():
    tools = {"f": ToolSchema("f", {"a": TEXT}, frozenset({"b"}), WHOLE)}
    machine = action_automaton(tools)
    assert accepts(machine, 'f {"b": 2, "c": 3}')
    assert not accepts(machine, 'f {"a": "x"}')
    assert not accepts(machine, 'f {"b": "x"}')
    with pytest.raises(ValueError, match="'f' requires the argument 'b', which its sc"):
        action_automaton({"f": ToolSchema("f", {"a": TEXT}, frozenset({"b"}))})


def test_a_tool_that_cannot_be_read_back_is_refused():
    for name in ("answer", "2x", "with blank", "", "/files", "-x", ".x", "é"):
        with pytest.raises(ValueError, match="expected a name of letters"):
            action_automaton({name: ToolSchema(name, {})})


# --- tokens ------------------------------------------------------------------


@functools.cache
def tokenizer() -> TextTokenizer:
    calls = [write_call("put", {"key": f"k{i}", "value": i}) for i in range(30)]
    texts = [*calls, *(write_answer("it is so") for _ in range(9)), "take the coin é"]
    return TextTokenizer.train(texts, 420)


@functools.cache
def policy(action_tokens=24, thought_tokens=0, seed=0) -> Policy:
    tok = tokenizer()
    shape = ModelConfig(
        vocab_size=tok.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
    )
    config = PolicyConfig(
        actions="json", action_tokens=action_tokens, thought_tokens=thought_tokens
    )
    return Policy(create(shape, seed=seed), tok, config, strict_actions(tok, TOOLS))


TASK = Task(id="t", instruction="take the coin", initial_state=("a 1",))


def turns(actor: Policy, count=64, temperature=1.0):
    keys = jax.random.split(jax.random.key(1), count)
    return actor.act([(TASK, (), ("a 1",))] * count, keys, temperature=temperature)


def test_tokens_are_their_bytes():
    tok = tokenizer()
    spelling = token_bytes(tok)
    for text in ("put the é ☃ {}", 'x "\n\\ \x00'):
        assert b"".join(spelling[i] for i in tok.encode(text)) == f" {text}".encode()


@pytest.mark.parametrize(
    ("action_tokens", "thought_tokens", "temperature"),
    [
        (24, 0, 1.0),
        (3, 0, 1.0),
        pytest.param(24, 5, 1.0, marks=pytest.mark.slow),
        pytest.param(24, 0, 0.0, marks=pytest.mark.slow),
        pytest.param(60, 0, 3.0, marks=pytest.mark.slow),
    ],
)
def test_whatever_a_random_policy_samples_fits(
    action_tokens, thought_tokens, temperature
):
    actor = policy(action_tokens, thought_tokens)
    sampled = turns(actor, temperature=temperature)
    limit = actor.strict.tokens(action_tokens)
    for turn in sampled:
        action = read_action(turn.action)
        assert action.calls or turn.action.startswith("answer {"), turn.action
        assert all(call_error(c, TOOLS) is None for c in action.calls), turn.action
        assert turn.ids[-1] == actor.tokenizer.control("end")
        assert len(turn.ids) <= limit + thought_tokens + 3
        assert turn.action
    if temperature:
        assert len({t.action for t in sampled}) > 10


def test_a_free_policy_writes_nothing_that_fits():
    # The control: without the automaton the same model writes no call at all.
    strict = policy()
    free = Policy(strict.model, strict.tokenizer, strict.config)
    assert not any(read_action(t.action).calls for t in turns(free))


def test_log_probabilities_are_those_of_the_draws():
    actor = policy()
    grammar = actor.grammar(1.0)
    masks = np.stack([grammar.allowed, grammar.first], axis=1)
    masks = masks.reshape(-1, grammar.allowed.shape[1])
    for turn in turns(actor, 6):
        ids = np.zeros((1, 64), int)  # one shape to compile; padding comes last
        ids[0, : len(turn.context) + len(turn.ids)] = [*turn.context, *turn.ids]
        model, place = actor.model, np.arange(ids.shape[1])[None]
        logits = np.asarray(
            forward(model.definition, model.params, ids, place, np.ones_like(ids))
        )[0]
        for i, (token, logp, free, part) in enumerate(
            zip(turn.ids, turn.logp, turn.sampled, turn.part, strict=True)
        ):
            if not free:
                assert logp == 0.0
                continue
            row = np.where(masks[part], logits[len(turn.context) + i - 1], -np.inf)
            want = row[token] - np.log(np.exp(row - row.max()).sum()) - row.max()
            np.testing.assert_allclose(logp, want, atol=1e-4)


def test_a_strict_action_that_the_limit_finished_is_not_void():
    cut = [t for t in turns(policy(3)) if not t.sampled[-1]]
    assert cut
    assert not any(t.void for t in cut)


@pytest.mark.parametrize(("key", "count"), [("Key{}", 1), ("{}", 2)])
def test_demonstrations_are_written_as_the_automaton_reads_them(key, count):
    """Names and numbers have references in texts; a value of type number is spelled."""
    episodes = [
        Episode(
            id=f"e{i}",
            task=Task(id=f"e{i}", instruction=f"put {i} under {key.format(i)}"),
            source="expert",
            success=True,
            transitions=(
                Transition(
                    state=(f"keys {key.format(i)} {i}",),
                    action=write_call("put", {"key": key.format(i), "value": i}),
                    next_state=("ok",),
                    terminated=True,
                    success=True,
                ),
            ),
        )
        for i in range(20, 60)
    ]
    rule = reference_rule(episodes)
    assert rule is not None
    texts = [t.action for e in episodes for t in e.transitions]
    tok = TextTokenizer.train(texts, 420, references=rule)
    shape = ModelConfig(
        vocab_size=tok.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
    )
    strict = strict_actions(tok, TOOLS)
    actor = Policy(create(shape, seed=0), tok, PolicyConfig(actions="json"), strict)
    following = strict.automaton.next_state
    for example in bc_examples(actor, episodes):
        state, references = 0, 0
        start = example.ids.index(tok.control("action")) + 1
        for token in example.ids[start:]:
            state = following[state, token]
            assert state != -1, tok.decode(example.ids[start:])
            references += token in tok.references
        assert state == -2
        # The key is copied, a number behind its marker, and the value is not.
        assert references == count
