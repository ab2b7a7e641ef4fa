"""Tool use in test games: agents of known rules have known measures."""

import re

import pytest

from dreamgym.agent import floors
from dreamgym.envs import base
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from dreamgym.evaluation.tool_report import tool_report, tool_tables
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import write_answer

PRICES = {"pear": 3, "plum": 5, "fig": 2, "kiwi": 4}
GREETINGS = ("hello", "thanks", "bye", "good morning")


class Shop(ToolEnv):
    """Half of the tasks ask for a price, half say something that needs no tool."""

    max_episode_steps = 3

    def tasks(self, split):
        asked = [Task(id=n, instruction=f"price of {n}", split=split) for n in PRICES]
        said = [Task(id=g, instruction=g, split=split) for g in GREETINGS]
        return [*asked, *said]

    def start(self, task):
        self.item = task.id
        return ""

    @tool
    def price(self, item: str) -> str:
        """Look a price up."""
        return f"{item} costs {PRICES[item]}"

    def answer(self, text):
        self.finish(text == str(PRICES.get(self.item, "you are welcome")))
        return "ok"

    def expert(self):
        if self.item not in PRICES:
            return [write_answer("you are welcome")]
        return [
            self.call("price", item=self.item),
            write_answer(str(PRICES[self.item])),
        ]


def rule(state, instruction):
    """The agent that does what the instruction asks for, by its text alone."""
    asked = re.match(r"price of (\w+)", instruction)
    told = re.search(r"costs (\d+)", state)
    if asked is None:
        return write_answer("you are welcome")
    return write_answer(told[1]) if told else Shop.call("price", item=asked[1])


def always(state, instruction):
    """Calls in every task, whatever it asks, before it does what the rule says."""
    told = "result ready" not in state
    return rule(state, instruction) if told else Shop.call("price", item="pear")


def never(state, instruction):
    del state, instruction
    return write_answer("you are welcome")


def play(agent):
    env = Shop()
    tasks = base.begin_all(env, env.tasks("test"))

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
    # 8 calls; 4 tasks need one. It always asks for the pear, which one task means.
    assert got["call_precision"] == 4 / 8 == got["unnecessary_calls"]
    assert (got["call_recall"], got["missed_calls"]) == (1.0, 0.0)
    assert got["tool_accuracy"] == 1.0
    assert got["argument_score"] < 0.6
    assert report["confusion"] == {"none": {"price": 4}, "price": {"price": 4}}


def test_an_agent_that_never_calls_has_its_known_rates():
    report, got = measures(never)
    assert (got["call_recall"], got["missed_calls"]) == (0.0, 1.0)
    assert not {"call_precision", "tool_accuracy", "valid_json"} & got.keys()
    assert got["success"] == 4 / 8
    assert report["confusion"] == {"price": {"none": 4}}


def late(state, instruction):
    """Asks for the pear first, and then for what it is asked."""
    asked = re.match(r"price of (\w+)", instruction)
    if asked is None:
        return rule(state, instruction)
    if "costs" not in state:
        return Shop.call("price", item="pear")
    if f"{asked[1]} costs" not in state:
        return Shop.call("price", item=asked[1])
    return rule(state, instruction)


def test_how_calls_are_matched_decides_what_a_late_call_is_worth():
    def score(match):
        report = tool_report(play(late), seed=0, match=match)
        assert report is not None
        return report["measures"]["argument_score"]["mean"]

    assert score("step") < score("assignment") == 1.0


def test_no_expected_call_leaks_into_what_the_agent_reads():
    for t in play(rule):
        task = t.episode.task
        assert "calls" in task.options
        texts = [task.instruction, *task.initial_state, *t.episode.transitions[0].state]
        for row in filter(None, task.options["calls"]):
            item = row["arguments"]["item"]
            assert Shop.call("price", item=item) not in "\n".join(texts)
        # A price stands nowhere before the call that asks for it.
        assert not any(str(p) in " ".join(texts) for p in PRICES.values())


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
