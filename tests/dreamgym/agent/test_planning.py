"""Planning in a dream: what is chosen by hand, and that only a right dream helps."""

import dataclasses

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PLANS, PlanConfig
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Situation
from dreamgym.agent.rollout import rollout
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv
from tests import doubles

METHODS = [m for m in PLANS if m not in ("none", "auto")]


class Aimless(doubles.Scripted):
    """Draws among the corridor's actions, by nothing but its PRNG keys."""

    def __init__(self, words=doubles.ACTIONS):
        super().__init__(doubles.expert_rule)
        self.words = words

    def act(self, situations, keys, *, temperature):
        del temperature
        data = np.asarray(jax.random.key_data(keys))
        return [
            doubles.turn(self, *s[:3], self.words[int(k[-1]) % len(self.words)])
            for s, k in zip(situations, data, strict=False)
        ]


class InOrder(doubles.Scripted):
    """Draws actions of a list in turn, whatever the situation is."""

    def __init__(self, *words):
        super().__init__(doubles.expert_rule)
        self.words, self.drawn = words, 0

    def act(self, situations, keys, *, temperature):
        del keys, temperature
        out = []
        for s in situations:
            word = self.words[self.drawn % len(self.words)]
            out.append(doubles.turn(self, *s[:3], word))
            self.drawn += 1
        return out


class Scaled(doubles.RuleModel):
    """The rules of the corridor with rewards of another size."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def predict(self, queries):
        return [
            x._replace(reward=self.scale * x.reward) for x in super().predict(queries)
        ]


class Wrong(doubles.RuleModel):
    """Pays for walking away from the coin: a dream that must not help."""

    def _one(self, query):
        answer = super()._one(query)
        away = query.action != doubles.plan(query.state)[0]
        return answer._replace(reward=float(away), outcome="go")


def planner(
    policy, model=None, *, won_actions=(), recorded_actions=(), observe=None, **config
):
    model = doubles.RuleModel() if model is None else model
    config = {"depth": 6, "simulations": 8} | config
    return PlanningPolicy(
        policy,
        lambda size: DreamVectorEnv(model, size, max_steps=doubles.STEPS),
        PlanConfig(**config),
        won_actions=won_actions,
        recorded_actions=recorded_actions,
        observe=observe,
    )


def situation(at, goal, *, refused=()):
    task = doubles.task(at, goal, 6)
    return Situation(task, (), task.initial_state, refused=frozenset(refused))


def chosen(some, *situations, seed=0):
    keys = jax.random.split(jax.random.key(seed), len(situations))
    return [t.action for t in some.act(situations, keys, temperature=0.5)]


def success(policy, seed=0):
    envs = RealVectorEnv([doubles.Corridor() for _ in range(4)], max_steps=8)
    games = doubles.tasks("test")[:16]
    played = rollout(policy, envs, games, key=jax.random.key(seed), temperature=1.0)
    return np.mean([bool(t.episode.success) for t in played])


@pytest.mark.parametrize("method", METHODS)
def test_the_action_that_wins_in_the_dream_is_taken(method):
    own_loses = InOrder("go left", "take coin")
    some = planner(own_loses, method=method, depth=1, simulations=4)
    assert chosen(some, situation(3, 3)) == ["take coin"]
    assert (some.counts.steps, some.counts.overruled) == (1, 1)
    assert some.counts.dreamed_steps >= 2


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
def test_planning_wins_what_aimless_play_loses(method):
    aimless = success(Aimless())
    assert success(planner(Aimless(), method=method)) > aimless + 0.3
    # The control: a dream that pays for the wrong thing must not help.
    assert success(planner(Aimless(), Wrong(), method=method)) < aimless + 0.1


@pytest.mark.parametrize("scale", [1000.0, 0.001])
@pytest.mark.parametrize("method", METHODS)
def test_the_size_of_rewards_changes_nothing(method, scale):
    some = [situation(at, 3) for at in range(6)]
    assert chosen(planner(Aimless(), method=method), *some) == chosen(
        planner(Aimless(), Scaled(scale), method=method), *some
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_situation_is_planned_the_same_in_any_batch(method):
    some = [situation(at, goal) for at, goal in ((0, 3), (5, 2), (2, 6))]
    keys = jax.random.split(jax.random.key(3), 3)

    def actions(rows):
        turns = planner(Aimless(), method=method).act(
            [some[i] for i in rows], keys[np.array(rows)], temperature=1.0
        )
        return [t.action for t in turns]

    together = actions([0, 1, 2])
    assert together == [actions([i])[0] for i in range(3)]
    assert together[::-1] == actions([2, 1, 0])


@pytest.mark.parametrize("method", ["best-of-n", "mpc"])
def test_equal_returns_leave_the_policy_its_own_action(method):
    # Within one step nothing is won from here, whatever is done.
    for words in (("go left", "go right"), ("go right", "go left")):
        some = planner(InOrder(*words), method=method, depth=1, simulations=4)
        assert chosen(some, situation(3, 6)) == [words[0]]
        assert some.counts.overruled == 0


def test_an_action_without_effect_loses_a_tie():
    some = planner(InOrder("dance", "go right"), method="best-of-n", depth=1)
    # The corridor answers "dance" with a message; the second time nothing changes.
    said = situation(3, 6)
    state = doubles.walk(said.state, "dance").state
    assert chosen(some, said._replace(state=state)) == ["go right"]


@pytest.mark.parametrize("method", METHODS)
def test_what_the_state_has_refused_is_no_candidate(method):
    some = planner(InOrder("take coin", "go right"), method=method)
    where = situation(2, 3, refused=["take coin"])
    assert chosen(some, where) == ["go right"]
    # All candidates are refused: the policy keeps its own, which is drawn again.
    where = situation(2, 3, refused=["take coin", "go right"])
    assert chosen(some, where) == ["take coin"]


@pytest.mark.parametrize("method", METHODS)
def test_candidates_are_kept_to_the_allowed_actions(method):
    some = planner(InOrder("go rihgt", "take a coin"), method=method)
    where = situation(3, 3)
    assert chosen(some, where) != ["take coin"]  # it never writes it
    where = where._replace(allowed=frozenset({"take coin", "go right"}))
    assert chosen(some, where) == ["take coin"]


def test_what_was_refused_counts_where_the_environment_draws_lots():
    policy = InOrder("take coin", "go right")
    policy.config = dataclasses.replace(policy.config, max_redraws=0)
    where = situation(3, 3, refused=["take coin"])
    assert chosen(planner(policy, method="mpc"), where) == ["take coin"]


@pytest.mark.parametrize("method", METHODS)
def test_a_promise_that_was_not_kept_is_believed_once(method):
    class Promising(doubles.RuleModel):
        def _one(self, query):
            answer = super()._one(query)
            if query.action != "go right":
                return answer
            return answer._replace(reward=1.0, outcome="win")

    policy = InOrder("go left", "go right")
    task = doubles.task(3, 6, 6)
    state = task.initial_state
    first = Situation(task, (), state)
    assert chosen(planner(policy, Promising(), method=method, depth=1), first) == [
        "go right"
    ]
    # It was walked right and back, and the promise is still there.
    past = ("go right", "go left")
    there = doubles.walk(state, "go right").state
    again = Situation(task, past, state, past_states=(state, there))
    policy.drawn = 0
    assert chosen(planner(policy, Promising(), method=method, depth=1), again) == [
        "go left"
    ]


@pytest.mark.parametrize("method", METHODS)
def test_no_sequence_is_longer_than_the_depth(method):
    class Model(doubles.RuleModel):
        def predict(self, queries):
            longest.append(max(len(q.past) + 1 for q in queries))
            return super().predict(queries)

    longest: list[int] = []
    some = planner(Aimless(), Model(), method=method, depth=3, simulations=8)
    chosen(some, *(situation(at, 6) for at in range(5)))
    assert max(longest) == 3


def test_a_single_action_is_not_dreamed():
    some = planner(InOrder("go right"), method="best-of-n")
    assert chosen(some, situation(3, 6)) == ["go right"]
    assert some.counts.dreamed_steps == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_malformed_answer_comes_last_also_where_every_step_costs(method, depth):
    class Costly(doubles.RuleModel):
        def _one(self, query):
            return super()._one(query)._replace(reward=-1.0)

    model = Costly(broken=["go left"])
    some = planner(InOrder("go left", "go right"), model, method=method, depth=depth)
    some.policy.words = ("go left", *["go right"] * 200)
    assert chosen(some, situation(3, 6)) == ["go right"]


@pytest.mark.parametrize("method", METHODS)
def test_a_dream_that_answers_nothing_leaves_the_policy_its_action(method):
    model = doubles.RuleModel(broken=["go left", "go right"])
    some = planner(InOrder("go left", "go right"), model, method=method)
    assert chosen(some, situation(3, 6)) == ["go left"]


@pytest.mark.parametrize(
    ("discount", "action"), [(1.0, "go right"), (0.5, "take coin")]
)
@pytest.mark.parametrize("method", ["best-of-n", "mpc"])
def test_a_discount_prefers_the_early_reward(method, discount, action):
    class Late(doubles.RuleModel):
        def _one(self, query):
            answer = super()._one(query)
            late = query.past[:1] == ("go right",)
            reward = 1.0 if late else 0.6 * (query.action == "take coin")
            outcome = "go" if query.action == "go right" and not late else "lose"
            return answer._replace(reward=reward, outcome=outcome)

    words = ("dance", "go right", "take coin")
    some = planner(
        InOrder(*words),
        Late(),
        method=method,
        depth=2,
        simulations=3,
        discount=discount,
    )
    assert chosen(some, situation(3, 6)) == [action]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_backup_rate_is_that_of_the_trees(rate):
    trees = []
    some = planner(
        Aimless(),
        method="puct",
        simulations=32,
        depth=5,
        backup_rate=rate,
        observe=trees.extend,
    )
    chosen(some, *(situation(at, 3) for at in range(6)))
    assert len(trees) == 6
    edges = [e for t in trees for e in t.root.edges]
    # A rollout wins 1 or nothing: the last return is one of both, a mean is not.
    assert (rate == 1.0) == all(e.value in (0.0, 1.0) for e in edges)


def test_a_star_tries_recorded_actions_that_the_policy_never_draws():
    def best(**recorded):
        some = planner(InOrder("go left"), method="a_star", depth=7, **recorded)
        return chosen(some, situation(1, 3))

    assert best() == ["go left"]
    assert best(recorded_actions=("dance", "go right", "take coin")) == ["go right"]
    # What the present state has refused is not tried again.
    some = planner(
        InOrder("dance"), method="a_star", recorded_actions=("go right", "take coin")
    )
    at = situation(3, 3, refused=["take coin"])
    assert chosen(some, at) != ["take coin"]


def test_a_win_that_comes_as_it_was_dreamed_is_not_searched_again():
    def dreamed_steps(*acted, actions=()):
        """The dreamed steps of two turns; `acted` is what really happened between."""
        some = planner(
            InOrder("go left", "take coin"),
            method="a_star",
            depth=7,
            recorded_actions=("go right", "take coin"),
        )
        start = situation(1, 3)
        assert chosen(some, start) == ["go right"]
        searched = some.counts.dreamed_steps
        at = doubles.task(1 + len(acted), 3, 6).initial_state
        later = start._replace(past=acted, state=at, past_states=(start.state,))
        assert chosen(some, later) == list(actions)
        return searched, some.counts.dreamed_steps - searched

    first, second = dreamed_steps("go right", actions=["go right"])
    assert first > 0
    assert second == 0
    # Another action came before: what was planned does not say what follows.
    assert dreamed_steps("dance", actions=["go right"])[1] > 0


def attempt(some, task, length):
    """Play a task; return the states, the actions, and whether each was searched."""
    state, past, states, searched = task.initial_state, [], [], []
    for _ in range(length):
        before = some.counts.dreamed_steps
        where = Situation(task, tuple(past), state, (), tuple(states))
        (action,) = chosen(some, where)
        past.append(action)
        states.append(state)
        searched.append(some.counts.dreamed_steps > before)
        state = doubles.walk(state, action).state
    return [s[0] for s in states], past, searched


def test_a_promise_that_reality_refuted_is_on_no_path_of_a_later_attempt():
    """The dream has the coin in room 2, where there is none: it is in room 4."""

    class Misplaced(doubles.RuleModel):
        def _one(self, query):
            answer = super()._one(query)
            if query.action != "take coin":
                return answer
            wins = query.state[0] == "at 2"
            outcome = "win" if wins else "go"
            return answer._replace(
                next_state=query.state, reward=float(wins), outcome=outcome
            )

    some = planner(
        InOrder("go right", "take coin", "go left"),
        Misplaced(),
        method="a_star",
        depth=8,
    )
    task = doubles.task(0, 4, 6)
    places, actions, searched = attempt(some, task, 4)
    assert ("at 2", "take coin") in zip(places, actions, strict=True)
    assert searched == [True, False, False, True]  # the plan is followed until then
    places, actions, _ = attempt(some, task, 4)
    assert ("at 2", "take coin") not in zip(places, actions, strict=True)


def test_a_detail_that_the_dream_has_wrong_forbids_no_right_action():
    """Every real state has a line more than the dreamed one; the way is the same."""

    class Forgetful(doubles.RuleModel):
        def _one(self, query):
            answer = super()._one(query)
            return answer._replace(next_state=answer.next_state[:-1])

    some = planner(
        InOrder("go left", "go right", "take coin"),
        Forgetful(),
        method="a_star",
        depth=8,
    )
    task = doubles.task(0, 2, 6)
    for _ in range(4):
        assert attempt(some, task, 2)[1] == ["go right", "go right"]
    assert some._refuted == {}


def test_won_episodes_lead_a_star_to_a_win_in_fewer_dreamed_steps():
    def dreamed(won_actions, **settings):
        # From room 1 the coin is five steps to the right.
        some = planner(
            InOrder("dance", "go right", "take coin", "sing"),
            method="a_star",
            depth=7,
            won_actions=won_actions,
            **settings,
        )
        assert chosen(some, situation(1, 6)) == ["go right"]
        return some.counts.dreamed_steps

    plan = doubles.plan(doubles.start_state(0, 6, 6))
    blind, estimated = dreamed([]), dreamed([plan])
    assert dreamed([plan], estimate_weight=2.0) < estimated < blind


def test_settings_out_of_range_are_refused():
    for wrong in (
        {"method": "luck"},
        {"depth": 0},
        {"simulations": 1},
        {"discount": 0.0},
        {"backup_rate": 1.5, "method": "puct"},
        {"backup_rate": 0.5, "method": "mpc"},
        {"estimate_weight": -1.0, "method": "a_star"},
        {"estimate_weight": 0.5, "method": "puct"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PlanConfig(**wrong)
