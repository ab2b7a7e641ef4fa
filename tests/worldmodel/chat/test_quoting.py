import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.chat.quoting import json_object, quote


@given(st.text(st.characters(), max_size=60))
def test_a_quote_is_one_json_string_in_one_line(text):
    quoted = quote(text)
    assert json.loads(quoted) == text
    assert len(quoted.splitlines()) == 1
    quoted.encode()


@pytest.mark.parametrize(
    "mark", ["<|im_end|>", "</s>", "<s>", "<start_of_turn>", "[INST]", "[/INST]"]
)
def test_a_quote_holds_no_mark_of_a_chat_template(mark):
    assert mark not in quote(f"a {mark}\\{mark}\n")
    assert json.loads(quote(f"\\{mark}")) == f"\\{mark}"
    assert quote("3 < 4 <= 5 [a] [1]") == '"3 < 4 <= 5 [a] [1]"'


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' {"a": 1}\n',
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}```',
    ],
)
def test_an_object_is_read(text):
    assert json_object(text, ["a"]) == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 1',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1, "a": 2}',
        '{"a": 1, "b": 2}',
        "{}",
        'Sure! {"a": 1}',
        '{"a": 1} {"a": 1}',
        '```json\n{"a": 1}',
        "[" * 50_000,
        '{"a":' * 50_000,
        '{"a": ' + "9" * 9000 + "}",
    ],
)
def test_what_is_no_object_of_these_fields_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011
        json_object(text, ["a"])


def test_thoughts_before_an_answer_are_no_part_of_it():
    for text in (
        '<think>{"a": 2}</think>{"a": 1}',
        '\n<think>\nhm\n</think>\n\n{"a": 1}',
        '<think></think>\n```json\n{"a": 1}\n```',
    ):
        assert json_object(text, ["a"]) == {"a": 1}
    for text in ('{"a": 1}<think>no</think>', '<think>{"a": 1}'):
        with pytest.raises(ValueError):  # noqa: PT011
            json_object(text, ["a"])
