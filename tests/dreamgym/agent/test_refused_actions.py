"""Actions that a state has refused are drawn again, and only those."""

import dataclasses

import jax
import numpy as np
import pytest

from dreamgym.agent import rollout as rollouts
from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.refused_actions import RefusedActions
from dreamgym.agent.rollout import rollout
from dreamgym.build.models import policy_config
from dreamgym.config.presets import preset
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv
from dreamgym.evaluation import evaluate
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.data.records import Transition

A, A_ERROR, B = ("at 0", "said ok"), ("at 0", "said cannot"), ("at 1", "said ok")


def transition(state, action, next_state):
    return Transition(state=state, action=action, next_state=next_state)


def refused(*steps):
    memory = RefusedActions()
    for step in steps:
        memory.record(transition(*step))
    return memory


def test_a_state_remembers_what_it_refused():
    memory = refused((A, "fly", A), (A, "right", B))
    assert memory.at(B) == set()  # another state may take it
    assert memory.at(A) == {"fly"}
    memory.record(transition(B, "left", A))
    assert memory.at(A) == {"fly"}  # back again


def test_an_error_in_the_state_does_not_hide_what_was_refused_before_it():
    memory = refused((A, "fly", A_ERROR), (A_ERROR, "swim", A_ERROR))
    assert memory.at(A_ERROR) == {"fly", "swim"}
    assert memory.at(A) == {"fly"} | {"swim"}  # nothing valid has happened since
    memory.record(transition(A_ERROR, "right", B))
    assert memory.at(B) == set()
    assert memory.at(A) == {"fly"}


def test_what_the_environment_calls_valid_is_not_refused():
    memory = RefusedActions()
    memory.record(dataclasses.replace(transition(A, "wait", A), invalid=False))
    assert memory.at(A) == set()


class Undecided(doubles.Scripted):
    """Flies where it is asked first, and follows the expert from the n-th draw on.

    `temperatures` are those of the passes, each of which may hold several draws.
    """

    def __init__(self, draws, max_redraws):
        super().__init__(doubles.expert_rule)
        self.config = dataclasses.replace(self.config, max_redraws=max_redraws)
        self.draws, self.temperatures, self.asked = draws, [], {}

    def act(self, situations, keys, *, temperature):
        self.temperatures.append(temperature)
        turns = []
        for task, past, state, *_ in situations:
            count = self.asked[past] = self.asked.get(past, 0) + 1
            flies = not past or (past[-1] == "fly" and count < self.draws)
            action = "fly" if flies else doubles.expert_rule(task, past, state)
            turns.append(doubles.turn(self, task, past, state, action))
        data = np.asarray(jax.random.key_data(keys))
        self.keys += list(data[: len(situations)])
        return turns


def play(policy, **settings):
    envs = RealVectorEnv([doubles.Corridor()], max_steps=8)
    (trajectory,) = rollout(
        policy,
        envs,
        [doubles.task(0, 1, 2)],
        key=jax.random.key(0),
        temperature=0.5,
        **settings,
    )
    return [t.action for t in trajectory.episode.transitions], trajectory


def test_a_refused_action_is_drawn_again_until_it_is_another():
    policy = Undecided(draws=3, max_redraws=4)
    actions, trajectory = play(policy, redraw_temperature=1.0)
    assert actions == ["fly", "go right", "take coin"]
    assert [t.action for t in trajectory.turns] == actions
    # One pass holds the four redraws, of which the second is no repetition.
    assert policy.temperatures == [0.5, 0.5, 1.0, 0.5]
    assert len({tuple(k) for k in policy.keys}) == 7  # every draw has its own noise


def test_the_last_redraw_is_taken_whatever_it_is():
    actions, _ = play(Undecided(draws=3, max_redraws=1))
    # Draws 1 and 2 fly, and are the step; the third is asked with another past.
    assert actions[:2] == ["fly", "fly"]


def test_without_redraws_the_first_draw_is_taken():
    policy = Undecided(draws=3, max_redraws=0)
    actions, _ = play(policy)
    assert set(actions) == {"fly"}
    assert policy.temperatures == [0.5] * len(actions)


def test_redraws_are_at_the_temperature_of_the_rollout_unless_said():
    policy = Undecided(draws=2, max_redraws=4)
    play(policy)
    assert set(policy.temperatures) == {0.5}


def test_test_games_redraw_at_temperature_one():
    policy = Undecided(draws=3, max_redraws=4)
    envs = RealVectorEnv([doubles.Corridor()], max_steps=8)
    evaluate.play(policy, envs, [doubles.task(0, 1, 2)], seed=0, temperature=0.5)
    assert policy.temperatures == [0.5, 0.5, 1.0, 0.5]


@pytest.mark.medium
@pytest.mark.parametrize("passes", [1, 2, 16])
def test_redraws_are_the_same_however_many_are_sampled_at_once(monkeypatch, passes):
    """Noise goes by the number of the redraw, and the first that is accepted counts."""

    def trajectories():
        policy = doubles.policy(action_tokens=2)
        settings = dataclasses.replace(policy.config, max_redraws=16)
        policy = type(policy)(policy.model, policy.tokenizer, settings)
        envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=6)
        tasks = list(doubles.tasks("train")[:4])
        return rollout(policy, envs, tasks, key=jax.random.key(3), temperature=0.3)

    expected = trajectories()
    assert rollouts.REDRAWS_PER_PASS not in (1, 2, 16)
    monkeypatch.setattr(rollouts, "REDRAWS_PER_PASS", passes)
    for a, b in zip(trajectories(), expected, strict=True):
        assert [t.ids for t in a.turns] == [t.ids for t in b.turns]
        logps = ([x for t in c.turns for x in t.logp] for c in (a, b))
        np.testing.assert_allclose(*logps, atol=1e-5)


def test_a_sampled_policy_repeats_no_refused_action():
    """On the dream of an exact model, with turns drawn from a real (small) model."""
    policy = doubles.policy(action_tokens=2)
    settings = dataclasses.replace(policy.config, max_redraws=16)
    policy = type(policy)(policy.model, policy.tokenizer, settings)
    tasks = list(doubles.tasks("train")[:4])
    trajectories = rollout(
        policy,
        DreamVectorEnv(doubles.RuleModel(), 4, max_steps=6),
        tasks,
        key=jax.random.key(3),
        temperature=1.0,
    )
    for t in trajectories:
        memory = RefusedActions()
        for x, turn in zip(t.episode.transitions, t.turns, strict=True):
            assert x.action not in memory.at(x.state)
            memory.record(x)
            assert turn.action == x.action


@pytest.mark.parametrize(("deterministic", "expected"), [(True, 6), (False, 0)])
def test_no_redraws_where_the_environment_draws_lots(tmp_path, deterministic, expected):
    with Run(tmp_path, preset("tiny")) as run:
        run.stage("collect", lambda: {"deterministic": deterministic})
        assert policy_config(run).max_redraws == expected


def test_a_negative_number_of_redraws_is_refused():
    with pytest.raises(ValueError, match="max_redraws must be >= 0, got -1"):
        PolicyConfig(max_redraws=-1)
