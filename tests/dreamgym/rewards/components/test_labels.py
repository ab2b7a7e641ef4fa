"""Labels by a classifier or a judge in the rewards: the table by hand, who is asked."""

import dataclasses

import pytest

from dreamgym.rewards import rules
from dreamgym.rewards.components.questions import (
    ComponentLabeller,
    Question,
    label_steps,
)
from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.reward_function import RewardFunction
from dreamgym.rewards.rules import CallLabels, StepLabels
from dreamgym.rewards.tool_config import ToolConfig, ToolLabelsConfig
from tests.dreamgym.rewards.components.common import episode
from worldmodel.data.records import Episode
from worldmodel.text.tools.tool_calls import Call

TABLE = ToolConfig(enabled=True)
WALL = ("wall", "ok")


def tools(**labels):
    return dataclasses.replace(TABLE, labels=ToolLabelsConfig(**labels))


class Oracle(ComponentLabeller):
    """A labeller that knows the rule of the task, or gives the same answer to all."""

    def __init__(self, answer=None):
        self.answer, self.questions = answer, []

    def labels(self, questions):
        self.questions += questions
        return [self.of(q) if self.answer is None else self.answer for q in questions]

    def of(self, q: Question):
        said = q.state[2].removeprefix("said ")
        goal = q.state[1].split()[1]
        tool = {"wall": "go", "no coin": "take"}.get(said)
        return {
            "when": float(tool is not None),
            "which": float(q.text == tool),
            "arguments": float(q.text == f'{tool} {{"room": {goal}}}'),
        }[q.component]


def scores(config, episodes, labellers, pasts=None):
    reward = RewardConfig(environment_weight=0.0, tools=config)
    return RewardFunction(reward, labellers=labellers).score(episodes, pasts)


def without_calls(e: Episode) -> Episode:
    return dataclasses.replace(e, task=dataclasses.replace(e.task, options={}))


def acting(e: Episode, *actions: str) -> Episode:
    steps = tuple(
        dataclasses.replace(t, action=a)
        for t, a in zip(e.transitions, actions, strict=True)
    )
    return dataclasses.replace(e, transitions=steps)


# --- the table -----------------------------------------------------------------


def test_a_call_is_paid_what_the_table_pays_on_average():
    labels = CallLabels(due=0.8, tool=0.5, arguments=0.25)
    paid = rules.call_rewards(Call("go", {}), labels, False, TABLE)
    assert paid == {
        "when": pytest.approx(0.8 * 1.0 + 0.2 * -0.2),  # made, and due or not
        "which": pytest.approx(0.8 * (0.5 * 1.5 + 0.5 * -0.5)),
        "syntax": pytest.approx(0.8 * 0.5),
        "execution": pytest.approx(0.8 * 0.5 * 1.0),
        "arguments": pytest.approx(0.8 * 0.5 * (0.25 * 0.5 + 0.75 * -0.5)),
    }
    unknown = rules.call_rewards(
        Call("go", {}), CallLabels(1.0, None, None), None, TABLE
    )
    assert unknown == {"when": 1.0, "syntax": 0.5}
    assert rules.call_rewards(
        Call("go", {}), CallLabels(0.0, 1.0, 1.0), True, TABLE
    ) == {"when": -0.2, "execution": -1.0}


def test_not_calling_is_paid_once_and_what_is_due_is_punished_each_time():
    e = episode(1, 5, ("ok", "ok", "wall"))
    idle = acting(e, "wait", "wait", "wait")
    labels = {i: StepLabels(due=due) for i, due in enumerate((0.0, 0.0, 0.75))}
    got = rules.tool_rewards(idle, tools(when="judge"), labels=labels)
    assert [x.get("tool/when", 0.0) for x in got] == pytest.approx([0.5, 0.0, -0.15])
    # After an abstention before the fork none is paid.
    later = rules.tool_rewards(idle, tools(when="judge"), ("wait",), labels)
    assert [x.get("tool/when", 0.0) for x in later] == pytest.approx([0, 0, -0.15])


def test_a_call_that_was_made_before_is_not_due_again():
    e = episode(1, 5, ("wall", "wall", "wall"))
    call = 'go {"room": 5}'
    config = tools(when="judge")
    labels = {i: StepLabels(due=1.0) for i in range(3)}
    got = rules.tool_rewards(
        acting(e, call, call, 'go {"room": 1}'), config, labels=labels
    )
    assert [x["tool/when"] for x in got] == [1.0, -0.2, 1.0]
    got = rules.tool_rewards(e, config, (call,), labels)
    assert [x["tool/when"] for x in got] == [-0.2, -0.2, -0.2]
    # By rule it is: the task expects it three times.
    assert [x["tool/when"] for x in rules.tool_rewards(e, TABLE)] == [1.0, 1.0, 1.0]


# --- who is asked --------------------------------------------------------------


def test_a_labeller_that_knows_the_rule_pays_as_the_rule_does():
    """Also where the task does not say which calls are expected."""
    e = episode(1, 5, ("wall", "no coin", "ok"))
    (by_rule,) = scores(dataclasses.replace(TABLE, match="step"), [e], {})
    for name in ("classifier", "judge"):
        config = tools(when=name, which=name, arguments=name)
        (labelled,) = scores(config, [without_calls(e)], {name: Oracle()})
        assert labelled == by_rule
    wrong = acting(e, "wait", 'go {"room": 1}', "done")
    (by_rule,) = scores(dataclasses.replace(TABLE, match="step"), [wrong], {})
    config = tools(when="judge", which="judge", arguments="judge")
    (labelled,) = scores(config, [without_calls(wrong)], {"judge": Oracle()})
    # Only the abstention is paid at the first step that makes no call, as none is due
    # there: by the rule it is paid at the last step.
    assert [x.get("tool/which") for x in labelled.rewards] == [None, -0.5, None]
    assert [x["tool/when"] for x in labelled.rewards] == [-0.2, 1.0, 0.0]
    assert [x["tool/when"] for x in by_rule.rewards] == [-0.2, 1.0, 0.5]


def test_each_component_has_a_labeller_of_its_own():
    e = episode(1, 5, WALL)
    judge, model = Oracle(0.5), Oracle(0.25)
    config = tools(when="rule", which="classifier", arguments="judge")
    (got,) = scores(config, [e], {"judge": judge, "classifier": model})
    assert {q.component for q in model.questions} == {"which"}
    assert {q.component for q in judge.questions} == {"arguments"}
    first = got.rewards[0]
    assert first["tool/when"] == 1.0
    assert first["tool/which"] == pytest.approx(0.25 * 1.5 + 0.75 * -0.5)
    assert first["tool/arguments"] == pytest.approx(0.0)  # half right
    assert got.sources == ("rule", "rule")


def test_equal_questions_are_asked_once_and_steps_without_pay_not_at_all():
    e = episode(1, 5, WALL)
    judge = Oracle()
    config = tools(when="judge")
    scores(config, [e, e, acting(e, "wait", "wait")], {"judge": judge})
    # The second states of the three have two different pasts.
    assert len(judge.questions) == 3
    nothing = RewardConfig(tools=config, outcome_weight=1.0)
    quiet = Oracle()
    RewardFunction(nothing, labellers={"judge": quiet}).score([e])
    assert quiet.questions == []


def test_a_question_of_a_fork_has_the_actions_before_it():
    e, judge = episode(1, 5, WALL), Oracle()
    config = tools(when="judge", which="judge")
    scores(config, [e], {"judge": judge}, pasts=[("look",)])
    first, second = (t.action for t in e.transitions)
    assert [q.past for q in judge.questions] == [("look",)] * 2 + [("look", first)]
    assert second == "dance"  # no call: its step is asked about once


def test_nobody_is_asked_about_a_task_whose_tool_use_is_not_rewarded():
    """By rule nobody knows when a call is due where the task does not say it."""
    e = episode(1, 5, WALL)
    config = tools(which="judge", arguments="judge")
    quiet = Oracle("judge: malformed")
    (got,) = scores(config, [without_calls(e)], {"judge": quiet})
    assert (quiet.questions, got.problem) == ([], None)
    assert got.rewards == ({}, {})
    silent = dataclasses.replace(e.task, options={"calls": None})
    (got,) = scores(TABLE, [dataclasses.replace(e, task=silent, success=None)], {})
    assert got.problem is None


def test_a_question_without_an_answer_is_a_problem_of_its_episode():
    class Silent(Oracle):
        def of(self, q):
            return "judge: malformed" if q.state[0] == "at 2" else super().of(q)

    first, second = episode(1, 5, WALL), episode(2, 5, WALL)
    config = tools(when="judge", which="judge")
    good, bad = scores(config, [first, second], {"judge": Silent()})
    assert good.problem is None
    assert bad.problem == "judge: malformed"


def test_malformed_calls_are_asked_about_their_tool_alone():
    e = acting(episode(1, 5, WALL), 'go {"room": ', "done")
    config = ToolLabelsConfig(when="judge", which="judge", arguments="judge")
    judge = Oracle()
    (labels,) = label_steps([e], [(0,)], [()], config, {"judge": judge})
    assert labels == {0: StepLabels(1.0, (1.0,), (None,))}
    assert [q.component for q in judge.questions] == ["when", "which"]


# --- settings ------------------------------------------------------------------


def test_settings_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"when must be one of \('rule', 'classifier'"):
        ToolLabelsConfig(when="luck")
    with pytest.raises(ValueError, match=r"tools.labels name a judge, and none"):
        scores(tools(when="judge"), [], {"classifier": Oracle()})
    config = tools(which="classifier")
    reward = RewardConfig(tools=config)
    assert reward.fits_classifier
    assert not reward.asks_judge
    off = RewardConfig(tools=dataclasses.replace(config, enabled=False))
    assert not off.fits_classifier
    assert "tools is off" in (off.dead() or "")
    assert reward.dead() is None
    assert RewardConfig(tools=tools(arguments="judge")).asks_judge


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sources": ("judge",)}, "sources without weight for rule"),
        (
            {"sources": ("rule", "judge"), "source_weights": (0.0, 1.0)},
            "sources without weight for rule",
        ),
        ({"outcome_weight": 1.0}, "outcome_weight = 1 leaves the process out"),
    ],
)
def test_labels_and_penalties_of_a_source_that_scores_nothing_are_dead(
    settings, reason
):
    labels = tools(which="classifier")
    penalty = dataclasses.replace(TABLE, repeat_penalty=0.5)
    for name, config in (("labels", labels), ("repeat_penalty", penalty)):
        problem = RewardConfig(tools=config, **settings).dead() or ""
        assert problem.startswith(f"tools.{name} is ")
        assert reason in problem
        assert RewardConfig(tools=config).dead() is None
    assert RewardConfig(tools=TABLE, **settings).dead() is None


def test_an_episode_needs_an_outcome_where_its_task_is_paid():
    e = dataclasses.replace(without_calls(episode(1, 5, WALL)), success=None)
    (labelled,) = scores(tools(when="judge"), [e], {"judge": Oracle()})
    assert labelled.problem is not None
    (by_rule,) = scores(TABLE, [e], {})
    assert by_rule.problem is None
