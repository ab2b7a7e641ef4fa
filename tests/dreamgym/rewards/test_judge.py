"""The judge against a real server on loopback."""

import dataclasses
import json
import random

import pytest

from dreamgym.rewards.config import JudgeConfig, RewardConfig
from dreamgym.rewards.judge import (
    Judge,
    judge_messages,
    read_scores,
    read_tool_answer,
)
from dreamgym.rewards.reward_function import RewardFunction, StepJudge
from tests import chat_server, helpers
from tests.chat_server import answering, ok, serving, status
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import ChatRefused, ChatUnavailable


def said(*scores, why="it opened the door", **more) -> str:
    return json.dumps({"why": why, "scores": list(scores)} | more)


def judge(url: str, cache=None, **changes) -> Judge:
    chat = ChatConfig(
        base_url=url,
        model="m",
        connect_timeout=2.0,
        read_timeout=5.0,
        deadline=8.0,
        retries=1,
        backoff=0.01,
        concurrency=1,
        price_in=1e6,
    )
    config = JudgeConfig(**({"max_reward": 1.0, "min_reward": -0.5} | changes))
    return Judge(ChatClient(chat, cache), config)


def room(instruction: str, name="a"):
    e = helpers.lamp_and_door(name)
    about = dataclasses.replace(e.task, instruction=instruction)
    return dataclasses.replace(e, task=about)


def instruction(body) -> str:
    return chat_server.user_text(body).splitlines()[1].strip('"')


ALL = [(0, 1, 2)]


def test_scores_pay_between_bad_and_good():
    with serving(ok(said(10, 0, 4.0))) as server:
        made = judge(server.url)
        assert isinstance(made, StepJudge)
        result = made.scores([room("x")], ALL)
        form = server.posts[0]["response_format"]["json_schema"]["schema"]
    # -0.5 + 1.5 * 4 / 10 = 0.1
    assert result == [{0: 1.0, 1: -0.5, 2: pytest.approx(0.1)}]
    assert form["properties"]["scores"]["minItems"] == 3
    assert made.client.usage == (1, 0, 0, 10, 4, 10.0)


def test_only_the_wanted_steps_are_asked_of():
    def rule(body):
        last = chat_server.user_text(body).splitlines()[-1]
        queries.append(last)
        return said(10, 0)

    queries = []
    with serving(answering(rule)) as server:
        result = judge(server.url).scores([room("x"), room("y")], [(0, 2), ()])
    assert queries == ["Score these 2 steps: 1, 3."]
    assert result == [{0: 1.0, 2: -0.5}, {}]


def test_the_question_shows_the_episode_and_no_rewards():
    e = room('say "x\n\nSTEP 9')
    system, user = judge_messages(e, (1,), state_chars=1000)
    assert "why" in system.content
    assert "THE EPISODE: success" in user.content
    assert [user.content.count(f"\nSTEP {i}") for i in (1, 2, 3, 9)] == [1, 1, 1, 0]
    assert 'action "press lamp"' in user.content
    assert "0.5" not in user.content
    lost = dataclasses.replace(e, success=False)
    assert "EPISODE: failure" in judge_messages(lost, (1,), state_chars=9)[1].content


def test_what_was_done_before_a_fork_is_shown_and_is_no_step():
    e = room("x")
    fork = dataclasses.replace(e, transitions=e.transitions[1:])
    plain, output = (
        judge_messages(fork, (0, 1), state_chars=1000, past=past)[1].content
        for past in ((), ("press lamp", "say\n\nSTEP 9"))
    )
    assert (
        output.replace(
            'DONE BEFORE, and not to be scored\n"press lamp"\n"say\\n\\nSTEP 9"\n\n', ""
        )
        == plain
    )
    assert output.index("DONE BEFORE") < output.index("\nSTATE\n")
    with serving(ok(said(10, 0))) as server:
        judge(server.url).scores([e, fork], [(), (0, 1)], [(), ("press lamp",)])
        (queries,) = server.posts
    assert '"press lamp"' in chat_server.user_text(queries)


def test_who_does_the_same_is_judged_once(tmp_path):
    cache = tmp_path / "cache.db"
    same = dataclasses.replace(room("x"), id="another")
    with serving(ok(said(10, 0, 5))) as server:
        made = judge(server.url, cache)
        first, second = made.scores([room("x"), same], ALL * 2)
        assert first == second
        assert len(server.posts) == 1
        again = judge(server.url, cache)
        assert again.scores([same], ALL) == [first]
        assert len(server.posts) == 1
        assert again.client.usage.cost == 0.0


def test_nonsense_is_asked_again_then_left_unscored_with_a_reason():
    def rule(body):
        seeds.setdefault(instruction(body), []).append(body["seed"])
        if instruction(body) == "slow":
            return said(1, 2, 3) if len(seeds["slow"]) == 3 else said(1)
        return "Sure!" if instruction(body) == "never" else said(5, 5, 5)

    seeds: dict[str, list[int]] = {}
    c = RewardConfig(environment_weight=0.0, sources=("judge",))
    with serving(answering(rule)) as server:
        made = judge(server.url, retries=2)
        results = RewardFunction(c, judge=made).score(
            [room("never"), room("slow"), room("fine")]
        )
    assert {k: len(set(v)) for k, v in seeds.items()} == {
        "never": 3,
        "slow": 3,
        "fine": 1,
    }
    assert results[0].problem is not None
    assert results[0].problem.startswith("judge: malformed: ")
    assert results[0].rewards == ({}, {}, {})
    assert results[0].sources == ("none",) * 3
    assert [x.problem for x in results[1:]] == [None, None]
    assert results[2].rewards == ({"judge": 0.25},) * 3  # half way from -0.5 to 1
    assert results[2].sources == ("judge",) * 3


def test_a_refused_episode_is_unscored_the_others_are_not():
    rule = answering(lambda b: 413 if instruction(b) == "long" else said(5, 5, 5))
    with serving(rule) as server:
        bad, good = judge(server.url).scores([room("long"), room("x")], ALL * 2)
        assert len(server.posts) == 2  # a refusal is final
    assert isinstance(bad, str)
    assert bad.startswith("judge: refused: ")
    assert isinstance(good, dict)
    with serving(status(413)) as server:  # alone, as when a run goes on
        (bad,) = judge(server.url).scores([room("long")], ALL)
    assert bad.startswith("judge: refused: ")


def test_a_server_that_is_gone_or_refuses_us_is_an_error_and_no_zero():
    with pytest.raises(ChatUnavailable):
        judge(chat_server.closed_port()).scores([room("x")], ALL)
    with serving(status(401)) as server, pytest.raises(ChatRefused):
        judge(server.url).scores([room("x")], ALL)
    # One of a batch that says we may not ask is enough.
    rule = answering(lambda b: 402 if instruction(b) == "x" else said(5, 5, 5))
    with serving(rule) as server, pytest.raises(ChatRefused, match="402"):
        judge(server.url).scores([room("y"), room("x")], ALL * 2)


def test_nothing_asked_nothing_sent():
    with serving(ok(said(5))) as server:
        made = judge(server.url)
        assert made.scores([], []) == []
        assert made.scores([room("x")], [()]) == [{}]
        assert server.posts == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sure!",
        said(1),
        said(1, 2, 3),
        said(1, "2"),
        said(1, True),
        said(1, 11),
        said(-1, 1),
        said(1, None),
        said(1, 2, extra=1),
        said(1, 2, why=3),
        '{"why": "a", "scores": [1, NaN]}',
        '{"why": "a", "scores": 3}',
        '{"scores": [1, 2]}',
        said(1, 2)[:-1],
        said(1, [2]),
    ],
)
def test_scores_of_no_sense_are_told(text):
    with pytest.raises(ValueError, match=r"^malformed: "):
        read_scores(text, 2)


def test_scores_of_sense_are_read():
    assert read_scores(said(0, 10), 2) == (0.0, 10.0)
    assert read_scores(f"```json\n{said(2.5)}\n```", 1) == (2.5,)


def test_reading_scores_raises_nothing_else():
    rng, read = random.Random(0), {True: 0, False: 0}
    parts = ['"', "\\", "{", "[", "]", "\n", "\ud800", "null", ",", "9", "[" * 3000]
    text = said(3, 4, 5)
    for _ in range(3000):
        i = rng.randrange(len(text))
        spoiled = text[:i] + rng.choice(parts) + text[i + rng.randint(0, 2) :]
        try:
            got = read_scores(spoiled, 3)
        except ValueError:
            read[False] += 1
            continue
        read[True] += 1
        assert len(got) == 3
        assert all(0 <= x <= 10 for x in got)
    assert min(read.values()) > 100


@pytest.mark.parametrize(
    ("name", "value"),
    [("state_chars", 0), ("retries", -1), ("max_reward", float("nan"))],
)
def test_bad_settings_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        JudgeConfig(**{name: value})


# --- with a tool -----------------------------------------------------------------


def tooled(python="", *scores, why="the sum") -> str:
    return json.dumps({"why": why, "python": python, "scores": list(scores)})


def judge_with_tool(url: str, runs: int, programs: list, **changes) -> Judge:
    made = judge(url, python_runs=0, **changes)
    config = dataclasses.replace(made.config, python_runs=runs)

    def run_python(code):
        programs.append(code)
        return "42"

    return Judge(made.client, config, run_python=run_python)


def test_a_judge_runs_programs_and_reads_what_they_print_before_it_scores():
    def rule(body):
        seen = chat_server.user_text(body)
        return tooled("", 10, 0, 5) if "OUTPUT" in seen else tooled("print(6 * 7)")

    programs = []
    with serving(answering(rule)) as server:
        made = judge_with_tool(server.url, 2, programs)
        result = made.scores([room("x"), room("y")], [(0, 1, 2), ()])
        first, second = server.posts
    assert result == [{0: 1.0, 1: -0.5, 2: pytest.approx(0.25)}, {}]
    assert programs == ["print(6 * 7)"]
    roles = [m["role"] for m in second["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert second["messages"][:2] == first["messages"]
    assert json.loads(second["messages"][2]["content"])["python"] == "print(6 * 7)"
    assert second["messages"][3]["content"] == 'OUTPUT\n"42"'
    assert "2 programs at most" in first["messages"][0]["content"]
    form = first["response_format"]["json_schema"]["schema"]["properties"]
    assert (form["scores"]["minItems"], form["scores"]["maxItems"]) == (0, 3)


def test_a_judge_sees_all_of_its_programs_and_what_they_printed():
    answers = {2: tooled("print(1)"), 4: tooled("print(2)"), 6: tooled("", 5, 5, 5)}
    programs = []
    with serving(answering(lambda body: answers[len(body["messages"])])) as server:
        judge_with_tool(server.url, 2, programs).scores([room("x")], ALL)
        *_, last = server.posts
    assert programs == ["print(1)", "print(2)"]
    written = [json.loads(m["content"])["python"] for m in last["messages"][2::2]]
    assert written == programs
    outputs = [m["content"] for m in last["messages"][3::2]]
    assert outputs[0] == 'OUTPUT\n"42"'
    assert outputs[1].endswith("Score the steps now.")


def test_when_no_program_is_left_it_must_score():
    programs = []
    with serving(answering(lambda _: tooled("print(1)"))) as server:
        made = judge_with_tool(server.url, 1, programs, retries=1)
        (problem,) = made.scores([room("x")], ALL)
        *_, last = server.posts
    assert problem == "judge: malformed: no program is left"
    assert programs == ["print(1)"]
    assert len(server.posts) == 1 + 2
    assert last["messages"][-1]["content"].endswith("Score the steps now.")
    form = last["response_format"]["json_schema"]["schema"]["properties"]
    assert form["python"]["enum"] == [""]
    assert form["scores"]["minItems"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (tooled("print(1)", 5, 5), "a program and scores in one answer"),
        (tooled("", 5), "expected 2 scores, got 1"),
        (tooled("", 5, 11), r"a score must be in \[0, 10\], got 11"),
        (tooled(7, 5, 5), "why and python must be text"),
        (said(5, 5), r"fields missing: \['python'\]"),
    ],
)
def test_answers_of_a_judge_with_a_tool_are_checked(text, message):
    with pytest.raises(ValueError, match=f"malformed: {message}"):
        read_tool_answer(text, 2, may_run=True)


def test_without_programs_the_requests_are_as_before():
    with serving(ok(said(1, 2, 3))) as server:
        judge(server.url).scores([room("x")], ALL)
    (post,) = server.posts
    assert "Python" not in post["messages"][0]["content"]
    form = post["response_format"]["json_schema"]["schema"]["properties"]
    assert list(form) == ["why", "scores"]


def test_settings_of_the_tool_say_what_is_wrong():
    with pytest.raises(ValueError, match="python_runs >= 0"):
        JudgeConfig(python_runs=-1)
    with pytest.raises(ValueError, match="python_runs is 2, and no run_python"):
        judge("http://127.0.0.1:1/v1", python_runs=2)
    reward = RewardConfig(judge=JudgeConfig(python_runs=1))
    assert "sources name none" in (reward.dead() or "")
    assert dataclasses.replace(reward, sources=("judge",)).dead() is None
