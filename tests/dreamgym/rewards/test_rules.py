"""Rules: milestones, the table of tool use, and the primer's worked examples."""

import dataclasses
import json

import pytest

from dreamgym.rewards import rules
from dreamgym.rewards.config import (
    ComponentWeightConfig,
    CostConfig,
    MilestoneConfig,
    RewardConfig,
)
from dreamgym.rewards.reward_function import RewardFunction
from dreamgym.rewards.tool_config import ToolConfig
from tests import helpers
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tools.tool_calls import Call

GOLD = {"tool": "weather_api", "arguments": {"city": "Paris", "date": "tomorrow"}}
ON = RewardConfig(environment_weight=0.0, tools=ToolConfig(enabled=True))


def asked(actions, *, calls=(GOLD,), success=True, invalid=False) -> Episode:
    """One line of state; what is said is what is seen."""
    task = Task(
        id="paris",
        instruction="What's the weather in Paris tomorrow?",
        options={} if calls is None else {"calls": list(calls)},
    )
    steps = tuple(
        Transition(
            state=(f"step {i}",),
            action=a,
            next_state=(f"step {i + 1}",),
            rewards={"reward": 0.25},
            invalid=invalid,
            terminated=i == len(actions) - 1,
        )
        for i, a in enumerate(actions)
    )
    return Episode(id="e", task=task, transitions=steps, source="test", success=success)


def call(tool="weather_api", **arguments) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def test_the_primers_trajectory_a_is_paid_a_half():
    # When right +1.0, which wrong -0.5, valid JSON +0.5, runs but is irrelevant 0,
    # final answer wrong -0.5.
    e = asked([call("news_api", topic="Paris"), "It will snow."], success=False)
    (rewarded,) = RewardFunction(ON).score([e])
    assert rewarded.rewards == (
        {"tool/when": 1.0, "tool/which": -0.5, "tool/syntax": 0.5},
        {"tool/task": -0.5},
    )
    assert rules.add_components(rewarded.rewards) == {
        "tool/when": 1.0,
        "tool/which": -0.5,
        "tool/syntax": 0.5,
        "tool/task": -0.5,
    }
    assert sum(v for r in rewarded.rewards for v in r.values()) == 0.5


def test_the_primers_trajectory_b_is_paid_fourteen_and_a_half():
    # When +1.0, which +1.5, correct JSON arguments +1.0 (valid 0.5, their values 0.5),
    # runs +1.0, final answer right +10.
    e = asked([call(city="Paris", date="tomorrow"), "It will rain."])
    (rewarded,) = RewardFunction(ON).score([e])
    assert rewarded.rewards == (
        {
            "tool/when": 1.0,
            "tool/which": 1.5,
            "tool/syntax": 0.5,
            "tool/arguments": 0.5,
            "tool/execution": 1.0,
        },
        {"tool/task": 10.0},
    )
    assert sum(v for r in rewarded.rewards for v in r.values()) == 14.5


C = Call("weather_api", {"city": "Paris", "date": "tomorrow"})
TABLE = ToolConfig(enabled=True)


@pytest.mark.parametrize(
    ("got", "gold", "invalid", "paid"),
    [
        (C, None, False, {"when": -0.2}),  # well-formed and it ran: no merit
        (C, None, True, {"when": -0.2, "execution": -1.0}),
        (Call("x", {}, False), None, True, {"when": -0.2, "syntax": -1.0}),
        (
            Call("weather_api", {}, False),
            C,
            True,
            {"when": 1.0, "which": 1.5, "syntax": -1.0},
        ),
        (Call("", {}, False), C, True, {"when": 1.0, "syntax": -1.0}),
        (
            C,
            C,
            True,
            {
                "when": 1.0,
                "which": 1.5,
                "syntax": 0.5,
                "arguments": 0.5,
                "execution": -1.0,
            },
        ),
        # Nobody said whether it ran.
        (C, C, None, {"when": 1.0, "which": 1.5, "syntax": 0.5, "arguments": 0.5}),
        # One argument of two: quality 0.5, half way from -0.5 to 0.5.
        (
            Call("weather_api", {"city": "Paris"}),
            C,
            False,
            {
                "when": 1.0,
                "which": 1.5,
                "syntax": 0.5,
                "arguments": 0.0,
                "execution": 1.0,
            },
        ),
    ],
)
def test_the_table_by_hand(got, gold, invalid, paid):
    labels = rules.rule_labels(got, gold)
    assert rules.call_rewards(got, labels, invalid, TABLE) == paid


def test_past_what_the_task_says_idling_is_no_merit():
    e = asked(["a", "b", "c", call(city="Rome")], calls=[None])
    assert rules.tool_rewards(e, TABLE) == [
        {"tool/when": 0.5},
        {},
        {},
        {"tool/when": -0.2},
    ]


def test_the_calls_due_before_a_fork_are_gone():
    search, book = {"tool": "search"}, {"tool": "book", "arguments": {"n": 1}}
    whole = asked(["search()", "book(n=1)", "done"], calls=[search, book])
    fork = asked(["book(n=1)", "done"], calls=[search, book])
    paid = rules.tool_rewards(whole, TABLE)
    assert paid[1]["tool/which"] == 1.5
    assert paid[1]["tool/arguments"] == 0.5
    assert rules.tool_rewards(fork, TABLE, past=("search()",)) == paid[1:]
    by_step = dataclasses.replace(TABLE, match="step")
    assert rules.tool_rewards(whole, by_step) == paid
    assert rules.tool_rewards(fork, by_step)[0]["tool/which"] == -0.5  # search was due
    # As an assignment it is the call that was expected; the search was missed.
    assert rules.tool_rewards(fork, TABLE) == [paid[1], {"tool/when": -0.2}]
    # Past what the task says, idling is no merit in a fork either.
    idle = asked(["wait"], calls=[search, None])
    assert rules.tool_rewards(idle, TABLE, past=("search()",)) == [{"tool/when": 0.5}]
    assert rules.tool_rewards(idle, TABLE, past=("search()", "wait")) == [{}]


def test_a_call_that_is_missed_is_said_where_it_was_due_or_at_the_end():
    quiet = asked(["hm", "It will rain.", "done"], calls=[GOLD, None])
    missed, right = {"tool/when": -0.2}, {"tool/when": 0.5}
    by_step = dataclasses.replace(TABLE, match="step")
    assert rules.tool_rewards(quiet, by_step) == [missed, right, {}]
    assert rules.tool_rewards(quiet, TABLE) == [{}, {}, missed]


def test_a_harmless_extra_call_costs_itself_and_nothing_more():
    first, second = call(city="Paris", date="tomorrow"), call("book", n=1)
    expected = [GOLD, {"tool": "book", "arguments": {"n": 1}}]
    plain = rules.tool_rewards(asked([first, second], calls=expected), TABLE)
    extra = asked([first, call("look"), second], calls=expected)
    for match in ("order", "assignment"):
        table = dataclasses.replace(TABLE, match=match)
        assert rules.tool_rewards(extra, table) == [
            plain[0],
            {"tool/when": -0.2},
            plain[1],
        ]
    by_step = dataclasses.replace(TABLE, match="step")
    assert rules.tool_rewards(extra, by_step)[2] == {"tool/when": -0.2}  # shifted


SCHEMA = {
    "name": "weather_api",
    "parameters": {
        "properties": {"city": {"type": "string"}, "date": {"type": "string"}},
        "required": ["city"],
    },
}


@pytest.mark.parametrize(
    ("action", "paid"),
    [
        # The right tool, with arguments that it does not have: no syntax is right.
        ("weather_api(wrong=3)", {"which": 1.5, "syntax": -1.0, "arguments": -0.5}),
        (
            call(city=7, date="tomorrow"),  # of the wrong type: one argument of two
            {"which": 1.5, "syntax": -1.0, "arguments": 0.0},
        ),
        (call("no_tool"), {"which": -0.5, "syntax": -1.0}),
        ('{"city": "Paris"', {"syntax": -1.0}),  # broken, and no word says "tool"
        (call(city="Paris"), {"which": 1.5, "syntax": 0.5, "arguments": 0.0}),
    ],
)
def test_syntax_is_json_and_schema(action, paid):
    e = asked([action], invalid=None)
    options = dict(e.task.options) | {"tools": [SCHEMA]}
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, options=options))
    want = {f"tool/{name}": value for name, value in paid.items()}
    assert rules.tool_rewards(e, TABLE) == [{"tool/when": 1.0} | want]


def test_calls_at_once_are_all_paid():
    both = "\n".join([call(city="Paris", date="tomorrow"), call("look")])
    (paid,) = rules.tool_rewards(asked([both], invalid=None), TABLE)
    assert paid == {
        "tool/when": 1.0 - 0.2,
        "tool/which": 1.5,
        "tool/syntax": 0.5,
        "tool/arguments": 0.5,
    }


def test_of_calls_at_once_each_is_paid_for_its_own_execution():
    both = "\n".join([call(city="Paris", date="tomorrow"), call("look")])
    e = asked([both], invalid=False)
    (step,) = e.transitions
    after = ("weather", "result error: unknown city", "result ok")
    e = dataclasses.replace(
        e, transitions=(dataclasses.replace(step, next_state=after),)
    )
    (paid,) = rules.tool_rewards(e, TABLE)
    (done,) = rules.tool_rewards(asked([both], invalid=False), TABLE)
    # Of the call that is due. What the other one earns nobody pays.
    assert paid["tool/execution"] < 0 < done["tool/execution"]


def test_without_due_calls_or_switched_off_the_table_is_silent():
    e = asked([call(city="Paris")], calls=None)
    assert rules.tool_rewards(e, TABLE) == [{}]
    assert rules.task_rewards(e, TABLE) == {}
    off = ToolConfig()
    assert rules.tool_rewards(asked([call()]), off) == [{}]
    assert rules.task_rewards(asked([call()]), off) == {}
    unscored = dataclasses.replace(asked([call()]), success=None)
    assert rules.task_rewards(unscored, TABLE) == {}


def test_a_wrong_tool_that_is_called_again_has_a_price():
    """Expected is search, then book. By assignment the second news is that book."""
    expected = [{"tool": "search"}, {"tool": "book"}]
    actions = ["news()", "search()", "news()", "chat()", "news()\nsearch()", "chat()"]
    e = asked(actions, calls=expected)
    table = dataclasses.replace(TABLE, repeat_penalty=0.4)
    plain, paid = rules.tool_rewards(e, TABLE), rules.tool_rewards(e, table)
    # The first news and the first chat are no repetition. The second search is one call
    # too many, and of no wrong tool.
    repeats = [{}, {}, {"tool/repeat": -0.4}, {}, *[{"tool/repeat": -0.4}] * 2]
    assert paid == [a | b for a, b in zip(plain, repeats, strict=True)]
    # A fork after the first news knows of it.
    fork = asked(actions[1:], calls=expected)
    assert rules.tool_rewards(fork, table, past=("news()",)) == paid[1:]
    # Both of one action; what cannot be read names no tool.
    both = asked(["news()\nnews()\nnews()", '{"tool": 3}', '{"tool": 3}'], calls=[None])
    prices = [row.get("tool/repeat") for row in rules.tool_rewards(both, table)]
    assert prices == [-0.8, None, None]
    # A tool that is expected later is called too early, and is no wrong one.
    early = asked(["news()", "news()", "stop"], calls=[None, None, {"tool": "news"}])
    by_step = dataclasses.replace(table, match="step")
    assert [row.get("tool/repeat") for row in rules.tool_rewards(early, by_step)] == [
        None
    ] * 3


def test_weights_scale_their_part():
    weights = dataclasses.replace(TABLE.weights, which=2.0, arguments=0.0)
    table = dataclasses.replace(TABLE, weights=weights, tool=(3.0, -1.0))
    result = rules.call_rewards(C, rules.rule_labels(C, C), False, table)
    assert (result["which"], result["arguments"], result["when"]) == (6.0, 0.0, 1.0)


@pytest.mark.parametrize("part", ["call", "tool", "syntax", "execution", "task"])
def test_the_defaults_pay_more_than_they_punish(part):
    good, bad = getattr(TABLE, part)
    assert good > 0 > bad
    # Breaking errors may cost as much as their part pays, or more (the primer's table).
    assert good > -bad or part in ("syntax", "execution")


def test_steps_and_calls_have_a_price():
    price = CostConfig(step=0.1, call=0.5)
    assert rules.step_costs("go north", price) == {"cost/step": -0.1}
    both = "look()\nlook()"
    assert rules.step_costs(both, price) == {"cost/step": -0.1, "cost/call": -1.0}
    assert rules.step_costs(both, CostConfig()) == {}
    with pytest.raises(ValueError, match="step must be >= 0"):
        CostConfig(step=-1.0)


def test_each_component_has_its_weight_by_name():
    weights = (
        ComponentWeightConfig(name="tool/when", weight=2.0),
        ComponentWeightConfig(name="tool/*", weight=0.5),
    )
    part = {"tool/when": 1.0, "tool/which": 1.0, "task": 1.0}
    want = {"tool/when": 2.0, "tool/which": 0.5, "task": 1.0}
    assert rules.weigh_components(part, weights) == want
    config = dataclasses.replace(
        ON, component_weights=weights, cost=CostConfig(step=0.25), outcome_weight=0.5
    )
    e = asked([call(city="Paris", date="tomorrow")], invalid=None)
    (rewarded,) = RewardFunction(config).score([e])
    # Half of the process, weighed; half of the outcome; the price is not scaled.
    assert rewarded.rewards[0] == {
        "tool/when": 0.5 * 1.0 * 2.0,
        "tool/which": 0.5 * 1.5 * 0.5,
        "tool/syntax": 0.5 * 0.5 * 0.5,
        "tool/arguments": 0.5 * 0.5 * 0.5,
        "tool/task": 0.5 * 10.0 * 0.5,
        "outcome": 0.5,
        "cost/step": -0.25,
    }


# --- milestones ------------------------------------------------------------------

LIT = MilestoneConfig(name="lit", pattern=r"^the lamp is on$", weight=0.25)
OUT = MilestoneConfig(name="out", pattern="door is open", weight=0.5)
PRESS = MilestoneConfig(
    name="press", pattern="press|pull", weight=2.0, search_in="action"
)


def test_each_milestone_is_paid_once_at_the_step_that_reaches_it():
    steps = helpers.lamp_and_door().transitions
    assert rules.milestone_rewards(steps, [LIT, OUT, PRESS]) == [
        {"milestone/lit": 0.25, "milestone/press": 2.0},
        {},
        {"milestone/out": 0.5},
    ]
    assert rules.milestone_rewards(steps, [OUT, PRESS, LIT]) == (
        rules.milestone_rewards(steps, [LIT, OUT, PRESS])
    )


def test_what_holds_from_the_start_is_no_progress():
    step = helpers.transition
    on, off = ("the lamp is on",), ("the lamp is off",)
    steps = [
        step(on, "wait", on),
        step(on, "press", off),
        step(off, "press", on),
        step(on, "press", off),
        step(off, "press", on),
    ]
    assert rules.milestone_rewards(steps, [LIT]) == [{}] * 5  # nor where it is lost
    result = rules.milestone_rewards(steps[2:], [LIT])
    assert result == [{"milestone/lit": 0.25}, {}, {}]


def test_what_was_reached_before_a_fork_is_not_paid_again():
    steps = helpers.lamp_and_door().transitions
    assert steps[0].action == "press lamp"
    pressed = dataclasses.replace(steps[1], action="press on")
    rows = [pressed, steps[2]]
    whole = rules.milestone_rewards([steps[0], *rows], [LIT, OUT, PRESS])
    fork = rules.milestone_rewards(rows, [LIT, OUT, PRESS], past=("press lamp",))
    assert fork == whole[1:] == [{}, {"milestone/out": 0.5}]
    # What a past state had, and the fork begins without.
    on, off = ("the lamp is on",), ("the lamp is off",)
    again = [helpers.transition(off, "press", on)]
    assert rules.milestone_rewards(again, [LIT]) == [{"milestone/lit": 0.25}]
    lost = rules.milestone_rewards(again, [LIT], ("press",), past_states=(on,))
    assert lost == [{}]
    assert rules.milestone_rewards(rows, [PRESS], past=("wait",)) == [
        {"milestone/press": 2.0},
        {},
    ]
    assert rules.milestone_rewards([], [LIT, PRESS]) == []


def test_a_pattern_means_lines():
    step = helpers.transition(("a",), "x", ("so the lamp is on now",))
    assert rules.milestone_rewards([step], [LIT]) == [{}]


# --- components ------------------------------------------------------------------


def test_components_add_up_whatever_their_order():
    a, b = {"x": 1.0, "y": 2.0}, {"y": 0.5}
    assert (
        rules.add_components([a, b])
        == rules.add_components([b, a])
        == {"x": 1.0, "y": 2.5}
    )
    assert rules.add_components([]) == {}
    assert rules.scale_components(a, 0.5) == {"x": 0.5, "y": 1.0}


def test_what_is_kept_is_not_the_environments_to_scale():
    t = Transition(
        state=("a",),
        action="b",
        next_state=("c",),
        rewards={"dream": 1.0, "uncertainty_penalty": -0.5},
    )
    assert rules.environment_rewards([t], 0.5, ("uncertainty_penalty",)) == [
        {"dream": 0.5}
    ]
    assert rules.environment_rewards([t], 0.0, ("uncertainty_penalty",)) == [{}]
    assert rules.unscaled_rewards([t], ("uncertainty_penalty",)) == [
        {"uncertainty_penalty": -0.5}
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name"),
        ({"pattern": "("}, "pattern.*'m'"),
        ({"search_in": "x"}, "search_in"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_bad_milestones_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        MilestoneConfig(**({"name": "m", "pattern": "x", "weight": 1.0} | changes))
