"""Controls of planning: outcomes of other actions, and the real environment's own."""

import dataclasses

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PlanConfig
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.search.controls import PermutedOutcomes, RealOutcomes
from dreamgym.config.presets import preset
from dreamgym.envs.dream import DreamVectorEnv
from tests import doubles
from tests.dreamgym.agent.test_planning import Aimless, chosen, situation, success
from worldmodel.data.seed_tasks import seed_tasks
from worldmodel.experience.base import Query


def queries_of(task, actions):
    """The queries of an episode with these actions, by the rules."""
    out, state, past, states = [], task.initial_state, (), ()
    for action in actions:
        out.append(Query(task, past, state, action, states))
        past, states = (*past, action), (*states, state)
        step = doubles.walk(state, action)
        if step.terminated:
            break
        state = step.state
    return out


def some_queries():
    rng = np.random.default_rng(0)
    return [
        query
        for task in doubles.tasks("train")[:6]
        for query in queries_of(task, rng.choice(doubles.ACTIONS[:2], 4))
    ]


# --- the real environment ----------------------------------------------------


def test_real_answers_are_those_of_the_environment_in_any_order():
    queries = some_queries()
    rng = np.random.default_rng(1)
    world = RealOutcomes(doubles.Corridor(max_steps=100))
    for i in rng.permutation(len(queries)):
        (answer,) = world.predict([queries[i]])
        step = doubles.walk(queries[i].state, queries[i].action)
        outcome = "win" if step.success else "lose" if step.terminated else "go"
        expected = step.state, step.reward, outcome, None
        assert (*answer[:3], answer.error) == expected
        assert answer.confidence == 1.0


def test_an_answer_is_remembered_and_an_episode_goes_on():
    (*queries, last) = queries_of(doubles.task(0, 5, 6), ["go right"] * 4)
    world = RealOutcomes(doubles.Corridor())
    first = world.predict(queries)
    assert world.real_steps == 3  # one episode, each step once
    assert world.predict(queries) == first
    assert world.real_steps == 3
    world.predict([last])
    assert world.real_steps == 4
    world.predict([last._replace(action="go left")])
    assert world.real_steps == 4 + 4  # the way there once more, and the other step


def test_a_win_is_one_and_nothing_follows_it():
    task = doubles.task(2, 2, 4)
    (end,) = queries_of(task, ["take coin", "go left"])
    state = doubles.walk(end.state, end.action).state
    after = Query(task, ("take coin",), state, "go left", (end.state,))
    win, none = RealOutcomes(doubles.Corridor()).predict([end, after])
    assert (win.outcome, win.reward, win.error) == ("win", 1.0, None)
    assert "the episode ended before action 'go left'" in none.error


class Paid(doubles.Corridor):
    """Pays 2 for the first step, takes 1 for the second, and does not say who won."""

    def step(self, action):
        text, _, _, truncated, _ = super().step(action)
        return text, (2.0, -1.0)[self.steps - 1], self.steps == 2, truncated, {}


def test_an_episode_is_won_by_its_whole_return():
    first, second = queries_of(doubles.task(0, 5, 6), ["go right"] * 2)
    answers = RealOutcomes(Paid()).predict([first, second])
    assert [(x.reward, x.outcome) for x in answers] == [(2.0, "go"), (-1.0, "win")]


def test_a_replay_that_comes_elsewhere_has_no_answer():
    (query,) = queries_of(doubles.task(0, 5, 6), ["go right"])
    world = RealOutcomes(doubles.Corridor())
    (answer,) = world.predict([query._replace(state=("at 3", *query.state[1:]))])
    assert "the environment is not deterministic" in answer.error
    assert world.predict([query])[0].error is not None  # of the same past and action
    (fresh,) = RealOutcomes(doubles.Corridor()).predict([query])
    assert fresh.error is None


def test_an_environment_that_breaks_gives_no_answer():
    class Breaking(doubles.Corridor):
        def step(self, action):
            raise RuntimeError(f"lost at {action}")

    (query,) = queries_of(doubles.task(0, 5, 6), ["go right"])
    (answer,) = RealOutcomes(Breaking()).predict([query])
    assert answer.error == "RuntimeError: lost at go right"


def planned(policy, model, **config):
    return PlanningPolicy(
        policy,
        lambda size: DreamVectorEnv(model, size, max_steps=doubles.STEPS),
        PlanConfig(**{"method": "mpc", "depth": 6, "simulations": 8} | config),
    )


@pytest.mark.parametrize("method", ["best-of-n", "mpc", "puct", "a_star"])
def test_a_plan_in_the_real_environment_is_that_of_an_exact_dream(method):
    some = [situation(at, 3) for at in range(6)]
    world = RealOutcomes(doubles.Corridor())
    assert chosen(planned(Aimless(), world, method=method), *some) == chosen(
        planned(Aimless(), doubles.RuleModel(), method=method), *some
    )
    assert world.real_steps > 0
    assert world.vary(
        seed_tasks(doubles.tasks("train")[:2]), key=jax.random.key(0)
    ) == [
        None,
        None,
    ]
    world.close()


# --- permuted outcomes -------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_answers_are_those_to_other_actions_in_the_same_state(seed):
    """Of a batch of any size, and the same each time."""
    queries, model = some_queries(), doubles.RuleModel()
    world = PermutedOutcomes(model, [*doubles.ACTIONS, "go left"], seed)
    answers = world.predict(queries)
    (asked,) = model.queries
    for query, other in zip(queries, asked, strict=True):
        assert other.action != query.action
        assert other == query._replace(action=other.action)
    assert answers == doubles.RuleModel().predict(asked)
    assert [world.predict([q])[0] for q in queries] == answers
    drawn = {(q.action, o.action) for q, o in zip(queries, asked, strict=True)}
    assert len(drawn) > len({q.action for q in queries})
    another = PermutedOutcomes(doubles.RuleModel(), doubles.ACTIONS, seed + 2)
    assert another.predict(queries) != answers


def test_a_single_action_cannot_be_exchanged():
    with pytest.raises(ValueError, match="two recorded actions or more"):
        PermutedOutcomes(doubles.RuleModel(), ["go left", "go left"])


@pytest.mark.medium
@pytest.mark.parametrize("method", ["best-of-n", "mpc", "puct", "a_star"])
def test_a_plan_by_answers_to_other_actions_gains_nothing(method):
    def won(policy):
        return np.mean([success(policy(), seed) for seed in range(4)])

    def permuted_dream(model):
        return PermutedOutcomes(model, doubles.ACTIONS)

    exact, permuted = (
        won(
            lambda make=make: planned(
                Aimless(), make(doubles.RuleModel()), method=method
            )
        )
        for make in (lambda model: model, permuted_dream)
    )
    aimless = won(Aimless)
    assert exact > aimless + 0.2
    assert permuted < aimless + 0.1


# --- settings ----------------------------------------------------------------


def test_a_control_needs_a_plan_and_plays_test_games_alone():
    with pytest.raises(ValueError, match=r"world .* without a plan"):
        PlanConfig(world="real")
    with pytest.raises(ValueError, match="world must be one of"):
        PlanConfig(method="mpc", world="other")
    config = preset("default", {"evaluate.plan.method": "mpc"})
    real = dataclasses.replace(config.evaluate.plan, world="real")
    assert dataclasses.replace(
        config, evaluate=dataclasses.replace(config.evaluate, plan=real)
    )
    with pytest.raises(ValueError, match=r"planner\.world is a control of test games"):
        dataclasses.replace(config, planner=real)
    iteration = dataclasses.replace(config.transfer.iteration, plan=real)
    with pytest.raises(ValueError, match=r"iteration\.plan\.world is a control"):
        dataclasses.replace(config.transfer, iteration=iteration)
