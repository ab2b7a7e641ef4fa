"""JSON schemas as they are recorded, made plain: references, parts, types, null."""

import time

import pytest

from worldmodel.text.tools.json_schemas import plain_schema

WHOLE = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": WHOLE}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"$ref": "#/$defs/P"}, POINT),
        ({"$ref": "#/$defs/P", "description": "d"}, POINT | {"description": "d"}),
        (
            {"type": "array", "items": {"$ref": "#/$defs/P"}},
            {"type": "array", "items": POINT},
        ),
        (
            {"properties": {"$ref": {"$ref": "#/$defs/a~1b%20c"}}},
            {"properties": {"$ref": WHOLE}},
        ),
        ({"$ref": "#/$defs/many/1"}, WHOLE),
        # Nobody knows what these are.
        ({"$ref": "#/$defs/none"}, {}),
        ({"$ref": "other.json"}, {}),
        ({"$ref": 3}, {}),
        (
            {"allOf": [{"$ref": "#/$defs/P"}, {"properties": {"y": WHOLE}}]},
            POINT | {"properties": {"x": WHOLE, "y": WHOLE}},
        ),
        ({"allOf": [WHOLE, {"type": "string"}]}, False),
        ({"type": "FLOAT"}, {"type": "number"}),
        ({"type": ["dict", "null"]}, {"type": ["object", "null"]}),
        ({"type": "any"}, {}),
        ({"type": ["integer", "whatever"]}, {}),
        ({"type": None, "items": None, "enum": None, "$ref": None, "allOf": None}, {}),
        ({"const": None, "default": None}, {"const": None, "default": None}),
        ({"items": [WHOLE, WHOLE]}, {"items": {}}),
        (
            {"enum": [{"$ref": "#/$defs/P", "type": "float"}]},
            {"enum": [{"$ref": "#/$defs/P", "type": "float"}]},
        ),
        (
            {"properties": {"a": None, "b": True, "c": "text"}},
            {"properties": {"a": {}, "b": True, "c": {}}},
        ),
        ({"type": "string", "required": True}, {"type": "string"}),
    ],
)
def test_plain_schemas_by_hand(schema, plain):
    definitions = {"P": POINT, "a/b c": WHOLE, "many": [POINT, WHOLE]}
    assert plain_schema(schema | {"$defs": definitions}, "here") == plain


def test_references_that_lead_to_themselves_end():
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "n": WHOLE}}
    left = {"type": "object"}
    assert plain_schema(tree, "here") == {
        "type": "object",
        "properties": {"left": left, "n": WHOLE},
    }
    # Twenty definitions that all name all others, and a chain of a thousand.
    names = [f"d{i}" for i in range(20)]
    fields = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    all_others = {name: {"properties": fields} for name in names}
    chain = {f"c{i}": {"items": {"$ref": f"#/$defs/c{i + 1}"}} for i in range(1000)}
    start = time.monotonic()
    for first in ("d0", "c0"):
        plain_schema({"$ref": f"#/$defs/{first}", "$defs": all_others | chain}, "here")
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": 3}, "here.type must be a name or several, got 3"),
        ({"properties": []}, "here.properties must be an object, got []"),
        (
            {"properties": {"a": {"enum": 3}}},
            "here.properties.a.enum must be a list, got 3",
        ),
        (
            {"items": {"anyOf": {}}},
            "here.items.anyOf must be a list of schemas, got {}",
        ),
        (
            {"allOf": [{"required": [1]}]},
            "here.allOf[0].required must be a list of names",
        ),
    ],
)
def test_keywords_of_another_type_are_errors(schema, error):
    with pytest.raises(ValueError, match="here") as caught:
        plain_schema(schema, "here")
    assert str(caught.value).startswith(error)


def test_a_schema_that_is_too_deep_is_an_error():
    schema = {}
    for _ in range(3000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="here are too deep"):
        plain_schema(schema, "here")
