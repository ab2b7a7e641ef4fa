import dataclasses

import pytest

from tests import helpers
from worldmodel.data.outcomes import outcome_of
from worldmodel.experience.base import Prediction
from worldmodel.fidelity import cases, scorecard
from worldmodel.fidelity.cases import ReplayResult
from worldmodel.fidelity.open_loop import open_loop

A, B, C, D = "one lamp", "two doors", "three cats", "four dogs"


def test_lines_that_change_are_counted():
    def kind(before, after):
        words = "one two three four lamp doors cats dogs"
        return cases.kind_of(helpers.transition(before, "x", after), words)

    assert kind((A, B), (A, B)) == "unchanged"
    assert kind((A, B), (A, C)) == "one_line"
    assert kind((A, B), (A, B, C)) == "one_line"
    assert kind((A, B), (A,)) == "one_line"
    assert kind((A, B), (C, D)) == "many_lines"
    assert kind((A,), (A, B, C)) == "many_lines"
    assert kind((A,), (A, "five birds")) == "reveal"


def test_a_near_miss_is_the_winning_action_one_step_early():
    e = helpers.won_episode(("start", "walk"), ("room", "take coin"))
    (case,) = cases.near_misses([e], 9)
    assert case.query.state == ("start",)
    assert case.query.action == "take coin"
    assert case.query.past == ()
    assert not case.known_failure


def test_what_the_records_say_of_a_near_miss_counts():
    e = helpers.won_episode(("start", "walk"), ("room", "take coin"))
    fails = helpers.transition(("start",), "take coin", ("start",), reward=0.0)
    known = helpers.episode("k", e.task, [fails])
    (case,) = cases.near_misses([e, known], 9)
    assert case.known_failure
    # It wins there as well: no near miss.
    wins = helpers.won_episode(("start", "take coin"), name="w")
    assert cases.near_misses([e, wins], 9) == []


def test_no_near_miss_without_a_step_that_matters():
    assert cases.near_misses([helpers.won_episode(("room", "take coin"))], 9) == []
    idle = helpers.won_episode(("room", "wait"), ("room", "take coin"))
    assert cases.near_misses([idle], 9) == []
    assert cases.near_misses([helpers.lamp_and_door()], 0) == []


@pytest.mark.parametrize(
    ("real", "kept"), [(True, []), (False, [True]), (None, [False])]
)
def test_a_near_miss_is_tried_where_that_can_be_done(real, kept):
    e, queries = helpers.won_episode(("start", "walk"), ("room", "take coin")), []

    def replay(query):
        queries.append(query)
        return None if real is None else ReplayResult(("start",), real)

    assert [c.known_failure for c in cases.near_misses([e, e], 9, replay)] == kept
    assert {(q.past, q.state, q.action) for q in queries} == {
        ((), ("start",), "take coin")
    }


# --- sampling ----------------------------------------------------------------


def walk(task, steps, *, wins=True):
    """An episode of `steps` transitions through numbered rooms, the last one won."""
    made = [
        helpers.transition((f"room {i}",), "go on", (f"room {i + 1}",), reward=0.0)
        for i in range(steps)
    ]
    if wins:
        made[-1] = dataclasses.replace(
            made[-1], terminated=True, success=True, rewards={"reward": 1.0}
        )
    base = helpers.lamp_and_door()
    return helpers.episode(f"{task}-run", dataclasses.replace(base.task, id=task), made)


def test_cases_come_from_all_steps_and_from_each_rare_stratum():
    """First steps alone would hold no end, no reward and no late step."""
    episodes = [walk(f"t{i}", 10, wins=i < 5) for i in range(50)]
    sampled_cases = cases.sample_cases(episodes, 40)
    assert len(sampled_cases) == 40
    steps = [len(c.query.past) for c in sampled_cases]
    assert max(steps) == 9
    assert sum(s >= 5 for s in steps) >= 10
    # 5 of 500 transitions end; three strata share half of the limit, 6 each.
    ends = [c for c in sampled_cases if c.transition.terminated]
    assert len(ends) == 5
    assert {c.weight for c in ends} == {1.0}
    assert sum(c.weight for c in sampled_cases) == pytest.approx(500)


def test_a_weighted_mean_is_that_of_the_whole_episodes():
    episodes = [walk(f"t{i}", 10, wins=i < 5) for i in range(50)]
    sampled_cases = cases.sample_cases(episodes, 40)
    share = sum(c.weight * c.transition.terminated for c in sampled_cases) / 500
    assert share == pytest.approx(5 / 500)
    assert (
        sum(c.transition.terminated for c in sampled_cases) / 40 > 0.1
    )  # unweighted: not


def test_the_same_episodes_in_another_order_give_the_same_cases():
    episodes = [walk(f"t{i}", 10, wins=i < 5) for i in range(20)]

    def keys(some):
        return {(c.query.task.id, c.query.past) for c in cases.sample_cases(some, 30)}

    assert keys(episodes) == keys(episodes[::-1])


@pytest.mark.parametrize(
    ("sizes", "limit", "numbers"),
    [
        ([90, 10], 20, [14, 6]),  # 5 each, then 10 by what is left: 85 to 5
        ([100, 2], 20, [18, 2]),  # as many as there are
        ([3, 2], 99, [3, 2]),
        ([5, 5, 5], 1, [1, 0, 0]),
        ([], 5, []),
    ],
)
def test_allocation_by_hand(sizes, limit, numbers):
    assert cases.allocate(sizes, limit) == numbers


def test_what_other_tasks_answer_alike_is_no_reveal():
    """A word that was never said can still be known, if it always comes."""
    step = helpers.transition(("a door",), "open", ("a hall",), reward=0.0)
    other = helpers.transition(("a door",), "open", ("a cave",), reward=0.0)
    base = helpers.lamp_and_door()

    def episode(name, t):
        return helpers.episode(name, dataclasses.replace(base.task, id=name), [t])

    def kinds(*episodes):
        return {c.kind for c in cases.sample_cases(episodes, 9)}

    assert kinds(episode("a", step)) == {"reveal"}
    assert kinds(episode("a", step), episode("b", step)) == {"one_line"}
    assert kinds(episode("a", step), episode("b", other)) == {"reveal"}
    # The environment knows best.
    output = dataclasses.replace(step, reveals=True)
    assert kinds(episode("a", output), episode("b", output)) == {"reveal"}


@pytest.mark.parametrize(
    ("tasks", "right", "kinds"),
    [
        (10, 4, {"one_line"}),  # 4 and 6 of 10 tasks hold `right` and `wrong`
        (10, 2, {"one_line", "reveal"}),  # `right` is rare: the two that show it
        (9, 4, {"reveal"}),  # too few tasks to know the vocabulary
    ],
)
def test_words_that_many_tasks_hold_are_no_reveal(tasks, right, kinds):
    """What is said after an answer follows from it, though it was not said before."""
    base, episodes = helpers.lamp_and_door(), []
    for i in range(tasks):
        after = ("said right" if i < right else "said wrong",)
        step = helpers.transition((f"number {i} asked",), "answer", after)
        step = dataclasses.replace(step, success=False)
        task = dataclasses.replace(base.task, id=f"t{i}", instruction="say it")
        episodes.append(helpers.episode(f"e{i}", task, [step]))
    assert {c.kind for c in cases.sample_cases(episodes, 99)} == kinds
    (rate,) = open_loop(Truth(episodes), episodes)["predictable"] or [{"count": 0}]
    wanted = tasks if kinds == {"one_line"} else 8 * (tasks == 10)
    assert rate["count"] == wanted


def test_words_of_the_episodes_that_were_fitted_to_are_no_reveal():
    """Of a few scored tasks alone nothing would be known of the vocabulary."""
    base, episodes = helpers.lamp_and_door(), []
    for i in range(12):
        after = ("said right" if i % 2 else "said wrong",)
        step = helpers.transition((f"number {i} asked",), "answer", after)
        task = dataclasses.replace(base.task, id=f"t{i}", instruction="say it")
        episodes.append(helpers.episode(f"e{i}", task, [step]))
    train, dev = episodes[2:], episodes[:2]
    assert {c.kind for c in cases.sample_cases(dev, 99)} == {"reveal"}
    sampled = cases.sample_cases(dev, 99, recorded=train)
    assert [c.kind for c in sampled] == ["one_line"] * 2
    card = scorecard.score(Truth(dev), dev, limit=99, open_loop_steps=0, recorded=train)
    assert card["exact"]["predictable"]["count"] == 2


def test_numbers_that_many_tasks_hold_are_no_vocabulary():
    base, episodes = helpers.lamp_and_door(), []
    for i in range(10):
        step = helpers.transition(("asked",), "roll", (f"rolled {i % 3 + 5}",))
        task = dataclasses.replace(base.task, id=f"t{i}", instruction="roll")
        episodes.append(helpers.episode(f"e{i}", task, [step]))
    assert {c.kind for c in cases.sample_cases(episodes, 99)} == {"reveal"}


class Truth:
    """A model that knows every recorded step."""

    def __init__(self, episodes):
        self.steps = {(t.state, t.action): t for e in episodes for t in e.transitions}

    def predict(self, queries):
        steps = [self.steps[q.state, q.action] for q in queries]
        return [
            Prediction(t.next_state, t.reward, outcome_of(t), "", 1.0, None)
            for t in steps
        ]

    def vary(self, groups, *, key):
        del key
        return [None] * len(groups)


def test_a_second_play_that_leads_elsewhere_is_a_reveal():
    e = walk("t", 3)
    sampled_cases = cases.sample_cases(
        [e], 9, replay=lambda _: ReplayResult(("room 2",), rewarded=False)
    )
    # Each real step leads to another room: 1, 2 and 3.
    assert [c.kind for c in sampled_cases] == ["reveal", "one_line", "reveal"]
    unknown = cases.sample_cases([e], 9, replay=lambda _: None)
    assert {c.kind for c in unknown} == {"one_line"}


def rolled(name, number, task="t", instruction="roll"):
    """An episode of one roll, whose result needs no word that is new."""
    row = dataclasses.replace(
        helpers.lamp_and_door().task, id=task, instruction=instruction
    )
    after = (f"left {number}", "right 2")
    step = helpers.transition(("left 3", "right 2"), "roll left", after)
    return helpers.episode(name, row, [step])


def test_what_the_same_play_answers_differently_is_a_reveal():
    """Lots are drawn, so that no model could have every answer right."""
    alike = [rolled("a", 1), rolled("b", 1)]
    assert {c.kind for c in cases.sample_cases(alike, 9)} == {"one_line"}
    broken = dataclasses.replace(rolled("b", 2), error="broke", success=None)
    kinds = {c.kind for c in cases.sample_cases([rolled("a", 1), broken], 9)}
    assert kinds == {"one_line"}  # what a crash shows proves nothing
    differing = [rolled("a", 1), rolled("b", 2)]
    assert {c.kind for c in cases.sample_cases(differing, 9)} == {"reveal"}
    assert {c.kind for c in cases.sample_cases(alike, 9, recorded=differing)} == {
        "reveal"
    }
    assert not open_loop(Truth(differing), differing)["predictable"]


@pytest.mark.parametrize("stochastic", [True, False])
def test_other_tasks_show_lots_only_where_the_environment_draws_some(stochastic):
    """Elsewhere another task may differ in what its instruction does not say."""
    episodes = [rolled("a", 1, "t1"), rolled("b", 2, "t2")]
    steps = cases.unpredictable_steps(episodes, [], stochastic=stochastic)
    assert steps == [frozenset({0}) if stochastic else frozenset()] * 2
    replay = (lambda _: None) if stochastic else None
    kinds = {c.kind for c in cases.sample_cases(episodes, 9, replay=replay)}
    assert kinds == ({"reveal"} if stochastic else {"one_line"})
    model = Truth([])
    model.steps = {(t.state, t.action): t for e in episodes[:1] for t in e.transitions}
    card = scorecard.score(
        model, episodes, limit=9, stochastic=stochastic, replay=replay
    )
    counts = [r["count"] for r in card["open_loop"]["predictable"]]
    assert counts == ([] if stochastic else [2])


def pages(task, *, flag=None):
    """Three pages of a task's words are opened in turn, and then the first again."""
    first, second, third = (
        (f"page {i}", "".join(chr(97 + (7 * task + 9 * i + k) % 26) for k in range(5)))
        for i in range(3)
    )
    walk = [(("menu",), 0, first), (first, 1, second), (second, 2, third)]
    steps = [
        dataclasses.replace(
            helpers.transition(state, f"open {i}", shown, reward=0.0), reveals=flag
        )
        for state, i, shown in [*walk, (third, 0, first)]
    ]
    base = helpers.lamp_and_door().task
    own = dataclasses.replace(base, id=f"t{task}", instruction=f"read {task}")
    return helpers.episode(f"e{task}", own, steps)


@pytest.mark.parametrize(
    ("states_read", "flag", "tasks", "kind"),
    [
        (0, None, 12, "forgotten"),
        (1, None, 12, "forgotten"),  # of the past, it reads the second page alone
        (2, None, 12, "many_lines"),  # and the first one
        (0, False, 12, "many_lines"),  # the environment knows what can be known
        (0, None, 9, "many_lines"),  # too few tasks to tell what is vocabulary
    ],
)
def test_what_no_text_that_is_read_holds_is_forgotten(states_read, flag, tasks, kind):
    episodes = [pages(i, flag=flag) for i in range(tasks)]
    sampled = cases.sample_cases(episodes, 99, states_read=states_read)
    last = {c.kind for c in sampled if len(c.query.past) == 3}
    assert last == {kind}
    assert {c.predictable for c in sampled if c.kind == kind} == {kind != "forgotten"}
    steps = cases.unpredictable_steps(episodes, [], states_read=states_read)
    first = set() if flag is False else {0, 1, 2}
    assert set(steps) == {frozenset(first | {3} if kind == "forgotten" else first)}


def test_numbers_and_answers_that_other_tasks_share_are_not_forgotten():
    episodes = [walk(f"t{i}", 3) for i in range(12)]
    back = helpers.transition(("room 3",), "fall", ("room 0",), reward=0.0)
    steps = [(*e.transitions, back) for e in episodes]
    fallen = [
        dataclasses.replace(e, transitions=s)
        for e, s in zip(episodes, steps, strict=True)
    ]
    assert not {c.kind for c in cases.sample_cases(fallen, 99)} & {"forgotten"}
    same = [dataclasses.replace(pages(1), id=f"e{i}") for i in range(12)]
    same = [
        dataclasses.replace(e, task=dataclasses.replace(e.task, id=e.id)) for e in same
    ]
    assert not {c.kind for c in cases.sample_cases(same, 99)} & {"forgotten"}
