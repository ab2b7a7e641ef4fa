"""Names that stand for each other: by hand, and where the world depends on them."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

from worldmodel.data.json_reading import RecordError
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text import name_evidence, names

ROOMS = ("attic", "cellar", "hall", "kitchen", "pantry", "study")


def corridor(rooms, instruction="find the coin", locked=None, reveals=None):
    """Walk through rooms in a line; `locked` is a room that nobody can enter."""
    task = Task(
        id="-".join(rooms) + instruction,
        instruction=instruction,
        family="rooms",
        initial_state=(f"you are in {rooms[0]}",),
    )
    doors = tuple(f"east of {a} is {b}" for a, b in itertools.pairwise(rooms))
    steps, at = [], 0
    for _ in rooms:
        state = (f"you are in {rooms[at]}", *doors)
        if at + 1 < len(rooms) and rooms[at + 1] != locked:
            at += 1
        after = (f"you are in {rooms[at]}", *doors)
        steps.append(
            Transition(
                state=state,
                action="go east",
                next_state=after,
                rewards={"env": float(at + 1 == len(rooms))},
                reveals=reveals,
            )
        )
    return Episode(
        id=task.id, task=task, transitions=tuple(steps), source="random", success=False
    )


def walks(**kwargs):
    """Every walk through three of the rooms."""
    return [corridor(r, **kwargs) for r in itertools.permutations(ROOMS, 3)]


def test_contexts_by_hand():
    lines = ["hall east attic", "to the hall"]
    assert names.word_contexts(lines, frozenset(["hall", "attic"])) == {
        "hall": {(0, ""), (1, "east"), (0, "the"), (1, "")},
        "attic": {(0, "east"), (1, "")},
    }
    # A neighbour that is a name counts as any name.
    both = names.word_contexts(["hall attic"], frozenset(["hall", "attic"]))
    assert both["hall"] == {(0, ""), (1, "a name")}


def test_rooms_stand_for_each_other():
    assert names.interchangeable_names(walks(reveals=False)) == {"rooms": (ROOMS,)}


def test_not_where_the_result_depends_on_the_name():
    """The control: the same words, in a world in which one room is locked."""
    assert names.interchangeable_names(walks(reveals=False, locked="study")) == {}


def test_not_without_evidence():
    """What every step reveals can show nothing, nor can a few episodes."""
    assert names.interchangeable_names(walks(reveals=True)) == {}
    assert names.interchangeable_names(walks(reveals=False)[:6]) == {}


def test_declared_names_come_before_those_that_episodes_show():
    episodes = walks(reveals=False)
    found = {"rooms": (("attic", "study"), ("red", "blue"))}
    declared = (("blue", "green"),)
    assert names.with_declared(found, (), episodes) == found
    groups = {"rooms": (*declared, ("attic", "study"))}  # a word is in one group
    assert names.with_declared(found, declared, episodes) == groups
    assert names.with_declared({}, declared, episodes) == {"rooms": declared}
    assert names.missing_names(((ROOMS[0], "moon"), ROOMS[1:3]), episodes) == ["moon"]


def test_few_pairs_make_names_doubtful():
    """What a trial has accepted stays, unless the episodes speak against it."""
    few = walks(reveals=False)[:8]
    doubtful = {"rooms": (ROOMS[1:],)}  # none of these walks begins in the attic
    assert names.interchangeable_names(few) == {}
    assert names.interchangeable_names(few, names.TRIAL_PAIRS) == doubtful
    assert names.interchangeable_names(few, trial_names={"rooms": (ROOMS,)}) == doubtful
    assert names.interchangeable_names(few, trial_names={"other": (ROOMS,)}) == {}
    locked = walks(reveals=False, locked="study")
    assert names.interchangeable_names(locked, names.TRIAL_PAIRS) == {}
    assert names.interchangeable_names(locked, trial_names=doubtful) == {}


def test_a_world_that_draws_lots_is_no_evidence_against_names():
    """Steps with the same names disagree as often, so names are not the cause."""
    rng = np.random.default_rng(0)
    episodes = []
    for episode in walks(reveals=False) * 3:
        steps = tuple(
            dataclasses.replace(t, next_state=t.state) if rng.random() < 0.3 else t
            for t in episode.transitions
        )
        episodes.append(dataclasses.replace(episode, transitions=steps))
    assert names.interchangeable_names(episodes) == {"rooms": (ROOMS,)}


def test_numbers_and_verbs_are_no_names():
    episodes = [
        Episode(
            id=f"{i}",
            task=Task(id=f"{i}", instruction=f"reach {i}", family="numbers"),
            transitions=(
                Transition(
                    state=(f"at {i}",),
                    action=f"{verb} {i}",
                    next_state=(f"at {i}",),
                    reveals=False,
                ),
            ),
            source="random",
            success=False,
        )
        for i, verb in enumerate(["add", "take", "lose", "keep"] * 20)
    ]
    assert names.interchangeable_names(episodes) == {}


@pytest.mark.parametrize("draw", [1, 2, 3])
def test_names_are_exchanged_everywhere_and_by_a_permutation(draw):
    episode = corridor(("attic", "hall", "study"), instruction="bring me to study")
    thought, why = "the study is near", "attic then hall"
    first = dataclasses.replace(
        episode.transitions[0],
        thought=thought,
        reasoning=why,
        valid_actions=("go east", "call attic"),
    )
    episode = dataclasses.replace(
        episode, transitions=(first, *episode.transitions[1:])
    )
    (other,) = names.with_exchanged_names([episode], {"rooms": (ROOMS,)}, draw=draw)
    renames: dict[str, str] = {}
    for old, new in zip(_texts(episode), _texts(other), strict=True):
        a, b = re.findall(r"\w+", old), re.findall(r"\w+", new)
        for word, replaced in zip(a, b, strict=True):
            assert renames.setdefault(word, replaced) == replaced
            assert (word in ROOMS) == (replaced in ROOMS)
            assert word in ROOMS or word == replaced
    assert len(set(renames.values())) == len(renames)
    assert (other.id, other.task.id) == (episode.id, episode.task.id)
    assert [t.reward for t in other.transitions] == [
        t.reward for t in episode.transitions
    ]


def _texts(episode):
    yield episode.task.instruction
    yield from episode.task.initial_state
    for t in episode.transitions:
        yield from (*t.state, t.action, *t.next_state)
        yield from (t.thought or "", t.reasoning or "", *t.valid_actions)


def test_draws_differ_and_repeat():
    groups = {"rooms": (ROOMS,)}
    episodes = walks()[:4]
    assert names.with_exchanged_names(episodes, groups, draw=0) == episodes
    assert names.with_exchanged_names(episodes, {}, draw=1) == episodes
    one, again, two = (
        names.with_exchanged_names(episodes, groups, draw=d) for d in (1, 1, 2)
    )
    assert one == again
    assert one != two
    # Each episode has a permutation of its own.
    renamed = {e.task.instruction + str(e.task.initial_state) for e in one}
    assert len(renamed) > 1
    elsewhere = dataclasses.replace(
        episodes[0], task=dataclasses.replace(episodes[0].task, family="other")
    )
    assert names.with_exchanged_names([elsewhere], groups, draw=1) == [elsewhere]


def test_saved_names_are_read_back(tmp_path):
    groups = {"rooms": (ROOMS, ("coin", "map")), "empty": ()}
    names.save_names(tmp_path / "names.json", groups)
    assert names.load_names(tmp_path / "names.json") == groups


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"rooms": "hall"}', '{"rooms": [["hall", 3]]}']
)
def test_damaged_names_are_refused_with_their_file(tmp_path, text):
    path = tmp_path / "names.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"names\.json"):
        names.load_names(path)


# --- few tasks, several families ---------------------------------------------


def test_names_that_every_task_has_seen_are_found_where_they_change_places():
    """Each task holds all rooms, and its first state one: they are no part of the form.

    The words around them, which stand in one place, are.
    """
    rooms = list(itertools.permutations(ROOMS))[::40]
    assert names.interchangeable_names([corridor(r, reveals=False) for r in rooms]) == {
        "rooms": (ROOMS,)
    }


def in_family(episodes, family):
    """The episodes, as tasks of another family."""
    return [
        dataclasses.replace(
            e, task=dataclasses.replace(e.task, id=f"{family}{i}", family=family)
        )
        for i, e in enumerate(episodes)
    ]


def test_families_with_names_in_common_share_the_evidence():
    half = walks(reveals=False)[::12]
    one, other = in_family(half, "one"), in_family(half, "other")
    assert names.interchangeable_names(one) == {}
    groups = names.interchangeable_names([*one, *other])
    assert groups == {"one": (ROOMS,), "other": (ROOMS,)}
    # The control: a family in which a name counts is left out, and is no evidence.
    locked = in_family(walks(reveals=False, locked="study")[::12], "locked")
    assert names.interchangeable_names([*one, *locked]) == {}
    # So is one of which too little is known to see it.
    few = in_family(walks(reveals=False, locked="study")[1::100], "few")
    everything = in_family(walks(reveals=False), "everything")
    assert names.interchangeable_names([*everything, *few]) == {"everything": (ROOMS,)}
    # A family of which nothing is known is neither.
    silent = in_family(walks(reveals=True), "silent")
    assert names.interchangeable_names([*one, *other, *silent]) == groups
    # And one with other names is none.
    renamed = [_renamed_all(e) for e in other]
    assert names.interchangeable_names([*one, *renamed]) == {}


OTHERS = ("alcove", "bakery", "chapel", "dairy", "foyer", "gallery")


def _renamed_all(episode):
    renames = dict(zip(ROOMS, OTHERS, strict=True))
    return names.rename_in_episode(episode, renames)


def opening(box, content, number):
    """A box is opened, which reveals what is in it, and its content is taken."""
    task = Task(
        id=f"{number}",
        instruction=f"take what is in {box}",
        family="boxes",
        initial_state=(f"here is {box}",),
    )
    closed, open_ = task.initial_state, (f"here is {box}", f"here is {content}")
    steps = (
        Transition(state=closed, action="open", next_state=open_, reveals=True),
        Transition(
            state=open_,
            action=f"take {content}",
            next_state=(f"here is {box}", f"you have {content}"),
            rewards={"env": 1.0},
            reveals=False,
        ),
    )
    return Episode(
        id=task.id, task=task, transitions=steps, source="random", success=True
    )


def test_what_is_known_by_its_name_is_not_exchanged():
    """In one world each box holds the same in all tasks, in the other anything."""
    rng = np.random.default_rng(0)
    fixed = dict(zip(ROOMS, ROOMS[1:] + ROOMS[:1], strict=True))
    boxes = [ROOMS[i % 6] for i in range(120)]
    anything = [opening(b, str(rng.choice(ROOMS)), i) for i, b in enumerate(boxes)]
    always = [opening(b, fixed[b], i) for i, b in enumerate(boxes)]
    assert names.interchangeable_names(anything) == {"boxes": (ROOMS,)}
    assert names.interchangeable_names(always) == {}


WAYS = ("down", "left", "right", "up")
BACK = {"down": "up", "left": "right", "right": "left", "up": "down"}


def way(there, back, further, number):
    """A way is taken and shows the way back; then nothing more happens."""
    task = Task(
        id=f"{number}",
        instruction="look around",
        family="ways",
        initial_state=(f"a way {there}",),
    )
    there_state = (f"a way {back}", f"a way {further}")
    steps = (
        Transition(
            state=task.initial_state,
            action=f"go {there}",
            next_state=there_state,
            reveals=True,
        ),
        Transition(
            state=there_state, action="wait", next_state=there_state, reveals=False
        ),
    )
    return Episode(
        id=task.id, task=task, transitions=steps, source="random", success=False
    )


@pytest.mark.parametrize("opposite", [True, False])
def test_names_that_belong_together_are_not_exchanged_one_by_one(opposite):
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(200):
        there, other, further = (str(w) for w in rng.choice(WAYS, 3, replace=False))
        back = BACK[there] if opposite else other
        if further == back:
            further = other
        episodes.append(way(there, back, further, i))
    expected = {} if opposite else {"ways": (WAYS,)}
    assert names.interchangeable_names(episodes) == expected


def test_a_text_that_looks_like_a_place_is_none():
    group = frozenset(["red", "blue", "green"])
    steps = steps_of("see red and blue", "see red and <1>")
    assert name_evidence.compare_places(steps, group).other_names.count == 0


def test_words_that_only_actions_hold_are_no_names():
    """A policy writes what the environment never shows, in the places of names."""
    episodes = []
    for i, e in enumerate(walks(reveals=False)):
        one, other = OTHERS[i % 6], OTHERS[(i + 1) % 6]
        rambling = f"go you are in {one} east of {one} is {other} east of {other} is"
        steps = tuple(
            dataclasses.replace(t, action=rambling) for t in e.transitions[:1]
        )
        episodes.append(
            dataclasses.replace(e, transitions=(*steps, *e.transitions[1:]))
        )
    assert names.interchangeable_names(episodes) == {"rooms": (ROOMS,)}


def steps_of(*lines):
    """Steps that change nothing, each in a state of one line."""
    return [
        name_evidence.Step(
            Task(id=str(i), instruction="look"),
            Transition(state=(line,), action="look", next_state=(line,)),
            frozenset(line.split()),
            False,
        )
        for i, line in enumerate(lines)
    ]


def test_words_that_keep_their_place_are_no_names():
    """A word that changes places is one, and so is a seldom one between such words."""
    group = frozenset(["hall", "attic", "cellar", "hub", "lift"])
    lines = [f"at {room} near hub" for room in ("hall", "attic") * 4]
    steps = steps_of(*lines)
    pairs = name_evidence.compare_places(steps, group)
    assert pairs.movable_words == {"hall", "attic"}
    assert pairs.fixed_words == {"hub"}
    texts = [*lines, "at cellar near hub", "at lift near hub", "so hub it is"]
    candidate = names._candidate(steps, texts, group, frozenset(["lift"]))
    # The lift is in every task, and never seen in the place of another one.
    assert candidate.names == ("attic", "cellar", "hall")
    assert candidate.agree
    assert candidate.pairs == pairs.other_names.count


def test_a_fixed_word_is_left_out_though_its_neighbours_are_those_of_names():
    group = frozenset(["hall", "attic", "hub"])
    lines = [f"at {room} at hub at" for room in ("hall", "attic") * 4]
    candidate = names._candidate(steps_of(*lines), lines, group, frozenset())
    assert candidate.names == ("attic", "hall")
