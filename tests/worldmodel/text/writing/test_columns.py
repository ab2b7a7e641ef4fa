"""Grids with their columns: by hand, there and back, and where they are used."""

import dataclasses
import random

import pytest

from tests import doubles, helpers
from worldmodel import reasoning
from worldmodel.data.records import Task
from worldmodel.experience.base import Query
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.contexts import query_context
from worldmodel.experience.examples import train_tokenizer
from worldmodel.text import prompts
from worldmodel.text.writing.columns import (
    Grid,
    find_grid,
    grid_words,
    read_columns,
    with_columns,
    write_columns,
)
from worldmodel.text.writing.number_changes import ALL_LINES
from worldmodel.text.writing.states import StateWriting, written_transition

LINES = 32
ROOM = ("# # # #", "# @ . #", "# . o #", "# # # #")
NUMBERED = ("row 0 A F F", "row 1 H F F", "row 2 H F G", "said ok row 0")
LETTERS = ("SFFF", "FHFH", "FFFH")
CELLS = frozenset("#.o@-OAFHGS012")


@pytest.mark.parametrize(
    ("state", "grid"),
    [
        (ROOM, Grid(0, 4, 4, compact=False)),
        (("1 0 1", "2 1 1", "2 2 0"), Grid(0, 3, 3, compact=False)),
        # Rows that are numbered.
        (NUMBERED, None),
        ((*NUMBERED[:3], "said ok row 0 0"), None),
        (("7 - - O", "8 O - -", "9 - O -"), None),
        (("level 4", *LETTERS, "steps 7"), Grid(1, 3, 4, compact=True)),
        (("9" * 5000 + " . .",) * 3, Grid(0, 3, 3, compact=False)),
        # Too small; words of other lines.
        (("# # #", "# @ #"), None),
        (("- -", "- @", "- -"), None),
        (("kitchen south yard", "yard west pantry", "pantry east kitchen"), None),
        ((), None),
        # More than single spaces could not be written again.
        (("#  # #", "#  @ #", "#  # #"), None),
    ],
)
def test_a_grid_is_found_by_hand(state, grid):
    assert find_grid(state, CELLS) == grid


def test_a_state_is_read_with_its_columns():
    assert with_columns(("hp 3", *LETTERS), CELLS, LINES) == (
        "column S F F",
        "column F H F",
        "column F F F",
        "column F H H",
        "hp 3",
        "S F F F",
        "F H F H",
        "F F F H",
    )
    assert with_columns(ROOM, CELLS, len(ROOM) + 3) == ROOM  # too many lines
    assert with_columns(("hp 3",), CELLS, LINES) == ("hp 3",)


def test_what_changes_is_written_in_the_fewer_lines():
    down = ("# # # #", "# . . #", "# @ o #", "# # # #")
    assert changed_lines(*write_columns(ROOM, down, CELLS, LINES)) == {
        1: "column # . @ #"
    }
    right = ("# # # #", "# . @ #", "# . o #", "# # # #")
    assert changed_lines(*write_columns(ROOM, right, CELLS, LINES)) == {5: "# . @ #"}


def changed_lines(before, after):
    pairs = enumerate(zip(before, after, strict=True))
    return {i: new for i, (old, new) in pairs if old != new}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ROOM, ROOM),
        (ROOM, ("# # # #", "# . . #", "# @ o #", "# # # #")),
        (ROOM, ("# # # #", "# . @ #", "# . o #", "# # # #")),
        (NUMBERED, ("row 0 F F F", "row 1 A F F", "row 2 H F G", "said ok row 1")),
        # Lines around the grid come and go; the grid ends, begins or is another one.
        (("level 4", *LETTERS), ("FFFF", "SHFH", "FFFH", "hurt", "steps 8")),
        (("level 4", *LETTERS), ("level 4", "you win")),
        (("you win",), ("level 4", *LETTERS)),
        (LETTERS, ("SFF", "FHF", "FFF")),
        (LETTERS, ROOM),
        (LETTERS, tuple(" ".join(row) for row in LETTERS)),
    ],
)
def test_states_are_written_and_read_back(before, after):
    _, written = write_columns(before, after, CELLS, LINES)
    assert read_columns(before, written, CELLS, LINES) == after


def test_random_grids_are_written_and_read_back():
    rng = random.Random(0)
    for _ in range(300):
        rows, width = rng.randint(2, 6), rng.randint(2, 6)
        shown = rng.choice(["", " "])

        def grid(rows=rows, width=width, shown=shown):
            cells = [rng.choices("#.o@", k=width) for _ in range(rows)]
            return tuple(shown.join(row) for row in cells)

        before = ("hp 3", *grid(), "said ok")
        other = list(before)
        for i in rng.sample(range(len(other)), k=2):
            other[i] = rng.choice(before)
        for after in (("hp 2", *grid(), "said no"), tuple(other), before[1:]):
            _, written = write_columns(before, after, CELLS, LINES)
            assert read_columns(before, written, CELLS, LINES) == after


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (("column # # # #", *ROOM), "not 4 columns of 4 cells"),
        ((*(["column . . . ."] * 5), *ROOM), "more than 4 columns"),
        (("column # # # #", "column # @ . #", "column # . o"), "not 4 columns"),
        (
            (
                "column # # # #",
                "column # . @ #",
                "column # . o #",
                "column # # # #",
                "gone",
            ),
            "not there any more",
        ),
    ],
)
def test_columns_that_do_not_fit_are_an_error(written, message):
    with pytest.raises(ValueError, match=message):
        read_columns(ROOM, written, CELLS, LINES)


MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def walk(seed):
    """Return an episode of a random walk in a room of 4 x 4 cells."""
    rng, at, steps = random.Random(seed), (1, 1), []
    for _ in range(12):
        action = rng.choice(list(MOVES))
        goal = tuple(
            min(max(x + d, 0), 3) for x, d in zip(at, MOVES[action], strict=True)
        )
        steps.append(helpers.transition(room(at), action, room(goal)))
        at = goal
    task = Task(id=f"t{seed}", instruction="walk", initial_state=steps[0].state)
    return reasoning.annotate(helpers.episode(f"e{seed}", task, steps))


def room(at):
    cells = [["."] * 4 for _ in range(4)]
    cells[at[0]][at[1]] = "@"
    return (*(" ".join(row) for row in cells), "hp 3")


WALKS = [walk(seed) for seed in range(8)]


@pytest.fixture(scope="module")
def tok():
    return train_tokenizer(WALKS, 400)


def test_columns_are_used_where_steps_change_them(tok, tmp_path):
    assert grid_words(WALKS) == {".", "@"}
    tok.save(tmp_path)
    assert type(tok).load(tmp_path).writing == tok.writing
    assert tok.writing.columns
    assert not train_tokenizer(WALKS, 400, columns=False).writing.columns
    # A table, of which two lines change in one step, has words of its own in each
    # column, and a list of texts changes otherwise.
    table = [f"order {k} picked no" for k in ("cup", "mug", "pan")]
    picked = [x.replace("no", "yes") for x in table]
    steps = [helpers.transition(tuple(table), "pick", tuple(picked))] * 40
    assert grid_words([helpers.episode("e", WALKS[0].task, steps)]) == frozenset()
    # An environment that has lines of columns itself needs no other ones.
    ours = [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(t, next_state=(*t.next_state, "column 3"))
                for t in e.transitions
            ),
        )
        for e in WALKS
    ]
    assert grid_words(ours) == frozenset()
    # By steps to the left and right they would not be.
    aside = [
        dataclasses.replace(
            e,
            transitions=tuple(
                t for t in e.transitions if t.action in ("left", "right")
            ),
        )
        for e in WALKS
    ]
    assert not grid_words(aside)
    assert not grid_words([doubles.expert(t) for t in doubles.tasks("train")[:40]])


def down_step():
    return next(t for e in WALKS for t in e.transitions if _moves(t, "down"))


def _moves(t, action):
    return t.action == action and t.state != t.next_state


def test_models_read_columns_and_write_them(tok):
    t = down_step()
    query = Query(WALKS[0].task, (), t.state, t.action)
    context = query_context(tok, ExperienceConfig(), query, ())
    policy = prompts.policy_context_ids(tok, WALKS[0].task, (), t.state, history=0)
    for ids in (context.ids, policy):
        text = tok.decode([i for i in ids if tok.name(i) is None])
        assert text.count("column") == 4
    # One line is written, in the column where the walker is.
    effect = prompts.effect_ids(tok, t.state, t.next_state)
    lines = [name for i in effect if (name := tok.name(i) or "").startswith("line")]
    column = next(j for j in range(4) if any(x.split()[j] == "@" for x in t.state[:4]))
    assert lines == [f"line{column}"]
    for step in (x for e in WALKS for x in e.transitions):
        reply = prompts.parse_reply(tok, prompts.reply_ids(tok, step), step.state)
        assert (reply.next_state, reply.error) == (step.next_state, None)
        whole = prompts.reply_ids(tok, step, full=True)
        assert prompts.parse_reply(tok, whole, step.state).next_state == step.next_state


def test_a_reply_without_its_columns_is_malformed(tok):
    t = down_step()
    ids = [tok.control("next"), tok.line(0), *tok.encode("gone")]
    ids += prompts.reward_and_outcome_ids(tok, 0.0, "go")
    reply = prompts.parse_reply(tok, ids, t.state)
    assert reply.next_state == t.state
    assert "the grid has not 4 columns" in reply.error


def test_traces_say_what_changes_as_it_is_written(tok):
    episode = reasoning.set_rule_traces(WALKS[0], enabled=True, writing=tok.writing)
    said = {}
    for before, after in zip(WALKS[0].transitions, episode.transitions, strict=True):
        assert after == dataclasses.replace(before, reasoning=after.reasoning)
        if before.state != before.next_state:
            said[before.action] = after.reasoning
    assert said.keys() == MOVES.keys()
    for action in ("up", "down"):
        assert said[action].endswith("as column change")
    for action in ("left", "right"):
        assert "column" not in said[action]


def test_tasks_are_varied_without_columns(tok):
    task = WALKS[0].task
    ids = prompts.variation_reply_ids(tok, task)
    assert prompts.parse_variation(tok, ids) == (task.instruction, task.initial_state)
    for text in (ids, prompts.variation_ids(tok, task)):
        assert "column" not in tok.decode([i for i in text if tok.name(i) is None])


def test_numbers_and_columns_are_written_together():
    writing = StateWriting(CELLS, ALL_LINES, LINES)
    step = helpers.transition(
        ("- @ -", "- - -", "- - -", "oil 9"),
        "down",
        ("- - -", "- @ -", "- - -", "oil 7"),
    )
    written = written_transition(step, writing)
    assert written.next_state[1] == "column - @ -"
    assert written.next_state[-1] == "oil +-2"
    assert writing.read(step.state, written.next_state) == step.next_state
