"""Which turns enter an update, and what they weigh."""

import dataclasses

import numpy as np
import pytest

from dreamgym.rewards.config import MilestoneConfig, RewardConfig
from dreamgym.rewards.reward_function import RewardFunction
from dreamgym.rl.config import (
    CriticConfig,
    KLPenaltyConfig,
    ShapingConfig,
    SurrogateConfig,
)
from dreamgym.rl.credit import Fork
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.training.config import AuxiliaryConfig, ForkConfig, ReplayConfig
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import rescore
from dreamgym.training.turn_batch import TurnBatch
from tests import doubles
from tests.dreamgym.training.common import (
    CONFIG,
    LOSE,
    WIN,
    fresh,
    learn,
    loop,
    pair,
    with_,
)
from worldmodel.fitting.batches import Example


def test_filtered_imitation_takes_the_won_episodes_of_any_group(update_calls):
    rows = [*pair(), *[doubles.trajectory(doubles.task(0, 1, 3), WIN)] * 2]
    config = with_(
        advantage_estimator="success_filter",
        kl_penalty=KLPenaltyConfig(coefficient=0.0),
        surrogate=SurrogateConfig(importance_level="none"),
    )
    result = learn(rows, config)
    (examples,) = update_calls.examples
    assert [e.columns["advantage"] for e in examples] == [
        1.0
    ] * 6  # 2 turns of 3 episodes
    assert result.metrics["informative_turn_share"] == pytest.approx(6 / 7)


def test_preferences_weigh_the_episodes_of_a_pair_alike(update_calls, monkeypatch):
    monkeypatch.setattr(Updater, "reference_log_ratio", lambda _, e: np.zeros(len(e)))
    config = with_(
        advantage_estimator="preference_pairs",
        dpo_beta=0.2,
        surrogate=SurrogateConfig(importance_level="none", loss_aggregation="episode"),
    )
    learn(pair(), config)
    (examples,) = update_calls.examples
    # Whatever its length, an episode's log-probability weighs beta sigmoid(0), times
    # two episodes for the one pair.
    each = [e.weight * e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(each, [0.2, 0.2, -0.2], rtol=1e-6)
    assert sum(sum(e.mask) * e.weight for e in examples) == pytest.approx(2.0)


PAIRS = {
    "advantage_estimator": "preference_pairs",
    "dpo_beta": 0.2,
    "surrogate": SurrogateConfig(importance_level="none", loss_aggregation="episode"),
}


def forks(*attempts):
    """Attempts at the task of `pair` from the state after its first action."""
    task, past = doubles.task(1, 2, 4), ("go right",)
    return [doubles.trajectory(task, a)._replace(past=past) for a in attempts]


def test_a_pair_of_forks_is_of_what_follows_one_state(update_calls, monkeypatch):
    ratios = iter([[0.0, 0.0, 1.0, 2.0, 0.5]])
    monkeypatch.setattr(
        Updater, "reference_log_ratio", lambda *_: np.array(next(ratios))
    )
    lost = [doubles.trajectory(doubles.task(0, 2, 4), LOSE)] * 2
    result = learn(lost, with_(forks_per_update=1, **PAIRS), forked=forks(WIN, LOSE))
    (examples,) = update_calls.examples
    # The group from the start has no pair, and the fork's is none with it: of 5 turns
    # those 3 count that follow the fork, and the action before it is only read.
    tok = doubles.tokenizer()
    assert [e.ids.count(tok.control("past")) for e in examples] == [0, 1, 0]
    weight = 0.2 / (1 + np.exp(0.2 * (1.0 + 2.0 - 0.5))) * 2
    each = [e.weight * e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(each, [weight, weight, -weight], rtol=1e-6)
    assert result.metrics["informative_turn_share"] == pytest.approx(3 / 5)


def test_no_pair_is_of_different_states(update_calls, monkeypatch):
    monkeypatch.setattr(Updater, "reference_log_ratio", lambda _, e: np.zeros(len(e)))
    won = [doubles.trajectory(doubles.task(0, 1, 2), WIN)] * 2
    learn(won, with_(forks_per_update=1, **PAIRS), forked=forks(LOSE, LOSE))
    assert not update_calls.examples


def test_a_pair_of_forks_may_be_of_their_first_actions(update_calls, monkeypatch):
    """Agent Q: what is preferred is one action to another one in the same state."""
    # Turns: 2 and 2 from the start, won and lost; forks of 2, 1 and 2 turns.
    ratios = [0.0] * 6 + [1.0, 9.0, 0.5, 7.0, 7.0]
    monkeypatch.setattr(Updater, "reference_log_ratio", lambda *_: np.array(ratios))
    started = [doubles.trajectory(doubles.task(0, 1, 2), WIN)] * 3  # no pair
    later = ["go right", "go left"]  # as the winner begins, and not won
    config = with_(
        dataclasses.replace(CONFIG, group_size=3),
        forks_per_update=1,
        fork=ForkConfig(preference="first_action"),
        **PAIRS,
    )
    learn(started, config, forked=forks(WIN, LOSE, later))
    (examples,) = update_calls.examples
    # One pair, of `go right` and `go left`: what both began alike with is none.
    weight = 0.2 / (1 + np.exp(0.2 * (1.0 - 0.5))) * 2
    each = [e.weight * e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(each, [weight, -weight], rtol=1e-6)
    assert sum(sum(e.mask) * e.weight for e in examples) == pytest.approx(2.0)
    # Episodes from the start are compared as a whole, as without forks.
    monkeypatch.setattr(Updater, "reference_log_ratio", lambda _, e: np.zeros(len(e)))
    rows = [*pair(), doubles.trajectory(doubles.task(0, 1, 2), LOSE)]
    learn(rows, config, forked=forks(WIN, WIN, WIN))
    assert len(update_calls.examples[-1]) == 4


def test_groups_that_begin_in_demonstrations_are_compared_as_a_whole():
    config = with_(
        dataclasses.replace(CONFIG, group_size=3),
        forks_per_update=1,
        fork=ForkConfig(preference="first_action"),
        **PAIRS,
    )
    begun, forked = forks(WIN, LOSE, WIN), forks(WIN, LOSE, WIN)
    batch = TurnBatch([*begun, *forked], config, [Fork((), (3, 4, 5), 1)])
    turns = [len(t.turns) for t in begun]
    first = [True] + [False] * (len(forked[0].turns) - 1)
    assert batch.compared[: sum(turns)].all()
    assert batch.compared[sum(turns) : sum(turns) + len(first)].tolist() == first


def test_an_episode_with_a_void_turn_leaves_the_update_and_the_baseline(update_calls):
    rows = [*pair(), doubles.trajectory(doubles.task(0, 1, 2), [*WIN])]
    void = rows[2].turns[0]._replace(action=" ")
    rows[2] = rows[2]._replace(turns=(void, *rows[2].turns[1:]))
    config = dataclasses.replace(CONFIG, group_size=3)
    learn(rows, config)
    assert len(update_calls.examples[-1]) == 3  # of 5: at the second turn all agree
    result = learn(rows, dataclasses.replace(config, drop_void_turns=True))
    adv = [e.columns["advantage"] for e in update_calls.examples[-1]]
    np.testing.assert_allclose(adv, [0.45, -0.45], rtol=1e-6)  # 0.9 and 0
    assert result.metrics["void_turn_share"] == pytest.approx(1 / 3)
    assert result.metrics["success"] == pytest.approx(2 / 3)  # as it was played


def test_a_turn_is_void_that_says_nothing_or_was_cut_off():
    turn = doubles.trajectory(doubles.task(0, 1, 2), LOSE).turns[0]
    assert not turn.void
    assert turn._replace(action="").void
    assert turn._replace(sampled=(*turn.sampled[:-1], False)).void


def test_won_turns_come_back_with_the_probabilities_of_then(update_calls):
    config = dataclasses.replace(CONFIG, replay=ReplayConfig(ratio=1.0, capacity=3))
    first = learn(pair(), config)
    assert [e.columns["advantage"] > 0 for e in first.replay] == [
        True
    ]  # the second turn: no news
    progress = fresh([doubles.task(0, 1, 2)])._replace(update=1, replay=first.replay)
    rows = pair(1, 2, 3)
    second = learn(rows, config, progress=progress)
    fresh_ones, again = update_calls.examples[-1][:-1], update_calls.examples[-1][-1]
    assert again == first.replay[0]
    assert len(fresh_ones) == 2
    assert second.metrics["replayed"] == 1.0
    assert len(second.replay) == 2
    for number in range(2, 5):
        progress = progress._replace(update=number, replay=second.replay)
        second = learn(pair(0, 1, number), config, progress=progress)
    assert len(second.replay) == 3  # the newest
    assert not learn(pair(), CONFIG).replay


def test_what_is_imitated_beside_is_drawn_anew_each_update(update_calls):
    config = dataclasses.replace(
        CONFIG, auxiliary=AuxiliaryConfig(coefficient=0.5, examples_per_update=2)
    )
    known = [Example([i, i], [False, True], [0, 0]) for i in range(20)]
    learn(pair(), config, auxiliary=known)
    later = fresh([doubles.task(0, 1, 2)])._replace(update=1)
    learn(pair(), config, auxiliary=known, progress=later)
    one, two = update_calls.auxiliary
    assert len(one) == len(two) == 2
    assert one != two
    assert update_calls.weights[0].auxiliary == 0.5
    assert config.supervised
    assert not CONFIG.supervised


def test_the_rollouts_themselves_may_be_modelled_beside(update_calls):
    config = dataclasses.replace(
        CONFIG,
        updates=1,
        auxiliary=AuxiliaryConfig(
            objective="rollout_iwm", coefficient=0.5, examples_per_update=3
        ),
    )
    loop(config)
    (beside,) = update_calls.auxiliary
    assert len(beside) == 3
    tok = doubles.tokenizer()
    for e in beside:  # what follows an action, up to the end
        targets = [i for i, on in zip(e.ids, e.mask, strict=True) if on]
        assert targets[-1] == tok.control("end")
        assert tok.control("action") in list(e.ids)


def test_a_critic_over_tokens_gives_each_token_its_advantage(update_calls):
    config = with_(
        advantage_estimator="gae",
        discount=0.5,
        critic=CriticConfig(value_level="token", gae_lambda=1.0, epochs=1),
    )
    critic = Critic(doubles.model(), config.update.critic, rows=4, width=80)
    progress = fresh([doubles.task(0, 1, 2)])._replace(critic=critic.init())
    result = learn(pair(), config, critic=critic, progress=progress)
    (examples,) = update_calls.examples
    # Values are 0 at first: won at the second turn, 0.5 a turn before, 0 where lost.
    for e, want in zip(examples, (0.5, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(
            np.asarray(e.columns["advantage"])[list(e.mask)], want
        )
        assert not np.asarray(e.columns["advantage"])[~np.asarray(e.mask)].any()
    assert result.metrics["value_loss"] > 0
    assert result.metrics["informative_turn_share"] == 1.0


def test_advantages_are_modulated_by_the_entropy_of_turns(update_calls, monkeypatch):
    asked = []

    def mean_entropy(self, params, examples):
        del self
        asked.append((params, len(examples)))
        return np.array([1.0, 1.5, 2.0])

    monkeypatch.setattr(Updater, "mean_entropy", mean_entropy)
    shaping = ShapingConfig(entropy_rate=1.0)
    progress = fresh([doubles.task(0, 1, 2)])
    learn(pair(), with_(shaping=shaping), progress=progress)
    assert asked == [(progress.policy.params, 3)]
    # Of 2 turns and 1: 0.45 and -0.45 at the first one. The second turn, which nothing
    # is compared with, is part of the group's mean.
    mean = (1 + np.exp(-0.5) + np.exp(-1)) / 3
    each = [e.columns["advantage"] for e in update_calls.examples[-1]]
    np.testing.assert_allclose(each, [0.45 / mean, -0.45 * np.exp(-1) / mean], 1e-6)


def calling(trajectory, *numbers):
    """The trajectory with tool calls as the actions of the numbered turns."""
    turns = list(trajectory.turns)
    for i in numbers:
        turns[i] = turns[i]._replace(action='look {"room": 1}')
    return trajectory._replace(turns=tuple(turns))


def test_an_early_call_of_a_won_episode_is_preferred(update_calls):
    task = doubles.task(0, 1, 2)
    early, late, none = (doubles.trajectory(task, WIN) for _ in range(3))
    rows = [calling(early, 0), calling(late, 1), none, doubles.trajectory(task, LOSE)]
    size = [sum(t.sampled) for t in early.turns]
    calls = TurnBatch(rows, with_(group_size=4)).first_calls()
    assert calls.has_call.tolist() == [True, True, False, False]
    assert calls.position.tolist() == [size[0], sum(size), 0, 0]
    assert calls.length[:3].tolist() == [sum(size)] * 3
    broken = early._replace(
        turns=tuple(t._replace(action='{"tool": "look"') for t in early.turns)
    )
    assert not TurnBatch([broken, late], with_()).first_calls().has_call.any()
    config = with_(
        group_size=4, credit="episode", shaping=ShapingConfig(early_call=0.1)
    )
    learn(rows, config)
    # Outcomes 1, 1, 1, 0: 1/4 each. The first calls are half a turn before and after
    # their mean.
    each = [e.columns["advantage"] for e in update_calls.examples[-1]]
    lead = 0.1 * (size[1] / 2) / sum(size)
    want = [0.25 + lead] * 2 + [0.25 - lead] * 2 + [0.25] * 2 + [-0.75]
    np.testing.assert_allclose(each, want, rtol=1e-5)


class Heads(Critic):
    """A critic of two heads with given values, which keeps what it is fitted to."""

    def __init__(self, config, values):
        super().__init__(doubles.model(), config, rows=4, width=80)
        self.given, self.fits = np.array(values, np.float32), []

    def values(self, *_):
        return self.given

    def fit(self, state, policy, examples, returns, values, *, seed):
        del policy, seed
        self.fits.append((len(examples), returns, values))
        return state, {}


def from_heads(trajectories, values, **settings):
    """Return the critic, the advantages and the metrics of an update with two heads."""
    critic = CriticConfig(ensemble_size=2, gae_lambda=1.0, **settings)
    config = with_(advantage_estimator="gae", discount=0.5, critic=critic)
    heads = Heads(critic, values)
    progress = fresh([doubles.task(0, 1, 2)])._replace(critic=heads.init())
    result = learn(trajectories, config, critic=heads, progress=progress)
    return heads, result.metrics


def test_a_state_where_a_rollout_was_cut_has_the_lowest_value_of_the_heads(
    update_calls,
):
    task = doubles.task(0, 1, 2)
    cut = doubles.trajectory(task, WIN, error="low_confidence: 0.1 is below 0.5")
    # The rollout is cut in the state of its second turn: 0.5 times min(4, 1). All
    # others have the mean of the heads as their value: 2, and 1 where it was lost.
    values = [[1.0, 3.0], [4.0, 1.0], [2.0, 0.0]]
    heads, metrics = from_heads([cut, doubles.trajectory(task, LOSE)], values)
    (examples,) = update_calls.examples
    each = [e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(each, [0.5 - 2.0, 0.0 - 1.0])
    ((count, returns, fitted),) = heads.fits
    assert count == 2
    np.testing.assert_allclose(returns, [0.5, 0.0])
    np.testing.assert_allclose(fitted, [[1.0, 3.0], [2.0, 0.0]])
    assert metrics["value_spread"] == pytest.approx(1.0)
    assert metrics["edge_value_spread"] == pytest.approx(1.5)


@pytest.mark.parametrize("step_limit", ["lost", "cut"])
def test_an_episode_at_the_step_limit_is_lost_or_cut(step_limit, update_calls):
    won, late = pair()[0], doubles.trajectory(doubles.task(0, 2, 2), ["go right"] * 2)
    *steps, last = late.episode.transitions
    last = dataclasses.replace(last, truncated=True)
    episode = dataclasses.replace(late.episode, transitions=(*steps, last))
    values = [[0.0, 0.0]] * 2 + [[0.0, 0.0], [3.0, 1.0]]
    rows = [won, late._replace(episode=episode)]
    heads, metrics = from_heads(rows, values, step_limit=step_limit)
    (examples,) = update_calls.examples
    each = [e.columns["advantage"] for e in examples]
    if step_limit == "lost":  # its turns earn nothing; the last one's value was 2
        np.testing.assert_allclose(each, [0.5, 1.0, 0.0, -2.0])
        assert "edge_value_spread" not in metrics
    else:  # the last turn is not learnt from, and its state is worth 1
        np.testing.assert_allclose(each, [0.5, 1.0, 0.5])
        assert metrics["edge_value_spread"] == pytest.approx(1.0)
    assert heads.fits[0][0] == len(each)
    # The last step of a won episode may be the last one that is allowed.
    final = dataclasses.replace(won.episode.transitions[-1], truncated=True)
    steps = (*won.episode.transitions[:-1], final)
    at_limit = won._replace(episode=dataclasses.replace(won.episode, transitions=steps))
    batch = TurnBatch([at_limit, *rows], with_(group_size=3))
    assert batch.reached_limit.tolist() == [False, False, True]
    # Nor is a success without an end, what was lost before, or what was not scored.
    step = dataclasses.replace(final, terminated=False)
    steps = (*won.episode.transitions[:-1], step)
    going_on = won._replace(episode=dataclasses.replace(won.episode, transitions=steps))
    step = dataclasses.replace(last, terminated=True, truncated=False)
    steps = (*late.episode.transitions[:-1], step)
    ended = late._replace(episode=dataclasses.replace(episode, transitions=steps))
    broken = late._replace(episode=episode, error="malformed")
    batch = TurnBatch([going_on, ended, broken], with_(group_size=3))
    assert not batch.reached_limit.any()


def test_forks_are_groups_of_their_own_and_no_success_of_the_task(update_calls):
    task = doubles.task(0, 2, 4)
    rows = [doubles.trajectory(task, LOSE)] * 2
    past = ("go right",)
    forked = [
        doubles.trajectory(doubles.task(1, 2, 4), a)._replace(past=past)
        for a in (WIN, LOSE)
    ]
    result = learn(rows, CONFIG, forked=forked)
    adv = [e.columns["advantage"] for e in update_calls.examples[-1]]
    np.testing.assert_allclose(adv, [0.45, -0.45], rtol=1e-6)
    assert result.metrics["success"] == 0.0
    assert result.metrics["forks"] == 2.0


def test_the_remedy_of_rewards_turns_down_what_is_no_outcome(update_calls):
    there = MilestoneConfig(name="there", pattern="^at 1$", weight=1.0)
    scorer = RewardFunction(RewardConfig(milestones=(there,)))
    paid = rescore(Rollouts(pair(), []), scorer.score)
    progress = fresh([doubles.task(0, 1, 2)])._replace(curve=[{"dense_weight": 0.5}])
    learn(paid.started, CONFIG, progress=progress)
    assert update_calls.examples[-1][0].columns["advantage"] == pytest.approx(
        (0.5 + 0.9) / 2
    )


def test_the_gain_is_a_mean_over_discounted_visits_of_episodes_from_the_start(
    update_calls,
):
    rows = pair()
    fork = doubles.trajectory(doubles.task(1, 2, 4), WIN)._replace(past=("go right",))
    lost = doubles.trajectory(doubles.task(1, 2, 4), LOSE)._replace(past=("go right",))
    learn(rows, with_(discount=0.5), forked=[fork, lost])
    (visits,) = update_calls.visits
    # Two episodes of 2 and 1 turns, of which the first turns are compared; the second
    # turn of the one that still acts is alone. Forks count nothing.
    starts = [v for v in visits if v]
    assert starts == pytest.approx([0.5 / 2, 0.5 / 2])
    assert len(visits) == len(update_calls.examples[0]) > 2


def test_without_a_discount_the_gain_is_a_mean_over_turns(update_calls):
    learn(pair(), with_(discount=1.0))
    (visits,) = (
        update_calls.visits
    )  # of three turns those two that are compared are learnt
    assert visits == pytest.approx([1 / 3] * len(visits))
    assert visits
