"""Conversations of OpenAI's and AgentGym's formats by hand."""

import pytest

from tests.worldmodel.data.test_importers import (
    HERE,
    agentgym,
    call,
    chat,
    openai,
    talk,
)
from worldmodel.data import import_chat
from worldmodel.data.importers import (
    from_agentgym,
    from_openai,
)
from worldmodel.data.json_reading import RecordError
from worldmodel.text.tools.tool_calls import Call, calls_option, expected_calls


def test_a_chat_with_tools_by_hand():
    episode = openai(
        ("system", "S"),
        ("user", "do\n\nit "),
        {
            "role": "assistant",
            "content": " why ",
            "tool_calls": [
                call("f", '{"b": 1, "a": "\\u00e9"}', id="1"),
                call("g", {}, id="2"),
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": "2"},
        {"role": "tool", "content": "", "tool_call_id": "1"},
        ("user", "more"),
        ("assistant", " done\n"),
        id=7,
        score=0.5,
        success=False,
        split="dev",
        family="fam",
        task_id="t",
        tools=[{"type": "function"}],
        metadata={"k": 1},
    )
    first, second = episode.transitions
    assert first.state == ("do", "it")
    assert first.action == 'f {"a": "é", "b": 1}\ng {}'
    assert first.thought == "why"
    # In the order of the calls, whatever came first; the first one said nothing.
    assert first.next_state == second.state == ("one", "more")
    assert (second.action, second.thought) == ("done", None)
    assert second.next_state == second.state  # nobody answered
    assert (first.rewards, second.rewards) == ({}, {"score": 0.5})
    assert not any((second.terminated, second.truncated, second.success))
    task = episode.task
    assert (episode.id, task.id, task.family, task.split) == ("7", "t", "fam", "dev")
    assert task.instruction == "S\ndo\n\nit "
    assert task.options == {"tools": [{"type": "function"}], "metadata": {"k": 1}}
    assert (episode.success, episode.source) == (False, "openai")


def test_an_empty_answer_is_an_empty_state_and_none_leaves_it():
    answered = openai(
        ("user", "u"), ("assistant", "a"), ("user", ""), ("assistant", "b")
    )
    assert [t.next_state for t in answered.transitions] == [(), ()]
    silent = openai(("user", "u"), ("assistant", "a"), ("assistant", "b"))
    assert [t.next_state for t in silent.transitions] == [("u",), ("u",)]


def test_arguments_that_are_no_json_stay_as_the_model_wrote_them():
    turn = {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": ')]}
    (t,) = openai(("user", "u"), turn).transitions
    assert t.action == 'f {"a": '


def calling(*calls):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def test_recorded_calls_are_the_expected_ones():
    search, book = call("search", '{"q": "x"}'), call("book", {"n": 1})
    messages = [
        *(("user", "u"), calling(search), ("tool", "r"), calling(search, book)),
        *(("tool", "r"), ("tool", "r"), ("assistant", "done")),
    ]
    wanted = {"tool": "search", "arguments": {"q": "x"}}
    both = [wanted, {"tool": "book", "arguments": {"n": 1}}]
    episode = openai(*messages)
    assert episode.task.options == {"calls": [wanted, both, None]}
    assert calls_option(t.action for t in episode.transitions) == [wanted, both, None]
    assert openai(*messages, success=True).task.options["calls"]
    # What a lost conversation did is nothing to go by.
    assert openai(*messages, success=False).task.options == {}
    assert openai(("user", "u"), ("assistant", "a")).task.options == {}


@pytest.mark.parametrize(
    "arguments", ['{"a": ', "[1]", '{"a": NaN}', '{"a":' * 40 + "1" + "}" * 40]
)
def test_calls_that_cannot_be_read_are_not_expected(arguments):
    turn = {"role": "assistant", "content": None, "tool_calls": [call("f", arguments)]}
    assert openai(("user", "u"), turn).task.options == {}


LOOK_UP = {
    "name": "look_up",
    "parameters": {"properties": {"q": {"type": "string"}}, "required": ["q"]},
}
TOOLS = [{"type": "function", "function": LOOK_UP}]


def test_calls_that_are_malformed_or_refused_are_left_out_alone():
    good, broken = call("look_up", '{"q": "x"}'), call("look_up", '{"q": ')
    refused, unknown = call("look_up", '{"wrong": 1}'), call("guess", "{}")
    messages = [
        *(("user", "u"), calling(refused), ("tool", "error"), calling(broken, good)),
        *(("tool", "error"), ("tool", "r"), calling(unknown), ("tool", "error")),
        ("assistant", "done"),
    ]
    wanted = {"tool": "look_up", "arguments": {"q": "x"}}
    options = openai(*messages, tools=TOOLS, success=True).task.options
    assert options["calls"] == [None, wanted, None, None]
    # Nothing is left to go by.
    alone = [("user", "u"), calling(refused), ("tool", "r"), ("assistant", "done")]
    assert "calls" not in openai(*alone, tools=TOOLS, success=True).task.options
    # Without tools nobody knows which calls fit.
    wrong = {"tool": "look_up", "arguments": {"wrong": 1}}
    assert openai(*alone, success=True).task.options["calls"] == [wrong, None]


@pytest.mark.parametrize(
    ("more", "calls"),
    [
        ({"tools": TOOLS, "success": True}, [None, None]),
        ({"functions": [LOOK_UP], "success": True}, [None, None]),
        ({"tools": TOOLS, "success": False}, None),
        ({"tools": TOOLS}, None),
        ({"tools": [], "success": True}, None),
        ({"success": True}, None),
    ],
)
def test_a_won_conversation_without_calls_expects_none(more, calls):
    messages = [("user", "u"), ("assistant", "a"), ("user", "more"), ("assistant", "b")]
    assert openai(*messages, **more).task.options.get("calls") == calls


def test_a_call_in_the_text_of_a_conversation_is_no_abstention():
    messages = [("user", "u"), ("assistant", 'weather(city="Paris")')]
    options = openai(*messages, tools=TOOLS, success=True).task.options
    assert "calls" not in options


def test_results_stand_in_the_order_of_their_calls():
    def answered(*order):
        texts = {"1": "of f", "2": "of g"}
        return openai(
            ("user", "u"),
            {
                "role": "assistant",
                "tool_calls": [
                    call("f", "{}", id="1"),
                    call("g", "{}", id="2"),
                ],
            },
            *({"role": "tool", "content": texts[i], "tool_call_id": i} for i in order),
            ("user", "go on"),
        ).transitions

    assert answered("1", "2") == answered("2", "1")
    assert answered("2", "1")[0].next_state == ("of f", "of g", "go on")


def test_an_empty_id_is_none():
    calls = [call("f", "{}", id=""), call("g", "{}", id="")]
    turn = {"role": "assistant", "tool_calls": calls}
    answers = [{"role": "tool", "content": x} for x in ("of f", "of g")]
    (step,) = openai(("user", "u"), turn, *answers).transitions
    assert step.next_state == ("of f", "of g")


def test_calls_of_two_messages_that_are_answered_together_are_one_turn():
    def calling(id, text):
        return {
            "role": "assistant",
            "content": text,
            "tool_calls": [call(f"f{id}", "{}", id=id)],
        }

    answers = [
        {"role": "tool", "content": f"of {i}", "tool_call_id": i} for i in ("2", "1")
    ]
    (both,) = openai(
        ("user", "u"), calling("1", "one"), calling("2", "two"), *answers
    ).transitions
    assert (both.action, both.thought) == ("f1 {}\nf2 {}", "one\ntwo")
    assert both.next_state == ("of 1", "of 2")
    # What was never answered is a turn of its own: nothing came of it.
    alone, other = openai(
        ("user", "u"), calling("1", "one"), calling("2", "two"), answers[0]
    ).transitions
    assert (alone.action, alone.next_state) == ("f1 {}", ("u",))
    assert (other.action, other.next_state) == ("f2 {}", ("of 2",))


def test_the_older_function_call_is_a_call():
    old = {"name": "f", "arguments": '{"a": 1}'}
    first, _ = openai(
        ("user", "u"),
        {"role": "assistant", "content": "hm", "function_call": old},
        {"role": "function", "name": "f", "content": "said"},
        ("assistant", "done"),
    ).transitions
    assert (first.action, first.thought) == ('f {"a": 1}', "hm")
    assert first.next_state == ("said",)


def test_the_older_functions_are_tools():
    functions = [{"name": "f", "parameters": {"type": "object", "properties": {}}}]
    messages = ("user", "u"), ("assistant", "x")
    old = openai(*messages, functions=functions)
    assert old.task.options["tools"] == functions
    both = openai(*messages, functions=functions, tools=[])
    assert both.task.options["tools"] == []


def test_no_content_of_a_tool_no_arguments_and_a_refusal_are_taken():
    turn = {"role": "assistant", "tool_calls": [call("f", None, id="1")]}
    refusing = {"role": "assistant", "content": None, "refusal": "I can not."}
    first, second = openai(
        ("user", "u"),
        turn,
        {"role": "tool", "content": None, "tool_call_id": "1"},
        refusing,
    ).transitions
    assert (first.action, first.next_state) == ("f {}", ())
    assert second.action == "I can not."


def test_text_parts_are_lines():
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    (t,) = openai(("user", parts), ("assistant", parts)).transitions
    assert (t.state, t.action) == (("x", "y"), "x\ny")


@pytest.mark.parametrize(
    ("row", "success", "terminated", "truncated"),
    [
        ({}, None, False, False),
        ({"reward": 1}, None, False, False),  # a reward is no success
        ({"success": True}, True, True, False),
        ({"success": False}, False, False, False),
        ({"success": True, "truncated": True}, True, False, True),
        ({"success": True, "terminated": False}, True, False, False),
        ({"terminated": True}, None, True, False),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda **row: openai(("user", "u"), ("assistant", "a"), **row),
        lambda **row: agentgym("u", "a", **row),
    ],
)
def test_success_and_ends_are_never_made_up(make, row, success, terminated, truncated):
    episode = make(**row)
    last = episode.transitions[-1]
    assert episode.success is success
    assert last.success is success
    assert (last.terminated, last.truncated) == (terminated, truncated)


def test_attempts_at_one_instruction_share_a_task():
    one = openai(("user", "u"), ("assistant", "a"))
    two = openai(("user", "u"), ("assistant", "b"), id="other")
    three = openai(("user", "v"), ("assistant", "a"))
    assert one.task.id == two.task.id != three.task.id


TOOL = {"role": "tool", "content": "x", "tool_call_id": "9"}
CALLS = {"role": "assistant", "tool_calls": [call("f", "{}", id="1")]}
BAD_CHATS = {
    "no messages": ({}, "a field 'messages'"),
    "unknown role": (chat(("robot", "x")), r"messages\[0\].role'.*one of sys.*robot"),
    "no role": (chat({"content": "x"}), r"messages\[0\].*a field 'role'"),
    "nobody acts": (chat(("user", "x")), "at least one assistant turn"),
    "nobody asks": (chat(("assistant", "x")), "a user message before"),
    "empty": (chat(), "at least one assistant turn"),
    "says nothing": (chat(("user", "x"), ("assistant", " ")), "content or tool_calls"),
    "a picture": (
        chat(("user", [{"type": "image_url"}]), ("assistant", "x")),
        "of type 'text'",
    ),
    "no text": (chat(("user", None), ("assistant", "x")), "expected text, got None"),
    "tool first": (chat(TOOL), "an assistant turn before"),
    "no such call": (chat(("user", "x"), CALLS, TOOL), r"tool_call_id'.*\['1'\].*'9'"),
    "a call without an answer": (
        chat(
            ("user", "x"),
            {
                "role": "assistant",
                "tool_calls": [call("f", "{}", id="9"), call("g", "{}", id="8")],
            },
            TOOL,
        ),
        "an answer to each of the calls of a turn, or to none, got 'none to 8'",
    ),
    "two calls of one id": (
        chat(
            ("user", "x"),
            {
                "role": "assistant",
                "tool_calls": [call("f", "{}", id="9"), call("g", "{}", id="9")],
            },
        ),
        r"tool_calls\[1\].id'.*an id of its own, got '9'",
    ),
    "no function": (
        chat(("user", "x"), {"role": "assistant", "tool_calls": [{}]}),
        "'function'",
    ),
    "arguments a list": (
        chat(("user", "x"), {"role": "assistant", "tool_calls": [call("f", [1])]}),
        r"tool_calls\[0\].function.arguments'.*expected a JSON object",
    ),
    "two rewards": (
        chat(("user", "x"), ("assistant", "x"), reward=1, score=1),
        "not both",
    ),
    "reward is text": (chat(("user", "x"), ("assistant", "x"), reward="1"), "'reward'"),
    "reward is NaN": (
        chat(("user", "x"), ("assistant", "x"), score=float("nan")),
        "'score'.*finite",
    ),
    "success is 1": (chat(("user", "x"), ("assistant", "x"), success=1), "'success'"),
    "id is a flag": (chat(("user", "x"), ("assistant", "x"), id=True), "'id'"),
    "metadata NaN": (
        chat(("user", "x"), ("assistant", "x"), metadata={"a": float("inf")}),
        "finite",
    ),
    "tools are text": (
        chat(("user", "x"), ("assistant", "x"), tools="look_up"),
        "tools must be a list, got str",
    ),
    "a tool without a name": (
        chat(("user", "x"), ("assistant", "x"), functions=[{}]),
        r"functions\[0\] must be",
    ),
    "a schema of no sense": (
        chat(
            ("user", "x"),
            ("assistant", "x"),
            tools=[{"name": "f", "parameters": {"properties": {"a": {"enum": 3}}}}],
        ),
        r"tools\[0\] \(f\)\.parameters\.properties\.a\.enum must be a list, got 3",
    ),
    "half a pair": (chat(("user", "x"), ("assistant", "\ud800")), "surrogates|Unicode"),
}


@pytest.mark.parametrize("bad", BAD_CHATS)
def test_a_bad_chat_is_named(bad):
    row, message = BAD_CHATS[bad]
    with pytest.raises(RecordError, match=rf"f\.jsonl:1:.*({message})"):
        from_openai(row, HERE, "n")


# --- agentgym ----------------------------------------------------------------

OK = "OK. I'll follow your instructions and try my best to solve the task."


def test_an_agentgym_conversation_by_hand():
    episode = agentgym(
        "Rules",
        OK,
        "You see a door.",
        "Thought:\nopen it.\n\nAction:\nopen door\n",
        "It is open.",
        "go",
        item_id="alf_3",
        reward=0.25,
    )
    first, second = episode.transitions
    assert episode.task.instruction == "Rules"
    assert (episode.id, episode.task.id) == ("n", "alf_3")
    assert episode.task.initial_state == first.state == ("You see a door.",)
    assert (first.thought, first.action) == ("open it.", "open door")
    assert first.next_state == ("It is open.",)
    assert (second.thought, second.action) == (None, "go")
    assert (first.rewards, second.rewards) == ({}, {"reward": 0.25})
    assert (episode.success, second.terminated) == (None, False)


@pytest.mark.parametrize(
    ("first", "actions"),
    [
        (OK, 1),
        ("ok, I will try my best", 1),
        ("OK. I'll follow.\nAction: go", 2),  # it acts
        ("ok go north", 2),  # no promise
        ("go north", 2),
    ],
)
def test_only_a_promise_is_no_action(first, actions):
    assert len(agentgym("Rules", first, "seen", "act").transitions) == actions


def test_a_turn_without_loss_is_skipped_first_but_nowhere_else():
    row = talk("Rules", "Understood.", "seen", "act", "then", "act 2")
    row["conversations"][1]["loss"] = row["conversations"][5]["loss"] = False
    got = from_agentgym(row, HERE, "n").transitions
    assert [t.action for t in got] == ["act", "act 2"]


def test_without_a_promise_the_instruction_is_what_is_seen():
    (t,) = agentgym("Rules\nYou see a door.", "Action: go").transitions
    assert (t.state, t.action) == (("Rules", "You see a door."), "go")


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("Thought: a\nAction: b", ("a", "b")),
        ("THOUGHT: a\nACTION: b", ("a", "b")),
        ("a\n  Action:b\nc", ("a", "b\nc")),
        ("Action: b", (None, "b")),
        ("the Action: b", (None, "the Action: b")),
        ("Thought: a\nAction: ", (None, "Thought: a\nAction:")),
    ],
)
def test_thought_and_action_by_hand(text, split):
    assert import_chat._thought_and_action(text) == split


BAD_TALKS = {
    "no conversations": ({"messages": []}, "a field 'conversations'"),
    "unknown speaker": (
        {"conversations": [{"from": "cat", "value": "x"}]},
        r"\[0\].from'.*or gpt.*cat",
    ),
    "gpt first": (talk("", ""), "expected text"),
    "no value": ({"conversations": [{"from": "human"}]}, r"\[0\].*a field 'value'"),
    "nobody acts": (talk("x"), "at least one gpt turn"),
    "only a promise": (talk("x", OK, "y"), "at least one gpt turn"),
    "item_id a list": (talk("x", "y", item_id=[1]), "'item_id'"),
}


@pytest.mark.parametrize("bad", BAD_TALKS)
def test_a_bad_conversation_is_named(bad):
    row, message = BAD_TALKS[bad]
    with pytest.raises(RecordError, match=rf"f\.jsonl:1:.*{message}"):
        from_agentgym(row, HERE, "n")


def test_gpt_must_not_speak_first():
    row = {"conversations": [{"from": "gpt", "value": "x"}]}
    with pytest.raises(RecordError, match=r"from'.*a human turn first"):
        from_agentgym(row, HERE, "n")


def test_a_refusal_beside_no_text_and_parts_of_other_interfaces_are_taken():
    refusing = {"role": "assistant", "content": "", "refusal": "no"}
    assert openai(("user", "u"), refusing).transitions[-1].action == "no"
    asked = [{"type": "input_text", "text": "x"}]
    answered = [{"type": "output_text", "text": "y"}]
    (t,) = openai(("user", asked), ("assistant", answered)).transitions
    assert (t.state, t.action) == (("x",), "y")


def test_a_call_of_a_custom_tool_has_its_input():
    custom = {"name": "run", "input": "print(1)"}
    made = {"type": "custom", "id": "1", "custom": custom}
    turn = {"role": "assistant", "content": None, "tool_calls": [made]}
    reply = {"role": "tool", "content": "1", "tool_call_id": "1"}
    episode = openai(("user", "u"), turn, reply, ("assistant", "done"), success=True)
    first = episode.transitions[0]
    assert first.action == 'run {"input": "print(1)"}'
    assert first.next_state == ("1",)
    expected = (Call("run", {"input": "print(1)"}),)
    assert expected_calls(episode.task) == (expected, ())
