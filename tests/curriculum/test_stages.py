"""Stages: promotion and regression with patience, mixes, presets, their JSON."""

import collections
import dataclasses
import json
import math

import numpy as np
import pytest

from curriculum import presets, stages
from curriculum.pool import TaskPool
from curriculum.sampler import CurriculumConfig, sample
from curriculum.schedule import HorizonConfig
from curriculum.staged import Staged, staged_of, step_limit
from curriculum.stages import Kind, Stage, StageConfig, StageState, advance, shares
from tests import doubles
from worldmodel.data.records import Task

MIX = (Kind(share=1.0),)
PLAN = (
    Stage(name="a", mix=MIX, budget=(2, 6), promote={"x": 0.8}),
    Stage(name="b", mix=MIX, budget=(1, 4), promote={"y": 0.5}),
    Stage(name="c", mix=MIX, promote={"y": 0.9}),
)
CONFIG = StageConfig(checks=2, margin=0.1)


def went(rows, *, config=CONFIG, state=None, spent=1):
    """Indices after each check, and the last state."""
    state, out = StageState() if state is None else state, []
    for row in rows:
        state = advance(state, PLAN, row, config, spent=spent)
        out.append(state.index)
    return out, state


GOOD = {"x": 0.9}
HELD = {"x": 0.9, "y": 0.6}


def test_promotion_needs_checks_in_a_row():
    assert went([GOOD, {"x": 0.7}, GOOD, GOOD])[0] == [0, 0, 0, 1]
    assert went([GOOD, GOOD])[0] == [0, 1]
    assert went([GOOD, {}, GOOD])[0] == [0, 0, 0]  # not known is not reached


def test_promotion_waits_for_the_least_budget():
    assert went([GOOD] * 4, spent=0.5)[0] == [0, 0, 0, 1]


def test_at_the_end_of_its_budget_a_stage_is_passed_or_not_as_told():
    bad = [{"x": 0.1}] * 7
    got, state = went(bad)
    assert got == [0, 0, 0, 0, 0, 1, 1]
    assert state.why == "budget"
    assert went(bad, config=StageConfig(force=False))[0] == [0] * 7


def test_what_was_never_reached_is_not_lost():
    # Passed by budget at x = 0.1: that is the floor, and 0.05 is within the margin.
    assert went([{"x": 0.1}] * 6 + [{"x": 0.05}] * 3)[0][-3:] == [1, 1, 1]


def test_regression_needs_checks_in_a_row_and_more_than_the_margin():
    _, second = went([GOOD, GOOD])
    assert second.why == "promotion"
    assert went([{"x": 0.71}] * 3, state=second)[0] == [1, 1, 1]  # 0.8 - 0.1
    assert went([{"x": 0.69}, HELD, {"x": 0.69}], state=second)[0] == [1, 1, 1]
    got, state = went([{"x": 0.69}, {"x": 0.69}], state=second)
    assert got == [1, 0]
    assert (state.why, state.spent, dict(state.floors)) == ("regression", 0.0, {})


def test_regression_goes_to_the_earliest_stage_that_was_lost():
    _, third = went([GOOD, GOOD, HELD, HELD])
    assert third.index == 2
    lost = {"x": 0.1, "y": 0.1}
    assert went([lost, lost], state=third)[0] == [2, 0]
    got, state = went([{"x": 0.9, "y": 0.1}] * 2, state=third)
    assert got == [2, 1]
    assert set(state.floors) == {"a"}


def test_the_last_stage_stays():
    assert (
        went([GOOD, GOOD, HELD, HELD] + [{"x": 1.0, "y": 1.0}] * 5)[0][-5:] == [2] * 5
    )


def test_a_check_is_a_pure_function_and_history_is_bounded():
    state = StageState()
    advance(state, PLAN, GOOD, CONFIG, spent=1)
    assert state == StageState()
    _, state = went([{"z": 1.0}] * 100)
    assert len(state.history) == stages.HISTORY


def test_shares_shift_to_what_is_lacking():
    stage = Stage(
        name="s", mix=(Kind(share=0.5, skill="x"), Kind(share=0.5, skill="y"))
    )
    assert shares(stage, {"x": 1.0, "y": 0.0}, 0.0) == [0.5, 0.5]
    # 0.5 and 0.5 * (1 + 1): a third and two.
    np.testing.assert_allclose(shares(stage, {"x": 1.0, "y": 0.0}, 1.0), [1 / 3, 2 / 3])
    assert shares(stage, {}, 1.0) == [0.5, 0.5]


def tool_task(name, *calls):
    rows = [{"tool": "t", "arguments": {str(i): 1 for i in range(n)}} for n in calls]
    return Task(
        id=name, instruction=name, family="tools", initial_state=("ask",),
        options={"calls": rows},
    )  # fmt: skip


SILENT, ONE, RICH = tool_task("no"), tool_task("one", 1), tool_task("rich", 3)
LONG = tool_task("long", 1, 1)


@pytest.mark.parametrize(
    ("kind", "fitting"),
    [
        (Kind(share=1.0), {"no", "one", "rich", "long", "game"}),
        (Kind(share=1.0, calls=(0, 0)), {"no"}),
        (Kind(share=1.0, calls=(1, 1)), {"one", "rich"}),
        (Kind(share=1.0, calls=(2, math.inf)), {"long"}),
        (Kind(share=1.0, arguments=(2, 5)), {"rich"}),
        (Kind(share=1.0, families=("too*",)), {"no", "one", "rich", "long"}),
        (Kind(share=1.0, steps=(3, 4)), {"long"}),  # of the game none is known
        (Kind(share=1.0, steps=(3, math.inf)), {"long", "game"}),
        (Kind(share=1.0, success=(0.5, 1.0)), {"one", "long"}),
    ],
)
def test_kinds_by_hand(kind, fitting):
    game = doubles.task(0, 2, 3)
    steps = {"no": 1, "one": 2, "rich": 2, "long": 4}
    success = {"one": 0.5, "long": 1.0}
    found = {
        name
        for name, task in [("no", SILENT), ("one", ONE), ("rich", RICH),
                           ("long", LONG), ("game", game)]
        if kind.fits(task, steps=steps.get(name), success=success.get(name, 0.2))
    }  # fmt: skip
    assert found == fitting


def test_the_when_stage_draws_half_and_half():
    tasks = [tool_task(f"no{i}") for i in range(30)]
    tasks += [tool_task(f"call{i}", 1) for i in range(5)]
    pool = TaskPool(tasks)
    staged = Staged(presets.tool_stages(), StageConfig())
    staged.state = StageState(index=1)
    assert staged.now.name == "when"
    rng = np.random.default_rng(0)
    got = sample(pool, 8, CurriculumConfig(), rng, mix=staged.mix(pool))
    count = collections.Counter(t.id.rstrip("0123456789") for t in got)
    assert count == {"no": 4, "call": 4}


def test_games_go_by_the_length_of_their_plans_and_variations_by_their_seeds():
    tasks = [doubles.task(0, g, 6) for g in range(7)]
    plans = {t.id: float(len(doubles.plan(t.initial_state))) for t in tasks}
    pool = TaskPool(tasks)
    (made,) = doubles.RuleModel().vary([tasks[6]], key=None)
    pool.add_generated(made)
    staged = Staged(presets.game_stages(plans=(2, 5)), StageConfig())

    def drawn(index):
        staged.state = StageState(index=index)
        rng, config = np.random.default_rng(0), CurriculumConfig(generated_share=1.0)
        mix = staged.mix(pool, plans)
        return {t.id for t in sample(pool, 4, config, rng, mix=mix)}

    short = {t.id for t in tasks if plans[t.id] <= 2}
    assert drawn(0) <= short
    assert drawn(1) <= {t.id for t in tasks if plans[t.id] <= 5}
    assert made.id in drawn(2)
    assert [s.max_steps for s in staged.plan] == [6, 15, 0]
    assert (staged.max_steps(14), Staged(staged.plan, CONFIG).max_steps(14)) == (14, 6)


def test_the_primers_numbers():
    plan = {s.name: s for s in presets.tool_stages()}
    assert list(plan) == ["supervised", "when", "which", "how", "pipelines", "open"]
    budgets = [(30e3, 200e3), (1, 5), (3, 10), (5, 20), (10, 30), (1, math.inf)]
    assert [s.budget for s in plan.values()] == budgets
    assert [k.share for k in plan["when"].mix] == [0.5, 0.5]
    assert plan["when"].rewards["tool/when"] > 1 > plan["which"].rewards["tool/when"]
    assert plan["when"].rewards["tool/syntax"] < 1 < plan["how"].rewards["tool/syntax"]
    for stage in plan.values():
        assert sum(k.share for k in stage.mix) == pytest.approx(1.0)


def test_rewards_are_scaled_by_the_stage_and_the_rest_stays():
    staged = Staged(presets.tool_stages(), StageConfig())
    staged.state = StageState(index=2)
    paid = {"tool/when": 1.0, "tool/which": 0.5, "tool/task": 10.0}
    want = {"tool/when": 0.5, "tool/which": 1.0, "tool/task": 10.0}
    assert staged.rewards(paid) == want


def test_games_are_passed_in_updates_however_many_tasks_there_are():
    """1,180 tasks, 16 a batch: a run of 30 updates sees all stages, and never less."""
    staged = Staged(presets.game_stages(), StageConfig())
    won, lost = (
        doubles.expert(doubles.task(0, 2, 3)),
        doubles.expert(doubles.task(0, 2, 3)),
    )
    lost = dataclasses.replace(won, success=False)
    seen = []
    for _ in range(4):
        staged.observe([won])
        staged.check(16 / 1180)
        seen.append(staged.now.name)
    assert seen == ["plans-4", "plans-8", "plans-8", "all"]
    for _ in range(6):  # worse on what is harder: no way back
        staged.observe([lost])
        staged.check(16 / 1180)
    assert staged.now.name == "all"
    never = Staged(presets.game_stages(updates=3.0), StageConfig())
    for _ in range(6):
        never.observe([lost])
        never.check(16 / 1180)
    assert never.now.name == "all"
    assert never.state.why == "budget"


def test_an_epoch_is_over_the_tasks_of_the_mix():
    tasks = [SILENT, ONE, RICH, LONG]
    pool = TaskPool(tasks)
    staged = Staged(presets.tool_stages()[1:], StageConfig())
    assert staged.tasks(pool, {}) == 4
    games = Staged(presets.game_stages(plans=(2,)), StageConfig())
    assert games.tasks(pool, {"no": 1, "one": 2, "rich": 3}) == 2
    assert games.tasks(pool, {}) == 4  # none fits: every task may be drawn


def test_a_unit_that_nobody_counts_is_refused():
    with pytest.raises(ValueError, match="unit must be one of"):
        Stage(name="x", mix=(Kind(share=1.0),), unit="hours")


def test_stages_that_were_saved_go_on_as_ones_that_were_not():
    def fresh():
        return Staged(presets.game_stages(success=0.5, plans=(4,)), CONFIG)

    won = doubles.expert(doubles.task(0, 2, 3))
    first = fresh()
    first.observe([won, won])
    assert first.check(1.0) == {}
    first.observe([won])
    second = fresh()
    second.load(json.loads(json.dumps(first.to_json())))
    for staged in (first, second):
        staged.observe([won])
        staged.check(0.5)
    assert second.to_json() == first.to_json()
    assert first.now.name == "all"
    with pytest.raises(ValueError, match="plans-4"):
        Staged(presets.game_stages(plans=(5,)), CONFIG).load(first.to_json())


def test_settings_name_the_stages():
    assert staged_of(CurriculumConfig()) is None
    for name, first in (("tools", "when"), ("games", "plans-4")):
        staged = staged_of(CurriculumConfig(stages=name))
        assert staged is not None
        assert staged.now.name == first


def test_the_step_limit_is_the_smaller_of_schedule_and_stage():
    config = CurriculumConfig(horizon=HorizonConfig(first=2, updates=4))
    assert [step_limit(u, 10, config) for u in range(6)] == [2, 4, 6, 8, 10, 10]
    staged = Staged(presets.game_stages(plans=(2,)), CONFIG)  # at most 6 steps
    assert [step_limit(u, 10, config, staged) for u in range(6)] == [2, 4, 6, 6, 6, 6]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="share must be > 0"):
        Kind(share=0.0)
    with pytest.raises(ValueError, match=r"calls must be .*\(2, 1\)"):
        Kind(share=1.0, calls=(2, 1))
    with pytest.raises(ValueError, match="a mix"):
        Stage(name="x", mix=())
    with pytest.raises(ValueError, match="budget"):
        Stage(name="x", mix=MIX, budget=(3, 2))
    with pytest.raises(ValueError, match=r"rewards.*-1"):
        Stage(name="x", mix=MIX, rewards={"call": -1.0})
    with pytest.raises(ValueError, match="max_steps must be >= 0, got -1"):
        Stage(name="x", mix=MIX, max_steps=-1)
    for bad in ({"checks": 0}, {"margin": -1.0}, {"boost": -1.0}, {"drop": 0.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            StageConfig(**bad)
    with pytest.raises(ValueError, match="number 3 and 1"):
        advance(StageState(index=3), PLAN, {}, CONFIG, spent=1)
    with pytest.raises(ValueError, match="spent >= 0"):
        advance(StageState(), PLAN, {}, CONFIG, spent=-1)
    with pytest.raises(ValueError, match="names of their own"):
        Staged((PLAN[0], PLAN[0]), CONFIG)
    with pytest.raises(ValueError, match="plans must be"):
        presets.game_stages(plans=(4, 4))
    with pytest.raises(ValueError, match="success must be"):
        presets.game_stages(success=0.0)
