"""Tools from type hints: signatures, checked calls, errors that are states."""

import inspect
from typing import Literal

import pytest
from gymnasium.utils.env_checker import check_env

from dreamgym.envs import base
from dreamgym.envs.tools import tool_env
from dreamgym.envs.tools.hints import fits, hint_schema, hint_text
from dreamgym.envs.tools.signatures import MAX_VALUES, Signature
from dreamgym.envs.tools.tool_env import MAX_CALLS, ToolEnv, tool
from worldmodel.data.records import Task
from worldmodel.text.tools.json_schemas import value_fits
from worldmodel.text.tools.tool_calls import Call, read_call
from worldmodel.text.tools.tool_schemas import call_error, tool_schemas

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

    @tool()  # as good as without parentheses
    def get(self, key: str) -> str:
        """Read the value under a key."""
        self.add_reward(-0.5)
        return str(self.data[key])

    @tool
    def fail(self) -> str:
        return str(self.nothing)  # a mistake, and no answer


class Echo(ToolEnv):
    """Its task is what its instruction says, as a user may well write it."""

    def start(self, task):
        self.wanted = task.instruction.split()[-1]
        return "ready"

    @tool
    def say(self, word: str) -> str:
        self.finish(word == self.wanted)
        return word

    def expert(self):
        return [self.call("say", word=self.wanted)]


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


def test_a_recorded_task_starts_with_the_instruction_that_was_listed():
    """A task is recorded with its tools, and is played again from the record."""
    listed = Task(id="e", instruction="say cheese")
    env, recorded, _ = begun(Echo(), listed)
    assert recorded.instruction.endswith(")")
    again, same, _ = begun(Echo(), recorded)
    assert (again.wanted, same) == (env.wanted, recorded) == ("cheese", recorded)
    assert base.take(again, again.expert()[0]).success


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
        '[put(key="apple", value=7)]',
        '{"action": "put", "args": {"key": "apple", "value": 7}}',
        '{"tool_calls": [{"name": "put", "arguments": {"key": "apple", "value": 7}}]}',
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
        ("get(key=b)", 'nothing is named "b"'),
        ("get(key='a b')", 'nothing is named "a b"'),
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


def test_every_step_earns_the_step_reward_and_rewards_of_a_step_add_up():
    class Costly(Store):
        step_reward = -0.25

        @tool
        def buy(self) -> str:
            self.add_reward(-2.0)
            self.finish(True, reward=10.0)
            return ""

    env, *_ = begun(Costly())
    refused = base.take(env, "please")
    assert (refused.rewards, refused.invalid) == ({"task": -0.25}, True)
    # Once a step, not once a call: -0.25 - 0.5.
    twice = base.take(env, "put(key=b, value=1)\nget(key=b)")
    assert twice.rewards == {"task": -0.75}
    assert base.take(env, "buy()").rewards == {"task": 7.75}
    assert env.step_reward == -0.25
    assert begun()[0].step("please")[1] == 0.0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("there is no such key"), "there is no such key"),
        (KeyError("typo"), 'nothing is named "typo"'),
        (KeyError(5), "nothing is named 5"),
        (KeyError(), "KeyError"),
        (IndexError("list index out of range"), "list index out of range"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
    ],
)
def test_an_error_of_a_tool_is_said_in_words(error, message):
    class Broken(Store):
        @tool
        def get(self, key: str) -> str:
            del key
            raise error

    env, *_ = begun(Broken())
    assert base.take(env, "get(key=b)").state == (f"result error: {message}",)


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


class Trips(ToolEnv):
    def start(self, task):
        del task
        self.known = ""
        return "trips go to Oslo and Rome"

    def observation(self):
        return self.known

    @tool
    def search(self, destination: str) -> str:
        """List the trips to a destination."""
        if destination != "Rome":
            raise ValueError(f"sorry, there is never any trip to {destination}")
        self.known = "\n".join(f"trip T{i} to Rome for {i}9 euros" for i in range(10))
        return ""

    @tool
    def book(self, trip_id: str, seats: int = 1) -> str:
        """Book seats."""
        return f"booked {seats} in {trip_id}"


def arguments_listed(env, name):
    calls = [read_call(action) for action in env.valid_actions()]
    tools = {c.tool for c in calls}
    assert tools == set(env.tools)
    return {str(c.arguments[name]) for c in calls if name in c.arguments}


def test_valid_actions_hold_names_and_no_words_of_errors_or_of_the_tools():
    task = Task(id="t", instruction="book 2 seats to Rome for at most 500 euros")
    env, task, _ = begun(Trips(), task)
    # The task is complete now, with the tools in its instruction.
    for begun_again in (False, True):
        if begun_again:
            base.begin(env, task)
        listed = arguments_listed(env, "destination")
        assert {"Rome", "Oslo"} <= listed
        assert not listed & {"to", "at", "result", "tools", "List", "destination"}
    before = arguments_listed(env, "destination")
    env.step("search(destination=Paris)")
    assert arguments_listed(env, "destination") <= before - {"Oslo"}
    env.step("search(destination=Rome)")
    assert "ok" not in arguments_listed(env, "destination")
    assert {f"T{i}" for i in range(10)} <= arguments_listed(env, "trip_id")


def test_a_subclass_may_narrow_what_is_listed():
    class Narrow(Trips):
        def likely_tools(self, sight):
            assert "Rome" in sight.text
            search = self.tools["search"]
            hints = {"destination": Literal["Rome"]}
            arguments = search.arguments
            return {"search": Signature("search", "", arguments, hints)}

    env, *_ = begun(Narrow(), Task(id="t", instruction="a trip to Oslo"))
    assert env.valid_actions() == ['search {"destination": "Rome"}']
    assert env.step("search(destination=Oslo)")[4][
        "invalid"
    ]  # it is called all the same


def test_each_tool_has_a_share_of_the_valid_actions():
    class Moves(Trips):
        @tool
        def move(self, trip_id: str, days: int) -> str:
            return f"moved {trip_id} by {days}"

    numbers = " ".join(map(str, range(100, 130)))
    task = Task(id="t", instruction=f"move A1 B2 C3 D4 E5 {numbers}")
    env, *_ = begun(Moves(), task)
    calls = [read_call(action).tool for action in env.valid_actions()]
    assert len(calls) == MAX_CALLS
    assert calls.count("search") == MAX_VALUES
    # Besides, its 4 likeliest calls have one of the 4 likeliest values of its option.
    assert MAX_VALUES < calls.count("book") <= MAX_VALUES + 16
    assert 'move {"trip_id": "A1", "days": 100}' in env.valid_actions()


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
    assert step.state == (
        "result stored b new",
        "result 1",
        'result error: nothing is named "c"',
    )
    assert not step.invalid  # two of them did something
    assert base.take(env, "get(key=c)\nget(key=d)").invalid
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


def test_a_record_that_names_no_tool_reaches_the_environment_as_an_answer():
    answers = []

    class Clerk(Store):
        def answer(self, text):
            answers.append(text)
            return ""

    env, *_ = begun(Clerk())
    record = '{"action": "approve", "args": {"id": 3}}'
    assert not base.take(env, f"<action>{record}</action>").invalid
    assert answers == [record]
    assert base.take(env, '{"action": "approve", "action_input": {"id": 3}}').invalid


@pytest.mark.parametrize(
    "name",
    [
        *("answer", "step", "reset", "fork", "call", "finish", "render", "close"),
        *("start", "expert", "tasks", "variations", "valid_actions", "step_reward"),
    ],
)
def test_no_tool_replaces_what_the_environment_defines(name):
    def method(self, text: str) -> str:
        del self
        return text

    method.__qualname__ = f"Shop.{name}"
    pattern = rf"Shop\.{name} \(test_tools\.py:\d+\): .* '{name}'.*another name"
    with pytest.raises(TypeError, match=pattern):
        type("Shop", (ToolEnv,), {name: tool(method)})


def test_a_subclass_need_not_call_the_init_of_its_base():
    class Shop(Store):
        def __init__(self):
            self.opened = True

    env, *_ = begun(Shop())
    assert "x" * 3000 in env.action_space
    assert "x" * 3000 in env.observation_space
    assert env.action_space is env.action_space  # its seed stays
    assert env.action_space is not Shop().action_space
    check_env(env, skip_render_check=True)


QUESTION = Task(id="q", instruction="", options={"question": "2 + 2", "answer": "4"})


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
    types = "str, int, float, bool, None, Literal, list, dict, TypedDict or a union"
    place = r"^_NoHint\.f \(test_tools\.py:\d+\)"
    wanted = f"argument 'x' needs a type: {types}"
    with pytest.raises(TypeError, match=f"{place}: {wanted} of these$"):

        class _NoHint(ToolEnv):
            @tool
            def f(self, x): ...

    with pytest.raises(
        TypeError, match=rf"^_NoJson\.f .*: {wanted} of these, got .*set"
    ):

        class _NoJson(ToolEnv):
            @tool
            def f(self, x: set): ...

    with pytest.raises(TypeError, match=r"^_Star\.f .*'\*x: int' has no name"):

        class _Star(ToolEnv):
            @tool
            def f(self, *x: int): ...


def test_texts_in_place_of_numbers_and_truth_values_are_refused():
    """`bool("no")` is true, and the agent is not to blame for `float("yes")`."""
    for name in ("step_reward", "invalid_reward", "max_episode_steps"):
        wanted = rf"_Texts \(.*\): {name} must be a number, got the text '-0.1'$"
        with pytest.raises(TypeError, match=wanted):
            type("_Texts", (ToolEnv,), {name: "-0.1", "__qualname__": "_Texts"})

    # Without the check of type hints that the tests have.
    env, finish, add_reward = (
        ToolEnv(),
        *map(inspect.unwrap, (ToolEnv.finish, ToolEnv.add_reward)),
    )
    with pytest.raises(TypeError, match=r"finish\(\) expected a bool, got the text"):
        finish(env, "no")
    with pytest.raises(TypeError, match="a reward must be a number, got the text '1'"):
        add_reward(env, "1")


def test_a_method_cannot_hide_what_every_episode_is_held_in():
    # `tasks` would fail at its second call only, after a reset.
    with pytest.raises(TypeError, match=r"_Hides .*cannot be named '_task', in which"):

        class _Hides(ToolEnv):
            def _task(self, number): ...

    with pytest.raises(TypeError, match="'_steps'"):

        class _Property(ToolEnv):
            @property
            def _steps(self): ...

    class _Sets(ToolEnv):
        _steps = 3  # a value is set anew at each reset, and hides nothing


def test_tools_of_another_kind_do_not_hide_the_signatures():
    class _Workshop(ToolEnv):
        def start(self, task):
            self.tools = [task.id]
            return "ready"

    with pytest.raises(TypeError, match=r"_Workshop: `tools` holds .*'hammer'.*name"):
        _Workshop().reset(options={"task": Task(id="hammer", instruction="")})

    class _Inventory(Quiz):
        def start(self, task):
            self.tools = {}  # filled later, and hides the signatures until then
            return super().start(task)

    with pytest.raises(TypeError, match="_Inventory: `tools` holds"):
        _Inventory().reset(options={"task": Task(id="t", instruction="")})
    with pytest.raises(TypeError, match=r"_Shed .*got \('saw',\)"):

        class _Shed(ToolEnv):
            tools = ("saw",)


def test_the_reserved_names_are_those_that_an_episode_sets():
    env, _, _ = begun(
        Quiz(),
        Task(id="q", instruction="", options={"question": "2 + 2", "answer": "4"}),
    )
    env.step("4")
    names = {name for name in vars(env) if name.startswith("_")}
    assert {n for n in names if not n.startswith("_np_random")} == tool_env.STATE


def test_an_episode_may_write_to_the_options_of_its_task():
    class Writes(Quiz):
        def start(self, task):
            message = super().start(task)
            task.options["more"]["count"] += 1
            return message

    options = {"question": "2 + 2", "answer": "4", "more": {"count": 0}}
    task = Task(id="q", instruction="answer", options=options)
    Writes().reset(options={"task": task})
    assert task.options["more"] == {"count": 0}


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


def test_a_recorded_task_starts_as_the_listed_one_does():
    class Greedy(ToolEnv):
        """It takes all options as attributes."""

        def start(self, task):
            self.keys = sorted(task.options)
            for name, value in task.options.items():
                setattr(self, name, value)
            return task.instruction

        @tool
        def look(self) -> str:
            """Look."""
            return "a wall"

    task = Task(id="t", instruction="look around", options={"size": 3})
    env = Greedy()
    recorded, state = base.begin(env, task)
    assert recorded.options["tools"]
    assert base.begin(env, recorded) == (recorded, state)
    assert env.keys == ["size"]
    assert base.take(env, "look {}").state == ("result a wall",)
