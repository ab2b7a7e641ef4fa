"""Rollouts: order, chaining, noise, and trajectories that broke."""

import jax
import pytest

from dreamgym.agent.rollout import rollout
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv, Snapshot
from tests import doubles

TASKS = list(doubles.tasks("train")[:7])


def real(size, *, make=doubles.Corridor, max_steps=10):
    return RealVectorEnv([make() for _ in range(size)], max_steps=max_steps)


def run(policy, envs, tasks=TASKS, *, seed=0, **settings):
    key = jax.random.key(seed)
    return rollout(policy, envs, tasks, key=key, temperature=0.7, **settings)


@pytest.mark.parametrize("size", [2, 7, 9])
def test_one_trajectory_a_task_in_their_order(size):
    policy = doubles.Scripted(doubles.expert_rule)
    found = run(policy, real(size), source="here")
    assert [t.episode.task for t in found] == TASKS
    for index, (t, task) in enumerate(zip(found, TASKS, strict=True)):
        expected = doubles.expert(task).transitions
        got = t.episode.transitions
        assert [x.action for x in got] == [x.action for x in expected]
        assert [x.next_state for x in got] == [x.next_state for x in expected]
        assert t.episode.success is True
        assert t.episode.episode_return == 1.0
        assert got[0].state == task.initial_state
        assert t.episode.id == f"here-{index}-{task.id}"
        assert t.error is None
        assert [x.action for x in t.turns] == [x.action for x in got]
    assert max(policy.calls) == min(size, 7)


def test_the_policy_sees_its_own_past():
    seen = []

    def rule(task, past, state):
        seen.append((task.id, past))
        return doubles.expert_rule(task, past, state)

    task = doubles.task(0, 2, 2)
    run(doubles.Scripted(rule), real(1), [task])
    assert [past for _, past in seen] == [(), ("go right",), ("go right",) * 2]


class Counting(doubles.Corridor):
    """Lists another action at each step, so that a list is of its state."""

    def valid_actions(self):
        return ["go left", f"wait {self.count}"]

    def reset(self, **kwargs):
        self.count = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.count += 1
        return super().step(action)


@pytest.mark.medium
def test_a_policy_reads_the_actions_that_its_environment_lists():
    policy = doubles.policy(action_tokens=3, admissible_actions=5)
    found = run(policy, real(2, make=Counting, max_steps=3), TASKS[:3])
    for trajectory in found:
        steps, past = trajectory.episode.transitions, []
        for number, (turn, t) in enumerate(zip(trajectory.turns, steps, strict=True)):
            assert t.valid_actions == ("go left", f"wait {number}")
            where = (trajectory.episode.task, past, t.state, t.valid_actions)
            assert list(turn.context) == policy.context(*where)
            past.append(t.action)
    # Not asked for, not recorded; and a dream has no list.
    plain = run(doubles.policy(action_tokens=3), real(2, make=Counting), TASKS[:1])
    dreams = DreamVectorEnv(doubles.RuleModel(), 2, max_steps=3)
    for trajectory in (*plain, *run(policy, dreams, TASKS[:1])):
        assert all(t.valid_actions == () for t in trajectory.episode.transitions)
        add = policy.tokenizer.control("add")
        assert all(add not in turn.context for turn in trajectory.turns)


def test_a_list_that_breaks_is_none_and_the_environment_says_the_rest():
    class Broken(doubles.Corridor):
        def valid_actions(self):
            raise RuntimeError("no list today")

    policy = doubles.policy(action_tokens=3, admissible_actions=5)
    (found,) = run(policy, real(1, make=Broken, max_steps=2), TASKS[:1])
    assert found.error is None
    assert found.episode.transitions[0].valid_actions == ()
    bare = run(policy, real(1, make=doubles.Bare, max_steps=2), TASKS[:1])
    assert bare[0].episode.transitions[0].valid_actions == ()


def test_the_noise_of_a_game_does_not_depend_on_the_slots():
    policy = doubles.policy(action_tokens=3)
    found = [
        run(policy, DreamVectorEnv(doubles.RuleModel(), size, max_steps=3), TASKS[:4])
        for size in (1, 4)
    ]
    assert found[0] == found[1]
    assert found[0] != run(
        policy, DreamVectorEnv(doubles.RuleModel(), 4, max_steps=3), TASKS[:4], seed=1
    )


def test_every_turn_of_every_game_has_its_own_key():
    policy = doubles.Scripted(doubles.expert_rule)
    same = [doubles.task(0, 2, 2)] * 5
    run(policy, real(2), same)
    drawn = {tuple(k.tolist()) for k in policy.keys}
    assert len(drawn) == len(policy.keys) == 15


def test_a_step_limit_is_a_scored_failure():
    (t,) = run(doubles.Scripted(lambda *_: "fly"), real(1, max_steps=3), TASKS[:1])
    assert (t.episode.success, t.error) == (False, None)
    ends = [(x.terminated, x.truncated) for x in t.episode.transitions]
    assert ends == [(False, False), (False, False), (False, True)]
    assert [x.invalid for x in t.episode.transitions] == [True] * 3
    assert [x.reveals for x in t.episode.transitions] == [False] * 3


def test_a_dream_without_sense_is_not_scored_and_hurts_nobody_else():
    model = doubles.RuleModel(broken={"take coin"})
    tasks = [doubles.task(0, 1, 2), doubles.task(0, 2, 2)]

    def rule(task, past, state):
        if task == tasks[1]:
            return "go left"
        return doubles.expert_rule(task, past, state)

    broken, lost = run(
        doubles.Scripted(rule), DreamVectorEnv(model, 2, max_steps=9), tasks
    )
    assert broken.episode.success is None
    assert broken.error == "dream: garbled"
    assert lost.episode.success is False
    assert lost.error is None
    assert lost.episode.transitions[-1].terminated


class Crashing(doubles.Corridor):
    """Breaks in step or in reset, at the corridors that end in room 4."""

    where = "step"

    def reset(self, *, seed=None, options=None):
        if self.where == "reset" and options["task"].options["end"] == 4:
            raise OSError("no answer")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.where == "step" and "end 4" in self.state:
            raise OSError("no answer")
        return super().step(action)


class CrashingReset(Crashing):
    where = "reset"


@pytest.mark.parametrize("make", [Crashing, CrashingReset])
def test_a_crash_ends_one_trajectory_with_its_reason_and_nothing_else(make):
    tasks = [doubles.task(0, 1, 2), doubles.task(0, 1, 4), doubles.task(1, 1, 3)]
    found = run(doubles.Scripted(doubles.expert_rule), real(2, make=make), tasks)
    assert [t.episode.success for t in found] == [True, None, True]
    assert found[1].error == "OSError: no answer"


@pytest.mark.parametrize(
    ("slots", "limit", "games"),
    [
        (1, 9, 0),  # a game of ten steps might not be paid for
        (1, 10, 1),  # it took three, and seven steps are left
        (1, 13, 2),  # ten were left after the first, not after the second
        (1, 16, 3),
        (3, 16, 3),  # one at a time: two might take twenty
        (3, 20, 4),  # two at a time, then two more
        (3, 100, 5),
    ],
)
def test_a_game_starts_only_if_its_full_length_is_paid_for(slots, limit, games):
    tasks = [doubles.task(0, 2, 2)] * 5  # three steps each
    envs = real(slots, max_steps=10)
    for _ in range(2):  # a second call counts from where the environments stand
        before = envs.transitions
        found = run(
            doubles.Scripted(doubles.expert_rule), envs, tasks, max_transitions=limit
        )
        assert [t.episode.id.split("-")[1] for t in found] == [*map(str, range(games))]
        assert all(t.episode.success for t in found)
        assert envs.transitions - before == 3 * games


def test_progress_is_told_up_to_the_end():
    told = []
    run(
        doubles.Scripted(doubles.expert_rule),
        real(3),
        progress=lambda *x: told.append(x),
    )
    assert told[-1] == (7, 7)
    assert sorted(told) == told
    assert run(doubles.Scripted(doubles.expert_rule), real(3), []) == []


class Silent(doubles.Corridor):
    """Says nothing at its first step."""

    def step(self, action):
        obs, *rest = super().step(action)
        return ("" if self.steps == 1 else obs, *rest)


def test_an_empty_state_is_a_state_and_no_step_that_changed_nothing():
    task = doubles.task(0, 2, 2)
    moves = iter(doubles.plan(task.initial_state))
    policy = doubles.Scripted(lambda *_: next(moves))
    (found,) = run(policy, real(1, make=Silent), [task])
    steps = found.episode.transitions
    assert steps[0].next_state == () == steps[1].state
    assert steps[1].next_state
    assert found.episode.success is True


def test_a_real_environment_cannot_start_from_a_snapshot():
    start = Snapshot(TASKS[0], ("go right",), TASKS[0].initial_state)
    with pytest.raises(TypeError, match="RealVectorEnv cannot start from a snapshot"):
        run(doubles.Scripted(doubles.expert_rule), real(1), [start])
