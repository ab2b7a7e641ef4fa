"""The dream: a batch and a single view over an experience model."""

import inspect
import math

import pytest

from dreamgym.envs.dream import DreamEnv, DreamVectorEnv, UncertaintyGate
from tests import doubles
from worldmodel.data.records import Task

TASKS = [doubles.task(0, 1, 2), doubles.task(2, 1, 2), doubles.task(0, 2, 2)]


def batch(size=3, *, max_steps=5, broken=()):
    model = doubles.RuleModel(broken)
    return DreamVectorEnv(model, size, max_steps=max_steps), model


def test_slots_live_apart_and_end_as_the_model_says():
    envs, _ = batch()
    states = envs.reset(options={"tasks": TASKS})
    assert states == [t.initial_state for t in TASKS]
    steps = envs.step(["go right", "go left", "go left"])
    assert [s.state[0] for s in steps] == ["at 1", "at 1", "at 0"]
    assert [(s.terminated, s.success) for s in steps] == [
        (False, False),
        (False, False),
        (True, False),
    ]
    steps = envs.step(["take coin", "go right", "go right"])
    won, going, over = steps
    assert (won.terminated, won.truncated, won.success) == (True, False, True)
    assert won.rewards == {"dream": 1.0}
    assert going.state[0] == "at 2"
    assert over is None
    assert envs.transitions == 5


def test_the_model_is_asked_with_task_past_and_state_of_live_slots_only():
    envs, model = batch()
    envs.reset(options={"tasks": TASKS})
    envs.step(["go right", None, "go left"])
    envs.step(["go right", "go left", "go right"])
    (first, third), (again, second) = model.queries
    assert (first.task, first.past, first.state) == (TASKS[0], (), states_of(TASKS[0]))
    assert third.task == TASKS[2]
    assert again.past == ("go right",)
    assert again.state[0] == "at 1"
    assert (second.task, second.past, second.action) == (TASKS[1], (), "go left")


def states_of(task):
    return task.initial_state


def test_a_reset_forgets_the_past_of_its_slot_only():
    envs, model = batch(2)
    envs.reset(options={"tasks": TASKS[:2]})
    envs.step(["go right", "go left"])
    states = envs.reset(
        options={"tasks": [TASKS[2], None], "reset_mask": [True, False]}
    )
    assert states == [TASKS[2].initial_state, None]
    envs.step(["go right", "go left"])
    fresh, old = model.queries[-1]
    assert (fresh.past, fresh.state[0]) == ((), "at 0")
    assert (old.past, old.state[0]) == (("go left",), "at 1")


def test_the_limit_truncates_a_scored_failure_and_an_end_on_it_is_an_end():
    envs, _ = batch(2, max_steps=2)
    envs.reset(options={"tasks": [TASKS[0], TASKS[0]]})
    assert not any(s.truncated for s in envs.step(["go right", "go right"]))
    won, late = envs.step(["take coin", "go right"])
    assert (won.terminated, won.truncated, won.success) == (True, False, True)
    assert (late.terminated, late.truncated, late.success) == (False, True, False)
    assert late.error is None
    assert envs.step(["go left", "go left"]) == [None, None]


def test_a_refused_action_is_known_by_its_answer():
    """So that rewards for and against calls that fail mean the same as outside."""
    task = doubles.task(0, 1, 3)
    envs = DreamVectorEnv(doubles.RuleModel(), 1, max_steps=9)
    envs.reset(options={"tasks": [task]})
    info = [envs.step([action])[0].invalid for action in ("fly", "go right")]
    assert info == [True, False]


def test_a_reply_without_sense_ends_one_trajectory_unscored():
    envs, _ = batch(2, broken={"take coin"})
    envs.reset(options={"tasks": [TASKS[0], TASKS[1]]})
    broken, fine = envs.step(["take coin", "go left"])
    assert broken.error == "dream: garbled"
    assert (broken.terminated, broken.truncated, broken.success) == (False, True, False)
    assert broken.rewards == {}
    assert broken.state == TASKS[0].initial_state
    assert fine.error is None
    assert envs.step(["go right", "go left"])[0] is None


def test_the_dream_needs_initial_states():
    envs, _ = batch(1)
    bare = Task(id="bare", instruction="x")
    with pytest.raises(ValueError, match="'bare' has no initial state"):
        envs.reset(options={"tasks": [bare]})
    with pytest.raises(ValueError, match="size and max_steps must be >= 1, got 0, 5"):
        batch(0)
    with pytest.raises(ValueError, match="at least one task"):
        DreamEnv(doubles.RuleModel(), [], max_steps=3)


def single(**settings):
    tasks = [*doubles.tasks("train")[:9], *doubles.tasks("dev")[:2]]
    return DreamEnv(doubles.RuleModel(), tasks, **({"max_steps": 4} | settings))


def test_the_single_view_answers_as_the_real_one():
    env, real = single(max_steps=9), doubles.Corridor(max_steps=9)
    for task in TASKS:
        seen = [e.reset(options={"task": task})[0] for e in (env, real)]
        assert seen[0] == seen[1]
        for action in ["fly", *doubles.plan(task.initial_state)]:
            dreamed, info = env.step(action), real.step(action)
            assert dreamed[:4] == info[:4]
            assert dreamed[4]["success"] == info[4]["success"]
            assert sum(dreamed[4]["rewards"].values()) == dreamed[1]


def test_the_single_view_raises_outside_an_episode():
    env = single()
    with pytest.raises(RuntimeError, match="reset"):
        env.step("go right")
    env.reset(options={"task": TASKS[0]})
    env.step("go right")
    assert env.step("take coin")[2]
    with pytest.raises(RuntimeError, match="reset"):
        env.step("go right")


def test_the_single_view_draws_a_task_by_seed_and_tells_its_splits():
    env = single()
    draws = [env.reset(seed=s)[0] for s in range(8)]
    assert draws == [env.reset(seed=s)[0] for s in range(8)]
    assert len(set(draws)) > 1
    assert env.tasks("dev") == list(doubles.tasks("dev")[:2])
    assert env.tasks("test") == []


# --- uncertainty -------------------------------------------------------------


class Unsure(doubles.RuleModel):
    """The rules, with a confidence for each action."""

    def __init__(self, confidence):
        super().__init__(())
        self.confidence = confidence

    def predict(self, queries):
        return [
            p._replace(confidence=self.confidence[q.action])
            for p, q in zip(super().predict(queries), queries, strict=True)
        ]


def unsure(confidence, **settings):
    envs = DreamVectorEnv(
        Unsure(confidence), 2, max_steps=5, uncertainty=UncertaintyGate(**settings)
    )
    envs.reset(options={"tasks": TASKS[:2]})
    return envs


def test_a_step_has_the_confidence_of_its_answer_or_1_where_it_has_none():
    steps = unsure({"go right": 0.4, "go left": math.nan}).step(["go right", "go left"])
    assert [s.confidence for s in steps] == [0.4, 1.0]


def test_an_answer_below_the_threshold_cuts_its_trajectory_unscored():
    envs = unsure({"go right": 0.4, "go left": 0.2}, threshold=0.3)
    kept, cut = envs.step(["go right", "go left"])
    assert kept.error is None
    assert kept.state[0] == "at 1"
    assert cut.error == "low_confidence: 0.2 is below 0.3"
    assert (cut.terminated, cut.truncated, cut.success) == (False, True, False)
    assert (cut.state, cut.rewards) == (TASKS[1].initial_state, {})
    assert envs.step(["go right", "go right"])[1] is None  # it has ended


@pytest.mark.parametrize(("threshold", "cut"), [(0.0, False), (0.1, True)])
def test_an_unknown_confidence_is_none(threshold, cut):
    envs = unsure({"go right": float("nan")}, threshold=threshold, penalty=0.5)
    step, _ = envs.step(["go right", "go right"])
    assert (step.error is not None) == cut
    if not cut:
        assert step.rewards == {"dream": 0.0, "uncertainty_penalty": -0.5}


def test_pessimism_takes_the_missing_confidence_off():
    envs = unsure({"go right": 0.75, "go left": 1.0}, penalty=2.0)
    one, two = envs.step(["go right", "go left"])
    assert one.rewards == {"dream": 0.0, "uncertainty_penalty": -0.5}
    assert two.rewards == {"dream": 0.0, "uncertainty_penalty": 0.0}
    assert sum(one.rewards.values()) == -0.5


@pytest.mark.parametrize("bad", [{"threshold": 1.5}, {"penalty": -1.0}])
def test_trust_is_checked(bad):
    with pytest.raises(ValueError, match="threshold must be in"):
        UncertaintyGate(**bad)


def test_a_fork_goes_its_own_way_and_leaves_its_source_alone():
    envs, _ = batch()
    envs.reset(options={"tasks": TASKS})
    envs.step(["go right", None, None])
    here = envs.snapshot(0)
    assert (here.task, here.past, here.state[0]) == (TASKS[0], ("go right",), "at 1")
    assert envs.restore(1, here) == here.state
    one, two, _ = envs.step(["take coin", "go left", None])
    assert (one.success, two.state[0]) == (True, "at 0")
    # Back again after the end: the same action has the same answer.
    assert envs.restore(0, here) == here.state
    again, *_ = envs.step(["take coin", None, None])
    assert again == one
    with pytest.raises(ValueError, match="no episode runs in slot 0"):
        envs.snapshot(0)


def test_a_query_holds_the_states_of_its_past_also_after_a_fork():
    envs, model = batch()
    envs.reset(options={"tasks": TASKS})
    envs.step(["go right", None, None])
    envs.step(["go left", None, None])
    (second,) = model.queries[-1]
    start, right = TASKS[0].initial_state, second.state
    assert second.past_states == (start,)
    here = envs.snapshot(0)
    assert here.past_states == (start, right)
    envs.restore(1, here)
    envs.step([None, "go right", None])
    assert model.queries[-1][0].past_states == (start, right)
    # A new episode begins with none.
    envs.reset(options={"tasks": TASKS})
    envs.step([None, "go right", None])
    assert model.queries[-1][0].past_states == ()


def test_a_fork_counts_the_steps_of_its_past():
    envs, _ = batch(1, max_steps=2)
    envs.reset(options={"tasks": TASKS[:1]})
    envs.step(["dance"])
    here = envs.snapshot(0)
    other, _ = batch(1, max_steps=2)
    other.restore(0, here)
    (step,) = other.step(["dance"])
    assert (step.terminated, step.truncated) == (False, True)


def test_the_single_view_can_be_forked():
    env = DreamEnv(doubles.RuleModel(), TASKS, max_steps=5)
    with pytest.raises(ValueError, match="nothing to fork"):
        env.fork()
    env.reset(options={"task": TASKS[0]})
    env.step("go right")
    other = env.fork()
    assert env.step("go left")[0].startswith("at 0")
    assert other.step("take coin")[4]["success"] is True
    assert env.step("go right")[0].startswith("at 1")


class Odd(doubles.RuleModel):
    """Answers as a model of another author may."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def predict(self, queries):
        return self.change(super().predict(queries))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answers: [a._replace(outcome="won") for a in answers], "got 'won'"),
        (lambda answers: answers[1:], "for each of 3 queries, got 2"),
    ],
)
def test_answers_of_a_wrong_form_are_named(change, message):
    envs = DreamVectorEnv(Odd(change), 3, max_steps=5)
    envs.reset(options={"tasks": TASKS})
    with pytest.raises(ValueError, match=message):
        envs.step(["go right"] * 3)


@pytest.mark.parametrize("action", [3, None, ["take coin"]])
def test_an_action_that_is_no_text_is_refused(action):
    env = DreamEnv(doubles.RuleModel(), TASKS, max_steps=5)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="an action is text, got"):
        inspect.unwrap(DreamEnv.step)(env, action)


@pytest.mark.parametrize("lasting", [False, True])
def test_to_last_until_the_limit_wins_where_that_is_winning(lasting):
    """As in CartPole: the real episode is won by the step limit, not by an end."""
    kinds = (
        DreamVectorEnv(doubles.RuleModel(), 1, max_steps=2, lasting_wins=lasting),
        DreamEnv(doubles.RuleModel(), TASKS, max_steps=2, lasting_wins=lasting),
    )
    batch, env = kinds
    batch.reset(options={"tasks": TASKS[:1]})
    steps = [batch.step(["go right"])[0] for _ in range(2)]
    assert [(s.terminated, s.truncated, s.success) for s in steps] == [
        (False, False, False),
        (False, True, lasting),
    ]
    env.reset(options={"task": TASKS[0]})
    env.step("go right")
    *_, terminated, truncated, info = env.fork().step("go right")
    assert (terminated, truncated, info["success"]) == (False, True, lasting)


def test_a_lesson_with_a_shorter_limit_is_not_won_by_lasting():
    batch = DreamVectorEnv(doubles.RuleModel(), 1, max_steps=9, lasting_wins=True)
    batch.max_steps = 2  # as the curriculum sets it
    batch.reset(options={"tasks": TASKS[:1]})
    batch.step(["go right"])
    (last,) = batch.step(["go right"])
    assert (last.truncated, last.success) == (True, False)
