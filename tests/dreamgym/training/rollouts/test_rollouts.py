"""What is rolled out beyond groups of tasks, and which rewards rollouts get."""

import dataclasses

import jax
import numpy as np
import pytest

from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.agent.rollout import rollout
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import Snapshot, VectorEnv
from dreamgym.rewards.config import MilestoneConfig, RewardConfig
from dreamgym.rewards.reward_function import NO_OUTCOME, RewardFunction
from dreamgym.rl.config import SurrogateConfig
from dreamgym.rl.update import Updater
from dreamgym.training import learn as learning
from dreamgym.training.config import ForkConfig
from dreamgym.training.rollouts.collection import collect_rollouts
from dreamgym.training.rollouts.forks import fork_points, forks_of, outcome_variance
from dreamgym.training.rollouts.groups import Rollouts, groups_of
from dreamgym.training.rollouts.rewards import rescore
from tests import doubles
from tests.dreamgym.training.common import (
    CONFIG,
    LOSE,
    WIN,
    Recorder,
    fresh,
    learn,
    pair,
    updater,
    with_,
)


def sometimes(task, past, state):
    """Loses in the even corridors; else wins, or not, by the length of the way."""
    if int(task.id.split("-")[2]) % 2 == 0:
        return "go left"
    return doubles.expert_rule(task, past, state)


def gathered(policy, tasks, config, rng=0, **more):
    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9)
    pool = pool_of(doubles.tasks("train")[:8], config.curriculum)
    return collect_rollouts(
        policy,
        envs,
        pool,
        tasks,
        config,
        key=jax.random.key(0),
        rng=np.random.default_rng(rng),
        source="update0",
        **more,
    ), envs


def test_where_groups_agree_other_tasks_are_rolled_out():
    tasks = doubles.tasks("train")[:2]
    policy = doubles.Scripted(sometimes)  # a rule's groups always agree
    plain, _ = gathered(policy, tasks, CONFIG)
    assert [t.episode.task.id for t in plain.started] == [
        t.id for t in tasks for _ in range(2)
    ]
    more, envs = gathered(
        policy, tasks, dataclasses.replace(CONFIG, max_resample_rounds=2)
    )
    assert len(more.started) == 12  # two waves of as many again
    assert envs.transitions == sum(len(t.turns) for t in more.started)
    assert more.started[:4] == plain.started
    ids = [t.episode.id for t in more.started]
    assert len(set(ids)) == len(ids)
    played = {t.episode.task.id for t in more.started[:4]}
    assert not played & {t.episode.task.id for t in more.started[4:]}
    # What comes beyond is of the same mix.
    mix = [(1.0, lambda entry: entry.task.id == doubles.tasks("train")[5].id)]
    same, _ = gathered(
        policy, tasks, dataclasses.replace(CONFIG, max_resample_rounds=1), mixture=mix
    )
    assert {t.episode.task.id for t in same.started[4:]} == {
        doubles.tasks("train")[5].id
    }
    # Groups that differ already ask for nothing.
    coin = iter([True, False] * 100)
    fickle = doubles.Scripted(
        lambda task, past, state: (
            doubles.expert_rule(task, past, state) if past or next(coin) else "go left"
        )
    )
    result, _ = gathered(
        fickle,
        [doubles.task(0, 1, 2)] * 2,
        dataclasses.replace(CONFIG, max_resample_rounds=2),
    )
    assert len(result.started) == 4


def test_forks_go_on_from_states_on_the_way_of_groups_that_differ():
    task = doubles.task(0, 2, 4)
    long = ["go right", "go right", "take coin"]
    rows = [
        doubles.trajectory(task, long),
        doubles.trajectory(task, LOSE),
        *[doubles.trajectory(doubles.task(0, 1, 3), WIN)] * 2,
    ]
    config = dataclasses.replace(CONFIG, forks_per_update=5)
    points = fork_points(rows, config, np.random.default_rng(0))
    assert {p.past for p in points} == {("go right",), ("go right", "go right")}
    for p in points:
        assert p.task == task
        way = rows[0].episode.transitions
        assert p.state == way[len(p.past)].state
        assert p.past_states == tuple(t.state for t in way[: len(p.past)])
    assert (
        len(
            fork_points(
                rows,
                dataclasses.replace(config, forks_per_update=1),
                np.random.default_rng(0),
            )
        )
        == 1
    )
    assert not fork_points(rows, CONFIG, np.random.default_rng(0))


def test_preferences_of_forks_are_of_actions_in_one_state(update_calls, monkeypatch):
    """From the dream to the update: of a fork only its first actions are compared."""
    monkeypatch.setattr(Updater, "reference_log_ratio", lambda _, e: np.zeros(len(e)))
    rng = np.random.default_rng(0)

    def torn(task, past, state):
        if not past or rng.random() < 0.7:
            return doubles.expert_rule(task, past, state)
        return "go left"

    config = with_(
        dataclasses.replace(CONFIG, group_size=4),
        forks_per_update=3,
        fork=ForkConfig(preference="first_action"),
        advantage_estimator="preference_pairs",
        surrogate=SurrogateConfig(importance_level="none", loss_aggregation="episode"),
    )
    tasks = [doubles.task(0, 2, 4), doubles.task(0, 3, 4)]
    rollouts, _ = gathered(doubles.Scripted(torn), tasks, config)
    assert len(rollouts.forked) == 12
    for group in groups_of(rollouts.forked, 4):
        starts = {(t.past, t.episode.transitions[0].state) for t in group}
        assert len(starts) == 1
        assert starts.pop()[0]
    lost = [doubles.trajectory(tasks[0], LOSE)] * 4  # no pair from the start
    learn(lost, config, forked=rollouts.forked)
    (examples,) = update_calls.examples
    first = {(*t.turns[0].context, *t.turns[0].ids) for t in rollouts.forked}
    assert {tuple(e.ids) for e in examples} <= first
    assert len(examples) >= 2
    # Whole continuations have more turns in the loss.
    learn(
        lost,
        dataclasses.replace(config, fork=ForkConfig()),
        forked=rollouts.forked,
    )
    assert len(update_calls.examples[-1]) > len(examples)


def with_surprise(t, *nats):
    """The trajectory with turns whose sampled tokens have -log p of so many nats."""
    turns = [
        turn._replace(logp=tuple(-x * sampled for sampled in turn.sampled))
        for turn, x in zip(t.turns, nats, strict=True)
    ]
    return t._replace(turns=tuple(turns))


def test_forks_begin_where_the_policy_is_least_sure():
    task = doubles.task(0, 2, 4)
    long = doubles.trajectory(task, ["go right", "go right", "take coin"])
    lost = doubles.trajectory(task, ["go right", "go left", "go left"])
    config = dataclasses.replace(
        CONFIG, forks_per_update=1, fork=ForkConfig(by="entropy")
    )

    def chosen(config, *rows):
        return {
            fork_points(rows, config, np.random.default_rng(seed))[0].past
            for seed in range(8)
        }

    # Both pass the second state, in which the mean of 5 and 1 nats is the largest. The
    # first state is where they begin, and is no fork.
    rows = with_surprise(long, 9.0, 5.0, 2.0), with_surprise(lost, 9.0, 1.0, 2.5)
    assert chosen(config, *rows) == {("go right",)}
    rows = with_surprise(long, 9.0, 3.0, 2.0), with_surprise(lost, 9.0, 1.0, 2.5)
    assert chosen(config, *rows) == {("go right", "go left")}
    # At random each of the three states is drawn, and so are equals.
    random = dataclasses.replace(CONFIG, forks_per_update=1)
    assert len(chosen(random, *rows)) == 3
    rows = with_surprise(long, 1.0, 1.0, 1.0), with_surprise(lost, 1.0, 1.0, 1.0)
    assert len(chosen(config, *rows)) == 3


def test_forks_begin_where_the_outcome_is_least_sure():
    """By hand: from the second state half are won, from the third one of one."""
    task = doubles.task(0, 2, 4)
    won = doubles.trajectory(task, ["go right", "go right", "take coin"])
    lost = doubles.trajectory(task, ["go right", "go left", "go left"])
    config = dataclasses.replace(
        CONFIG, forks_per_update=1, fork=ForkConfig(by="value")
    )
    for seed in range(8):
        (fork,) = fork_points([won, lost], config, np.random.default_rng(seed))
        assert fork.past == ("go right",)
    # A rollout without an outcome counts for nothing; it is not lost.
    unscored = doubles.trajectory(task, ["go right", "go right"], error="malformed")
    rows = [won, lost, unscored, unscored]
    (fork,) = fork_points(
        rows, dataclasses.replace(config, group_size=4), np.random.default_rng(0)
    )
    assert fork.past == ("go right",)
    assert outcome_variance([True, False], 0.5) == 0.25
    assert outcome_variance([True], 0.5) == 0.75 * 0.25
    # What many rollouts won is surer than what one won, or ten of which one was lost.
    sure = outcome_variance([True] * 9, 0.5)
    assert sure < outcome_variance([True], 0.5)
    assert sure < outcome_variance([*[True] * 9, False], 0.5)


def test_forks_know_the_rollouts_that_they_leave():
    coin = iter([True, False] * 100)

    def fickle(task, past, state):
        if len(past) == 1 and not next(coin):
            return "take coin"
        if len(past) > 1 and past[1] == "take coin":
            return "go left"
        return doubles.expert_rule(task, past, state)

    result, _ = gathered(
        doubles.Scripted(fickle),
        [doubles.task(0, 1, 3), doubles.task(0, 2, 4)],
        dataclasses.replace(CONFIG, forks_per_update=2),
    )
    forks = forks_of(result, CONFIG.group_size)
    assert [f.continuations for f in forks] == [(4, 5), (6, 7)]
    for fork in forks:
        (start,) = {result.all[i].past for i in fork.continuations}
        assert len(start) == fork.depth
        for number, t in enumerate(result.started):
            actions = tuple(x.action for x in t.episode.transitions)
            same_task = t.episode.task == result.all[fork.continuations[0]].episode.task
            passes = same_task and actions[: fork.depth] == start
            assert (number in fork.members) == (passes and len(actions) > fork.depth)


def test_what_a_fork_shows_reaches_the_update(update_calls):
    task = doubles.task(0, 2, 4)
    long = doubles.trajectory(task, ["go right", "go right", "take coin"])
    lost = doubles.trajectory(task, ["go right", "go left", "go left"])
    after = doubles.trajectory(doubles.task(1, 2, 4), WIN)
    fork = after._replace(
        episode=dataclasses.replace(after.episode, task=task), past=("go right",)
    )
    config = with_(
        dataclasses.replace(CONFIG, forks_per_update=1, fork=ForkConfig(weight=0.5)),
        discount=1.0,
    )
    learn([long, lost], config, forked=[fork, fork])
    # Both continuations win: 1 - (1 + 0 + 1) / 3 over the group, and half of it counts.
    advantages = [e.columns["advantage"] for e in update_calls.examples[-1]]
    np.testing.assert_allclose(advantages[-4:], [1 / 6] * 4, rtol=1e-6)
    learn([long, lost], with_(CONFIG, discount=1.0), forked=[fork, fork])
    assert len(update_calls.examples[-1]) == len(advantages) - 4


def test_a_fork_is_gone_on_from_with_its_past():
    task = doubles.task(0, 2, 4)
    seen = []

    def rule(task, past, state):
        seen.append((past, state))
        return doubles.expert_rule(task, past, state)

    envs = DreamVectorEnv(doubles.RuleModel(), 2, max_steps=9)
    before = (task.initial_state,)
    start = Snapshot(task, ("go right",), doubles.start_state(1, 2, 4), before)
    forked, whole = rollout(
        doubles.Scripted(rule),
        envs,
        [start, task],
        key=jax.random.key(0),
        temperature=1.0,
    )
    assert seen[0] == (("go right",), start.state)
    assert (forked.past, forked.past_states) == (("go right",), before)
    assert [x.action for x in forked.episode.transitions] == ["go right", "take coin"]
    assert forked.episode.success
    assert whole.past == ()
    assert len(whole.turns) == 3
    # Its steps count from the task's start.
    late = Snapshot(task, ("go right",) * 8, doubles.start_state(1, 2, 4))
    (last,) = rollout(
        doubles.Scripted(rule), envs, [late], key=jax.random.key(0), temperature=1.0
    )
    assert len(last.turns) == 1
    assert last.episode.transitions[-1].truncated


def test_only_a_dream_can_be_forked():
    class Plain(VectorEnv):
        size = 2

        def reset(self, *, options):
            raise AssertionError(options)

        def step(self, actions):
            raise AssertionError(actions)

    config = dataclasses.replace(CONFIG, forks_per_update=2)
    with pytest.raises(ValueError, match="only the dream can"):
        training.train(
            doubles.Scripted(sometimes),
            Plain(),
            updater(),
            fresh(doubles.tasks("train")[:2]),
            config,
            seed=0,
            recorder=Recorder(),
        )


def test_a_step_is_paid_what_the_settings_say(update_calls):
    task = doubles.task(0, 1, 2)
    rows = [
        doubles.trajectory(task, WIN),
        doubles.trajectory(task, LOSE),
        doubles.trajectory(task, LOSE, error="broke"),
        doubles.trajectory(task, ["go right"], error="low_confidence: 0.1"),
    ]
    there = MilestoneConfig(name="there", pattern="^at 1$", weight=0.5)
    scorer = RewardFunction(RewardConfig(outcome_weight=0.5, milestones=(there,)))
    paid = rescore(Rollouts(rows, []), scorer.score)
    names = [[x.rewards for x in t.episode.transitions] for t in paid.started]
    # Half of 1 from the environment and of 0.5 from the milestone, half the outcome.
    assert names[0][0] == {"coin": 0.0, "milestone/there": 0.25}
    assert names[0][1] == {"coin": 0.5, "outcome": 0.5}
    assert names[1][0] == {"coin": 0.0, "outcome": 0.0}
    assert names[2] == [x.rewards for x in rows[2].episode.transitions]
    assert names[3][0] == {"coin": 0.0, "milestone/there": 0.25}
    assert [t.error for t in paid.started] == [t.error for t in rows]
    config = dataclasses.replace(CONFIG, group_size=4)
    learn(paid.started, config)
    first = update_calls.examples[-1][0].columns["advantage"]
    assert first == pytest.approx((0.25 + 0.9) / 2)  # less the mean with 0


def test_what_a_fork_has_done_before_is_not_paid_again():
    way = ["go right", "go right", "take coin"]
    whole = doubles.trajectory(doubles.task(0, 2, 4), way)
    rows = whole.episode.transitions
    assert {t.action for t in rows[:-1]} == {"go right"}
    fork = whole._replace(
        episode=dataclasses.replace(whole.episode, transitions=rows[1:]),
        turns=whole.turns[1:],
        past=(rows[0].action,),
    )
    moved = MilestoneConfig(name="moved", pattern="go", weight=0.5, search_in="action")
    scorer = RewardFunction(RewardConfig(milestones=(moved,)))
    broke = doubles.trajectory(doubles.task(0, 2, 4), way, error="broke")
    paid = rescore(Rollouts([broke, whole], [fork]), scorer.score)
    begun, gone_on = paid.started[1].episode, paid.forked[0].episode
    assert begun.transitions[0].rewards["milestone/moved"] == 0.5
    assert gone_on.transitions == begun.transitions[1:]


def test_what_nobody_could_score_leaves_the_update_and_not_the_curriculum(update_calls):
    def score(episodes, pasts, past_states):
        good = RewardFunction(RewardConfig()).score(episodes, pasts, past_states)
        return [
            good[0],
            *(row._replace(problem="judge: malformed") for row in good[1:]),
        ]

    rows = pair()
    paid = rescore(Rollouts(rows, []), score)
    assert [t.error for t in paid.started] == [None, "reward: judge: malformed"]
    result = learn(paid.started, CONFIG)
    assert not update_calls.examples
    assert result.metrics["unscored/reward"] == 1.0
    assert rows[1].error is None


def test_a_cut_episode_that_the_judge_could_not_score_is_no_zero():
    rows = [
        doubles.trajectory(doubles.task(0, 1, 2), WIN, error="low_confidence: 0.1"),
        doubles.trajectory(doubles.task(0, 1, 2), WIN, error="low_confidence: 0.1"),
    ]

    def score(episodes, pasts, past_states):
        known = RewardFunction(RewardConfig(outcome_weight=0.5)).score(
            episodes, pasts, past_states
        )
        assert [x.problem for x in known] == [NO_OUTCOME] * 2  # and no reason to go
        return [known[0], known[1]._replace(problem="judge: no answer")]

    paid = rescore(Rollouts(rows, []), score)
    assert [t.error for t in paid.started] == [
        "low_confidence: 0.1",
        "reward: judge: no answer",
    ]


@pytest.mark.usefixtures("update_calls")
def test_who_paid_what_is_in_the_row_of_the_update():
    there = MilestoneConfig(name="there", pattern="^at 1$", weight=0.5)
    scorer = RewardFunction(RewardConfig(milestones=(there,)))
    paid = rescore(Rollouts(pair(), []), scorer.score)
    result = learning.learn(
        updater(), fresh([doubles.task(0, 1, 2)]), paid, CONFIG, seed=0
    )
    # Two steps won, one lost: the milestone and the coin are the rule's, a move left
    # into the wall is nobody's.
    assert result.metrics["reward_source/rule"] == pytest.approx(2 / 3)
    assert result.metrics["reward_source/none"] == pytest.approx(1 / 3)
    assert result.metrics["reward/milestone/there"] == 0.25
    assert result.metrics["reward/coin"] == 0.5
