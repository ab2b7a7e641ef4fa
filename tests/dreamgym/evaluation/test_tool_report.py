"""Tool use in test games: agents of known rules have known measures."""

import re

import pytest

from dreamgym.agent import floors
from dreamgym.envs import base
from dreamgym.evaluation.tool_report import game_rates, tool_report, tool_tables
from tests.strangers.tools import Shop
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import write_answer


def asked_in(instruction):
    return instruction.removeprefix("price of ").split()[0]


def rule(state, instruction):
    """The agent that does what the instruction asks for, by its text alone."""
    asked = asked_in(instruction)
    price = re.search(rf"{asked} (?:costs|is) (\d+)", state)
    return write_answer(price[1]) if price else Shop.call("price", fruit=asked)


def never(state, instruction):
    """Answers 0 where no price can be read."""
    action = rule(state, instruction)
    return write_answer("0") if action.startswith("price") else action


def always(state, instruction):
    """Calls once in every task, for another fruit than the one that is asked for."""
    if "result welcome" not in state:
        return never(state, instruction)
    fruit = re.findall(r"(\w+) costs", state)
    other = next(name for name in fruit if name != asked_in(instruction))
    return Shop.call("price", fruit=other)


def play(agent):
    env = Shop()
    tasks = base.begin_all(env, env.tasks("test"))
    # Four that need a call and four that need none.
    needs = [any(t.options["calls"]) for t in tasks]
    calls = [t for t, need in zip(tasks, needs, strict=True) if need]
    others = [t for t, need in zip(tasks, needs, strict=True) if not need]
    tasks = [*calls[:4], *others[:4]]

    def actor(env, task):
        return lambda _: agent(env._text(), task.instruction)

    return floors.play_scripted(env, tasks, actor, source="agent", seed=0, max_steps=3)


def measures(agent):
    report = tool_report(play(agent), seed=0, count_tokens=len)
    assert report is not None
    return report, {n: x["mean"] for n, x in report["measures"].items()}


def test_a_rule_agent_scores_a_hundred_per_cent():
    report, got = measures(rule)
    for name in (
        *("call_precision", "call_recall", "tool_accuracy", "argument_score"),
        *("valid_json", "valid_schema", "execution", "success", "valid_action"),
    ):
        assert got[name] == 1.0, name
    for name in ("unnecessary_calls", "missed_calls", "repeated_calls", "void_turns"):
        assert got[name] == 0.0, name
    assert got["redundant_calls"] == 0.0
    assert report["confusion"] == {"price": {"price": 4}}
    assert got["calls_per_success"] == 4 / 8
    assert got["steps_per_success"] == 12 / 8
    low = report["measures"]["call_precision"]["low"]
    assert low == pytest.approx(0.51, abs=0.01)  # Wilson, 4 of 4 games
    assert report["measures"]["tokens_per_success"]["mean"] > 10


def test_an_agent_that_always_calls_has_its_known_rates():
    report, got = measures(always)
    # 8 calls; 4 tasks need one, and none of them the one that is made.
    assert got["call_precision"] == 4 / 8 == got["unnecessary_calls"]
    assert (got["call_recall"], got["missed_calls"]) == (1.0, 0.0)
    assert got["tool_accuracy"] == 1.0
    assert got["argument_score"] < 0.8
    assert got["success"] == 4 / 8
    assert report["confusion"] == {"none": {"price": 4}, "price": {"price": 4}}


def test_an_agent_that_never_calls_has_its_known_rates():
    report, got = measures(never)
    assert (got["call_recall"], got["missed_calls"]) == (0.0, 1.0)
    assert not {"call_precision", "tool_accuracy", "valid_json"} & got.keys()
    assert got["success"] == 4 / 8
    assert report["confusion"] == {"price": {"none": 4}}


def late(state, instruction):
    """Asks for another fruit first, and then does what the rule says."""
    first = "result welcome" in state
    return (always if first else rule)(state, instruction)


def test_how_calls_are_matched_decides_what_a_late_call_is_worth():
    def score(match):
        report = tool_report(play(late), seed=0, match=match)
        assert report is not None
        return report["measures"]["argument_score"]["mean"]

    assert score("step") < score("assignment") == 1.0


def test_no_expected_call_leaks_into_what_the_agent_reads():
    needed = 0
    for t in play(rule):
        task = t.episode.task
        texts = [task.instruction, *task.initial_state, *t.episode.transitions[0].state]
        for row in filter(None, task.options["calls"]):
            fruit, needed = row["arguments"]["fruit"], needed + 1
            assert Shop.call("price", fruit=fruit) not in "\n".join(texts)
            # The price stands nowhere before the call that asks for it.
            assert str(task.options["prices"][fruit]) not in " ".join(texts)
    assert needed == 4


def test_the_rates_of_games_add_up_to_the_report():
    report, got = measures(always)
    games = game_rates(play(always), match="assignment")
    assert report["measures"].keys() - {"tokens_per_success"} <= games.keys()
    parts = [r for rates in games["unnecessary_calls"].values() for r in rates]
    assert len(parts) == 8
    hits, count = sum(r.hits for r in parts), sum(r.count for r in parts)
    assert hits / count == got["unnecessary_calls"]


def test_games_without_expected_calls_have_no_part():
    played = [t for t in play(never)]
    stripped = [
        t._replace(
            episode=type(t.episode)(
                **{
                    **t.episode.__dict__,
                    "task": Task(id=t.episode.task.id, instruction=""),
                }
            )
        )
        for t in played
    ]
    assert tool_report(stripped, seed=0) is None
    assert tool_tables({"policies": {"bc": {}}}) == []


def test_the_table_shows_every_policy_and_its_confusion():
    rows = {
        name: {"tools": tool_report(play(agent), seed=0)}
        for name, agent in (("rule", rule), ("never", never))
    }
    text = "\n".join(tool_tables({"policies": rows}))
    assert "| | rule | never |" in text
    assert "| precision | 100.0 [51.0, 100.0] | - |" in text
    assert "| recall | 100.0 [51.0, 100.0] | 0.0 [0.0, 49.0] |" in text
    assert "tools expected (rows) and called by never" in text
    assert "| price | 4 |" in text
