"""Tool calls: what is one, what it says, and how good its arguments are."""

import json
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.data.records import Task
from worldmodel.text.tools.argument_score import argument_score
from worldmodel.text.tools.tool_calls import (
    Action,
    Call,
    calls_option,
    expected_calls,
    has_answer_form,
    read_action,
    read_call,
    write_answer,
    write_call,
)

PARIS = Call("weather", {"city": "Paris", "days": 2})


@pytest.mark.parametrize(
    "action",
    [
        '{"tool": "weather", "arguments": {"city": "Paris", "days": 2}}',
        ' {"arguments":{"days":2,"city":"Paris"},"tool":"weather"}\n',
        '<action>\n{"type": "call", "when": true, "which": "weather", '
        '"how": {"city": "Paris", "days": 2}}\n</action>',
        '{"tool": "weather", "args": {"city": "Paris", "days": 2}}',
        '{"name": "weather", "arguments": {"city": "Paris", "days": 2}}',
        '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}',
        '{"type": "function", "id": "1", "function": {"name": "weather", '
        '"arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}}',
        '{"type": "tool_use", "id": "1", "name": "weather", '
        '"input": {"city": "Paris", "days": 2}}',
        '{"tool": "weather", "params": {"city": "Paris", "days": 2}}',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}'
        "\n</tool_call>",
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris", "days": 2}}',
        "<think>Where? Paris.</think>\n<tool_call>"
        '{"name": "weather", "arguments": {"city": "Paris", "days": 2}}</tool_call>',
        '{"tool_name": "weather", "parameters": {"city": "Paris", "days": 2}}',
        '{"function": "weather", "arguments": {"city": "Paris", "days": 2}}',
        '{"action": "weather", "action_input": {"city": "Paris", "days": 2}}',
        '{"action": "weather", "action_input": {"city": "Paris", "days": 2}, "log": 1}',
        '{"action": "weather", "args": {"city": "Paris", "days": 2}}',
        '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": '
        '"weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}}]}',
        '{"role": "assistant", "content": null, "tool_calls": [{"name": "weather", '
        '"arguments": {"city": "Paris", "days": 2}}]}',
        '[weather(city="Paris", days=2)]',
        '```json\n{"tool": "weather", "args": {"city": "Paris", "days": 2}}\n```',
        'weather(city="Paris", days=2)',
        "weather( city = 'Paris' , days=2 )",
        "weather(city=Paris, days=2)",
        'weather {"city": "Paris", "days": 2}',
    ],
)
def test_every_notation_tells_the_same_call(action):
    assert read_call(action) == PARIS


@pytest.mark.parametrize(
    "action",
    [
        "",
        "  ",
        "go north",
        "take lamp (the small one)",
        "It will rain in Paris.",
        '{"answer": 3}',
        "{}",
        '["tool"]',
        "3 (three)",
        '{"type": "answer", "when": false, "content": "It will rain."}',
        '{"which": "weather", "when": false, "how": {}}',
        '{"name": "Paris"}',
        '{"function": "sin"}',
        '{"function": "chairs the board", "name": "Ada"}',
        '{"action": "wait"}',
        '{"action": "Final Answer", "action_input": "42"}',
        '{"action": "buy", "parameters": {"item": 3}, "reason": "it is cheap"}',
        '{"action": "buy", "args": ["lamp"]}',
        '{"tool_calls": 3}',
        '{"tool_calls": []}',
        '{"tool_calls": [2, 0, 1]}',
        '{"tool_calls": [{"tool": "weather"}], "errors": 1}',  # a report on calls
        "[sin(x), cos(x)]",
        "[see(2)] It will rain.",
        "[note(day=2)] It will rain.",
        "[here](https://example.org/a(b=c))",
        "[0, 1)",
        "[Paris, Rome (Italy)]",
        '{"function": "f", "input": "text"}',
        "<think>It will rain.</think>",
        "the tags <think>a</think> are removed",
    ],
)
def test_what_is_no_call(action):
    assert read_call(action) is None


@pytest.mark.parametrize(
    ("action", "tool"),
    [
        ('{"tool": "weather", "arguments": {"city": "Paris"}', "weather"),
        ("{tool: weather}", ""),
        ("{not a call", ""),
        ('{"city": "Paris"', ""),  # no word tells that a call was meant
        ('[{"city": "Paris"', ""),
        ('{"tool": 3, "arguments": {}}', ""),
        ('{"tool": "", "arguments": {}}', ""),
        ('{"tool": "weather", "arguments": ["Paris"]}', "weather"),
        ('{"tool": "weather", "arguments": {"x": NaN}}', "weather"),
        ('{"tool": "weather", "arguments": ' + '{"a":' * 10_000, "weather"),
        ('{"name": "weather", "arguments": {"city": "Par', "weather"),
        ('{"name": "weather", "arguments": "{broken"}', "weather"),
        ('{"tool": "weather", "args": [1]}', "weather"),
        ('{"tool_calls": [{"function": {"name": "weather", "arguments": "{', "weather"),
        ('{"tool_calls": [{"function": {"arguments": "{}"}}]}', ""),
        ('[weather(city="Paris"), news(', "weather"),  # it is cut off
        ('[weather(city="Paris"), news(2)]', "weather"),
        ("[weather(city=Paris)", "weather"),
        ('{"tool": "w", "arguments": {"x": ' + "9" * 5000 + "}}", "w"),
        ('{"tool": "pay", "arguments": {"amount": 1e999}}', "pay"),  # infinite
        ('pay {"amount": -1e999}', "pay"),
        ('{"tool": "weather", "city": "Paris"}', "weather"),  # not without arguments
        ('{"which": "weather", "when": true, "city": "Paris"}', "weather"),
        ("weather(", "weather"),
        ("weather(city=Paris", "weather"),
        ('weather("Paris")', "weather"),
        ("weather(city=)", "weather"),
        ("weather(city=a, city=b)", "weather"),
        ("weather(city=a,)", "weather"),
        ("weather(city=a) and then some", "weather"),
        ("weather(x=" + "[" * 10_000 + ")", "weather"),
    ],
)
def test_what_is_malformed_has_no_arguments(action, tool):
    assert read_call(action) == Call(tool, {}, False)


def test_parallel_calls_may_stand_in_blocks_of_their_own():
    one, two = '{"name": "a", "arguments": {"x": 1}}', '{"name": "b", "input": {}}'
    action = f"<tool_call>\n{one}\n</tool_call>\n<tool_call>{two}</tool_call>"
    assert read_action(action).calls == (Call("a", {"x": 1}), Call("b", {}))


def test_other_objects_and_fences_stay_answers():
    for text in ("```\nprint(1)\n```", '{"name": "Ada", "input": {"x": 1}, "age": 3}'):
        assert read_action(text) == Action((), text)


@pytest.mark.parametrize("arguments", ["null", '"null"', '""', "{}"])
@pytest.mark.parametrize("name", ["tool", "name", "action", "function"])
def test_null_is_no_arguments(name, arguments):
    action = f'{{"{name}": "list", "args": {arguments}}}'
    assert read_call(action) == Call("list", {})


def test_a_record_of_an_action_is_an_answer_where_no_tool_has_its_name():
    record = '{"action": "approve", "args": {"id": 3}}'
    assert read_action(record, ["approve"]).calls == (Call("approve", {"id": 3}),)
    assert read_action(record, ["find"]) == Action((), record)
    assert read_action(f"<action>{record}</action>", []).answer == record
    # Other forms of a call are no records: a tool's name may be misspelled.
    for text in (
        '{"tool": "fnd", "args": {}}',
        '{"action": "fnd", "action_input": {}}',
        '{"action": "fnd", "args": {}}\n{"action": "fnd", "args": {}}',
    ):
        assert read_action(text, ["find"]).calls[0] == Call("fnd", {})


def test_what_models_write_beside_a_call_is_no_argument():
    action = '{"thought": "which first?", "tool": "list", "type": "call"}'
    assert read_call(action) == Call("list", {})


def test_values_are_json_or_words():
    action = 'f(a=[1, {"x": "(,)"}], b=true, c=-1.5, d=New York, e=\'it\\\'s\', g=null)'
    assert read_call(action) == Call(
        "f",
        {
            "a": [1, {"x": "(,)"}],
            "b": True,
            "c": -1.5,
            "d": "New York",
            "e": "it's",
            "g": None,
        },
    )
    assert read_call("f()") == read_call("f( )") == Call("f", {})
    listed = read_action('[f(a="),(]", b=[1, 2]), g.h(), i(c=New York)]').calls
    first = Call("f", {"a": "),(]", "b": [1, 2]})
    assert listed == (first, Call("g.h", {}), Call("i", {"c": "New York"}))
    assert read_call("news.search(q=x)") == Call("news.search", {"q": "x"})


@pytest.mark.parametrize(
    "action",
    [
        'files/read-all.v2 {"path": "a/b"}',
        'files/read-all.v2(path="a/b")',
        '{"name": "files/read-all.v2", "arguments": {"path": "a/b"}}',
    ],
)
def test_names_have_what_mcp_allows(action):
    assert read_call(action) == Call("files/read-all.v2", {"path": "a/b"})


def test_a_written_call_is_read_again():
    assert write_call(*PARIS[:2]) == 'weather {"city": "Paris", "days": 2}'
    arguments = {"é": "a\nb", "n": [1, {"x": None}], "t": 'say "hi" {'}
    assert read_call(write_call("f", arguments)) == Call("f", arguments)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=string.printable + "é\ud800\u2028\x00", max_size=60))
def test_no_action_crashes_the_reader(text):
    others = (f"[f(x=1), g({text})]", f'{{"tool_calls": [{text}]}}')
    for action in (text, f"f({text})", f'{{"tool": {text}}}', f"f(x={text}", *others):
        result = read_call(action)
        if result is not None:
            assert isinstance(result.tool, str)
            assert result.valid_json or result.arguments == {}
            assert argument_score(result.arguments, result.arguments) == 1.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


@settings(max_examples=100, deadline=None)
@given(ARGUMENTS, ARGUMENTS)
def test_scores_lie_between_0_and_1_and_the_gold_has_1(got, gold):
    assert 0.0 <= argument_score(got, gold) <= 1.0
    assert argument_score(gold, gold) == 1.0
    backwards = dict(reversed(got.items()))
    assert argument_score(backwards, gold) == argument_score(got, gold)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=4))
def test_a_call_written_as_json_is_read_back(arguments):
    action = json.dumps({"tool": "t", "arguments": arguments})
    assert read_call(action) == Call("t", arguments)


@pytest.mark.parametrize(
    ("got", "gold", "score"),
    [
        ({}, {}, 1.0),
        ({}, {"a": 1}, 0.0),
        ({"a": 1}, {}, 0.0),
        ({"a": 8}, {"a": 10}, 0.8),  # 1 - 2/10
        ({"a": 0.5}, {"a": 0}, 0.5),  # 1 - 0.5/1: near 0 the gap itself counts
        ({"a": -50}, {"a": 10}, 0.0),
        ({"a": "2"}, {"a": 2}, 0.0),  # a text is no number
        ({"a": True}, {"a": 1}, 0.0),  # nor is a truth
        ({"a": "PARIS "}, {"a": "paris"}, 1.0),
        # "paris"/"pari": 2 * 4 letters in common of 9
        ({"a": "pari"}, {"a": "paris"}, 8 / 9),
        ({"a": 1, "b": 2}, {"a": 1}, 0.5),  # one too many
        ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, 0.5),
        ({"a": [1, 2]}, {"a": [1, 2]}, 1.0),
        ({"a": [1, 2]}, {"a": [2, 1]}, 0.0),
        ({"a": 10**400}, {"a": 0.5}, 0.0),
        ({"a": 1.0}, {"a": float("inf")}, 0.0),
        ({"a": "x" * 3000}, {"a": "x" * 2999}, 0.0),  # too long to be matched
    ],
)
def test_arguments_by_hand(got, gold, score):
    assert argument_score(got, gold) == pytest.approx(score, abs=1e-12)


def test_expected_arguments_of_python_are_compared_as_json():
    calls = [{"tool": "f", "arguments": {"x": (1, (2, "a")), "y": {"z": (3,)}}}]
    task = Task(id="t", instruction="", options={"calls": calls})
    ((gold,),) = expected_calls(task) or ()
    made = read_call('f {"x": [1, [2, "a"]], "y": {"z": [3]}}')
    assert argument_score(made.arguments, gold.arguments) == 1.0


def test_expected_calls_that_are_no_json_name_the_task():
    calls = [{"tool": "f", "arguments": {"x": {1, 2}}}]
    task = Task(id="mine", instruction="", options={"calls": calls})
    with pytest.raises(
        ValueError, match=r"task 'mine': options\['calls'\] must be JSON"
    ):
        expected_calls(task)


def test_the_expected_calls_of_a_task():
    row = {"tool": "weather", "arguments": {"city": "Paris", "days": 2}}
    options = {"calls": [row, None, [row, row]]}
    expected = expected_calls(Task(id="a", instruction="", options=options))
    assert expected == ((PARIS,), (), (PARIS, PARIS))
    assert expected_calls(Task(id="a", instruction="")) is None
    assert expected_calls(Task(id="a", instruction="", options={"calls": []})) == ()
    text = write_call(*PARIS[:2])
    assert calls_option([text, "It rains.", f"{text}\n{text}"]) == options["calls"]


@pytest.mark.parametrize(
    "calls", ["x", 3, [3], [{}], [{"tool": 1}], [{"tool": "a", "arguments": []}]]
)
def test_calls_of_no_sense_name_the_task(calls):
    with pytest.raises(ValueError, match=r"task 'a': options\['calls'\]"):
        expected_calls(Task(id="a", instruction="", options={"calls": calls}))


def test_a_call_behind_a_blank_that_is_no_object_is_malformed():
    assert read_call('weather {"city": "Par') == Call("weather", {}, False)
    assert read_call("weather [1]") is None
    assert read_call("put cup in sink") is None


def test_calls_that_are_made_at_once():
    first, second = 'weather {"city": "Paris"}', 'news {"day": 2}'
    weather, news = Call("weather", {"city": "Paris"}), Call("news", {"day": 2})
    for text in (
        f"{first}\n{second}",
        f'weather(city="Paris")\n\n{second}',
        '[{"name": "weather", "arguments": {"city": "Paris"}}, '
        '{"name": "news", "arguments": {"day": 2}}]',
        '[weather(city="Paris"), news(day=2)]',
        "[ weather(city='Paris') ,\n news( day = 2 ) ]",
        '{"tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}, '
        '{"function": {"name": "news", "arguments": "{\\"day\\": 2}"}}]}',
    ):
        assert read_action(text) == Action((weather, news), None)
    assert read_call(f"{first}\n{second}") == weather
    # One of them is malformed, the other is made all the same.
    broken = Call("news", {}, False)
    assert read_action(f"{first}\nnews {{day").calls == (weather, broken)
    assert read_action(f"{first}\nand the rest").calls == (Call("weather", {}, False),)
    assert read_call('weather {\n  "city": "Paris"\n}') == read_call(first)
    assert read_call('weather {"x": NaN}') == Call("weather", {}, False)  # no JSON


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (write_answer("It will rain."), "It will rain."),
        (
            '{"type": "answer", "when": false, "content": "It will rain."}',
            "It will rain.",
        ),
        ("It will rain.", "It will rain."),
        ('<action>{"type": "answer", "content": "3"}</action>', "3"),
        ('{"answer": 3}', '{"answer": 3}'),
        ("go north", "go north"),
    ],
)
def test_the_content_of_an_answer(action, answer):
    assert read_action(action) == Action((), answer)


@pytest.mark.parametrize(
    ("action", "void"),
    [
        ("", True),
        ("<action> </action>", True),
        (write_answer(" "), True),
        ("weather(", True),
        ('{"city": "Paris"', True),
        ("It rains.", False),
        ("weather()", False),
        ("weather(\nnews()", True),
    ],
)
def test_an_action_that_is_neither_call_nor_answer_is_void(action, void):
    assert read_action(action).void == void


@pytest.mark.parametrize(
    ("action", "form"),
    [
        (write_answer("done"), True),
        ('<action>{"type": "answer", "content": "3"}</action>', True),
        ('answer(content="done")', True),
        ("done", False),
        ("<action>done</action>", False),
        ('{"content": "done"}', False),
        (write_answer(" "), False),
        ("weather()", False),
        ("", False),
    ],
)
def test_an_answer_that_is_written_as_one_is_told_from_other_text(action, form):
    assert has_answer_form(action) == form


def test_a_thought_is_cut_at_the_beginning_alone_and_at_once():
    quoted = "the tags <think>a</think> are removed"
    assert read_action(quoted).answer == quoted
    assert read_action("<think>a</think> yes").answer == "yes"
    start = time.monotonic()
    for text in ("<think>" * 14_000, "<think>" + " " * 80_000, "<think>a" * 9_000):
        read_action(text)
    assert time.monotonic() - start < 2


def test_values_may_be_written_as_python_has_them():
    assert read_call("f(a=True, b=False, c=None, d=Nonesuch)") == Call(
        "f", {"a": True, "b": False, "c": None, "d": "Nonesuch"}
    )
    assert read_call('f(été="x")') == Call("f", {"été": "x"})
