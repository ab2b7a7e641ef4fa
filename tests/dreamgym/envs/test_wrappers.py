"""Wrappers that make states out of raw observations."""

import copy

import pytest

from dreamgym.envs import base, wrappers
from dreamgym.envs.base import TextEnv
from dreamgym.envs.contract import checker
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from tests import doubles
from tests.strangers import tools
from worldmodel.data.records import Task


class Script(TextEnv):
    """Shows the pages that are given, one after the other."""

    def __init__(self, *pages: str):
        super().__init__()
        self.pages, self.number = pages, 0

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.number = 0
        return self.pages[0], {"instruction": "read"}

    def step(self, action):
        del action
        self.number += 1
        end = self.number == len(self.pages) - 1
        return self.pages[self.number], 0.0, end, False, {}


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("Up. It is dark! Go north?", ["Up.", "It is dark!", "Go north?"]),
        ("At 3.5 km e.g. here", ["At 3.5 km e.g. here"]),
        ('{"kettle": {"colour": "green", "hot": false}, "seen": [1, "b"]}',
         ["kettle colour: green", "kettle hot: false", "seen: 1, b"]),
        ('result {"price": 42}', ["result price: 42"]),
        ('{"rows": [{"id": 7}, {"id": 9}], "none": null}',
         ["rows 1 id: 7", "rows 2 id: 9", "none: null"]),
        ('{"note": "two\\nlines", "empty": {}}', ["note: two lines", "empty: {}"]),
        ("{not json. Really", ["{not json.", "Really"]),
        ("[1, 2]", ["[1, 2]"]),
        ('result [{"id": 7, "at": [1, 2]}, {"id": 9}]',
         ["result 1 id: 7", "result 1 at: 1, 2", "result 2 id: 9"]),
        ('see [1] in {"id": 7}', ["see [1] in id: 7"]),
        ("result Open. You see K7.", ["result Open.", "result You see K7."]),
        ("{}", ["{}"]),
    ],
)  # fmt: skip
def test_facts_of_a_line(line, facts):
    assert wrappers.split_facts(line) == facts


def test_one_fact_a_line():
    env = wrappers.SplitLines(Script("Dark. Cold.\nhere", '{"a": {"b": 1}}', "x"))
    assert env.reset()[0] == "Dark.\nCold.\nhere"
    assert env.step("wait")[0] == "a b: 1"
    kept = wrappers.KeepLines(wrappers.SplitLines(Script("Dark. Cold.", "Warm.", "x")))
    kept.reset()
    assert kept.step("wait")[0].splitlines() == [
        "last seen Dark.",
        "last seen Cold.",
        "Warm.",
    ]


class TwoRooms(doubles.Corridor):
    """The corridor with names of two words, which are joined outside."""

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return f"{obs}\nin living room", info

    def step(self, action):
        assert "gold_coin" not in action
        action = {"take gold coin": "take coin"}.get(action, action)
        obs, *rest = super().step(action)
        return (f"{obs}\nin living room", *rest)

    def tasks(self, split):
        return [
            Task(**{**vars(t), "instruction": "take the gold coin"})
            for t in super().tasks(split)
        ]

    def expert(self):
        return [*super().expert()[:-1], "take gold coin"]

    def valid_actions(self):
        return ["go left", "go right", "take gold coin"]


def play(env, *actions):
    """The texts of an episode."""
    texts = [env.reset()[0]]
    return [*texts, *(env.step(action)[0] for action in actions)]


def test_recent_replies_repeat_what_was_answered_before():
    env = wrappers.RecentReplies(
        Script("ready", "ready\nx is 4", "ready\nok", "ready\nok", "ready\nbye"), 2
    )
    assert play(env, "get x", "put y", "wait", "stop") == [
        "ready",
        "ready\nx is 4",  # the newest reply stands in the state itself
        "earlier get x: x is 4\nready\nok",
        "earlier get x: x is 4\nearlier put y: ok\nready\nok",
        "earlier put y: ok\nearlier wait: nothing new\nready\nbye",
    ]
    assert play(env, "get x")[1] == "ready\nx is 4"  # a new episode remembers nothing


def test_long_replies_are_cut_and_a_count_below_one_is_refused():
    env = wrappers.RecentReplies(Script("a", f"a\n{'x' * 999}", "b"))
    *_, last = play(env, "look" * 99, "go")
    first = last.splitlines()[0]
    assert first.startswith("earlier looklook")
    # An action of any length leaves its reply.
    assert first.count("x") == wrappers.MAX_REPLY_CHARACTERS
    assert len(first) == len("earlier : ") + 2 * wrappers.MAX_REPLY_CHARACTERS
    with pytest.raises(ValueError, match="count must be >= 1, got 0"):
        wrappers.RecentReplies(Script("a"), 0)


def test_a_reply_that_stood_there_before_is_a_reply_all_the_same():
    env = wrappers.RecentReplies(tools.Store())
    task = tools.Store().tasks("train")[0]
    env.reset(options={"task": task})
    key = task.options["from"]
    call = tools.Store().call("get", key=key)
    value = task.options["data"][key]
    env.step(call)
    env.step(call)
    obs, *_ = env.step(call)
    assert obs.count(f"earlier {call}: result {key} is {value}\n") == 2
    same = ("key\nresult 4", "key\nresult 4", "key\nresult 4")
    env = wrappers.RecentReplies(
        Script(*same), is_reply=lambda line: line.startswith("result")
    )
    assert play(env, "get x", "get y")[-1] == "earlier get x: result 4\nkey\nresult 4"


class Orders(ToolEnv):
    """Finds a number that a later call needs, in a result of several lines."""

    def tasks(self, split):
        return [Task(id=split, instruction="cancel an order of ada", split=split)]

    def start(self, task):
        del task
        return "welcome to the back office"

    @tool
    def find(self, name: str) -> str:
        """Find the order of a customer."""
        if name == "eve":
            raise ValueError("no order of eve\nask ZED")
        return f"one order\norder R7731 of {name}"

    @tool
    def wait(self) -> str:
        """Wait."""
        return "it rains"

    @tool
    def cancel(self, order_id: str) -> str:
        """Cancel an order."""
        self.finish(order_id == "R7731")
        return "cancelled"

    @tool
    def go(self, place: str) -> str:
        """Go somewhere."""
        return f"arrived at {place}" if place == "back office" else "lost"


def test_all_lines_of_a_result_are_repeated():
    env = wrappers.RecentReplies(Orders())
    find, wait = Orders.call("find", name="ada"), Orders.call("wait")
    assert play(env, find, f"{wait}\n{find}", wait)[-1].splitlines() == [
        f"earlier {find}: result one order; order R7731 of ada",
        f"earlier {wait} {find}: result it rains; result one order; order R7731 of ada",
        "result it rains",
    ]


def test_tools_are_called_with_values_that_a_wrapper_repeats():
    cancel = Orders.call("cancel", order_id="R7731")
    find, wait = Orders.call("find", name="ada"), Orders.call("wait")
    for wrapper in (wrappers.RecentReplies, wrappers.KeepLines):
        env = wrappers.ShortPages(wrapper(wrappers.SplitLines(Orders())))
        play(env, find, wait)
        assert cancel in env.valid_actions()
        assert base.as_forkable(env).fork().valid_actions() == env.valid_actions()
        env.reset()  # which begins without these
        assert cancel not in env.valid_actions()


def test_calls_have_no_values_of_errors_and_actions_that_a_wrapper_repeats():
    env, plain = wrappers.RecentReplies(Orders()), Orders()
    actions = Orders.call("find", name="eve"), "cancel {}", Orders.call("wait")
    for played in (env, plain):
        play(played, *actions)
    assert set(env.valid_actions()) == set(plain.valid_actions())
    text = f"{'x ' * wrappers.MAX_REPLY_CHARACTERS}R7731"
    env = wrappers.RecentReplies(Orders())
    play(env, Orders.call("go", place=text), Orders.call("wait"))
    assert "R7731" not in "".join(env.valid_actions())  # it was cut off


def test_tools_are_called_with_joined_names():
    env = wrappers.JoinedNames(wrappers.RecentReplies(Orders()), ["back office"])
    assert env.reset()[0] == "result welcome to the back_office"
    go = Orders.call("go", place="back_office")
    assert go in env.valid_actions()
    assert "office" not in " ".join(env.valid_actions()).replace("back_office", "")
    assert env.step(go)[0] == "result arrived at back_office"
    assert go in env.valid_actions()


def test_lines_are_kept_until_one_of_the_same_name_comes():
    pages = ("hall: door", "cellar: coal", "hall: door open", "hall: door open")
    env = wrappers.KeepLines(Script(*pages))
    assert play(env, "down", "up", "wait") == [
        "hall: door",
        "last seen hall: door\ncellar: coal",
        "last seen cellar: coal\nhall: door open",
        "last seen cellar: coal\nhall: door open",
    ]


def test_only_lines_of_the_given_names_are_kept():
    env = wrappers.KeepLines(Script("hall: door\nsaid hi", "cellar"), names=["hall"])
    assert play(env, "down")[1] == "last seen hall: door\ncellar"
    second = wrappers.KeepLines(Script("a b 1", "a c 2"), lambda line: line[:3])
    assert play(second, "x")[1] == "last seen a b 1\na c 2"


def test_long_pages_show_their_top_their_end_and_what_is_new():
    page = [f"row {i}" for i in range(10)]
    changed = [*page[:5], "row 5 is lit", *page[6:]]
    env = wrappers.ShortPages(
        Script("\n".join(page), "\n".join(changed), "short"), 5, last=1
    )
    first, second, third = play(env, "light", "go")
    assert first == "row 0\nrow 1\nrow 2\nrow 3\n(5 lines left out)\nrow 9"
    assert second == (
        "row 0\nrow 1\n(3 lines left out)\nrow 5 is lit\n(3 lines left out)\nrow 9"
    )
    assert third == "short"
    one = wrappers.ShortPages(Script("\n".join(page[:6])), 5, last=1)
    assert play(one) == ["\n".join(page[:6])]  # one line is no longer than its count
    with pytest.raises(ValueError, match="lines >= last \\+ 2"):
        wrappers.ShortPages(Script("a"), 1)
    with pytest.raises(ValueError, match="names must be a list of texts, got 'hall'"):
        wrappers.KeepLines(Script("a"), names="hall")


def test_joined_names_are_whole_words_in_all_that_an_agent_is_compared_with():
    env = wrappers.JoinedNames(Script("a"), ["living room"])
    assert env.split("open living_room_key in living_room") == (
        "open living_room_key in living room"
    )
    assert env.join("living rooms, living room.") == "living rooms, living_room."
    env.env.reset = lambda **_: ("x", {"calls": [{"args": {"at": "living room"}}]})
    assert env.reset()[1] == {"calls": [{"args": {"at": "living_room"}}]}


def test_names_are_joined_wherever_the_agent_meets_them():
    env = wrappers.JoinedNames(TwoRooms(), ["gold coin", "living room"])
    task = base.as_tasks(env).tasks("train")[0]
    assert task.instruction == "take the gold_coin"
    obs, _ = env.reset(options={"task": task})
    assert obs.endswith("in living_room")
    assert env.valid_actions()[-1] == "take gold_coin"
    plan = env.expert()
    assert plan[-1] == "take gold_coin"
    for action in plan:
        _, reward, terminated, *_ = env.step(action)
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize("name", ["coin", "gold_coin bag"])
def test_a_name_to_be_joined_has_two_words(name):
    with pytest.raises(ValueError, match="two words and no underscore"):
        wrappers.JoinedNames(TwoRooms(), [name])


def test_what_the_environment_lacks_the_wrapper_lacks_too():
    env = wrappers.JoinedNames(Script("a", "b"), ["gold coin"])
    assert base.as_expert(env) is None
    assert base.as_tasks(env) is None
    with pytest.raises(AttributeError, match="no attribute 'expert'"):
        _ = env.expert


class Remembering(wrappers.RecentReplies):
    def __init__(self):
        super().__init__(doubles.Corridor())


class Kept(wrappers.KeepLines):
    def __init__(self):
        super().__init__(Remembering())


class Joined(wrappers.JoinedNames):
    def __init__(self):
        short = wrappers.ShortPages(TwoRooms(), 4, last=2)
        super().__init__(short, ["gold coin", "living room"])


class Blinking(doubles.Corridor):
    """Shows where the end is at the beginning alone."""

    def step(self, action):
        obs, *rest = super().step(action)
        lines = [line for line in obs.splitlines() if not line.startswith("end")]
        return ("\n".join(lines), *rest)

    def fork(self):
        return copy.deepcopy(self)


class Seen(wrappers.KeepLines):
    def __init__(self):
        super().__init__(Blinking())


@pytest.mark.parametrize("env", [Remembering, Kept, Joined, Seen])
def test_wrapped_environments_keep_the_contract_with_their_capabilities(env):
    report = checker.check(env(), limit=30, make=env)
    assert (report.faults, report.warnings) == ((), ()), report.text("env")
    assert {"expert", "splits apart", "copies", "deterministic"} <= set(report.checks)


def test_a_fork_of_a_wrapped_environment_remembers_for_itself():
    env = Seen()
    env.reset(options={"task": doubles.tasks("train")[20]})
    assert "last seen end" in env.step("go right")[0]
    fork = base.as_forkable(env).fork()
    assert isinstance(fork, Seen)
    first, second = (x.step("go right")[0] for x in (env, fork))
    assert first == second
    assert "last seen end" in second
    fork.env.close()
    fork._seen.clear()
    assert "last seen end" in env.step("go right")[0]


def test_a_wrapper_has_the_methods_of_its_environment():
    env = wrappers.KeepLines(doubles.Corridor())
    tasks = env.tasks("train")
    env.reset(options={"task": tasks[0]})
    assert env.expert() == doubles.plan(tasks[0].initial_state)
    assert env.valid_actions() == list(doubles.ACTIONS)
    assert not hasattr(env, "variations")
    assert not hasattr(env, "open")
