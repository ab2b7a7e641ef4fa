"""What the curriculum decides in the loop: step limits, stages, trials, clusters."""

import dataclasses

import pytest

from curriculum.config import (
    CurriculumConfig,
    LessonConfig,
    StepLimitConfig,
    ValueConfig,
)
from curriculum.generator import FunctionProposer
from curriculum.lesson_presets import tool_lessons
from curriculum.lesson_tracker import LessonTracker, lesson_tracker_for
from curriculum.lessons import Lesson, TaskFilter
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rewards.reward_function import RewardedEpisode
from dreamgym.rl.config import UpdateConfig
from dreamgym.training import LoopParts
from dreamgym.training.config import LoopConfig
from dreamgym.training.learn import learn
from dreamgym.training.limit_config import LimitConfig
from dreamgym.training.rollouts.groups import Rollouts
from tests import doubles
from tests.dreamgym.training.common import CONFIG, Recorder, fresh, updater, with_
from worldmodel.data.seed_tasks import SeedTask

SLOW = doubles.Scripted(lambda *_: "go right")  # never ends by itself


def loop(config, *, tasks=None, policy=SLOW, stages=None, limit=9, curve=(), **parts):
    tasks = doubles.tasks("train")[:8] if tasks is None else tasks
    envs, recorder = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=limit), Recorder()
    start = fresh(tasks, config)._replace(
        lessons=lesson_tracker_for(config.curriculum) if stages is None else stages,
        pool=pool_of(tasks, config.curriculum),
        curve=list(curve),
    )
    end = training.train(
        policy,
        envs,
        updater(),
        start,
        config,
        seed=3,
        recorder=recorder,
        parts=LoopParts(**parts),
    )
    return end, recorder, envs


def curriculum(**settings):
    settings = {"proposals_per_update": 0, "generated_share": 0.0} | settings
    return dataclasses.replace(CONFIG, curriculum=CurriculumConfig(**settings))


@pytest.mark.usefixtures("update_calls")
def test_episodes_grow_longer_by_the_schedule():
    config = curriculum(step_limit=StepLimitConfig(initial=3, updates=2))
    _, recorder, envs = loop(config)
    lengths = [{len(t.turns) for t in item} for _, item in recorder.seen]
    assert lengths == [{3}, {6}, {9}]  # 3 + (9 - 3) / 2 a update
    assert envs.max_steps == 9
    _, recorder, _ = loop(curriculum())
    assert [{len(t.turns) for t in item} for _, item in recorder.seen] == [{9}] * 3


@pytest.mark.usefixtures("update_calls")
def test_what_was_lost_under_a_shorter_limit_is_tried_again():
    """All is lost: what is retired in the end is what the last limit has seen."""
    for horizon, updates in (
        (StepLimitConfig(initial=3, updates=2), 1),
        (StepLimitConfig(), 3),
    ):
        end, _, _ = loop(curriculum(step_limit=horizon, retire_after=1))
        gone = [e for e in end.pool.entries.values() if e.retired]
        assert len(gone) == updates * CONFIG.tasks_per_update


@pytest.mark.medium
@pytest.mark.usefixtures("update_calls")
def test_a_stage_chooses_tasks_limits_and_promotes():
    tasks = doubles.tasks("train")[:30]
    plans = {t.id: len(doubles.plan(t.initial_state)) for t in tasks}
    config = curriculum(
        lessons="games",
        lesson=LessonConfig(consecutive_checks=1, advance_on_budget=False),
    )
    config = dataclasses.replace(config, updates=40, tasks_per_update=4)
    expert = doubles.Scripted(doubles.expert_rule)
    end, recorder, _ = loop(
        config, tasks=tasks, policy=expert, plan_lengths=plans, limit=14
    )
    stage = [row["lesson"] for row in end.curve]
    assert stage[:2] == [1.0, 2.0]  # always won: on after every check, and never back
    assert stage == sorted(stage)
    assert [row["step_limit"] for row in end.curve[:3]] == [12.0, 14.0, 14.0]
    for (_, item), before in zip(recorder.seen, [0.0, *stage], strict=False):
        if before == 0.0:
            assert max(plans[t.episode.task.id] for t in item) <= 4
    assert end.curve[0]["skills/success"] == 1.0
    lost, _, _ = loop(
        config,
        tasks=tasks,
        policy=doubles.Scripted(lambda *_: "go left"),
        plan_lengths=plans,
    )
    assert {row["lesson"] for row in lost.curve} == {0.0}


def test_a_stage_weighs_the_parts_of_rewards(update_calls):
    stages = LessonTracker(
        [s for s in tool_lessons() if s.name == "which"], LessonConfig()
    )  # `tool/which` counts twice
    task = doubles.task(0, 1, 2)
    rows = [
        doubles.trajectory(task, ["go right", "take coin"]),
        doubles.trajectory(task, ["go left"]),
    ]
    first = rows[0].episode.transitions[0]
    paid = dataclasses.replace(first, rewards={"tool/which": 0.5, "tool/task": 1.0})
    episode = dataclasses.replace(
        rows[0].episode, transitions=(paid, *rows[0].episode.transitions[1:])
    )
    rows[0] = rows[0]._replace(episode=episode)
    progress = fresh([task])._replace(lessons=stages)
    config = with_(discount=1.0)
    learn(updater(), progress, Rollouts(rows, []), config, seed=0)
    assert update_calls.examples[-1][0].columns["advantage"] == pytest.approx(
        (0.5 * 2 + 1.0 + 1.0) / 2
    )


@pytest.mark.usefixtures("update_calls")
def test_the_recorder_sees_lessons_limits_and_remedies_in_the_rewards():
    """Two updates: their rewards have the factors that were in force, and the costs."""
    lesson = Lesson(
        name="only", task_mixture=(TaskFilter(share=1.0),), rewards={"dream": 3.0}
    )
    limits = (
        LimitConfig(name="right", limit=0.0, pattern="^go right$", initial_weight=0.5),
        LimitConfig(name="wait", limit=0.0, pattern="^wait$", initial_weight=0.5),
    )
    config = with_(updates=2, tasks_per_update=1, limits=limits)
    task = doubles.task(0, 1, 3)
    end, recorder, _ = loop(
        config,
        tasks=[task],
        policy=doubles.Scripted(doubles.expert_rule),
        stages=LessonTracker([lesson], LessonConfig()),
        score=lambda episodes, *_: [
            RewardedEpisode(
                tuple(t.rewards | {"judge": 0.5} for t in e.transitions), (), None
            )
            for e in episodes
        ],
        curve=[{"dense_weight": 0.25, "rollouts": 2.0, "unscored_rollouts": 0.0}],
    )
    weight = end.curve[1]["limit_weight/right"]
    assert weight == pytest.approx(0.5 + 0.1)  # each rollout goes right once
    for rewarded, right in zip(recorder.rewarded, (0.5, weight), strict=True):
        for t in rewarded:
            first, last = t.episode.transitions
            # A quarter of what the judge pays, and three times what the dream does.
            assert first.rewards == {
                "dream": 0.0,
                "judge": 0.125,
                "limit/right": -right,
            }
            assert first.costs == {"right": 1.0}
            assert last.rewards == {"dream": 3.0, "judge": 0.125}
            assert last.costs == {}


class Trial:
    """Refuses what its policy is update_calls to."""

    def __init__(self):
        self.policy, self.transitions, self.asked = SLOW, 0, []

    def __call__(self, tasks):
        self.transitions += 5
        self.asked.append((self.policy, len(tasks)))
        return ["no plan" for _ in tasks]


@pytest.mark.usefixtures("update_calls")
def test_proposals_are_tried_with_the_policy_of_now_and_counted():
    model, trial = doubles.RuleModel(), Trial()

    @FunctionProposer
    def propose(groups: list[list[SeedTask]]):
        return [model._moved(group[0].task) for group in groups]

    acting = doubles.Scripted(doubles.expert_rule)
    config = curriculum(proposals_per_update=4, generated_share=0.5)
    end, recorder, envs = loop(
        config, policy=acting, propose=propose, feasibility=trial
    )
    assert {policy for policy, _ in trial.asked} == {acting}
    assert not any(e.generated for e in end.pool.entries.values())
    refused = sum(row.get("tasks/no plan", 0.0) for row in end.curve)
    assert refused == sum(n for _, n in trial.asked) > 0
    played = sum(len(t.turns) for _, item in recorder.seen for t in item)
    assert envs.transitions == played
    assert end.transitions == played + trial.transitions
    assert end.pool.proposal_counts["model"]["no plan"] == refused


@pytest.mark.usefixtures("update_calls")
def test_one_rollout_a_task_tells_of_its_cluster():
    def rule(task, past, state):
        even = int(task.id.split("-")[2]) % 2
        return doubles.expert_rule(task, past, state) if even else "go left"

    config = LoopConfig(
        updates=4,
        tasks_per_update=6,
        group_size=1,
        update=UpdateConfig(
            advantage_estimator="batch_mean",
            batch_rows=8,
            row_tokens=80,
            num_minibatches=1,
        ),
        curriculum=CurriculumConfig(
            proposals_per_update=0, value=ValueConfig(pooling="family")
        ),
    )
    tasks = doubles.tasks("train")[:30]
    end, _, _ = loop(config, tasks=tasks, policy=doubles.Scripted(rule))
    values = [e.value for e in end.pool.entries.values() if e.value is not None]
    assert len(values) == len(tasks)  # of a family, played or not
    assert max(values) > 0
    alone = dataclasses.replace(
        config, curriculum=CurriculumConfig(proposals_per_update=0, generated_share=0.0)
    )
    end, _, _ = loop(alone, tasks=tasks, policy=doubles.Scripted(rule))
    assert not any(e.retired for e in end.pool.entries.values())
    assert all(e.value is None for e in end.pool.entries.values())
