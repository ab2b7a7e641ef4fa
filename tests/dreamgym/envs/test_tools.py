"""Tools from type hints: signatures, checked calls, errors that are states."""

from typing import Literal

import pytest

from dreamgym.envs import base
from dreamgym.envs.tool_signatures import fits, hint_schema, hint_text
from dreamgym.envs.tools import ToolEnv, tool
from worldmodel.data.records import Task
from worldmodel.text.tool_calls import Call
from worldmodel.text.tool_schemas import call_error, tool_schemas, value_fits

TASK = Task(id="put-a", instruction="store 7 under apple")


class Store(ToolEnv):
    max_episode_steps = 4

    def start(self, task):
        del task
        self.data: dict[str, int] = {}
        return ""

    @tool
    def put(self, key: str, value: int, mode: Literal["new", "old"] = "new") -> str:
        """Store a value under a key.

        More that the agent is not told.
        """
        self.data[key] = value
        if self.data == {"apple": 7}:
            self.finish(True)
        return f"stored {key} {mode}"

    @tool
    def get(self, key: str) -> str:
        """Read the value under a key."""
        self.add_reward(-0.5)
        return str(self.data[key])

    @tool
    def fail(self) -> str:
        return str(self.nothing)  # a mistake, and no answer


def begun(env=None, task=TASK):
    env = env or Store()
    return env, *base.begin(env, task)


def test_the_instruction_names_the_tools_once():
    env, task, state = begun()
    want = (
        'store 7 under apple tools: put(key: str, value: int, mode: "new" | "old" = '
        '"new") Store a value under a key; get(key: str) Read the value under a key; '
        "fail()"
    )
    assert (task.instruction, state) == (want, ("result ready",))
    assert base.begin(env, task)[0].instruction == want


@pytest.mark.parametrize("shown", ["keys a\nheld b", ["keys a", "held b"]])
def test_lines_that_are_always_seen_may_be_a_text_or_a_list(shown):
    class Shop(Store):
        def observation(self):
            return shown

    assert begun(Shop())[2] == ("keys a", "held b", "result ready")


@pytest.mark.parametrize(
    "action",
    [
        'put {"key": "apple", "value": 7}',
        '{"tool": "put", "args": {"key": "apple", "value": 7}}',
        '{"function": {"name": "put", "arguments": "{\\"key\\": \\"apple\\", '
        '\\"value\\": 7}"}}',
        'put(key="apple", value=7)',
    ],
)
def test_a_call_wins_in_every_form(action):
    env, *_ = begun()
    step = base.take(env, action)
    assert step.state == ("result stored apple new",)
    assert (step.rewards, step.terminated, step.success) == ({"task": 1.0}, True, True)
    with pytest.raises(RuntimeError):
        env.step(action)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ('{"tool": "put", "args": {}}', "put needs the argument 'key'"),
        ("put(key=b, value=x)", 'value must be int, got "x"'),
        ("put(key=b, value=true)", "value must be int, got true"),
        ("put(key=b, value=1.5)", "value must be int, got 1.5"),
        ("put(key=b, value=1, mode=x)", 'mode must be "new" | "old", got "x"'),
        ("put(key=b, value=1, x=1)", "put has no argument 'x'; have key, value, mode"),
        ("fail(x=1)", "fail has no argument 'x'; have none"),
        ("drop(key=b)", "no tool 'drop'; have put, get, fail"),
        ('put {"key": "b"', "the arguments of put are no JSON object"),
        ("get(key=b)", "b"),
        ("please", 'expected a call, such as put {"key": "...", "value": "...", '),
    ],
)
def test_a_wrong_call_is_a_state_and_changes_nothing(action, message):
    env, *_ = begun()
    step = base.take(env, action)
    assert step.state[0].startswith(f"result error: {message}")
    assert step.invalid
    assert (step.terminated, step.truncated, step.success) == (False, False, False)
    assert env.data == {}


def test_a_mistake_in_a_tool_is_raised():
    env, *_ = begun()
    with pytest.raises(AttributeError, match="nothing"):
        env.step("fail()")


def test_rewards_add_up_and_the_limit_truncates():
    env, *_ = begun()
    env.step("put(key=b, value=1)")
    step = base.take(env, "get(key=b)")
    assert step.rewards == {"task": -0.5}
    assert step.state == ("result 1",)
    env.step("get(key=b)")
    step = base.take(env, "get(key=b)")
    assert (step.terminated, step.truncated, step.success) == (False, True, False)


def test_a_fork_goes_its_own_way():
    env, *_ = begun()
    other = base.as_forkable(env).fork()
    other.step("put(key=b, value=1)")
    assert (env.data, other.data) == ({}, {"b": 1})


def test_valid_actions_take_words_and_numbers_in_sight():
    env, *_ = begun()
    actions = env.valid_actions()
    assert 'put {"key": "apple", "value": 7}' in actions
    assert 'get {"key": "apple"}' in actions
    assert "fail {}" in actions
    assert actions == env.valid_actions()
    for action in actions[:5]:
        fork = env.fork()
        assert "must be" not in fork.step(action)[0]


def test_schemas_and_expected_calls_travel_with_the_task():
    class Planned(Store):
        def expert(self):
            return [self.call("put", key="apple", value=7)]

    _, task, state = begun(Planned())
    schema = tool_schemas(task)
    assert list(schema) == ["put", "get", "fail"]
    assert (
        call_error(Call("put", {"key": "a", "value": 1, "mode": "old"}), schema) is None
    )
    assert (
        call_error(Call("put", {"key": "a"}), schema)
        == "put needs the argument 'value'"
    )
    assert call_error(Call("fail", {"x": 1}), schema) is not None
    put = {"tool": "put", "arguments": {"key": "apple", "value": 7}}
    assert task.options["calls"] == [put]
    # Nothing that the agent reads holds the expected call.
    assert "apple" not in " ".join(state)
    assert '"apple"' not in task.instruction
    # Without an expert nobody knows; what the task says itself stays.
    assert "calls" not in begun()[1].options
    own = Task(id="t", instruction="x", options={"calls": []})
    assert begun(Planned(), own)[1].options["calls"] == []


def test_calls_at_once_are_all_made_until_the_end():
    env, *_ = begun()
    step = base.take(env, 'put {"key": "b", "value": 1}\nget(key=b)\nget(key=c)')
    assert step.state == ("result stored b new", "result 1", "result error: c")
    assert step.invalid
    assert step.rewards == {"task": -1.0}
    env, *_ = begun()
    win = 'put {"key": "apple", "value": 7}'
    step = base.take(env, f"{win}\nget(key=apple)")
    assert step.state == ("result stored apple new",)
    assert (step.success, step.invalid) == (True, False)


@pytest.mark.parametrize(
    "action",
    ["4", '{"type": "answer", "content": "4"}', 'answer {"content": "4"}'],
)
def test_the_content_of_an_answer_reaches_the_environment(action):
    options = {"question": "2 + 2", "answer": "4"}
    env, *_ = begun(Quiz(), Task(id="q", instruction="answer", options=options))
    assert base.take(env, action).success


def test_no_tool_is_called_answer():
    with pytest.raises(TypeError, match="tool answer"):

        class _Answer(ToolEnv):
            @tool
            def answer(self, text: str) -> str:
                return text


class Quiz(ToolEnv):
    max_episode_steps = 1

    def start(self, task):
        self.right = task.options["answer"]
        return task.options["question"]

    def answer(self, text):
        self.finish(text.strip() == self.right)
        return "right" if self._success else f"wrong, it is {self.right}"


@pytest.mark.parametrize(("text", "success"), [("4", True), ("f(x=1)", False)])
def test_a_single_question_is_the_case_without_tools(text, success):
    options = {"question": "2 + 2", "answer": "4"}
    task = Task(id="q", instruction="answer", options=options)
    env, task, state = begun(Quiz(), task)
    assert (task.instruction, state) == ("answer", ("result 2 + 2",))
    step = base.take(env, text)
    assert (step.terminated, step.success, step.invalid) == (True, success, False)


def test_a_tool_without_a_type_is_refused_where_it_is_written():
    with pytest.raises(TypeError, match="tool f: argument 'x' needs a type"):

        class _NoHint(ToolEnv):
            @tool
            def f(self, x): ...

    with pytest.raises(TypeError, match="tool f: x: expected a type of str, int"):

        class _NoJson(ToolEnv):
            @tool
            def f(self, x: set): ...


@pytest.mark.parametrize(
    ("hint", "text", "good", "bad"),
    [
        (float, "float", [1, 2.5], [True, "1", None]),
        (int | None, "int | null", [1, None], ["1", 1.0]),
        (list[int], "list[int]", [[], [1]], [["a"], "ab", [True]]),
        (dict[str, int], "dict[str, int]", [{"a": 1}], [{"a": "b"}, []]),
        (Literal["a", 2], '"a" | 2', ["a", 2], ["b", 2.0]),
        (bool, "bool", [True], [1, "true"]),
    ],
)
def test_types_are_said_and_held(hint, text, good, bad):
    assert hint_text(hint) == text
    want = [True] * len(good) + [False] * len(bad)
    assert [fits(v, hint) for v in [*good, *bad]] == want
    assert [value_fits(v, hint_schema(hint)) for v in [*good, *bad]] == want
