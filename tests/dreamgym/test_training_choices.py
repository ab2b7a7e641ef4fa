"""What the loop may do beyond groups: more tasks, forks, replay, void turns, alarms."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from curriculum.sampler import CurriculumConfig, pool_of
from dreamgym import training
from dreamgym.agent.rollout import rollout
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import Snapshot, VectorEnv
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.presets import preset
from dreamgym.pipeline.run import Run
from dreamgym.rewards.config import MilestoneConfig, RewardConfig
from dreamgym.rewards.reward_function import NO_OUTCOME, RewardFunction
from dreamgym.rl import watch
from dreamgym.rl.config import SurrogateConfig, UpdateConfig
from dreamgym.rl.critic import Critic, CriticConfig
from dreamgym.rl.update import Updater
from dreamgym.rl.watch import WatchConfig
from dreamgym.training import BesideConfig, LoopConfig, Parts, Progress, ReplayConfig
from dreamgym.training.gather import Rollouts, fork_points, gather, scored
from tests import doubles
from worldmodel.fitting.batches import Example

UPDATE = UpdateConfig(
    rows=8, width=80, minibatches=1, warmup=1, normalize_advantages="none"
)
CONFIG = LoopConfig(
    updates=3, tasks=2, group_size=2, update=UPDATE,
    curriculum=CurriculumConfig(proposals=0, generated_share=0.0),
)  # fmt: skip
WIN, LOSE = ["go right", "take coin"], ["go left"]


def with_(config=CONFIG, **settings):
    names = {f.name for f in dataclasses.fields(UpdateConfig)}
    update = {k: settings.pop(k) for k in list(settings) if k in names}
    return dataclasses.replace(
        config, update=dataclasses.replace(config.update, **update), **settings
    )


@functools.cache
def updater(config=UPDATE):
    policy = doubles.policy()
    return Updater(policy.model, policy.model.params, policy.grammar(1.0), config)


def fresh(tasks, config=CONFIG):
    return Progress(
        0, updater().learner.init(), pool_of(tasks, config.curriculum), 0, []
    )


class Told:
    """What an updater was given."""

    def __init__(self):
        self.examples, self.weights, self.beside, self.loss = [], [], [], 0.5
        self.visits = []


@pytest.fixture
def told(monkeypatch):
    found = Told()

    def update(self, state, examples, *, seed, weights, beside, visits):
        del self, seed
        found.visits.append(list(visits))
        found.examples.append(list(examples))
        found.weights.append(weights)
        found.beside.append(list(beside))
        if not np.isfinite(found.loss):
            raise FloatingPointError("loss is nan")
        params = jax.tree.map(lambda x: x + 1.0, state.params)
        row = {"loss": found.loss, "kl": 0.1, "moved": 0.01, "entropy": 1.0}
        return state._replace(params=params, step=state.step + 1), row

    monkeypatch.setattr(Updater, "update", update)
    return found


def learn(rows, config, *, forked=(), **more):
    tasks = list({t.episode.task.id: t.episode.task for t in rows}.values())
    progress = more.pop("progress", None) or fresh(tasks, config)
    return training.learn(
        updater(), progress, Rollouts(list(rows), list(forked)), config, seed=0, **more
    )


def pair(at=0, goal=1, end=2):
    task = doubles.task(at, goal, end)
    return [doubles.trajectory(task, WIN), doubles.trajectory(task, LOSE)]


# --- whose turns enter -------------------------------------------------------


def test_filtered_imitation_takes_the_won_episodes_of_any_group(told):
    rows = [*pair(), *[doubles.trajectory(doubles.task(0, 1, 3), WIN)] * 2]
    config = with_(baseline="success", kl=0.0, surrogate=SurrogateConfig(ratio="none"))
    found = learn(rows, config)
    (examples,) = told.examples
    assert [e.columns["advantage"] for e in examples] == [
        1.0
    ] * 6  # 2 turns of 3 episodes
    assert found.row["used_turns"] == pytest.approx(6 / 7)


def test_preferences_weigh_the_episodes_of_a_pair_alike(told, monkeypatch):
    monkeypatch.setattr(Updater, "surprise", lambda _, e: np.zeros(len(e)))
    config = with_(
        baseline="pairs", beta=0.2,
        surrogate=SurrogateConfig(ratio="none", average="episode"),
    )  # fmt: skip
    learn(pair(), config)
    (examples,) = told.examples
    # Whatever its length, an episode's log-probability weighs beta sigmoid(0), times
    # two episodes for the one pair.
    each = [e.weight * e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(each, [0.2, 0.2, -0.2], rtol=1e-6)
    assert sum(sum(e.mask) * e.weight for e in examples) == pytest.approx(2.0)


def test_an_episode_with_a_void_turn_leaves_the_update_and_the_baseline(told):
    rows = [*pair(), doubles.trajectory(doubles.task(0, 1, 2), [*WIN])]
    void = rows[2].turns[0]._replace(action=" ")
    rows[2] = rows[2]._replace(turns=(void, *rows[2].turns[1:]))
    config = dataclasses.replace(CONFIG, group_size=3)
    learn(rows, config)
    assert len(told.examples[-1]) == 3  # of 5: at the second turn all agree
    found = learn(rows, dataclasses.replace(config, drop_void=True))
    adv = [e.columns["advantage"] for e in told.examples[-1]]
    np.testing.assert_allclose(adv, [0.45, -0.45], rtol=1e-6)  # 0.9 and 0
    assert found.row["void"] == pytest.approx(1 / 3)
    assert found.row["success"] == pytest.approx(2 / 3)  # as it was played


def test_a_turn_is_void_that_says_nothing_or_was_cut_off():
    turn = doubles.trajectory(doubles.task(0, 1, 2), LOSE).turns[0]
    assert not turn.void
    assert turn._replace(action="").void
    assert turn._replace(sampled=(*turn.sampled[:-1], False)).void


def test_won_turns_come_back_with_the_probabilities_of_then(told):
    config = dataclasses.replace(CONFIG, replay=ReplayConfig(share=1.0, size=3))
    first = learn(pair(), config)
    assert [e.columns["advantage"] > 0 for e in first.replay] == [
        True
    ]  # the second turn: no news
    progress = fresh([doubles.task(0, 1, 2)])._replace(update=1, replay=first.replay)
    rows = pair(1, 2, 3)
    second = learn(rows, config, progress=progress)
    fresh_ones, again = told.examples[-1][:-1], told.examples[-1][-1]
    assert again == first.replay[0]
    assert len(fresh_ones) == 2
    assert second.row["replayed"] == 1.0
    assert len(second.replay) == 2
    for number in range(2, 5):
        progress = progress._replace(update=number, replay=second.replay)
        second = learn(pair(0, 1, number), config, progress=progress)
    assert len(second.replay) == 3  # the newest
    assert not learn(pair(), CONFIG).replay


def test_what_is_imitated_beside_is_drawn_anew_each_update(told):
    config = dataclasses.replace(CONFIG, beside=BesideConfig(weight=0.5, turns=2))
    known = [Example([i, i], [False, True], [0, 0]) for i in range(20)]
    learn(pair(), config, beside=known)
    later = fresh([doubles.task(0, 1, 2)])._replace(update=1)
    learn(pair(), config, beside=known, progress=later)
    one, two = told.beside
    assert len(one) == len(two) == 2
    assert one != two
    assert told.weights[0].beside == 0.5
    assert config.supervised
    assert not CONFIG.supervised


def test_the_rollouts_themselves_may_be_modelled_beside(told):
    config = dataclasses.replace(
        CONFIG, updates=1, beside=BesideConfig(kind="own", weight=0.5, turns=3)
    )
    loop(config)
    (beside,) = told.beside
    assert len(beside) == 3
    tok = doubles.tokenizer()
    for e in beside:  # what follows an action, up to the end
        targets = [i for i, on in zip(e.ids, e.mask, strict=True) if on]
        assert targets[-1] == tok.control("end")
        assert tok.control("action") in list(e.ids)


def test_a_critic_over_tokens_gives_each_token_its_advantage(told):
    config = with_(
        baseline="critic", discount=0.5,
        critic=CriticConfig(over="token", decay=1.0, passes=1),
    )  # fmt: skip
    critic = Critic(doubles.model(), config.update.critic, rows=4, width=80)
    progress = fresh([doubles.task(0, 1, 2)])._replace(critic=critic.init())
    found = learn(pair(), config, critic=critic, progress=progress)
    (examples,) = told.examples
    # Values are 0 at first: won at the second turn, 0.5 a turn before, 0 where lost.
    for e, want in zip(examples, (0.5, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(
            np.asarray(e.columns["advantage"])[list(e.mask)], want
        )
        assert not np.asarray(e.columns["advantage"])[~np.asarray(e.mask)].any()
    assert found.row["critic_loss"] > 0
    assert found.row["used_turns"] == 1.0


# --- what is rolled out ------------------------------------------------------


def sometimes(task, past, state):
    """Loses in the even corridors; else wins, or not, by the length of the way."""
    if int(task.id.split("-")[2]) % 2 == 0:
        return "go left"
    return doubles.expert_rule(task, past, state)


def gathered(policy, tasks, config, rng=0, **more):
    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9)
    pool = pool_of(doubles.tasks("train")[:8], config.curriculum)
    return gather(
        policy, envs, pool, tasks, config, key=jax.random.key(0),
        rng=np.random.default_rng(rng), source="update0", **more,
    ), envs  # fmt: skip


def test_where_groups_agree_other_tasks_are_rolled_out():
    tasks = doubles.tasks("train")[:2]
    policy = doubles.Scripted(sometimes)  # a rule's groups always agree
    plain, _ = gathered(policy, tasks, CONFIG)
    assert [t.episode.task.id for t in plain.started] == [
        t.id for t in tasks for _ in range(2)
    ]
    more, envs = gathered(policy, tasks, dataclasses.replace(CONFIG, resample=2))
    assert len(more.started) == 12  # two waves of as many again
    assert envs.transitions == sum(len(t.turns) for t in more.started)
    assert more.started[:4] == plain.started
    ids = [t.episode.id for t in more.started]
    assert len(set(ids)) == len(ids)
    played = {t.episode.task.id for t in more.started[:4]}
    assert not played & {t.episode.task.id for t in more.started[4:]}
    # What comes beyond is of the same mix.
    mix = [(1.0, lambda entry: entry.task.id == doubles.tasks("train")[5].id)]
    same, _ = gathered(policy, tasks, dataclasses.replace(CONFIG, resample=1), mix=mix)
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
    found, _ = gathered(fickle, [doubles.task(0, 1, 2)] * 2,
                        dataclasses.replace(CONFIG, resample=2))  # fmt: skip
    assert len(found.started) == 4


def test_forks_go_on_from_states_on_the_way_of_groups_that_differ():
    task = doubles.task(0, 2, 4)
    long = ["go right", "go right", "take coin"]
    rows = [
        doubles.trajectory(task, long), doubles.trajectory(task, LOSE),
        *[doubles.trajectory(doubles.task(0, 1, 3), WIN)] * 2,
    ]  # fmt: skip
    config = dataclasses.replace(CONFIG, forks=5)
    points = fork_points(rows, config, np.random.default_rng(0))
    assert {p.past for p in points} == {("go right",), ("go right", "go right")}
    for p in points:
        assert p.task == task
        assert p.state == rows[0].episode.transitions[len(p.past)].state
    assert len(fork_points(rows, dataclasses.replace(config, forks=1),
                           np.random.default_rng(0))) == 1  # fmt: skip
    assert not fork_points(rows, CONFIG, np.random.default_rng(0))


def test_a_fork_is_gone_on_from_with_its_past():
    task = doubles.task(0, 2, 4)
    seen = []

    def rule(task, past, state):
        seen.append((past, state))
        return doubles.expert_rule(task, past, state)

    envs = DreamVectorEnv(doubles.RuleModel(), 2, max_steps=9)
    start = Snapshot(task, ("go right",), doubles.start_state(1, 2, 4))
    forked, whole = rollout(
        doubles.Scripted(rule), envs, [start, task], key=jax.random.key(0),
        temperature=1.0,
    )  # fmt: skip
    assert seen[0] == (("go right",), start.state)
    assert forked.past == ("go right",)
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


def test_forks_are_groups_of_their_own_and_no_success_of_the_task(told):
    task = doubles.task(0, 2, 4)
    rows = [doubles.trajectory(task, LOSE)] * 2
    past = ("go right",)
    forked = [
        doubles.trajectory(doubles.task(1, 2, 4), a)._replace(past=past)
        for a in (WIN, LOSE)
    ]
    found = learn(rows, CONFIG, forked=forked)
    adv = [e.columns["advantage"] for e in told.examples[-1]]
    np.testing.assert_allclose(adv, [0.45, -0.45], rtol=1e-6)
    assert found.row["success"] == 0.0
    assert found.row["forks"] == 2.0


# --- what is paid ------------------------------------------------------------


def test_a_step_is_paid_what_the_settings_say(told):
    task = doubles.task(0, 1, 2)
    rows = [doubles.trajectory(task, WIN), doubles.trajectory(task, LOSE),
            doubles.trajectory(task, LOSE, error="broke"),
            doubles.trajectory(task, ["go right"], error="untrusted: 0.1")]  # fmt: skip
    there = MilestoneConfig(name="there", pattern="^at 1$", weight=0.5)
    scorer = RewardFunction(RewardConfig(alpha=0.5, milestones=(there,)))
    paid = scored(Rollouts(rows, []), scorer.score)
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
    first = told.examples[-1][0].columns["advantage"]
    assert first == pytest.approx((0.25 + 0.9) / 2)  # less the mean with 0


def test_what_a_fork_has_done_before_is_not_paid_again():
    way = ["go right", "go right", "take coin"]
    whole = doubles.trajectory(doubles.task(0, 2, 4), way)
    rows = whole.episode.transitions
    assert {t.action for t in rows[:-1]} == {"go right"}
    fork = whole._replace(
        episode=dataclasses.replace(whole.episode, transitions=rows[1:]),
        turns=whole.turns[1:], past=(rows[0].action,),
    )  # fmt: skip
    moved = MilestoneConfig(name="moved", pattern="go", weight=0.5, over="action")
    scorer = RewardFunction(RewardConfig(milestones=(moved,)))
    broke = doubles.trajectory(doubles.task(0, 2, 4), way, error="broke")
    paid = scored(Rollouts([broke, whole], [fork]), scorer.score)
    begun, gone_on = paid.started[1].episode, paid.forked[0].episode
    assert begun.transitions[0].rewards["milestone/moved"] == 0.5
    assert gone_on.transitions == begun.transitions[1:]


def test_what_nobody_could_score_leaves_the_update_and_not_the_curriculum(told):
    def score(episodes, pasts):
        good = RewardFunction(RewardConfig()).score(episodes, pasts)
        return [
            good[0],
            *(row._replace(problem="judge: malformed") for row in good[1:]),
        ]

    rows = pair()
    paid = scored(Rollouts(rows, []), score)
    assert [t.error for t in paid.started] == [None, "reward: judge: malformed"]
    found = learn(paid.started, CONFIG)
    assert not told.examples
    assert found.row["unscored/reward"] == 1.0
    assert rows[1].error is None


def test_the_remedy_of_rewards_turns_down_what_is_no_outcome(told):
    there = MilestoneConfig(name="there", pattern="^at 1$", weight=1.0)
    scorer = RewardFunction(RewardConfig(milestones=(there,)))
    paid = scored(Rollouts(pair(), []), scorer.score)
    progress = fresh([doubles.task(0, 1, 2)])._replace(curve=[{"dense_weight": 0.5}])
    learn(paid.started, CONFIG, progress=progress)
    assert told.examples[-1][0].columns["advantage"] == pytest.approx((0.5 + 0.9) / 2)


# --- what is done when it goes wrong -----------------------------------------


class Hooks:
    def __init__(self):
        self.seen = []

    def after_update(self, progress, trajectories):
        self.seen.append((progress, trajectories))


def loop(config, progress=None, **more):
    tasks = doubles.tasks("train")[:8]
    coin = iter([True, False] * 1000)

    def fickle(task, past, state):
        if past or next(coin):
            return doubles.expert_rule(task, past, state)
        return "go left" if state[0] == "at 0" else "take nothing"

    return training.train(
        doubles.Scripted(fickle), DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9),
        updater(), progress or fresh(tasks, config), config, seed=3, hooks=Hooks(),
        **more,
    )  # fmt: skip


def watching(**settings):
    return dataclasses.replace(CONFIG, watch=WatchConfig(**settings))


def weight_of(state):
    return float(np.asarray(jax.tree.leaves(state.params)[0]).ravel()[0])


@pytest.mark.usefixtures("told")
def test_an_alarm_is_said_and_training_goes_on():
    end = loop(watching(entropy=2.0))
    assert end.update == 3
    assert all(row["alarm/entropy"] == 1.0 for row in end.curve)
    start = weight_of(updater().learner.init())
    assert weight_of(end.state) == pytest.approx(start + 3.0)
    assert "undone" not in end.curve[0]
    assert not any(k.startswith("alarm") for k in loop(CONFIG).curve[0])


@pytest.mark.usefixtures("told")
def test_an_alarm_stops_training_before_its_update():
    end = loop(watching(entropy=2.0, answer="stop"))
    assert end.update == 1
    assert "update 1: entropy" in end.halted
    assert weight_of(end.state) == weight_of(updater().learner.init())


class Refusing(doubles.RuleModel):
    """A dream in which nothing is answered but in some updates."""

    def __init__(self, sound=()):
        super().__init__()
        self.sound, self.update = sound, 0

    def predict(self, queries):
        problem = None if self.update in self.sound else "refused: too long"
        return [a._replace(error=problem) for a in super().predict(queries)]

    def after_update(self, progress, trajectories):
        del trajectories
        self.update = progress.update


def refused(dream, updates, progress=None):
    config = dataclasses.replace(CONFIG, updates=updates)
    tasks = doubles.tasks("train")[:8]
    return training.train(
        doubles.Scripted(doubles.expert_rule), DreamVectorEnv(dream, 4, max_steps=9),
        updater(), progress or fresh(tasks, config), config, seed=3, hooks=dream,
    )  # fmt: skip


def test_where_no_rollout_is_scored_nobody_says_how_many_were_won():
    end = refused(Refusing(sound=[1]), 2)
    assert [row["unscored"] for row in end.curve] == [4.0, 0.0]
    assert [{"success", "return"} <= row.keys() for row in end.curve] == [False, True]
    assert not {"success", "return"} & end.curve[0].keys()


def test_three_updates_without_a_scored_rollout_end_training():
    dream = Refusing()
    begun = refused(dream, 2)
    assert not begun.halted
    end = refused(dream, 9, begun)  # those before it went on count
    assert end.update == 3
    assert "no rollout of 3 updates in a row was scored" in end.halted
    assert "12 ended with 'dream'" in end.halted
    assert end.halted.endswith("dream: refused: too long")
    assert refused(dream, 9, end).update == 3
    interrupted = refused(Refusing(sound=[2, 5]), 8)
    assert (interrupted.update, interrupted.halted) == (8, "")


def test_an_undone_update_leaves_the_policy_and_turns_the_weights(told):
    end = loop(watching(entropy=2.0, answer="back", patience=3))
    assert weight_of(end.state) == weight_of(updater().learner.init())
    assert int(end.state.step) == 0
    assert [w.kl for w in told.weights] == pytest.approx([0.02, 0.04, 0.08])
    assert [w.entropy for w in told.weights] == pytest.approx([0.0, 1e-3, 2e-3])
    assert "3 updates in a row were undone" in end.halted
    longer = loop(watching(entropy=2.0, answer="back", patience=4))
    assert not longer.halted


def test_a_loss_that_is_not_finite_is_undone_where_that_is_the_answer(told):
    told.loss = float("nan")
    with pytest.raises(FloatingPointError):
        loop(CONFIG)
    end = loop(watching(answer="back", patience=2))
    assert end.update == 2
    assert "not finite" in end.halted
    assert weight_of(end.state) == weight_of(updater().learner.init())


@pytest.mark.usefixtures("told")
def test_real_dev_games_are_played_at_their_time_and_told():
    played = []

    def probe(policy):
        del policy
        played.append(1)
        return {"probe": 0.5 - 0.2 * len(played), "probed": 7.0}

    end = loop(watching(gap=0.1, probe=2), parts=Parts(probe=probe))
    assert ["probe" in row for row in end.curve] == [False, True, False]
    assert end.curve[1]["probe"] == pytest.approx(0.3)
    assert len(played) == 1


def probing(*found):
    """Real dev games as they come out, one after the other."""
    rest = iter(found)
    return Parts(probe=lambda _: {"probe": next(rest), "probed": 7.0})


def kept(config):
    """`fresh` keeps the first policy, as the composition root does where asked to."""
    progress = fresh(doubles.tasks("train")[:8], config)
    return progress._replace(best=updater().learner.init())


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("found", "best"),
    [((0.3, 0.5, 0.4), 2), ((0.5, 0.5, 0.5), 1), ((0.1, 0.2, 0.3), 3)],
)
def test_training_ends_with_what_did_best_on_real_games(found, best):
    """An update adds 1 to the weights, so that they tell which one it is."""
    config = watching(probe=1, keep=True)
    end = loop(config, progress=kept(config), parts=probing(*found))
    start = weight_of(updater().learner.init())
    assert weight_of(end.result) == pytest.approx(start + best)
    assert weight_of(end.state) == pytest.approx(start + 3)
    assert watch.best(end.curve) == best - 1
    last = loop(watching(probe=1), parts=probing(*found))
    assert weight_of(last.result) == pytest.approx(start + 3)


@pytest.mark.usefixtures("told")
def test_an_undone_gap_goes_back_to_what_did_best(monkeypatch):
    """Best after update 1, worse after 3: 2 and 3 are gone; without keep 3 alone is."""
    monkeypatch.setattr(watch, "_parted", lambda rows, _: rows[-1].get("probe") == 0.1)
    settings = {"probe": 1, "gap": 0.1, "answer": "back"}
    start = weight_of(updater().learner.init())
    ends = {}
    for keep in (True, False):
        config = watching(keep=keep, **settings)
        progress = kept(config) if keep else fresh(doubles.tasks("train")[:8], config)
        ends[keep] = loop(config, progress=progress, parts=probing(0.5, 0.4, 0.1))
    assert weight_of(ends[True].state) == pytest.approx(start + 1)
    assert weight_of(ends[False].state) == pytest.approx(start + 2)
    assert ends[True].curve[-1]["undone"] == 1.0
    config = watching(keep=True, **settings)
    longer = dataclasses.replace(config, updates=4)
    on = loop(longer, progress=kept(config), parts=probing(0.5, 0.4, 0.1, 0.6))
    assert weight_of(on.state) == weight_of(on.result) == pytest.approx(start + 2)


@pytest.mark.usefixtures("told")
def test_training_ends_at_its_limit():
    whole = loop(CONFIG)
    first = whole.curve[0]["transitions"]
    end = loop(dataclasses.replace(CONFIG, limit=int(first) + 1))
    assert end.update == 2
    assert loop(dataclasses.replace(CONFIG, limit=int(first))).update == 1


def test_only_a_dream_can_be_forked():
    class Plain(VectorEnv):
        size = 2

        def reset(self, *, options):
            raise AssertionError(options)

        def step(self, actions):
            raise AssertionError(actions)

    config = dataclasses.replace(CONFIG, forks=2)
    with pytest.raises(ValueError, match="only the dream can"):
        training.train(
            doubles.Scripted(sometimes), Plain(), updater(),
            fresh(doubles.tasks("train")[:2]), config, seed=0, hooks=Hooks(),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group_size": 1}, "group_size must be >= 2 for a baseline of 'group', got 1"),
        ({"resample": -1}, "resample, forks and limit must be >= 0"),
        (
            {
                "replay": ReplayConfig(share=0.5),
                "update": UpdateConfig(surrogate=SurrogateConfig(ratio="none")),
            },
            "replay.share learns from turns of earlier policies",
        ),
        (
            {"tasks": 1, "group_size": 1, "update": UpdateConfig(baseline="batch")},
            "baseline = batch compares",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(settings, said):
    with pytest.raises(ValueError, match=said):
        LoopConfig(**settings)
    with pytest.raises(ValueError, match="group_size must be >= 2, got 1"):
        LoopConfig(group_size=1, forks=1, update=UpdateConfig(baseline="critic"))
    assert LoopConfig(group_size=1, update=UpdateConfig(baseline="critic"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"watch": WatchConfig(answer="back", remedies=("rewards",))},
            'dream.watch.remedies: "rewards" turns down',
        ),
        (
            {
                "watch": WatchConfig(answer="back", remedies=("rewards",)),
                "reward": RewardConfig(alpha=0.5),  # an outcome's, all of it
            },
            'dream.watch.remedies: "rewards" turns down',
        ),
        (
            {
                "reward": RewardConfig(alpha=0.5),
                "update": UpdateConfig(
                    baseline="success", kl=0.0, surrogate=SurrogateConfig(ratio="none")
                ),
            },
            "dream.reward .* learns from who won alone",
        ),
        (
            {"updates": 4, "watch": WatchConfig(probe=5, keep=True)},
            "dream.watch.probe .*at most updates = 4, got 5",
        ),
    ],
)
def test_dead_settings_are_refused_of_a_new_run_and_an_old_one_goes_on(
    settings, said, tmp_path, monkeypatch
):
    """A version before may have begun with them, and its runs must open."""
    config = preset("tiny", dream=LoopConfig(**settings))
    with pytest.raises(ValueError, match=said):
        Run(tmp_path / "new", config)
    assert not (tmp_path / "new").exists()
    with monkeypatch.context() as then:
        then.setattr(RunConfig, "check_new", lambda _: None)
        Run(tmp_path / "old", config).close()
    assert Run.open(tmp_path / "old").config == config
    Run(tmp_path / "old", config).close()  # the same command goes on


def test_a_cut_episode_that_the_judge_could_not_score_is_no_zero():
    rows = [
        doubles.trajectory(doubles.task(0, 1, 2), WIN, error="untrusted: 0.1"),
        doubles.trajectory(doubles.task(0, 1, 2), WIN, error="untrusted: 0.1"),
    ]

    def score(episodes, pasts):
        known = RewardFunction(RewardConfig(alpha=0.5)).score(episodes, pasts)
        assert [x.problem for x in known] == [NO_OUTCOME] * 2  # and no reason to go
        return [known[0], known[1]._replace(problem="judge: no answer")]

    paid = scored(Rollouts(rows, []), score)
    assert [t.error for t in paid.started] == [
        "untrusted: 0.1", "reward: judge: no answer",
    ]  # fmt: skip


@pytest.mark.usefixtures("told")
def test_who_paid_what_is_in_the_row_of_the_update():
    there = MilestoneConfig(name="there", pattern="^at 1$", weight=0.5)
    scorer = RewardFunction(RewardConfig(milestones=(there,)))
    paid = scored(Rollouts(pair(), []), scorer.score)
    found = training.learn(
        updater(), fresh([doubles.task(0, 1, 2)]), paid, CONFIG, seed=0
    )
    # Two steps won, one lost: the milestone and the coin are the rule's, a move left
    # into the wall is nobody's.
    assert found.row["tiers/rule"] == pytest.approx(2 / 3)
    assert found.row["tiers/none"] == pytest.approx(1 / 3)
    assert found.row["paid/milestone/there"] == 0.25
    assert found.row["paid/coin"] == 0.5


def test_the_gain_is_a_mean_over_discounted_visits_of_episodes_from_the_start(told):
    rows = pair()
    fork = doubles.trajectory(doubles.task(1, 2, 4), WIN)._replace(past=("go right",))
    lost = doubles.trajectory(doubles.task(1, 2, 4), LOSE)._replace(past=("go right",))
    learn(rows, with_(discount=0.5), forked=[fork, lost])
    (visits,) = told.visits
    # Two episodes of 2 and 1 turns, of which the first turns are compared; the second
    # turn of the one that still acts is alone. Forks count nothing.
    starts = [v for v in visits if v]
    assert starts == pytest.approx([0.5 / 2, 0.5 / 2])
    assert len(visits) == len(told.examples[0]) > 2


def test_without_a_discount_the_gain_is_a_mean_over_turns(told):
    learn(pair(), with_(discount=1.0))
    (visits,) = told.visits  # of three turns those two that are compared are learnt
    assert visits == pytest.approx([1 / 3] * len(visits))
    assert visits
