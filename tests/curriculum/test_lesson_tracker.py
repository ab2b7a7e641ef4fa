"""Where a run stands among its stages: draws, rewards, checks, their JSON."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from curriculum import lesson_presets
from curriculum.config import CurriculumConfig, LessonConfig, StepLimitConfig
from curriculum.lesson_tracker import LessonTracker, lesson_tracker_for, step_limit
from curriculum.lessons import LessonState
from curriculum.pool import TaskPool
from curriculum.sampler import sample
from tests import doubles
from tests.curriculum.test_lessons import (
    CONFIG,
    LONG,
    ONE,
    PLAN,
    RICH,
    SILENT,
    tool_task,
)
from worldmodel.data.seed_tasks import seed_tasks


def test_the_when_stage_draws_half_and_half():
    tasks = [tool_task(f"no{i}") for i in range(30)]
    tasks += [tool_task(f"call{i}", 1) for i in range(5)]
    pool = TaskPool(tasks)
    staged = LessonTracker(lesson_presets.tool_lessons(), LessonConfig())
    staged.state = LessonState(index=1)
    assert staged.lesson.name == "when"
    rng = np.random.default_rng(0)
    got = sample(
        pool, 8, CurriculumConfig(), rng, task_mixture=staged.task_mixture(pool)
    )
    count = collections.Counter(t.id.rstrip("0123456789") for t in got)
    assert count == {"no": 4, "call": 4}


def test_games_go_by_the_length_of_their_plans_and_variations_by_their_seeds():
    tasks = [doubles.task(0, g, 6) for g in range(7)]
    plans = {t.id: float(len(doubles.plan(t.initial_state))) for t in tasks}
    pool = TaskPool(tasks)
    (made,) = doubles.RuleModel().vary(seed_tasks([tasks[6]]), key=None)
    pool.add_generated(made)
    staged = LessonTracker(lesson_presets.game_lessons(plans=(2, 5)), LessonConfig())

    def drawn(index):
        staged.state = LessonState(index=index)
        rng, config = np.random.default_rng(0), CurriculumConfig(generated_share=1.0)
        mix = staged.task_mixture(pool, plans)
        return {t.id for t in sample(pool, 4, config, rng, task_mixture=mix)}

    short = {t.id for t in tasks if plans[t.id] <= 2}
    assert drawn(0) <= short
    assert drawn(1) <= {t.id for t in tasks if plans[t.id] <= 5}
    assert made.id in drawn(2)
    assert [s.max_steps for s in staged.lessons] == [6, 15, 0]
    assert (
        staged.max_steps(14),
        LessonTracker(staged.lessons, CONFIG).max_steps(14),
    ) == (14, 6)


def test_rewards_are_scaled_by_the_stage_and_the_rest_stays():
    staged = LessonTracker(lesson_presets.tool_lessons(), LessonConfig())
    staged.state = LessonState(index=2)
    paid = {"tool/when": 1.0, "tool/which": 0.5, "tool/task": 10.0}
    want = {"tool/when": 0.5, "tool/which": 1.0, "tool/task": 10.0}
    assert staged.rewards(paid) == want


def test_games_are_passed_in_updates_however_many_tasks_there_are():
    """1,180 tasks, 16 a batch: a run of 30 updates sees all stages, and never less."""
    staged = LessonTracker(lesson_presets.game_lessons(), LessonConfig())
    won, lost = (
        doubles.expert(doubles.task(0, 2, 3)),
        doubles.expert(doubles.task(0, 2, 3)),
    )
    lost = dataclasses.replace(won, success=False)
    seen = []
    for _ in range(4):
        staged.observe([won])
        staged.check(16 / 1180)
        seen.append(staged.lesson.name)
    assert seen == ["plans-4", "plans-8", "plans-8", "all"]
    for _ in range(6):  # worse on what is harder: no way back
        staged.observe([lost])
        staged.check(16 / 1180)
    assert staged.lesson.name == "all"
    never = LessonTracker(lesson_presets.game_lessons(updates=3.0), LessonConfig())
    for _ in range(6):
        never.observe([lost])
        never.check(16 / 1180)
    assert never.lesson.name == "all"
    assert never.state.why == "budget"


def test_an_epoch_is_over_the_tasks_of_the_mix():
    tasks = [SILENT, ONE, RICH, LONG]
    pool = TaskPool(tasks)
    staged = LessonTracker(lesson_presets.tool_lessons()[1:], LessonConfig())
    assert staged.tasks(pool, {}) == 4
    games = LessonTracker(lesson_presets.game_lessons(plans=(2,)), LessonConfig())
    assert games.tasks(pool, {"no": 1, "one": 2, "rich": 3}) == 2
    assert games.tasks(pool, {}) == 4  # none fits: every task may be drawn


def test_stages_that_were_saved_go_on_as_ones_that_were_not():
    def fresh():
        return LessonTracker(
            lesson_presets.game_lessons(success=0.5, plans=(4,)), CONFIG
        )

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
    assert first.lesson.name == "all"
    with pytest.raises(ValueError, match="plans-4"):
        LessonTracker(lesson_presets.game_lessons(plans=(5,)), CONFIG).load(
            first.to_json()
        )


def test_settings_name_the_stages():
    assert lesson_tracker_for(CurriculumConfig()) is None
    for name, first in (("tools", "when"), ("games", "plans-4")):
        staged = lesson_tracker_for(CurriculumConfig(lessons=name))
        assert staged is not None
        assert staged.lesson.name == first


def test_the_step_limit_is_the_smaller_of_schedule_and_stage():
    config = CurriculumConfig(step_limit=StepLimitConfig(initial=2, updates=4))
    assert [step_limit(u, 10, config) for u in range(6)] == [2, 4, 6, 8, 10, 10]
    staged = LessonTracker(
        lesson_presets.game_lessons(plans=(2,)), CONFIG
    )  # at most 6 steps
    assert [step_limit(u, 10, config, staged) for u in range(6)] == [2, 4, 6, 6, 6, 6]


def test_stages_of_one_name_are_refused():
    with pytest.raises(ValueError, match="distinct names"):
        LessonTracker((PLAN[0], PLAN[0]), CONFIG)
