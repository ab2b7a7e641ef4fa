"""Branches by snapshot or replay, from valid actions or a policy's proposals."""

import copy
import dataclasses
import time

import pytest

from dreamgym.agent.early_experience.arrival import branch_point
from dreamgym.agent.early_experience.branching import (
    branch,
    cap_error_share,
    policy_proposals,
)
from dreamgym.envs import restarting
from dreamgym.envs.dream import DreamEnv
from dreamgym.envs.failures import EnvironmentDown
from tests import doubles, helpers
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Branch

TASK = doubles.task(0, 2, 3)
EPISODE = doubles.expert(TASK)  # go right, go right, take coin


# --- what others lead to -----------------------------------------------------


def test_branches_are_what_the_environment_answers_to_other_actions():
    results, spent, unreachable, *_ = branch(
        doubles.Corridor(), [EPISODE], alternatives=5, max_episodes=9, seed=0
    )
    assert unreachable == []
    for step, expert in enumerate(EPISODE.transitions):
        mine = [b for b in results if b.step == step]
        others = set(doubles.ACTIONS) - {expert.action}
        assert {b.transition.action for b in mine} == others
        for one in mine:
            assert one.episode == EPISODE.id
            t, real = one.transition, doubles.walk(expert.state, one.transition.action)
            assert t.state == expert.state
            assert t.next_state == real.state
            assert (t.reward, t.terminated) == (real.reward, real.terminated)
            assert t.success is False
    # Step s costs its prefix and an action for each of two: the look is the first's.
    assert spent == sum(2 * (s + 1) for s in range(3))


def test_alternatives_and_episodes_are_limited_and_drawn_by_seed():
    episodes = [doubles.expert(t) for t in doubles.tasks("train")[:6]]

    def of(seed):
        return branch(
            doubles.Corridor(), episodes, alternatives=1, max_episodes=4, seed=seed
        )

    results, *_ = of(0)
    places = [(b.episode, b.step) for b in results]
    assert len(set(places)) == len(places)
    assert {e for e, _ in places} == {e.id for e in episodes[:4]}
    assert of(0) == of(0)
    assert any(of(0) != of(seed) for seed in range(1, 4))


def test_without_valid_actions_alternatives_come_from_other_episodes():
    class Silent(doubles.Corridor):
        valid_actions = property()  # type: ignore[assignment]

    other = doubles.episode(doubles.task(1, 0, 3), ["go left", "fly", "take coin"])
    results, *_ = branch(
        Silent(), [EPISODE, other], alternatives=9, max_episodes=1, seed=0
    )
    first = {b.transition.action for b in results if b.step == 0}
    assert first == {"go left", "fly", "take coin"}


def test_a_replay_that_does_not_arrive_is_detected():
    wrong = ("at 3", *EPISODE.transitions[1].state[1:])
    first, second, last = EPISODE.transitions
    bad = dataclasses.replace(
        EPISODE,
        id="bad",
        task=dataclasses.replace(TASK, id="bad"),
        transitions=(
            dataclasses.replace(first, next_state=wrong),
            dataclasses.replace(second, state=wrong),
            last,
        ),
    )
    results, _, unreachable, *_ = branch(
        doubles.Corridor(), [bad, EPISODE], alternatives=2, max_episodes=9, seed=0
    )
    assert unreachable == ["bad"]
    assert {b.step for b in results if b.episode == "bad"} == {
        0
    }  # it still stood there
    assert {b.step for b in results if b.episode == EPISODE.id} == {0, 1, 2}


def test_a_game_that_starts_elsewhere_yields_no_branch():
    moved = dataclasses.replace(
        EPISODE, task=dataclasses.replace(TASK, options={"at": 1, "goal": 2, "end": 3})
    )
    result, spent, unreachable, *_ = branch(
        doubles.Corridor(), [moved], alternatives=2, max_episodes=9, seed=0
    )
    assert (result, spent, unreachable) == ([], 0, [EPISODE.id])


def test_a_replay_that_drifts_midway_leaves_the_episode():
    class Aging(doubles.Corridor):
        """Another first room from the fourth game on."""

        games = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            type(self).games += 1
            if self.games > 3:
                self.state = ("at 1", *self.state[1:])
            return "\n".join(self.state), {"instruction": "take the coin"}

    # Resets 1 and 2 serve step 0, 3 the look and first branch of step 1, 4 drifts.
    results, _, unreachable, *_ = branch(
        Aging(), [EPISODE], alternatives=2, max_episodes=9, seed=0
    )
    assert unreachable == [EPISODE.id]
    assert sorted(b.step for b in results) == [0, 0, 1]
    assert Aging.games == 4  # no game is spent on an episode that was left


# --- snapshots ---------------------------------------------------------------


class Forking(doubles.Corridor):
    def fork(self):
        other = Forking(self.max_steps)
        other.state, other.steps, other.open = self.state, self.steps, self.open
        return other


def test_a_snapshot_yields_what_a_replay_does_for_fewer_transitions():
    episodes = [doubles.expert(doubles.task(0, goal, 5)) for goal in (1, 3, 4)]

    def of(env):
        return branch(env, episodes, alternatives=2, max_episodes=9, seed=3)

    by_replay, by_fork = of(doubles.Corridor()), of(Forking())
    assert by_fork.branches == by_replay.branches
    steps = [len(e.transitions) for e in episodes]
    # Each step but the last is walked once, and two alternatives are taken at each.
    assert by_fork.transitions == sum(n - 1 + 2 * n for n in steps)
    assert by_fork.transitions < by_replay.transitions


def test_a_dream_is_branched_by_its_own_fork():
    class Dream(DreamEnv):
        resets = 0

        def reset(self, **options):
            type(self).resets += 1
            return super().reset(**options)

    env = Dream(doubles.RuleModel(), [TASK], max_steps=9)
    result = branch(env, [EPISODE], alternatives=9, max_episodes=1, seed=0)
    assert Dream.resets == 1
    assert {(b.step, b.transition.action) for b in result.branches} == {
        (0, "take coin"),
        (1, "take coin"),
        (2, "go right"),
    }  # actions seen on the way: a dream declares none
    for b in result.branches:
        t = b.transition
        assert t.next_state == doubles.walk(t.state, t.action).state


def test_a_snapshot_that_drifts_leaves_the_episode():
    class Moving(Forking):
        def step(self, action):
            out = super().step(action)
            self.state = ("at 3", *self.state[1:])
            return ("\n".join(self.state), *out[1:])

    result = branch(Moving(), [EPISODE], alternatives=1, max_episodes=1, seed=0)
    assert result.unreachable_episodes == [EPISODE.id]
    assert {b.step for b in result.branches} == {0}


def test_every_fork_is_closed_once_and_the_walker_is_not():
    class Closing(Forking):
        open_now, closed = 0, 0

        def fork(self):
            Closing.open_now += 1
            other = Closing(self.max_steps)
            other.state, other.steps, other.open = self.state, self.steps, self.open
            other.forked = True
            return other

        def close(self):
            assert self.forked
            Closing.open_now -= 1
            Closing.closed += 1

        forked = False

    twice = [EPISODE, dataclasses.replace(EPISODE, id="again")]  # all known by then
    result = branch(Closing(), twice, alternatives=2, max_episodes=9, seed=0)
    assert Closing.open_now == 0
    # A fork for each alternative, the first of which is that of the look.
    assert Closing.closed == 6 + 3
    assert (len(result.branches), result.duplicates) == (6, 6)


# --- an environment that raises ----------------------------------------------


class Fragile(doubles.Corridor):
    """Raises at `go left` in room 1, and then at all until it is reset."""

    broken = False

    def reset(self, *, seed=None, options=None):
        self.broken = False
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.broken |= action == "go left" and self.state[0] == "at 1"
        if self.broken:
            raise OSError("no answer")
        return super().step(action)


class FragileForks(Fragile):
    closed = 0

    def fork(self):
        other = FragileForks(self.max_steps)
        other.state, other.steps, other.open = self.state, self.steps, self.open
        return other

    def close(self):
        type(self).closed += 1
        if self.broken:
            raise OSError("cannot even be closed")


@pytest.mark.parametrize("kind", [Fragile, FragileForks])
def test_an_alternative_that_raises_is_dropped_and_counted(kind, capsys):
    whole = branch(
        doubles.Corridor(), [EPISODE], alternatives=2, max_episodes=9, seed=0
    )
    result = branch(kind(), [EPISODE], alternatives=2, max_episodes=9, seed=0)
    lost = [b for b in whole.branches if b not in result.branches]
    assert [(b.step, b.transition.action) for b in lost] == [(1, "go left")]
    assert [b for b in whole.branches if b not in lost] == result.branches
    assert (result.crashed, whole.crashed, result.unreachable_episodes) == (1, 0, [])
    output = capsys.readouterr().err.splitlines()
    assert output[0] == f"branch: {EPISODE.id}, step 1, 'go left': OSError: no answer"
    closed = (
        f"branch: {EPISODE.id}, step 1, fork not closed: OSError: cannot even be closed"
    )
    assert output[1:] == ([closed] if kind is FragileForks else [])


def test_what_raised_is_not_tried_again_in_the_same_state():
    twice = [EPISODE, dataclasses.replace(EPISODE, id="again")]
    result = branch(Fragile(), twice, alternatives=2, max_episodes=9, seed=0)
    assert (result.crashed, result.unreachable_episodes) == (1, [])
    assert result.duplicates == 6  # all that the second could do, the broken one too


@pytest.mark.parametrize(
    ("where", "reached"),
    [("reset", -1), ("step", 1), ("valid_actions", 0), ("fork", 0)],
)
def test_an_episode_whose_state_cannot_be_had_is_left(where, reached, capsys):
    class Breaking(Forking if where == "fork" else doubles.Corridor):
        """Raises in a corridor that ends in room 5: at its start or one step later."""

    def raises(self, *args, **options):
        got = getattr(super(Breaking, self), where)
        begun = where == "reset" and options["options"]["task"].id == bad.task.id
        late = where != "reset" and "end 5" in self.state and self.steps == 1
        # Of the steps only the expert's own.
        if begun or (late and args in ((), ("go right",))):
            raise OSError("no answer")
        return got(*args, **options)

    setattr(Breaking, where, raises)
    bad = doubles.expert(doubles.task(0, 2, 5))
    result = branch(Breaking(), [bad, EPISODE], alternatives=2, max_episodes=9, seed=0)
    assert (result.unreachable_episodes, result.crashed) == ([bad.id], 0)
    steps = {
        e.id: {b.step for b in result.branches if b.episode == e.id}
        for e in (bad, EPISODE)
    }
    assert steps == {bad.id: set(range(reached + 1)), EPISODE.id: {0, 1, 2}}
    assert capsys.readouterr().err == (
        f"branch: {bad.id}, step {reached + 1}, not reached: OSError: no answer\n"
    )


# --- duplicates --------------------------------------------------------------


def test_a_state_that_comes_again_is_not_branched_again():
    # Room 1 is seen at steps 1 and 3, saying `ok` both times.
    there_and_back = doubles.episode(
        TASK, ["go right", "go right", "go left", "go right", "take coin"], name="walk"
    )
    env = doubles.Corridor()
    result = branch(env, [there_and_back], alternatives=2, max_episodes=1, seed=0)
    keys = [(b.transition.state, b.transition.action) for b in result.branches]
    assert len(set(keys)) == len(keys)
    # Room 1 has the expert's `go right` and two others, all known the second time.
    # Room 2 has `go left` and `take coin`: the expert does both, now and later.
    assert [(b.step, b.transition.action) for b in result.branches] == [
        *((0, a) for a in ("go left", "take coin")[:: _order(result, 0)]),
        *((1, a) for a in ("go left", "take coin")[:: _order(result, 1)]),
        (2, "go right"),
    ]
    assert result.duplicates == 2 + 1 + 2
    # Another game is another place, whatever it looks like.
    other = dataclasses.replace(EPISODE, task=dataclasses.replace(TASK, id="other"))
    both = branch(env, [EPISODE, other], alternatives=2, max_episodes=2, seed=0)
    assert (len(both.branches), both.duplicates) == (12, 0)


def _order(found, step):
    first = next(b for b in found.branches if b.step == step)
    return 1 if first.transition.action == "go left" else -1


# --- errors ------------------------------------------------------------------


def rows(kinds):
    """A branch a letter: x an error, . none."""
    return [
        Branch(
            episode=str(i),
            step=0,
            transition=helpers.transition(invalid=kind == "x"),
        )
        for i, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "share", "kept"),
    [
        ("xxx.", 0.5, 1),  # 1 of 2
        ("xxx...", 0.25, 1),  # 1 of 4; 2 of 5 were more
        ("xx.......", 0.1, 0),  # 1 of 8 were more
        ("xx.........", 0.1, 1),  # 1 of 10 exactly
        ("x...", 0.25, 1),
        ("xx..", 1.0, 2),
        ("xx..", 0, 0),
        ("xxx", 0.5, 0),
        ("", 0.5, 0),
    ],
)
def test_errors_are_at_most_a_share_of_the_branches(kinds, share, kept):
    some = rows(kinds)
    results = cap_error_share(some, share, seed=0)
    assert [b for b in some if b in results] == results  # in order
    wrong = [b for b in results if b.transition.invalid]
    assert len(wrong) == kept
    assert len(results) - kept == kinds.count(".")
    assert cap_error_share(some, share, seed=0) == results


def test_which_errors_stay_is_drawn_by_seed():
    some = rows("x" * 12 + "." * 12)
    drawn = {
        tuple(b.episode for b in cap_error_share(some, 0.25, seed=s)) for s in range(6)
    }
    assert len(drawn) > 1


def test_branching_caps_errors_and_counts_them():
    class Silent(doubles.Corridor):
        valid_actions = property()  # type: ignore[assignment]

    words = ["fly", "sing", "swim", "go left", "take coin"]
    talker = doubles.episode(doubles.task(1, 0, 3), words)
    episodes = [EPISODE, talker]

    def of(**options):
        return branch(
            Silent(), episodes, alternatives=9, max_episodes=1, seed=0, **options
        )

    free, bound = of(), of(max_error_share=0.25)
    # Three words at each of three steps, beside two or three sensible actions.
    assert sum(is_invalid(b.transition) for b in free.branches) == 9
    good = len(free.branches) - 9
    assert sum(is_invalid(b.transition) for b in bound.branches) == good // 3
    assert bound.errors == 9 - good // 3
    assert (free.errors, bound.transitions) == (0, free.transitions)


# --- proposals ---------------------------------------------------------------


def test_proposals_are_taken_and_what_is_not_valid_is_replaced():
    text = {
        (EPISODE.id, 0): ["fly", "go right", "go left", "fly", ""],
        (EPISODE.id, 1): ["take coin"],
        (EPISODE.id, 2): ["sing", "fly", "go left"],
    }
    result = branch(
        doubles.Corridor(),
        [EPISODE],
        alternatives=3,
        max_episodes=1,
        seed=0,
        proposals=text,
    )
    taken = [(b.step, b.transition.action) for b in result.branches]
    # Step 0: `fly` gives way to the one valid action left; the expert's and the empty
    # one are nobody's. Step 2: there is one valid action left for two.
    assert sorted(taken) == [
        (0, "go left"),
        (0, "take coin"),
        (1, "take coin"),
        (2, "go left"),
        (2, "go right"),
    ]
    assert result.invalid_proposals == 3


def test_without_valid_actions_proposals_are_taken_as_they_are():
    class Silent(doubles.Corridor):
        valid_actions = property()  # type: ignore[assignment]

    text = {(EPISODE.id, 0): ["fly", "go left", "sing"]}
    result = branch(
        Silent(), [EPISODE], alternatives=2, max_episodes=1, seed=0, proposals=text
    )
    assert [b.transition.action for b in result.branches] == ["fly", "go left"]
    assert result.invalid_proposals == 0


@pytest.mark.medium
def test_a_policy_proposes_at_every_state_the_same_whoever_else_is_asked():
    policy = doubles.cloned(("go right", "go left"), [TASK])
    first = dataclasses.replace(EPISODE, transitions=EPISODE.transitions[:1])
    other = doubles.expert(doubles.task(1, 0, 3))

    def of(episodes, seed=0, temperature=1.0):
        return policy_proposals(
            policy, episodes, count=12, temperature=temperature, seed=seed
        )

    results = of([first])
    assert results.keys() == {(EPISODE.id, 0)}
    messages = results[EPISODE.id, 0]
    assert len(messages) == 12
    assert {"go right", "go left"} <= set(messages)  # it was taught both
    assert of([other, first])[EPISODE.id, 0] == messages
    assert of([first], seed=1) != results
    assert len(set(of([first], temperature=0.0)[EPISODE.id, 0])) == 1
    assert of([]) == {}


def test_an_environment_that_breaks_every_branch_is_down():
    class Dead(doubles.Corridor):
        def reset(self, **_):
            raise RuntimeError("the engine has ended")

    episodes = [doubles.expert(t) for t in doubles.tasks("train")[:2]]
    with pytest.raises(EnvironmentDown, match="raised at each of 2 branches"):
        branch(Dead(), episodes, alternatives=2, max_episodes=2, seed=0)


class Hangs(doubles.Corridor):
    """A corridor whose forks hang at one action."""

    step_seconds = 0.2

    def fork(self):
        return copy.deepcopy(self)

    def step(self, action):
        if action == "go left":
            time.sleep(2)
        return super().step(action)


def test_a_fork_that_hangs_breaks_one_branch():
    """A fork is the bare environment, without the deadlines of its wrapper."""
    env = restarting.RestartingEnv(Hangs)
    point = branch_point(env, EPISODE)
    start = time.monotonic()
    assert point.branch(0, "go left") is None
    assert time.monotonic() - start < 1
    assert point.branch(0, "take coin") is not None
