"""Signatures of tools whose schemas have objects inside each other."""

import functools
from typing import NotRequired, TypedDict

import pytest

from dreamgym.envs import base
from dreamgym.envs.tools.hints import MAX_OBJECTS, hint_text
from dreamgym.envs.tools.signatures import Signature
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from worldmodel.data.records import Task
from worldmodel.text.tools.json_schemas import value_fits

WHOLE = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": WHOLE}, "required": ["x"]}


@functools.cache
def signature() -> Signature:
    properties = {
        "at": {"$ref": "#/$defs/Point"},
        "path": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "how": {"type": "object", "properties": {"fast": {"type": "bool"}}},
        "either": {
            "anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}],
            "default": None,
        },
        "counts": {"type": "dict", "additionalProperties": WHOLE},
        "no": {"allOf": [{"type": "object", "properties": {"a": False, "b": WHOLE}}]},
    }
    schema = {"properties": properties, "required": ["at"], "$defs": {"Point": POINT}}
    return Signature.of_schema("move", "Move it.", schema)


def test_an_agent_reads_the_fields_of_objects():
    assert str(signature()) == (
        "move(at: {x: int}, path?: list[{x: int}], how?: {fast?: bool}, either: "
        "{x: int} | null = null, counts?: dict[str, int], no?: {b?: int}) Move it"
    )
    assert signature().never_tried() == ["at"]


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"at": {"x": 1}}, True),
        ({"at": {"x": 1, "more": "2"}, "either": None, "how": {}}, True),
        ({"at": {"x": "1"}}, False),
        ({"at": {}}, False),
        ({"at": 3}, False),
        ({"at": {"x": 1}, "path": [{"x": 1}, {}]}, False),
        ({"at": {"x": 1}, "how": {"fast": 1}}, False),
        ({"at": {"x": 1}, "counts": {"a": "b"}}, False),
    ],
)
def test_the_fields_of_objects_are_checked(arguments, fits):
    parameters = signature().schema()["function"]["parameters"]
    assert value_fits(arguments, parameters) == fits
    if fits:
        signature().check(arguments)
    else:
        with pytest.raises(ValueError, match=" must be "):
            signature().check(arguments)


def test_objects_far_inside_are_read_as_dicts():
    schema = WHOLE
    for _ in range(MAX_OBJECTS + 1):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    text = str(Signature.of_schema("f", "", {"properties": {"v": schema}}))
    assert text == "f(v?: {a: {a: {a: dict}}})"


def test_a_method_may_take_a_typed_dict():
    class Point(TypedDict):
        x: int
        y: NotRequired[int]

    class Map(ToolEnv):
        def start(self, task):
            return task.id

        @tool
        def go(self, to: Point) -> str:
            return str(to["x"])

    assert hint_text(Point) == "{x: int, y?: int}"
    env = Map()
    base.begin(env, Task(id="t", instruction="go"))
    assert base.take(env, 'go {"to": {"x": 3}}').state == ("result 3",)
    step = base.take(env, 'go {"to": {"x": "3"}}')
    assert step.state == ('result error: to must be {x: int, y?: int}, got {"x": "3"}',)
