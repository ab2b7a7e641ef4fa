"""Trials in the dream: samples that agree or not, plans found or not."""

import dataclasses

import numpy as np
import pytest

from curriculum import generator
from curriculum.config import CurriculumConfig, FeasibilityConfig
from curriculum.generator import FunctionProposer
from curriculum.pool import TaskPool
from dreamgym.training.feasibility import FeasibilityFilter, feasibility_filter_for
from tests import doubles
from worldmodel.experience.base import Prediction

NEAR = doubles.task(0, 1, 6)
FAR = doubles.task(0, 6, 6)


class Sampled(doubles.RuleModel):
    """The rules, and samples that are sure of them but for tasks it was told of."""

    def __init__(self, doubtful=(), **settings):
        super().__init__(**settings)
        self.doubtful = set(doubtful)

    def sample(self, queries, number):
        out = []
        for query, answer in zip(queries, self.predict(queries), strict=True):
            if query.task.id in self.doubtful:
                out.append(answer._replace(reward=float(number)))
            else:
                out.append(answer)
        return out


def trial(model, rule=doubles.expert_rule, *, max_steps=4, **settings):
    return FeasibilityFilter(
        model,
        doubles.Scripted(rule),
        FeasibilityConfig(**settings),
        max_steps=max_steps,
        temperature=1.0,
        seed=0,
    )


def test_a_plan_within_the_limit_is_found_and_one_beyond_it_is_not():
    feasibility = trial(doubles.RuleModel(), rollouts=2)
    assert feasibility([NEAR, FAR]) == [None, "no plan"]
    assert feasibility.transitions == 2 * (2 + 4)


def test_one_win_among_the_rollouts_is_enough():
    turns = iter(range(100))

    def sometimes(*_):
        return "go left" if next(turns) != 2 else "take coin"

    here = doubles.task(1, 1, 6)
    assert trial(doubles.RuleModel(), sometimes, rollouts=4)([here]) == [None]
    assert trial(doubles.RuleModel(), lambda *_: "go left", rollouts=4)([here]) == [
        "no plan"
    ]


def test_a_task_whose_rollouts_all_break_is_refused_apart():
    feasibility = trial(doubles.RuleModel(broken=["go right"]), rollouts=2)
    assert feasibility([NEAR]) == ["unscored"]


def test_samples_that_disagree_refuse_a_task():
    model = Sampled(doubtful=[NEAR.id])
    assert trial(model, samples=3)([NEAR, FAR]) == ["disagreement", None]
    assert trial(model, samples=3, agreement=0.0)([NEAR, FAR]) == [None, None]


@pytest.mark.parametrize(
    ("whole", "message"), [(0, "disagreement"), (2, "disagreement"), (3, None)]
)
def test_samples_that_make_no_sense_agree_with_nothing(whole, message):
    class Lost(Sampled):
        """Nothing changes: so it is where a server's answer is missing."""

        def sample(self, queries, number):
            problem = None if number < whole else "refused: too long"
            return [Prediction(q.state, 0.0, "go", "", 1.0, problem) for q in queries]

    assert trial(Lost(), samples=3)([NEAR]) == [message]


def test_what_is_revealed_may_differ():
    class Doors(Sampled):
        def sample(self, queries, number):
            return [
                Prediction((f"behind it {number}",), 0.0, "go", "", 1.0, None)
                for _ in queries
            ]

    assert trial(Doors(), samples=3, agreement=1.0)([NEAR]) == [None]


def test_the_policy_that_tries_is_the_one_it_was_last_given():
    feasibility = trial(doubles.RuleModel(), lambda *_: "go left", rollouts=1)
    assert feasibility([NEAR]) == ["no plan"]
    feasibility.policy = doubles.Scripted(doubles.expert_rule)
    assert feasibility([NEAR]) == [None]


def test_the_order_of_tasks_does_not_matter_to_a_rule():
    feasibility = trial(Sampled(doubtful=[NEAR.id]), rollouts=2, samples=2)
    here = doubles.task(2, 2, 6)
    first, second = feasibility([NEAR, FAR, here]), feasibility([here, FAR, NEAR])
    assert first == second[::-1] == ["disagreement", "no plan", None]


def test_a_model_that_cannot_be_asked_again_is_refused():
    with pytest.raises(ValueError, match=r"samples needs .* RuleModel cannot"):
        trial(doubles.RuleModel(), samples=2)


def test_the_settings_ask_for_a_trial_or_not():
    def made(**settings):
        config = CurriculumConfig(feasibility=FeasibilityConfig(**settings))
        return feasibility_filter_for(
            config,
            doubles.RuleModel(),
            doubles.Scripted(doubles.expert_rule),
            max_steps=4,
            temperature=1.0,
            seed=0,
        )

    assert made() is None
    feasibility = made(rollouts=1)
    assert feasibility is not None
    assert feasibility([NEAR, FAR]) == [None, "no plan"]


def test_the_generator_takes_in_what_a_trial_lets_through():
    pool = TaskPool([NEAR, doubles.task(0, 5, 6)])
    made = {
        t.id: dataclasses.replace(t, id=f"new-{t.id}", split="generated")
        for t in (doubles.task(1, 2, 6), FAR)
    }

    @FunctionProposer
    def propose(groups):
        assert len(groups) == 2
        return list(made.values())

    got = generator.extend(
        pool,
        propose,
        2,
        np.random.default_rng(0),
        feasible=trial(doubles.RuleModel(), rollouts=2),
    )
    assert got == {"accepted": 1, "no plan": 1}
    (entry,) = pool.active(generated=True)
    assert entry.task.id == f"new-{doubles.task(1, 2, 6).id}"


@pytest.mark.medium
def test_a_neural_policy_tries_with_its_own_turns():
    actor = doubles.cloned(doubles.ACTIONS, [doubles.task(1, 1, 6)])
    queries = FeasibilityFilter(
        Sampled(),
        actor,
        FeasibilityConfig(rollouts=8, samples=2),
        max_steps=3,
        temperature=1.0,
        seed=0,
    )
    first = queries([doubles.task(1, 1, 6), FAR])
    assert first == [None, "no plan"]  # a third of its words take the coin at once
    assert queries([doubles.task(1, 1, 6), FAR]) == first
