"""Gymnasium ids without an adapter: texts, success, plans, splits, refusals."""

import gymnasium
import pytest

from dreamgym.envs import base, limits, registry
from dreamgym.envs.contract import checker
from worldmodel.data.records import Task

SLIPPERY = "gymnasium:FrozenLake-v1"
FROZEN = "gymnasium:FrozenLake-v1?is_slippery=false"


def task(seed=0):
    return Task(id=str(seed), instruction="", options={"seed": seed})


def begun(spec, seed=0):
    env = registry.make(spec)
    return env, *base.begin(env, task(seed))


def newest(name):
    return max(s for s in gymnasium.registry if s.startswith(f"{name}-v"))


def test_numbers_are_named_plainly():
    env, begun_task, state = begun(FROZEN)
    assert begun_task.instruction == "win FrozenLake"
    assert state == ("observation 0", "reward 0")
    assert env.valid_actions() == ["action 0", "action 1", "action 2", "action 3"]
    assert base.take(env, "action 2").state == ("observation 1", "reward 0")
    step = base.take(env, "go left")
    assert (step.state[-1], step.invalid, step.terminated) == (
        "unknown action",
        True,
        False,
    )


def test_a_tuple_is_its_numbers_and_decode_its_parts():
    _, _, state = begun("gymnasium:Blackjack-v1", seed=1)
    assert state[0].startswith("observation ")
    assert len(state[0].split()) == 4
    env, _, state = begun(f"gymnasium:{newest('Taxi')}")
    number = int(state[0].split()[1])
    parts = list(env._env.unwrapped.decode(number))
    assert state[1] == f"parts {' '.join(map(str, parts))}"


@pytest.mark.parametrize(
    ("spec", "last_reward"),
    [
        (FROZEN, 1.0),
        (f"gymnasium:{newest('Taxi')}", 20.0),
        (f"gymnasium:{newest('CliffWalking')}", -1.0),
    ],
)
def test_the_shortest_plan_wins_whatever_an_end_pays(spec, last_reward):
    env, *_ = begun(spec, seed=3)
    plan = env.expert()
    steps = [base.take(env, action) for action in plan]
    assert (steps[-1].terminated, steps[-1].success) == (True, True)
    assert sum(steps[-1].rewards.values()) == last_reward
    assert not any(s.success for s in steps[:-1])
    with pytest.raises(RuntimeError):
        env.step(plan[0])


def test_a_hole_is_an_end_without_success():
    env, *_ = begun(FROZEN)
    for action in ("action 1", "action 2"):  # down, then right into the hole at 5
        step = base.take(env, action)
    assert (step.state[0], step.terminated, step.success) == (
        "observation 5",
        True,
        False,
    )


def test_who_draws_lots_says_so_and_has_no_expert():
    for spec in (SLIPPERY, "gymnasium:Blackjack-v1"):
        env = registry.make(spec)
        assert not base.is_deterministic(env)
        assert base.as_expert(env) is None
    assert base.as_expert(registry.make(FROZEN)) is not None


def test_success_without_a_table_is_a_positive_last_reward():
    wins = 0
    for seed in range(30):
        env, *_ = begun("gymnasium:Blackjack-v1", seed)
        step = base.take(env, "action 0")  # stick
        assert step.terminated
        assert step.success == (sum(step.rewards.values()) > 0)
        wins += step.success
    assert 0 < wins < 30


def test_starts_of_a_deterministic_environment_are_split():
    env = registry.make(f"gymnasium:{newest('Taxi')}")
    starts = {}
    for split in base.SPLITS:
        tasks = env.tasks(split)
        starts[split] = {base.begin(env, t)[1] for t in tasks}
        assert len(starts[split]) == len(tasks)
    assert len(starts["train"]) > 5 * len(starts["dev"]) > 50
    assert not starts["train"] & starts["test"]
    assert not starts["train"] & starts["dev"]


def test_the_limit_is_that_of_the_plans_or_the_declared_one():
    taxi = registry.make(f"gymnasium:{newest('Taxi')}")
    assert 24 <= limits.step_limit(taxi, taxi.tasks("train")).steps <= 40
    slippery = registry.make(SLIPPERY)
    assert limits.step_limit(slippery, slippery.tasks("train")).steps == 100


def test_nonsense_is_truncated_at_the_declared_limit():
    env, *_ = begun(FROZEN)
    ends = [base.take(env, "dance") for _ in range(100)]
    assert [e.truncated for e in ends] == [False] * 99 + [True]
    with pytest.raises(RuntimeError):
        env.step("dance")


@pytest.mark.parametrize(
    "spec", [FROZEN, SLIPPERY, "gymnasium:Blackjack-v1", f"gymnasium:{newest('Taxi')}"]
)
def test_they_keep_the_contract(spec):
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert report.faults == (), report.text(spec)
    alike = [
        w for w in report.warnings if "same instruction and first state as" in w.what
    ]
    assert bool(alike) == (spec != f"gymnasium:{newest('Taxi')}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gymnasium:CartPole-v1", "expected spaces of Discrete, .*got Box"),
        ("gymnasium:Pendulum-v1", "got Box.*write an adapter"),
        ("gymnasium:Nothing-v1", "doesn't exist"),
        ("gymnasium:FrozenLake-v1?colour=red", "colour"),
    ],
)
def test_what_cannot_be_text_is_refused_with_the_reason(spec, message):
    with pytest.raises(ValueError, match=message):
        registry.make(spec)
