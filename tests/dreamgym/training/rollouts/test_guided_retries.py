"""Guided retries: what is tried again, what of it is learnt, and that it helps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curriculum.config import GuidedRetriesConfig
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.agent import guidance
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv
from dreamgym.rewards.reward_function import RewardedEpisode
from dreamgym.rl.credit import TurnGrid
from dreamgym.rl.update import Updater
from dreamgym.training import LoopParts, TrainingState
from dreamgym.training import loop as training_loop
from dreamgym.training.config import LoopConfig
from dreamgym.training.learn import with_policy_logp
from dreamgym.training.rollouts.collection import collect_rollouts
from dreamgym.training.rollouts.groups import Rollouts, lost_tasks
from dreamgym.training.rollouts.rewards import rescore
from dreamgym.training.turn_batch import TurnBatch
from tests import doubles
from tests.dreamgym.training import common
from tests.dreamgym.training.common import CONFIG, Recorder, Tabular, fresh, updater

TASK, OTHER = doubles.task(0, 1, 2), doubles.task(0, 2, 4)
WIN = ["go right", "take coin"]


def with_retries(config=CONFIG, **settings):
    retries = GuidedRetriesConfig(**settings)
    curriculum = dataclasses.replace(config.curriculum, guided_retries=retries)
    return dataclasses.replace(config, curriculum=curriculum)


def lost(task=TASK, **more):
    return doubles.trajectory(task, ["go left"], **more)


def won_by_itself(task):
    return doubles.trajectory(task, doubles.plan(task.initial_state))


def guided(task=TASK, actions=WIN, given=1, **more):
    t = doubles.trajectory(task, actions, **more)
    turns = (
        x._replace(given=True, logp=(0.0,) * len(x.ids)) if i < given else x
        for i, x in enumerate(t.turns)
    )
    return t._replace(turns=tuple(turns))


def test_a_group_is_lost_if_some_are_scored_and_none_won():
    rows = [lost(), lost(error="broke"), lost(OTHER), won_by_itself(OTHER)]
    assert lost_tasks(rows, 2) == [TASK]
    assert lost_tasks([lost(error="broke")] * 2, 2) == []
    assert lost_tasks([lost()] * 4, 2) == [TASK]
    # A task may have two groups: won in one of them, it is not lost.
    assert lost_tasks([lost(), lost(), won_by_itself(TASK), lost()], 2) == []


def test_won_retries_take_the_places_of_lost_rollouts():
    started = [lost() for _ in range(4)]
    started += [lost(OTHER), lost(OTHER), lost(OTHER), lost(OTHER)]
    forked = [lost(), lost()]
    won = [guided(index=i) for i in range(3)]
    retries = [*won[:2], guided(actions=["go left"]), won[2], guided(error="broke")]
    rollouts = Rollouts(started, forked, guided=retries)
    # At most half of a group; what was lost, or was not scored, is not learnt.
    assert rollouts.learned(4) == [*started[:2], *won[:2], *started[4:], *forked]
    assert rollouts.all == [*started, *forked, *retries]
    assert Rollouts(started[:1], [], guided=won).learned(1) == [won[0]]
    # First in the places of what was not scored; one lost rollout stays in any case.
    broken = [lost()._replace(error="broke") for _ in range(2)]
    group = [*broken, lost(), lost()]
    assert Rollouts(group, [], guided=won).learned(4) == [*won[:2], *group[2:]]
    group = [*broken[:1], lost()]
    assert Rollouts(group, [], guided=won).learned(2) == [won[0], group[1]]
    # A group that was won by itself stays as it is.
    both = [lost(), won_by_itself(TASK)]
    assert Rollouts(both, [], guided=won).learned(2) == both


def collect(policy, envs, tasks, config, demonstrations, **more):
    return collect_rollouts(
        policy,
        envs,
        pool_of(tasks, config.curriculum),
        tasks,
        config,
        key=jax.random.key(0),
        rng=np.random.default_rng(0),
        source="update1",
        demonstrations=demonstrations,
        **more,
    )


def leftwards(task, past, state):
    """Walks left unless it is in the room of the coin, and takes it there."""
    del task, past
    at, goal = (int(line.split()[1]) for line in state[:2])
    return "take coin" if at == goal else "go left"


@pytest.mark.parametrize("real", [False, True])
def test_lost_tasks_are_tried_again_with_guidance(real):
    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9)
    if real:
        envs = RealVectorEnv([doubles.Corridor() for _ in range(4)], max_steps=9)
    won_before = doubles.task(2, 2, 4)
    demonstrations = [doubles.expert(t) for t in (TASK, OTHER)]
    config = with_retries(groups=3, share=0.7)
    rollouts = collect(
        doubles.Scripted(leftwards),
        envs,
        [won_before, TASK, OTHER],
        config,
        demonstrations,
    )
    assert [t.episode.task for t in rollouts.guided] == [TASK, TASK, OTHER, OTHER]
    assert all(t.episode.success for t in rollouts.guided)
    assert [x.given for x in rollouts.guided[0].turns] == [True, False]
    assert rollouts.guided[0].episode.id.startswith("update1-guided-")
    ids = [t.episode.id for t in rollouts.all]
    assert len(set(ids)) == len(ids)
    # Retries are bounded by their number, and by what may be rolled out.
    for bound, more in ((1, {}), (3, {"max_groups": lambda: 1}), (0, {})):
        some = with_retries(groups=bound, share=0.7) if bound else CONFIG
        rollouts = collect(
            doubles.Scripted(leftwards),
            envs,
            [won_before, TASK, OTHER],
            some,
            demonstrations,
            **more,
        )
        assert len(rollouts.guided) == (2 if bound else 0)


def test_outcomes_are_those_without_guidance_and_tokens_those_that_were_sampled():
    config = with_retries(groups=2)
    parts = LoopParts(demonstrations=[doubles.expert(TASK)])

    def train(config, parts=parts):
        return training.train(
            doubles.Scripted(leftwards),
            DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9),
            updater(),
            common.fresh([TASK], config),
            config,
            seed=3,
            recorder=Recorder(),
            parts=parts,
        )

    config = dataclasses.replace(config, updates=1, tasks_per_update=1)
    state = train(config)
    (row,) = state.curve
    assert (row["success"], row["guided_success"]) == (0.0, 1.0)
    assert (row["rollouts"], row["guided_rollouts"]) == (2.0, 2.0)
    assert state.pool.entries[TASK.id].successes == 0
    # Two lost turns, and of each retry the one that was not given.
    turns = [lost().turns[0]] * 2 + [guided().turns[1]] * 2
    assert row["tokens"] == sum(sum(x.sampled) for x in turns)
    assert row["transitions"] == 2 + 2 * 2
    assert row["informative_turn_share"] > 0.0  # something is learnt
    plain = train(dataclasses.replace(CONFIG, updates=1, tasks_per_update=1))
    assert plain.curve[0]["informative_turn_share"] == 0.0
    with pytest.raises(ValueError, match="guided retries, need demonstrations"):
        train(config, LoopParts())


def test_given_turns_are_learnt_as_if_the_policy_had_chosen_them():
    """By hand: their log-probabilities are the policy's, their advantage the win's."""
    state = updater().learner.init()
    rows = [lost(), guided()]
    (unchanged, filled) = with_policy_logp(rows, updater(), state)
    assert unchanged == rows[0]
    given, sampled = filled.turns
    assert sampled == rows[1].turns[1]
    (example,) = updater().with_sampler_logp(state.params, [given.example()])
    want = np.asarray(example.columns["sampler_logp"])[len(given.context) :]
    np.testing.assert_allclose(given.logp, want, rtol=1e-6)
    assert sum(given.logp) < 0.0
    batch = TurnBatch([unchanged, filled], CONFIG)
    rewards = [0.0, 0.0, 1.0]
    grid = TurnGrid(batch.length, batch.scored, batch.aborted.astype(int))
    advantages, mask = grid.group_advantages(rewards, np.arange(3), CONFIG.update, 2)
    # Returns 0 and 0.9 at the first turn: half of the difference each.
    assert mask[:2].all()
    np.testing.assert_allclose(advantages[:2], [-0.45, 0.45])
    # The bound of theorem 1 is about what the policy visits itself.
    visits = batch.visitation_weights(2)
    assert visits.tolist() == pytest.approx([0.1, 0.0, 0.0])


def test_given_turns_say_nothing_about_the_policy_that_sampled():
    """They have no probability under it, so that there is no distance from it."""
    learner, retry = updater(), guided()
    state = fresh([TASK])._replace(policy=learner.learner.init())
    measured = training_loop._staleness(learner, state, Rollouts([], [retry]), True)
    sampled = retry._replace(turns=retry.turns[1:])
    alone = training_loop._staleness(learner, state, Rollouts([], [sampled]), True)
    assert measured == alone
    assert measured["sampler_kl"] > 0.0
    given = retry._replace(turns=retry.turns[:1])
    none = training_loop._staleness(learner, state, Rollouts([], [given]), True)
    assert none == {"rollout_lag": 1.0}


def test_retries_are_scored_as_others_are():
    rollouts = Rollouts([lost(), lost()], [], guided=[guided()])

    def score(episodes, pasts, past_states):
        del pasts, past_states
        return [
            RewardedEpisode(
                tuple({"x": 2.0} for _ in e.transitions),
                ("rule",) * len(e.transitions),
                None,
            )
            for e in episodes
        ]

    (trajectory,) = rescore(rollouts, score).guided
    assert [t.rewards for t in trajectory.episode.transitions] == [{"x": 2.0}] * 2


def test_settings_without_effect_are_refused():
    with pytest.raises(ValueError, match=r"guided_retries\.groups is 0"):
        with_retries(share=0.3)
    with pytest.raises(ValueError, match=r"share in \(0, 1\), got 1 and 1.0"):
        GuidedRetriesConfig(groups=1, share=1.0)
    with pytest.raises(ValueError, match="groups must be >= 0"):
        GuidedRetriesConfig(groups=-1)


FAR = doubles.expert(doubles.task(0, 9, 9))


def successes(seed, groups, monkeypatch):
    """Success from the start of a long corridor in each update."""
    policy = Tabular(jnp.zeros((10, 3)), doubles.ACTIONS, lambda s: int(s[0][3:]))
    start = policy.take_updates(monkeypatch)

    def given_turn(policy, grammar, situation, action):
        """The table's own turn, so that it is learnt in its place."""
        del grammar
        row, choice = policy.place(situation.state), doubles.ACTIONS.index(action)
        if (row, choice) not in policy.turns:
            made = doubles.turn(policy, *situation[:3], action)
            policy.turns[row, choice] = made
        return policy.turns[row, choice]._replace(given=True)

    monkeypatch.setattr(guidance, "given_turn", given_turn)
    # The table has no log-probabilities of tokens, and its updates need none.
    monkeypatch.setattr(Updater, "with_sampler_logp", lambda *args: args[-1])
    config = LoopConfig(updates=20, tasks_per_update=3, group_size=8)
    if groups:
        config = with_retries(config, groups=groups, share=0.8)
    others = [
        dataclasses.replace(
            FAR, id=f"e{i}", task=dataclasses.replace(FAR.task, id=f"{i}")
        )
        for i in range(3)
    ]
    end = training.train(
        policy,
        DreamVectorEnv(doubles.RuleModel(), 32, max_steps=12),
        updater(),
        TrainingState(
            0, start, pool_of([e.task for e in others], config.curriculum), 0, []
        ),
        config,
        seed=seed,
        recorder=Recorder(),
        parts=LoopParts(demonstrations=others),
    )
    return [row["success"] for row in end.curve]


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 1])
def test_a_policy_learns_what_it_wins_with_guidance_only(seed, monkeypatch):
    won = successes(seed, 3, monkeypatch)
    assert won[0] == 0.0
    assert np.mean(won[-3:]) > 0.8
    assert max(successes(seed, 0, monkeypatch)) == 0.0
