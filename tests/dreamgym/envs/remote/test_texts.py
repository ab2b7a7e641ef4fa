"""Observations as text, text as actions, and what is refused."""

import math

import pytest

from dreamgym.envs.remote.connection import (
    ProtocolError,
    ServerRefusal,
    parse_answer,
)
from dreamgym.envs.remote.texts import (
    ActionFormat,
    action_format,
    action_help,
    observation_text,
    result_of,
)

TEXT = {"type": "string"}


def schema(*required, title="Action", **properties):
    metadata = {"metadata": {"type": "object"}}
    return {
        "title": title,
        "properties": properties | metadata,
        "required": list(required),
    }


@pytest.mark.parametrize(
    ("of", "field"),
    [
        (schema("message", message=TEXT), "message"),
        (schema("code", code=TEXT, seconds={"type": "number"}), "code"),
        (schema("code", code={"anyOf": [TEXT, {"type": "null"}]}), "code"),
        (schema(command=TEXT), "command"),
        (schema("n", n={"type": "integer"}), ""),
        (schema("a", "b", a=TEXT, b=TEXT), ""),
        (schema(a=TEXT, b=TEXT), ""),
    ],
)
def test_the_one_field_that_takes_text_takes_the_reply(of, field):
    form = action_format(of)
    assert form == ActionFormat(field)
    if field:
        assert form.action("go {north}") == {field: "go {north}"}
        assert action_help(of, form) == ""


def test_several_fields_are_written_as_json():
    of = schema("a", "n", a=TEXT, n={"type": "integer"})
    form = action_format(of)
    assert form.action('{"a": "x", "n": 3}') == {"a": "x", "n": 3}
    assert form.action('```json\n{"a": "x"}\n```') == {"a": "x"}
    assert action_help(of, form) == (
        'An action is a JSON object with the fields {"a": "string", "n": "integer"}.'
    )
    for text in ("go north", "[1]", "", "[" * 100_000):
        with pytest.raises(ValueError, match="expected a JSON object"):
            form.action(text)
    assert action_format(of, "a") == ActionFormat("a")


@pytest.mark.parametrize(
    ("of", "field", "message"),
    [
        (None, "", "expected a JSON schema"),
        ({"properties": []}, "", "expected a JSON schema"),
        (schema("x", x=TEXT), "y", r"no field 'y'; it has \['x'\]"),
        (schema("x", x=TEXT, title="CallToolAction"), "", "MCP tools"),
    ],
)
def test_schemas_that_cannot_be_played_are_named(of, field, message):
    with pytest.raises(ProtocolError, match=message):
        action_format(of, field)


@pytest.mark.parametrize(
    ("observation", "field", "text"),
    [
        ({"text": "a\nb", "metadata": {}}, "", "a\nb"),
        ({"prompt": "p", "message": "m"}, "", "m"),
        ({"prompt": "p", "message": "m"}, "prompt", "p"),
        ({"board": [1, 2], "turn": "x", "done": False}, "", "board [1, 2]\nturn x"),
        ({"text": 3, "content": "c"}, "", "c"),
        ({}, "", ""),
    ],
)
def test_what_the_agent_sees(observation, field, text):
    assert observation_text(observation, field) == text


def test_observations_that_are_none_are_refused():
    for bad, field in ((None, ""), ([1], ""), ("x", ""), ({"a": 1}, "a"), ({}, "a")):
        with pytest.raises(ProtocolError, match="expected"):
            observation_text(bad, field)


def test_flags_are_found_wherever_a_server_puts_them():
    for data in (
        {"metadata": {"truncated": True, "success": False}},
        {"observation": {"metadata": {"truncated": True, "success": False}}},
        {"observation": {"truncated": True, "success": False}},
        {"truncated": True, "success": False},
    ):
        result = result_of(data | {"reward": 0.5, "done": True})
        assert (result.reward, result.done, result.truncated) == (0.5, True, True)
        assert result.facts == {"success": False}
    odd = {"metadata": {"success": "yes", "instruction": 3, "invalid": 1}, "done": True}
    assert result_of(odd) == (None, True, False, {})
    # A step that does not end is not truncated, whatever is said.
    assert result_of({"metadata": {"truncated": True}, "reward": True})[:3] == (
        1.0,
        False,
        False,
    )


@pytest.mark.parametrize(
    "data",
    [
        {"reward": "1"},
        {"reward": [1]},
        {"reward": math.nan},
        {"reward": math.inf},
        {"reward": 10**400},
        {"done": 1},
        {"done": None},
    ],
)
def test_rewards_and_ends_of_another_kind_are_refused(data):
    with pytest.raises(ProtocolError, match="expected"):
        result_of(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "3",
        '{"type": "observation"}',
        '{"type": "state", "data": {}}',
        '{"type": "observation", "data": [1]}',
        "[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_answers_that_make_no_sense_are_refused(text):
    with pytest.raises(ProtocolError, match="expected"):
        parse_answer(text)


def test_an_error_is_one_of_the_server():
    with pytest.raises(ServerRefusal, match=r"no room \(CAPACITY_REACHED\)") as error:
        parse_answer(
            '{"type": "error", "data": {"code": "CAPACITY_REACHED", '
            '"message": "no room"}}'
        )
    assert error.value.code == "CAPACITY_REACHED"
    with pytest.raises(ServerRefusal, match="None"):
        parse_answer('{"type": "error", "data": {}}')
