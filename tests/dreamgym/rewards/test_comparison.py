"""Pairs of attempts, and a judge of known error and known bias on loopback."""

import dataclasses
import json
import random
from collections import Counter

import pytest

from dreamgym.rewards.comparison import (
    PairJudge,
    better_by_outcome,
    difference_kind,
    pair_attempts,
    pair_messages,
    read_choice,
)
from dreamgym.rewards.config import JudgeConfig
from tests import chat_server, doubles
from tests.chat_server import answering, serving
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig

TASKS = doubles.tasks("train")


def won_and_lost(count):
    """Return a won and a lost attempt at each of some tasks."""
    out = []
    for task in TASKS[:count]:
        plan = doubles.plan(task.initial_state)
        out.append(doubles.episode(task, plan, name=f"{task.id}-won"))
        out.append(doubles.episode(task, ["fly", "fly"], name=f"{task.id}-lost"))
    return out


CALLS = {
    "when": ('find {"name": "a"}', "it is there"),
    "which": ('find {"name": "a"}', 'open {"name": "a"}'),
    "how": ('find {"name": "a"}', 'find {"name": "b"}'),
    "text": ("go right", "go left"),
}
"""The first actions of a won and of a lost attempt, by what they differ in."""


def _pairs(values):
    return zip(values[::2], values[1::2], strict=True)


def won_and_lost_by_kind(count):
    """Return a won and a lost attempt of each kind of difference at some tasks.

    A task of each kind has an id of its own; the lost attempt comes first at each
    second task.
    """
    out = []
    for number, (won, lost) in enumerate(_pairs(won_and_lost(count))):
        for kind, actions in CALLS.items():
            task = dataclasses.replace(won.task, id=f"{won.task.id}-{kind}")
            sides = [
                dataclasses.replace(
                    e,
                    id=f"{e.id}-{kind}",
                    task=task,
                    transitions=(
                        dataclasses.replace(e.transitions[0], action=action),
                        *e.transitions[1:],
                    ),
                )
                for e, action in zip((won, lost), actions, strict=True)
            ]
            out += sides[::-1] if number % 2 else sides
    return out


def judge(url):
    chat = ChatConfig(
        base_url=url, model="m", connect_timeout=2.0, read_timeout=5.0, deadline=8.0
    )
    return PairJudge(
        ChatClient(dataclasses.replace(chat, concurrency=1)), JudgeConfig()
    )


def answer(choice):
    return json.dumps({"why": "it is nearer", "better": choice})


def truth(body):
    """Return the attempt of a request that was won."""
    text = chat_server.user_text(body)
    first = text.split("ATTEMPT B")[0]
    return "A" if "outcome win" in first.split("ATTEMPT A")[1] else "B"


def test_pairs_are_of_one_task_and_differ():
    episodes = won_and_lost(3)
    twice = [*episodes, dataclasses.replace(episodes[0], id="again")]
    pairs = pair_attempts(twice, max_pairs=5)
    assert [p.task.id for p in pairs] == [t.id for t in TASKS[:3]]
    assert all(p.first != p.second for p in pairs)
    one, two = episodes[:2], episodes[2:4]
    assert pair_attempts(one, two, max_pairs=5) == []
    (pair,) = pair_attempts(episodes[1:2], episodes[:1], max_pairs=5)
    assert (pair.first, pair.second) == (
        episodes[1].transitions,
        episodes[0].transitions,
    )
    assert pair_attempts(episodes[:1], max_pairs=5) == []
    preference = pair.preferring("B")
    assert (preference.better, preference.worse) == (pair.second, pair.first)


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        (("go right", "go left"), "text"),
        (('find {"name": "a"}', 'find {"name": "b"}'), "how"),
        (('find {"name": "a"}', 'open {"name": "a"}'), "which"),
        (('find {"name": "a"}', "it is there"), "when"),
        (('find {"name": "a"}', 'find {"name": "a"}\nopen {"name": "a"}'), "when"),
        (("go right", "go right"), "when"),
    ],
)
def test_the_first_difference_has_a_kind(actions, kind):
    (pair,) = pair_attempts(won_and_lost(1), max_pairs=1)
    step = pair.first[0]
    sides = [(dataclasses.replace(step, action=action),) for action in actions]
    if kind == "when" and len(set(actions)) == 1:
        sides[1] = (*sides[1], step)
    changed = pair._replace(first=sides[0], second=sides[1])
    assert difference_kind(changed) == kind


def test_a_judge_that_knows_is_right_in_both_orders():
    pairs = pair_attempts(won_and_lost(6), max_pairs=1)
    pairs = [
        p._replace(first=p.second, second=p.first) if i % 2 else p
        for i, p in enumerate(pairs)
    ]
    with serving(answering(lambda body: answer(truth(body)))) as server:
        result = judge(server.url).compare(pairs)
    assert result.verdicts == ["A", "B"] * 3
    assert result.counts["answers"] == 12
    assert (result.counts["first"], result.counts["second"]) == (6, 6)
    assert result.counts["contradictions"] == 0


def test_a_judge_that_takes_the_first_one_writes_nothing():
    pairs = pair_attempts(won_and_lost(5), max_pairs=1)
    with serving(answering(lambda _: answer("A"))) as server:
        result = judge(server.url).compare(pairs)
    assert result.verdicts == [""] * 5
    assert (result.counts["first"], result.counts["contradictions"]) == (10, 5)


def test_a_judge_of_known_error_is_wrong_as_often_as_both_orders_err():
    """Each answer is wrong with p: kept are (1-p)^2 right and p^2 wrong ones."""
    wrong, draw = 0.3, random.Random(0)
    pairs = pair_attempts(won_and_lost(len(TASKS)), max_pairs=1)

    def rule(body):
        right = truth(body)
        return answer(right if draw.random() > wrong else {"A": "B", "B": "A"}[right])

    with serving(answering(rule)) as server:
        verdicts = [
            verdict
            for _ in range(1 + 100 // len(pairs))
            for verdict in judge(server.url).compare(pairs).verdicts
        ]
    count = len(verdicts)
    expected_right, expected_wrong = (1 - wrong) ** 2, wrong**2
    right, bad = verdicts.count("A") / count, verdicts.count("B") / count
    margin = 3 * (0.25 / count) ** 0.5
    assert count >= 100
    assert abs(right - expected_right) < margin
    assert abs(bad - expected_wrong) < margin
    assert right / (right + bad) > 0.75  # one order alone: 0.7


@pytest.mark.medium
def test_the_accuracy_of_a_judge_of_known_error_by_kind():
    """Of arguments it is wrong in 30 %: kept are 0.7^2 right and 0.3^2 wrong ones.

    Of texts it is always wrong, and of all else never.
    """
    wrong = {"when": 0.0, "which": 0.0, "how": 0.3, "text": 1.0}
    pairs = pair_attempts(won_and_lost_by_kind(len(TASKS)), max_pairs=1)
    assert Counter(map(difference_kind, pairs)) == dict.fromkeys(CALLS, len(TASKS))
    answers = [better_by_outcome(p) for p in pairs]
    assert answers == ["A"] * 4 + ["B"] * 4 + (["A"] * 4 + ["B"] * 4) * (
        len(TASKS) // 2 - 1
    ) + ["A"] * 4 * (len(TASKS) % 2)
    draw = random.Random(0)

    def rule(body):
        right, text = truth(body), chat_server.user_text(body)
        kind = next(k for k, (_, lost) in CALLS.items() if json.dumps(lost) in text)
        errs = draw.random() < wrong[kind]
        return answer({"A": "B", "B": "A"}[right] if errs else right)

    right, kept = Counter(), Counter()
    with serving(answering(rule)) as server:
        for number in range(1 + 100 // len(TASKS)):
            # What is certain is asked once; chance is asked again.
            again = [n for n, p in enumerate(pairs) if difference_kind(p) == "how"]
            rows = again if number else range(len(pairs))
            verdicts = judge(server.url).compare([pairs[n] for n in rows]).verdicts
            for n, verdict in zip(rows, verdicts, strict=True):
                if verdict:
                    kept[difference_kind(pairs[n])] += 1
                    right[difference_kind(pairs[n])] += verdict == answers[n]
    accuracy = {kind: right[kind] / kept[kind] for kind in CALLS}
    assert (accuracy["when"], accuracy["which"], accuracy["text"]) == (1.0, 1.0, 0.0)
    expected = 0.7**2 / (0.7**2 + 0.3**2)
    assert abs(accuracy["how"] - expected) < 3 * (0.25 / kept["how"]) ** 0.5
    assert accuracy["how"] < 1.0


def test_pairs_of_a_kind_are_selected():
    episodes = won_and_lost_by_kind(3)
    assert len(pair_attempts(episodes, max_pairs=1)) == 12
    some = pair_attempts(episodes, max_pairs=1, kinds=("which", "how"))
    assert [difference_kind(p) for p in some] == ["which", "how"] * 3
    # The limit of a task counts pairs of the kinds alone.
    task = episodes[0].task
    same = [dataclasses.replace(e, task=task) for e in episodes[:4]]
    (pair,) = pair_attempts(same, max_pairs=1, kinds=("which",))
    assert difference_kind(pair) == "which"


def test_the_better_one_is_known_where_one_was_won():
    (pair,) = pair_attempts(won_and_lost(1), max_pairs=1)
    assert better_by_outcome(pair) == "A"
    assert better_by_outcome(pair._replace(first=pair.second)) == ""
    unscored = (dataclasses.replace(pair.second[-1], success=None),)
    assert better_by_outcome(pair._replace(second=unscored)) == ""


def test_answers_without_sense_leave_a_pair_out():
    pairs = pair_attempts(won_and_lost(2), max_pairs=1)
    with serving(answering(lambda _: "no idea")) as server:
        result = judge(server.url).compare(pairs)
    assert result.verdicts == ["", ""]
    assert result.counts["unanswered"] == 2


@pytest.mark.parametrize(
    "text",
    ["", "A", '{"better": "A"}', answer("C"), answer(["A"]), '{"why": 1, "better": 2}'],
)
def test_malformed_choices_are_named(text):
    with pytest.raises(ValueError, match="malformed: "):
        read_choice(text)


def test_equal_attempts_have_a_verdict_and_no_preference():
    pairs = pair_attempts(won_and_lost(1), max_pairs=1)
    with serving(answering(lambda _: answer("equal"))) as server:
        result = judge(server.url).compare(pairs)
    assert result.verdicts == ["equal"]


def test_the_question_shows_both_attempts_and_no_rewards():
    (pair,) = pair_attempts(won_and_lost(1), max_pairs=1)
    system, user = pair_messages(pair, state_chars=1000)
    assert "better" in system.content
    assert user.content.index("ATTEMPT A") < user.content.index("ATTEMPT B")
    assert "reward" not in user.content
    assert user.content.count("outcome win") == 1
