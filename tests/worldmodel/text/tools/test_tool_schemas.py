"""Schemas of tools: what a call must have, and what a task may list."""

import pytest

from worldmodel.data.records import Task
from worldmodel.text.tools.json_schemas import value_fits
from worldmodel.text.tools.tool_calls import Call
from worldmodel.text.tools.tool_schemas import call_error, tool_schemas, tool_words

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}


def schemas(*tools):
    out = tool_schemas(Task(id="t", instruction="", options={"tools": list(tools)}))
    assert out is not None
    return out


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (Call("weather", {"city": "Paris"}), None),
        (Call("weather", {"city": "Paris", "days": 2, "unit": "F"}), None),
        (Call("weather", {"wrong": 3}), "weather has no argument 'wrong'"),
        (Call("weather", {"days": 2}), "weather needs the argument 'city'"),
        (Call("weather", {"city": 3}), "city does not fit its schema, got 3"),
        (Call("weather", {"city": "x", "days": 1.5}), "days does not fit"),
        (Call("weather", {"city": "x", "days": True}), "days does not fit"),
        (Call("weather", {"city": "x", "unit": "K"}), "unit does not fit"),
        (Call("news", {}), "no tool 'news'; have weather"),
        (Call("weather", {}, False), "the arguments of weather are no JSON object"),
        (Call("", {}, False), "the arguments of the call are no JSON object"),
    ],
)
def test_what_is_wrong_with_a_call(call, error):
    got = call_error(call, schemas(WEATHER))
    assert got == error if error is None else got is not None and got.startswith(error)


def test_arguments_that_are_not_listed_by_hand():
    properties = {"a": {"type": "string"}}

    def error(more, b):
        parameters = {"type": "object", "properties": properties} | more
        tools = schemas({"name": "f", "parameters": parameters})
        return call_error(Call("f", {"a": "x", "b": b}), tools)

    assert "no argument 'b'" in (error({}, 1) or "")
    assert "no argument 'b'" in (error({"additionalProperties": False}, 1) or "")
    assert error({"additionalProperties": {}}, 1) is None
    assert error({"additionalProperties": True}, 1) is None
    whole = {"additionalProperties": {"type": "integer"}}
    assert error(whole, 1) is None
    assert "b does not fit" in (error(whole, "no") or "")


def test_a_custom_tool_takes_one_text():
    tools = schemas({"type": "custom", "custom": {"name": "run", "description": "d"}})
    assert call_error(Call("run", {"input": "print(1)"}), tools) is None
    assert "needs the argument 'input'" in (call_error(Call("run", {}), tools) or "")


def test_tools_in_every_form_in_which_they_are_recorded():
    flat = {"name": "f", "parameters": {"properties": {"a": {}}, "required": ["a"]}}
    anthropic = {"name": "g", "input_schema": {"properties": {}}}
    got = schemas(flat, anthropic, {"type": "web_search"}, {"name": "h"})
    assert list(got) == ["f", "g", "web_search", "h"]
    assert call_error(Call("f", {"a": [1]}), got) is None
    assert call_error(Call("g", {"a": 1}), got) == "g has no argument 'a'; have none"
    # Nobody said what these two take.
    assert call_error(Call("web_search", {"q": "x"}), got) is None
    assert call_error(Call("h", {"q": "x"}), got) is None
    assert tool_schemas(Task(id="t", instruction="")) is None


@pytest.mark.parametrize("tools", ["x", [3], [{}], [{"function": {"name": 3}}]])
def test_tools_of_no_sense_name_the_task(tools):
    with pytest.raises(ValueError, match=r"task 't': options\['tools'\]"):
        tool_schemas(Task(id="t", instruction="", options={"tools": tools}))


def test_keywords_of_another_type_are_named_and_null_is_absent():
    nested = {"type": "object", "properties": None, "required": None}
    parameters = {"properties": {"a": nested, "b": None}, "required": None}
    tools = schemas({"name": "f", "parameters": parameters})
    assert call_error(Call("f", {"a": {"x": 1}, "b": 2}), tools) is None
    nested["required"] = "x"
    place = r"options\['tools'\]\[0\] \(f\)\.parameters\.properties\.a\.required"
    with pytest.raises(ValueError, match=f"{place} must be a list of names, got 'x'"):
        schemas({"name": "f", "parameters": parameters})


def test_arguments_of_which_no_value_fits_all_parts():
    parts = [{"type": "object", "properties": {"a": {}}}, {"type": "string"}]
    tools = schemas({"name": "f", "parameters": {"allOf": parts}})
    assert call_error(Call("f", {"a": 1}), tools) == "f has no argument 'a'; have none"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number"}, [1, 2.5], [True, "1", None]),
        ({"type": "integer"}, [1], [2.0, 2.5, False]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["1"]),
        ({"const": 1}, [1], [True, 1.0, 2]),
        ({"enum": [1, "a"]}, [1, "a"], [True, "b"]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1]], [["a"], "a"]),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "null"}},
                "required": ["a"],
            },
            [{"a": None}, {"a": None, "b": 1}],
            [{}, {"a": 1}],
        ),
        ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "b"}]),
        ({"additionalProperties": False}, [{}], [{"a": 1}]),
        ({}, [1, "a", None, [], {}], []),
        ({"type": "unheard of"}, [1, "a"], []),
    ],
)
def test_values_and_their_schemas(schema, good, bad):
    assert [value_fits(v, schema) for v in [*good, *bad]] == [True] * len(good) + [
        False
    ] * len(bad)


def test_the_words_of_tools_by_hand():
    tool = {"name": "read_crateOf", "description": "Return its Age", "parameters": {}}
    task = Task(id="t", instruction="of two hangars", options={"tools": [tool]})
    assert {"read_crateof", "read", "crate", "of", "return", "age"} <= tool_words(task)
    assert "two" not in tool_words(task)
    assert tool_words(Task(id="t", instruction="read")) == frozenset()
