"""The judge of components on loopback: its requests, its answers, its known error."""

import json
import random

import pytest

from dreamgym.rewards.components.judge import (
    ComponentJudge,
    component_messages,
    read_label,
)
from dreamgym.rewards.components.questions import ComponentLabeller, Question
from dreamgym.rewards.config import JudgeConfig, RewardConfig
from dreamgym.rewards.reward_function import RewardFunction
from dreamgym.rewards.tool_config import ToolConfig, ToolLabelsConfig
from tests import chat_server
from tests.chat_server import answering, ok, serving
from tests.dreamgym.rewards.components.common import TOOLS, episode
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import Task

TASK = Task(
    id="t",
    instruction='find "it"',
    options={"tools": [{"type": "function", "function": {"name": "go"}}], "calls": [1]},
)
WHEN = Question("when", TASK, ("look",), ("at 1", "said wall"))
WHICH = WHEN._replace(component="which", text="go")


def judge(url, **changes):
    chat = ChatConfig(
        base_url=url,
        model="m",
        connect_timeout=2.0,
        read_timeout=5.0,
        deadline=8.0,
        concurrency=1,
    )
    return ComponentJudge(ChatClient(chat), JudgeConfig(**changes))


def said(**fields):
    return json.dumps({"why": "it is far", **fields})


def test_yes_and_no_are_one_and_zero_and_scores_lie_between():
    with serving(
        ok(said(answer="yes")), ok(said(score=10)), ok(said(score=4))
    ) as server:
        made = judge(server.url)
        assert isinstance(made, ComponentLabeller)
        assert made.labels([WHEN]) == [1.0]
        assert made.labels([WHICH]) == [1.0]
        assert made.labels([WHICH]) == [pytest.approx((4 - 1) / 9)]
        when, which, _ = (
            x["response_format"]["json_schema"]["schema"]["properties"]
            for x in server.posts
        )
    assert when["answer"]["enum"] == ["yes", "no"]
    assert (which["score"]["minimum"], which["score"]["maximum"]) == (1, 10)
    assert read_label(said(answer="no"), "when") == 0.0
    assert read_label(said(score=1), "arguments") == 0.0


def test_the_question_shows_the_decision_and_not_what_is_expected():
    system, user = component_messages(WHICH, state_chars=1000)
    assert "the best one for this step" in system.content
    assert user.content.splitlines()[1] == '"find \\"it\\""'
    assert 'DONE BEFORE\n"look"' in user.content
    assert '2 "said wall"' in user.content
    assert user.content.splitlines()[-1].endswith('TOOL "go"')
    assert "calls" not in user.content
    assert "TOOLS\n" in user.content
    _, alone = component_messages(
        WHEN._replace(past=(), task=Task(id="t", instruction="")), state_chars=4
    )
    assert "(nothing)" in alone.content
    assert "TOOLS" not in alone.content
    assert "more characters are not shown" in alone.content


@pytest.mark.parametrize(
    ("text", "component", "message"),
    [
        ("no idea", "when", "malformed: "),
        (said(answer="maybe"), "when", "answer must be one of"),
        (said(score=11), "which", r"score must be in \[1, 10\], got 11"),
        (said(score=True), "which", "score must be a number, got true"),
        (said(score="7"), "arguments", 'score must be a number, got "7"'),
        (said(answer="yes"), "which", r"fields missing: \['score'\]"),
    ],
)
def test_answers_that_make_no_sense_are_refused(text, component, message):
    with pytest.raises(ValueError, match=message):
        read_label(text, component)


def test_a_malformed_answer_is_asked_for_again_and_then_is_a_problem():
    with serving(
        ok("hm"), ok(said(answer="no")), ok("hm"), ok("hm"), ok("hm")
    ) as server:
        made = judge(server.url, retries=1)
        assert made.labels([WHEN]) == [0.0]
        (problem,) = made.labels([WHEN])
        assert isinstance(problem, str)
        assert problem.startswith("judge: malformed")
        assert len(server.posts) == 4
        assert made.labels([]) == []


def test_a_judge_of_known_error_pays_what_its_error_says():
    """It errs in 30 % of its answers, each by itself."""
    wrong, draw = 0.3, random.Random(0)

    def rule(body):
        state = chat_server.user_text(body).split('"said ')[1].split('"')[0]
        right = TOOLS[state] is not None
        return said(answer="yes" if right != (draw.random() < wrong) else "no")

    whole = [episode(at, goal, ("wall", "ok")) for at in range(60) for goal in (1, 5)]
    labels = ToolLabelsConfig(when="judge")
    config = RewardConfig(
        environment_weight=0.0, tools=ToolConfig(enabled=True, labels=labels)
    )
    with serving(answering(rule)) as server:
        labellers = {"judge": judge(server.url)}
        results = RewardFunction(config, labellers=labellers).score(whole)
    pay = [[x["tool/when"] for x in r.rewards] for r in results]
    # A call that was due: 0.7 * 1 + 0.3 * -0.2; an abstention that was right: 0.7 * 0.5
    # + 0.3 * -0.2. Of 120 answers each, whose standard errors are 0.05 and 0.03.
    assert sum(x[0] for x in pay) / 120 == pytest.approx(0.64, abs=0.15)
    assert sum(x[1] for x in pay) / 120 == pytest.approx(0.29, abs=0.09)
    errors = sum(x[0] < 0 for x in pay) + sum(x[1] < 0 for x in pay)
    assert errors / 240 == pytest.approx(0.3, abs=0.09)
