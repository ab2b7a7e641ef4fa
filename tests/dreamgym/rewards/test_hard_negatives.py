"""Flawed copies of won attempts, worked out by hand on small corridors."""

import dataclasses

import pytest

from dreamgym.rewards.hard_negatives import KINDS, hard_negatives, needed_steps
from dreamgym.rewards.preferences import Preference
from tests import doubles

A, B = doubles.task(0, 2, 4), doubles.task(3, 1, 4)


def pair(task, worse=("go left",), better=None) -> Preference:
    won = doubles.plan(task.initial_state) if better is None else better
    return Preference(
        task=task,
        better=doubles.episode(task, won).transitions,
        worse=doubles.episode(task, list(worse)).transitions,
    )


def actions(attempt):
    return [t.action for t in attempt]


# In the corridor only an unknown action and `take coin` without a coin are refused.
PAIRS = [pair(A), pair(B, worse=("sing", "go right"))]


def test_steps_on_a_detour_or_without_effect_are_not_needed():
    straight = pair(A).better
    assert needed_steps(straight) == [0, 1, 2]
    # Rooms 0 1 0 1 2: room 0 comes again after steps 0 and 1, room 1 after 1 and 2.
    roundabout = pair(A, better=["go right", "go left", *actions(straight)]).better
    assert actions(roundabout)[:2] == ["go right", "go left"]
    assert needed_steps(roundabout) == [3, 4]
    # Against the wall: the state with this message stays.
    wall = doubles.task(2, 0, 2)
    way = ["go right", "go right", "go left", "go left", "take coin"]
    blocked = pair(wall, better=way)
    assert needed_steps(blocked.better) == [0, 2, 3, 4]
    # A last step that changes nothing still is the end.
    end = dataclasses.replace(straight[-1], next_state=straight[-1].state)
    assert needed_steps((*straight[:-1], end)) == [0, 1, 2]


def test_one_copy_of_each_kind_by_hand():
    copies = hard_negatives(PAIRS, seed=0)
    assert list(copies) == list(KINDS)
    assert {kind: len(x) for kind, x in copies.items()} == dict.fromkeys(KINDS, 2)
    for kind, rows in copies.items():
        for row, source in zip(rows, PAIRS, strict=True):
            assert (row.task, row.better) == (source.task, source.better)
            assert row.worse != row.better
            assert len(row.worse) == 3 - (kind == "step_left_out")
    won = PAIRS[0].better
    worse = {kind: rows[0].worse for kind, rows in copies.items()}
    assert worse["step_left_out"] in [(*won[:i], *won[i + 1 :]) for i in range(3)]
    assert worse["order_reversed"] == won[::-1]
    # The ending of the other task: the coin in room 1.
    ending = worse["ending_of_another_task"]
    assert ending == (*won[:2], PAIRS[1].better[-1])
    # `sing` is the only action that was refused; it leaves the state as it was.
    ((i, refused),) = changed(won, worse["action_refused"])
    assert (refused.action, refused.next_state) == ("sing", won[i].state)
    assert refused.invalid
    assert not refused.success
    # `go left` is the only other action that was taken; what followed is kept.
    ((i, other),) = changed(won, worse["action_replaced"])
    assert other == dataclasses.replace(won[i], action="go left")


def changed(won, copy):
    """The steps of a copy that differ, with their places."""
    pairs = enumerate(zip(won, copy, strict=True))
    return [(i, b) for i, (a, b) in pairs if a != b]


def test_listed_actions_come_first():
    won = PAIRS[0].better
    listed = tuple(
        dataclasses.replace(t, valid_actions=(t.action, "wait", "sing")) for t in won
    )
    rows = hard_negatives(
        [dataclasses.replace(PAIRS[0], better=listed), *PAIRS[1:]], seed=0
    )
    ((_, other),) = changed(listed, rows["action_replaced"][0].worse)
    assert other.action in ("wait", "sing")
    # `sing`, refused elsewhere, would be taken here: no refused action is left.
    assert [p.task.id for p in rows["action_refused"]] == [B.id]


def test_what_cannot_be_made_is_left_out():
    only = hard_negatives(PAIRS[:1], seed=0)
    # Nothing was refused, and there is no other task.
    assert {k: len(x) for k, x in only.items()} == {
        "step_left_out": 1,
        "action_refused": 0,
        "action_replaced": 1,
        "order_reversed": 1,
        "ending_of_another_task": 0,
    }
    here = doubles.task(1, 1, 4)  # one step: nothing is left without it, or reversed
    assert hard_negatives([pair(here)], seed=0)["step_left_out"] == []
    assert hard_negatives([pair(here)], seed=0)["order_reversed"] == []
    lost = dataclasses.replace(PAIRS[0], better=PAIRS[0].worse)  # a person's choice
    assert not any(hard_negatives([lost], seed=0).values())


def test_an_ending_that_reads_alike_is_no_flaw():
    twin = dataclasses.replace(A, id="twin")
    both = hard_negatives([pair(A), pair(twin)], seed=0)
    assert both["ending_of_another_task"] == []


def test_donors_of_the_same_family_come_first():
    far = dataclasses.replace(B, id="far", family="far")
    near = doubles.task(4, 3, 4)
    assert near.family == A.family != far.family
    rows = hard_negatives([pair(A), pair(far, ("sing",)), pair(near, ("hum",))], seed=0)
    assert rows["ending_of_another_task"][0].worse[-1] == pair(near).better[-1]
    assert "hum" in actions(rows["action_refused"][0].worse)
    rows = hard_negatives([pair(A), pair(far, ("sing",))], seed=0)
    assert rows["ending_of_another_task"][0].worse[-1] == pair(far).better[-1]


@pytest.mark.parametrize("kind", ["step_left_out", "action_replaced"])
def test_the_seed_draws_the_step(kind):
    tasks = [
        t for t in doubles.tasks("train") if len(doubles.plan(t.initial_state)) > 3
    ]
    pairs = [pair(t) for t in tasks[:8]]
    first, again, other = (hard_negatives(pairs, seed=s)[kind] for s in (0, 0, 1))
    assert first == again != other
