"""Flawed copies of won attempts, worked out by hand on small corridors."""

import dataclasses

import pytest

from dreamgym.rewards.hard_negatives import KINDS, hard_negatives, needed_steps
from tests import doubles

A, B = doubles.task(0, 2, 4), doubles.task(3, 1, 4)


def won(task, actions=None):
    plan = doubles.plan(task.initial_state) if actions is None else actions
    return doubles.episode(task, plan, name=f"w-{task.id}")


def lost(task, *actions):
    return doubles.episode(task, actions, name=f"l-{task.id}")


def actions(attempt):
    return [t.action for t in attempt]


def changed(attempt, copy):
    """The steps of a copy that differ, with their places."""
    pairs = enumerate(zip(attempt, copy, strict=True))
    return [(i, b) for i, (a, b) in pairs if a != b]


# In the corridor only an unknown action and `take coin` without a coin are refused.
EPISODES = [lost(A, "go left"), won(A), won(B), lost(B, "sing", "go right")]
WON = EPISODES[1].transitions


def test_steps_on_a_detour_or_without_effect_are_not_needed():
    assert needed_steps(WON) == [0, 1, 2]
    # Rooms 0 1 0 1 2: room 0 comes again after steps 0 and 1, room 1 after 1 and 2.
    roundabout = won(A, ["go right", "go left", *actions(WON)])
    assert needed_steps(roundabout.transitions) == [3, 4]
    # Against the wall: only the message changes, and then stays.
    way = ["go right", "go right", "go left", "go left", "take coin"]
    blocked = won(doubles.task(2, 0, 2), way)
    assert needed_steps(blocked.transitions) == [0, 2, 3, 4]
    # A last step that changes nothing still is the end.
    end = dataclasses.replace(WON[-1], next_state=WON[-1].state)
    assert needed_steps((*WON[:-1], end)) == [0, 1, 2]


def test_one_copy_of_each_kind_by_hand():
    copies = hard_negatives(EPISODES, seed=0)
    assert list(copies) == list(KINDS)
    assert {kind: len(x) for kind, x in copies.items()} == dict.fromkeys(KINDS, 2)
    for kind, rows in copies.items():
        for row, source in zip(rows, EPISODES[1:3], strict=True):
            assert (row.task, row.better) == (source.task, source.transitions)
            assert row.worse != row.better
            assert len(row.worse) == 3 - (kind == "step_left_out")
    worse = {kind: rows[0].worse for kind, rows in copies.items()}
    assert worse["step_left_out"] in [(*WON[:i], *WON[i + 1 :]) for i in range(3)]
    assert worse["order_reversed"] == WON[::-1]
    # The ending of the other task: the coin in room 1.
    ending = worse["ending_of_another_task"]
    assert ending == (*WON[:2], EPISODES[2].transitions[-1])
    # `sing` is the only action that was refused; it leaves the state as it was.
    ((i, refused),) = changed(WON, worse["action_refused"])
    assert (refused.action, refused.next_state) == ("sing", WON[i].state)
    assert refused.invalid
    assert not refused.success
    # `go left` is the only other action that was taken; what followed is kept.
    ((i, other),) = changed(WON, worse["action_replaced"])
    assert other == dataclasses.replace(WON[i], action="go left")


def test_listed_actions_come_first():
    steps = tuple(
        dataclasses.replace(t, valid_actions=(t.action, "wait", "sing")) for t in WON
    )
    listed = dataclasses.replace(EPISODES[1], transitions=steps)
    rows = hard_negatives([listed, *EPISODES[2:]], seed=0)
    ((_, other),) = changed(steps, rows["action_replaced"][0].worse)
    assert other.action in ("wait", "sing")
    # `sing`, refused elsewhere, would be taken here: no refused action is left.
    assert [p.task.id for p in rows["action_refused"]] == [B.id]


def test_what_cannot_be_made_is_left_out():
    only = hard_negatives(EPISODES[:2], seed=0)
    # Nothing was refused, and there is no other task.
    assert {k: len(x) for k, x in only.items()} == {
        "step_left_out": 1,
        "action_refused": 0,
        "action_replaced": 1,
        "order_reversed": 1,
        "ending_of_another_task": 0,
    }
    here = won(doubles.task(1, 1, 4))  # one step: nothing is left without it
    assert hard_negatives([here], seed=0)["step_left_out"] == []
    assert hard_negatives([here], seed=0)["order_reversed"] == []
    unknown = dataclasses.replace(won(A), success=None)
    assert not any(hard_negatives([EPISODES[0], unknown], seed=0).values())


def test_an_ending_that_reads_alike_is_no_flaw():
    twin = dataclasses.replace(A, id="twin")
    both = hard_negatives([won(A), won(twin)], seed=0)
    assert both["ending_of_another_task"] == []


def test_one_won_attempt_of_a_task_is_examined():
    again = won(A, ["go right", "go left", *actions(WON)])
    rows = hard_negatives([won(A), again], seed=0)["order_reversed"]
    assert [p.better for p in rows] == [WON]


def test_lenders_of_the_same_family_come_first():
    far = dataclasses.replace(B, id="far", family="far")
    near = doubles.task(4, 3, 4)
    assert near.family == A.family != far.family
    others = [won(far), lost(far, "sing")]
    rows = hard_negatives([won(A), *others, won(near), lost(near, "hum")], seed=0)
    assert rows["ending_of_another_task"][0].worse[-1] == won(near).transitions[-1]
    assert "hum" in actions(rows["action_refused"][0].worse)
    rows = hard_negatives([won(A), *others], seed=0)
    assert rows["ending_of_another_task"][0].worse[-1] == won(far).transitions[-1]


@pytest.mark.parametrize("kind", ["step_left_out", "action_replaced"])
def test_draws_depend_on_the_seed_and_the_task(kind):
    episodes = [won(t) for t in doubles.tasks("train")]
    long = [e for e in episodes if len(e.transitions) > 3][:8]
    long.append(lost(long[0].task, "go left", "go right"))
    first, other = (hard_negatives(long, seed=s)[kind] for s in (0, 1))
    assert first == hard_negatives(long[::-1], seed=0)[kind] != other
