"""Skill collapse as agents show it: each planted one raises its own flag, and no other.

An agent that does what the instruction says plays four checks; then one that has lost
one skill plays the fifth.
"""

import random

import pytest

from curriculum.skill_collapse import red_flags
from dreamgym.agent import floors
from dreamgym.envs import base
from dreamgym.envs.tools.tool_env import tool
from tests.dreamgym.evaluation.test_tool_report import always, asked_in, never, rule
from tests.strangers.tools import Shop
from worldmodel.text.tools import skills

DROP = 0.2


class Store(Shop):
    """A shop with a second tool, which answers and is never right."""

    @tool
    def stock(self, fruit: str) -> str:
        """Say how many there are of a fruit."""
        return f"{fruit} 3"


def flags(checks):
    """Return the red flags of the last of these skills."""
    return red_flags(
        [check.measures() for check in checks],
        drop=DROP,
        counts=[check.counts() for check in checks],
    )


def skills_of(agent, seed=0):
    """Return the skills of games that an agent plays; it may draw lots."""
    env, rng = Store(), random.Random(seed)
    tasks = base.begin_all(env, env.tasks("test"))[:24]

    def actor(env, task):
        return lambda _: agent(env._text(), task.instruction, rng)

    played = floors.play_scripted(
        env, tasks, actor, source="agent", seed=0, max_steps=3
    )
    return skills.total(skills.of_episode(t.episode) for t in played)


def sound(state, instruction, rng):
    del rng
    return rule(state, instruction)


def noisy(state, instruction, rng):
    """Does in one of ten turns what another agent does."""
    agent = rng.choice((always, never)) if rng.random() < 0.1 else rule
    return agent(state, instruction)


def replaced(new):
    """Return an agent that writes its first call as `new` does, and no other one."""

    def agent(state, instruction, rng):
        del rng
        action = never(state, instruction)
        calls = rule(state, instruction) != action and "result welcome" in state
        return new(asked_in(instruction)) if calls else action

    return agent


PLANTED = {
    "syntax collapse": replaced(lambda fruit: f'price {{"fruit": {fruit}'),
    "which collapse": replaced(lambda fruit: Store.call("stock", fruit=fruit)),
    "argument collapse": replaced(lambda _: Store.call("price", fruit="stone")),
    "call collapse": lambda state, instruction, _: always(state, instruction),
    "calls vanish": lambda state, instruction, _: never(state, instruction),
    "calls explode": replaced(
        lambda fruit: "\n".join([Store.call("price", fruit=fruit)] * 9)
    ),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("before", [sound, noisy])
def test_a_planted_collapse_raises_its_own_flag(name, before):
    checks = [skills_of(before, seed) for seed in range(4)]
    assert list(flags([*checks, skills_of(PLANTED[name])]).values()) == [name]


@pytest.mark.parametrize("seed", range(40))
def test_an_agent_that_errs_now_and_then_raises_none(seed):
    checks = [skills_of(noisy, seed=10 * seed + i) for i in range(5)]
    assert flags(checks) == {}


def test_an_agent_that_never_errs_raises_none():
    assert flags([skills_of(sound)] * 5) == {}
