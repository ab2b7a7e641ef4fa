"""Which recorded actions a search tries, by hand."""

import dataclasses

from dreamgym.agent.search.recorded import (
    MAX_ACTIONS,
    frequent_actions,
    with_recorded,
)
from tests import doubles

TASK = doubles.task(0, 2, 4)
POLICY = doubles.Scripted(doubles.expert_rule)


def turn(action, **changes):
    drawn = doubles.turn(POLICY, TASK, (), TASK.initial_state, action)
    return drawn._replace(**changes)


def test_actions_count_once_an_episode_and_only_where_they_are_valid():
    walks = [doubles.episode(TASK, ["go right", "go right", "dance"])] * 3
    takes = [doubles.expert(TASK)] * 2
    # "go right" in all five, "take coin" in two; "dance" is invalid in the corridor.
    assert frequent_actions([*walks, *takes]) == ("go right", "take coin")
    assert frequent_actions([*walks, *takes[:1]]) == ("go right",)
    assert frequent_actions([]) == ()


def test_rare_actions_and_too_many_are_left_out():
    (step, *_), count = doubles.expert(TASK).transitions, 150

    def episode(number):
        renamed = dataclasses.replace(step, action=f"greet {number}")
        return dataclasses.replace(doubles.expert(TASK), transitions=(renamed,))

    assert frequent_actions([episode(i) for i in range(count)]) == ()
    thirds = [episode(i // 3) for i in range(count)]  # 3 of 150 episodes are 2 %
    assert frequent_actions(thirds) == tuple(f"greet {i}" for i in range(MAX_ACTIONS))
    assert frequent_actions([*thirds, *[doubles.expert(TASK)]]) == ()


def test_recorded_actions_follow_what_the_policy_draws():
    drawn = [
        turn("go left"),
        turn("go left"),
        turn("", sampled=(False,)),
        turn("dance"),
    ]
    candidates = with_recorded(drawn, ["dance", "take coin"])
    assert [t.action for t in candidates] == ["go left", "dance", "take coin"]
    assert [t.given for t in candidates] == [False, False, True]
    assert not any(t.void for t in candidates)
    assert with_recorded(drawn[2:3], []) == drawn[2:3]
