"""Grids with their columns: by hand, there and back, and where they are used."""

import dataclasses
import random

import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy
from dreamgym.config.shapes import MODELS
from tests import doubles, helpers
from worldmodel import reasoning
from worldmodel.backbone.model import create
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience import local
from worldmodel.experience.base import Query
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.contexts import query_context
from worldmodel.experience.examples import train_tokenizer
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.task_variations import (
    parse_variation,
    variation_ids,
    variation_reply_ids,
)
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
        (("level 4", *LETTERS, "steps 7"), Grid(1, 3, 4, compact=True)),
        # A line of other words ends it.
        ((*ROOM[:3], "you are next to it"), Grid(0, 3, 4, compact=False)),
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


@pytest.mark.parametrize("changes", [None, ALL_LINES])
def test_odd_states_are_read_back_with_columns_as_without(changes):
    """Whatever can be read back without columns can be with them."""
    rng = random.Random(1)
    lines = [
        *("# @ .", "# @ . #", "#.@", "....", "@..#", "202", "0 1 2", "a", ""),
        *("row 1 # @ .", "row 2 . . .", "1 # @ .", "# @  .", "x\ty z", "hp 3", "+2o"),
    ]
    cells = frozenset("#.o@012+")
    with_grid = StateWriting(cells, changes, LINES)
    plain = StateWriting(changes=changes)
    for _ in range(500):
        before = tuple(rng.choices(lines, k=rng.randint(0, 9)))
        after = tuple(rng.choices(lines, k=rng.randint(0, 9)))
        for new in (after, tuple(rng.sample(before, len(before)))):
            if read_back(plain, before, new) == new:
                assert read_back(with_grid, before, new) == new


def read_back(writing, before, after):
    try:
        return writing.read(before, writing.written(before, after)[1])
    except ValueError:
        return None


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


LABELS = {
    "a number": lambda i, row: f"{i} {row}",
    "a number and a sign": lambda i, row: f"{i}| {row}",
    "a number that goes down": lambda i, row: f"{8 - i} {row}",
    "a letter": lambda i, row: f"{'abcd'[i]} {row}",
    "a word and a number": lambda i, row: f"row {i} {row}",
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("line", ["hp 3", "now at . @ ."])
def test_rows_that_are_numbered_need_no_columns(name, line):
    def numbered(state):
        return (*(LABELS[name](i, row) for i, row in enumerate(state[:4])), line)

    walks = with_states(numbered)
    assert grid_words(walks) == frozenset()
    # They are grids: without their labels they have columns.
    assert grid_words(with_states(lambda state: (*state[:4], line)))


def with_states(change):
    """Return the walks with other states."""
    return [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(
                    t, state=change(t.state), next_state=change(t.next_state)
                )
                for t in e.transitions
            ),
        )
        for e in WALKS
    ]


def test_huge_numbers_are_words():
    huge = with_states(lambda state: tuple(f"{'9' * 5000} {x}" for x in state[:4]))
    assert grid_words(huge) == grid_words(WALKS)


def test_numbers_in_cells_are_no_labels():
    """In one state of many the first cells of the rows count up."""
    rng, steps = random.Random(0), []
    cells = list("12345678_")
    for _ in range(400):
        at = cells.index("_")
        row, column = divmod(at, 3)
        action = rng.choice([a for a, (d, _) in MOVES.items() if 0 <= row + d <= 2])
        new = (row + MOVES[action][0], (column + MOVES[action][1]) % 3)
        other = 3 * new[0] + new[1]
        before = puzzle(cells)
        cells[at], cells[other] = cells[other], cells[at]
        steps.append(helpers.transition(before, action, puzzle(cells)))
    words = grid_words([helpers.episode("e", WALKS[0].task, steps)])
    assert words == set("12345678_")
    assert all(find_grid(t.state, words) for t in steps)


def puzzle(cells):
    return tuple(" ".join(cells[i : i + 3]) for i in (0, 3, 6))


def test_text_beside_a_grid_hides_it_not():
    text = ("you can go to the red door now please",) * 5
    assert grid_words(with_states(lambda state: (*state, *text))) == {".", "@"}


def lamps(off, on):
    """Return an episode of lamps that are switched in crosses."""
    cells, rng, steps = [[off] * 4 for _ in range(4)], random.Random(0), []
    for _ in range(60):
        before = tuple(" ".join(row) for row in cells)
        at = rng.randrange(4), rng.randrange(4)
        for d in ((0, 0), *MOVES.values()):
            i, j = at[0] + d[0], at[1] + d[1]
            if 0 <= i < 4 and 0 <= j < 4:
                cells[i][j] = on if cells[i][j] == off else off
        after = tuple(" ".join(row) for row in cells)
        steps.append(helpers.transition(before, f"switch {at[0]} {at[1]}", after))
    task = Task(id="lamps", instruction="light all", family="lamps")
    return helpers.episode("lamps", task, steps)


def test_columns_of_one_family_are_not_read_in_another():
    assert grid_words([lamps("-", "O")]) == frozenset()
    words = grid_words([*WALKS, lamps("-", "O")])
    assert words == {".", "@"}
    assert all(find_grid(t.state, words) is None for t in lamps("-", "O").transitions)
    # Where both have the same words, neither has columns.
    assert grid_words([*WALKS, lamps(".", "@")]) == frozenset()


def test_the_dream_may_write_every_line_that_it_reads(tok, monkeypatch):
    class Asked(Exception):
        pass

    def generate(model, contexts, grammar, keys, *, banned, **rest):
        del model, contexts, grammar, keys, rest
        raise Asked(banned[0, [tok.line(i) for i in range(LINES)]].tolist())

    monkeypatch.setattr(local, "generate", generate)
    model = create(MODELS["nano"].model(tok.vocab_size), seed=0)
    dream = local.LocalExperienceModel(model, tok, ReplayMemory(), ExperienceConfig())
    t = down_step()
    with pytest.raises(Asked) as asked:
        dream.predict([Query(WALKS[0].task, (), t.state, t.action)])
    count = len(t.state) + 4
    assert asked.value.args[0] == [False] * count + [True] * (LINES - count)


def test_implicit_world_modelling_says_what_it_writes(tok):
    policy = Policy(doubles.model(0), tok, PolicyConfig())
    (episode,) = [e for e in WALKS if down_step() in e.transitions][:1]
    examples = early.iwm_examples(policy, [episode], [], reasoning=True)
    for t, example in zip(episode.transitions, examples, strict=True):
        target = [i for i, m in zip(example.ids, example.mask, strict=True) if m]
        text = tok.decode([i for i in target if tok.name(i) is None])
        vertical = t.action in ("up", "down") and t.state != t.next_state
        assert ("as column change" in text) == vertical


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
    ids = variation_reply_ids(tok, task)
    assert parse_variation(tok, ids) == (task.instruction, task.initial_state)
    for text in (ids, variation_ids(tok, [SeedTask(task)])):
        assert "column" not in tok.decode([i for i in text if tok.name(i) is None])


def test_a_cell_of_letters_is_one_letter():
    before, written = write_columns(LETTERS, ("FFFF", "SHFH", "FFFH"), CELLS, LINES)
    del before
    long = ("column F gone F", *written[1:])
    with pytest.raises(ValueError, match="one word has several letters"):
        read_columns(LETTERS, long, CELLS, LINES)


def test_what_looks_like_a_change_in_letters_is_none():
    writing = StateWriting(frozenset("@.#2o+"), ALL_LINES, LINES)
    before, after = ("@.#", "202", "+2o", "hp 3"), (".@#", "202", "+2o", "hp 5")
    _, written = writing.written(before, after)
    assert written[-1] == "hp +2"
    assert writing.read(before, written) == after


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
