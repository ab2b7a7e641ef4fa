import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.text import prompts
from worldmodel.text.identifiers import ReferenceRule
from worldmodel.text.references import (
    ACTION_PLACES,
    ARGUMENTS,
    MARKED_LINES,
    NUMBERS,
    ReferenceTokenizer,
    reference_rule,
    with_references,
)
from worldmodel.text.task_variations import variation_ids
from worldmodel.text.tokenizer import REFERENCES, TextTokenizer

RULE = ReferenceRule(frozenset({"book", "held", "costs"}), numbers=True)
TOK = TextTokenizer.train(["book T25 costs 42"], 400, references=RULE)
PLAIN = TextTokenizer.train(["book T25 costs 42"], 400)
STATE = ("T25 costs 42", "T68 costs 17")


def view(*texts: str) -> ReferenceTokenizer:
    result = with_references(TOK, "", texts)
    assert isinstance(result, ReferenceTokenizer)
    return result


def trip(i: int):
    """A task of its own: book a train of a task; 3 and 4 trains make no name."""
    state = (f"T{20 + i} costs {300 + 7 * i}",)
    task = Task(id=f"t{i}", instruction="book it", family="trips", initial_state=state)
    return helpers.episode(
        f"e{i}",
        task,
        [
            helpers.transition(state, f"book T{20 + i}", (*state, "held it")),
        ],
    )


def test_an_identifier_is_one_token_and_all_else_is_text():
    ids = view("book T25").encode("held T25 (T25)")
    (first,) = set(ids) & set(TOK.references)
    held, mark, end = (TOK.encode_piece(x) for x in (" held", " (", ")"))
    assert ids == [*held, first, *mark, TOK.join, first, *end]


def test_without_references_nothing_changes():
    assert with_references(PLAIN, "book T25", ["T25"]) is PLAIN
    assert PLAIN.reference_rule is None
    assert not PLAIN.reference_mask().any()
    for text in ("held T25 (T25)", "", " x  y"):
        assert TOK.encode(text) == PLAIN.encode(text)
    assert TOK.vocab_size == PLAIN.vocab_size + len(REFERENCES) + 1


@given(st.text(alphabet='T2 5(,)\n"book:.', max_size=30), st.text(max_size=20))
def test_any_text_round_trips(text, other):
    for shown in (text, other, f"{text}{other}"):
        result = view(text, other)
        assert result.decode(result.encode(shown)) == shown


def test_a_name_that_was_never_seen_is_as_short_as_any():
    names = "Gwendolyn Tbilisi"
    assert len(view(names).encode(names)) == len(view("T25 T68").encode("T25 T68")) == 2


def test_other_names_change_nothing_but_what_is_read_back():
    """The invariance for which references are there: the ids do not depend on names.

    Of numbers they depend on the order alone.
    """
    names = {"T25": "Kyoto", "42": "7:30", "T68": "x_9", "17": "3.5"}

    def renamed(text: str) -> str:
        return " ".join(names.get(w, w) for w in text.split())

    a, b = view(*STATE), view(*map(renamed, STATE))
    for text in (*STATE, "book T68", "T25 T25 held 42"):
        assert a.encode(text) == b.encode(renamed(text))
        assert b.decode(a.encode(text)) == renamed(text)


def test_names_have_their_references_in_the_order_of_the_texts():
    for names in (("T25", "Kyoto", "T68"), ("x_9", "T25", "Ulm")):
        ids = [view(*names).encode(name) for name in names]
        assert ids == [[i] for i in TOK.references[ACTION_PLACES:][:3]]


def test_ranks_of_numbers_stand_in_the_order_of_their_values():
    result = view("costs 9:45 or 107, 7 or 07", "held 8.25 and 8.3")
    by_value = ["07", "7", "8.25", "8.3", "9:45", "107"]
    ids = [result.encode(number) for number in by_value]
    assert ids == [[i] for i in TOK.references[-NUMBERS:][:6]]


@pytest.mark.parametrize("numbers", [True, False])
def test_a_context_has_every_number_behind_its_rank(numbers):
    """So that a model reads which of two numbers is larger, and how large they are."""
    rule = RULE._replace(numbers=numbers, words=RULE.words | {"5"})
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=rule)
    result = with_references(tok, "", ("T25 costs 42", "(17) 5"))
    assert isinstance(result, ReferenceTokenizer)
    reads, writes = result.context_view, result
    five, seventeen, most = tok.references[-NUMBERS:][:3]
    assert reads.encode("costs 42") == [*tok.encode("costs"), most, *tok.encode("42")]
    pieces = [tok.encode_piece(x) for x in (" (", "17", ")", " 5")]
    assert reads.encode("(17) 5") == [
        *pieces[0],
        seventeen,
        *pieces[1],
        *pieces[2],
        five,
        *pieces[3],
    ]
    assert reads.decode(reads.encode("T25 costs 42 (17)")) == "T25 costs 42 (17)"
    # A reply has references where numbers are copied, and digits where they are
    # computed. Known numbers are text in any case.
    assert writes.encode("42") == ([most] if numbers else tok.encode("42"))
    assert writes.encode("5") == tok.encode("5")
    assert writes.unused_references()[five]
    assert writes.unused_references()[most] == (not numbers)


def test_unused_references_can_be_banned():
    result = view(*STATE)
    unused = result.unused_references()
    assert unused.sum() == len(REFERENCES) - 4
    assert not unused[result.encode(" ".join(STATE))].any()


def test_the_first_words_have_the_references_where_these_do_not_suffice():
    names = [f"N{i}" for i in range(len(REFERENCES) + 5)]
    result = view(*names)
    assert len(result.encode(names[0])) == 1
    assert len(result.encode(names[-1])) == len(PLAIN.encode(names[-1]))


def test_a_saved_tokenizer_keeps_its_references(tmp_path):
    TOK.save(tmp_path)
    loaded = TextTokenizer.load(tmp_path)
    assert loaded.reference_rule == RULE
    assert (loaded.references, loaded.join) == (TOK.references, TOK.join)
    result = with_references(loaded, "", STATE)
    assert result.encode(STATE[0]) == view(*STATE).encode(STATE[0])


def test_text_from_outside_is_no_reference():
    assert not set(TOK.encode("<|dg_ref0|> <|dg_join|>")) & set(TOK.references)


def test_a_reply_is_read_back_with_its_names():
    result = view(*STATE)
    t = helpers.transition(STATE, "book T68", (*STATE, "held T68"), reasoning="T68 17")
    reply = prompts.parse_reply(result, prompts.reply_ids(result, t), STATE)
    assert (reply.next_state, reply.reasoning, reply.error) == (
        t.next_state,
        "T68 17",
        None,
    )


def test_contexts_have_ranks_and_digits_and_replies_have_references():
    state = ("T25 costs 42",)
    task = Task(id="t", instruction="book", initial_state=state)
    tok = prompts.query_tokenizer(TOK, task, (), (), state, "book T25")
    query = prompts.query_ids(tok, task, (), (), state, "book T25", history=0)
    (rank,) = tok.encode("42")
    after = helpers.transition(state, "book T25", ("held 42",))
    reply = prompts.reply_ids(tok, after)
    for ids in (query, variation_ids(tok, [SeedTask(task)])):
        at = ids.index(rank) + 1
        assert ids[at : at + 2] == TOK.encode("42")
    at = reply.index(rank) + 1
    assert reply[at : at + 2] != TOK.encode("42")


def test_the_rule_knows_the_form_and_not_the_names():
    rule = reference_rule([trip(i) for i in range(40)])
    assert rule is not None
    assert rule.numbers
    assert {"book", "held", "it", "costs"} <= rule.words
    assert not {"T20", "T59", "300"} & rule.words


def test_there_is_no_rule_where_few_tasks_hold_a_name():
    plain = [helpers.lamp_and_door(f"room-{i}") for i in range(40)]
    assert reference_rule(plain) is None
    named = [trip(i) for i in range(40)]
    assert reference_rule(named, references=False, markers=False) is None
    some = [*plain, *(trip(i) for i in range(4))]
    same = [
        e.__class__(
            **{
                **vars(e),
                "task": e.task.__class__(**{**vars(e.task), "family": "room"}),
            }
        )
        for e in some
    ]
    assert reference_rule(same) is None


def test_numbers_stay_text_where_they_are_computed():
    rule = ReferenceRule(RULE.words, numbers=False)
    tok = TextTokenizer.train(["T25 costs 42"], 400, references=rule)
    result = with_references(tok, "", STATE)
    assert set(result.encode("T25")) & set(tok.references)
    assert result.encode("42") == tok.encode("42")
    assert np.sum(~result.unused_references() & tok.reference_mask()) == 3


def delivery(i: int, rooms=("studio", "vault", "attic", "sauna")):
    """A task of few known words, of which two are its arguments."""
    source, target = rooms[i % 4], rooms[(i + 1 + i // 4 % 3) % 4]
    state = (f"hall north {source}", f"at {target}")
    task = Task(
        id=f"d{i}",
        instruction=f"kindly bring the coin from {source} to {target}"[7 * (i % 2) :],
        family="deliveries",
        initial_state=state,
    )
    step = helpers.transition(state, "move north", (state[0], f"coin at {source}"))
    return helpers.episode(f"e{i}", task, [step])


DELIVERIES = [delivery(i) for i in range(40)]
MARKED = TextTokenizer.train(
    ["bring the coin from studio to vault attic sauna at hall north"] * 3,
    400,
    references=reference_rule(DELIVERIES),
)


def test_the_words_in_which_instructions_differ_are_their_arguments():
    rule = MARKED.reference_rule
    assert rule is not None
    assert rule.template is not None
    assert not rule.identifiers
    assert {"bring", "the", "coin", "from", "to"} <= rule.template
    assert not {"studio", "vault", "attic", "sauna"} & rule.template
    # A word that no state and no action holds would have a marker for nothing.
    assert "kindly" in rule.template
    assert reference_rule(DELIVERIES, markers=False) is None


def test_a_marker_says_at_which_place_the_instruction_names_a_word():
    task = DELIVERIES[0].task
    result = with_references(MARKED, task.instruction, [])
    first, second, *_ = MARKED.references
    ids = result.encode("studio at (vault) attic")
    plain = [MARKED.encode_piece(x) for x in (" studio at (", "vault) attic")]
    assert ids == [first, *plain[0], second, *plain[1]]
    assert result.decode(ids) == "studio at (vault) attic"
    unused = result.unused_references()
    assert unused.sum() == len(REFERENCES) + 1 - 2  # the markers, and not `join`
    assert not unused[[first, second]].any()


def test_markers_do_not_depend_on_which_words_the_task_names():
    """What tells an arrival at the named room is the same token in every task."""
    for e in DELIVERIES[:4]:
        words = e.task.instruction.split()
        source, target = words[-3], words[-1]
        result = with_references(MARKED, e.task.instruction, [])
        ids = result.encode(f"at {source} to {target}")
        assert [i for i in ids if i in MARKED.references] == MARKED.references[:2]


def test_a_word_that_no_training_task_named_has_a_marker_too():
    instruction = "bring the coin from observatory to vault"
    result = with_references(MARKED, instruction, [])
    assert result.encode("observatory")[0] == MARKED.references[0]


def test_an_identifier_that_is_an_argument_is_its_marker_alone():
    rule = RULE._replace(template=frozenset({"book"}))
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=rule)
    result = with_references(tok, "book T25", ("book T25", *STATE))
    assert result.encode("T25") == tok.references[:1]
    (other,) = result.encode("T68")
    assert tok.references.index(other) >= ARGUMENTS
    counted = RULE._replace(numbers=False, template=frozenset({"book"}))
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=counted)
    result = with_references(tok, "book 42", ["42"])
    assert result.encode("42") == [tok.references[0], *tok.encode("42")]


@pytest.mark.parametrize("template", [None, frozenset({"book", "with"})])
def test_what_the_action_names_has_the_same_references_in_every_query(template):
    rule = RULE._replace(template=template)
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=rule)
    first = 0 if template is None else ARGUMENTS
    action_tokens = tok.references[first : first + ACTION_PLACES]
    others = set()
    for i in (25, 26):  # whatever the name
        action, state = f"book T{i} 42", (f"T{i} costs 42", "T68 costs 17")
        result = with_references(tok, "", state, action=action)
        place, (marker, rank) = (result.encode(w) for w in (f"T{i}", "42"))
        assert [*place, marker] == action_tokens[:2]
        assert rank in tok.references[-NUMBERS:]  # a number has its rank besides
        others.update(result.encode("T68"))
    assert len(others) == 1
    assert not others & set(action_tokens)


def test_an_action_that_names_many_things_has_places_for_the_first_ones():
    names = [f"T{i}" for i in range(ACTION_PLACES + 3)]
    result = with_references(TOK, "", (), action=" ".join(names))
    ids = result.encode(" ".join(names))
    assert ids[:ACTION_PLACES] == TOK.references[:ACTION_PLACES]
    assert len(set(ids)) == len(names)
    assert result.decode(ids) == " ".join(names)
    # The argument of an instruction keeps its marker.
    rule = RULE._replace(template=frozenset({"book"}))
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=rule)
    result = with_references(tok, "book T1", (), action="book T0 T1")
    assert result.encode("T1") == tok.references[:1]
    assert result.encode("T0") == tok.references[ARGUMENTS : ARGUMENTS + 1]


ITEMS = ("bowl", "spoon", "apple", "cup")


def taking(i: int):
    """A task without names and arguments; what actions name stands in the state."""
    item, other = ITEMS[i % 4], ITEMS[(i + 1) % 4]
    state = (f"table: {item}, {other}", "sink: nothing", "said ok on")
    task = Task(id=f"k{i}", instruction="tidy", family="kitchen", initial_state=state)
    actions = (f"take {item}", f"put {item} on sink", "look")
    return helpers.episode(
        f"e{i}",
        task,
        [helpers.transition(state, a, (*state[:2], "done")) for a in actions],
    )


KITCHEN = [taking(i) for i in range(8)]
KITCHEN_TOK = TextTokenizer.train(
    ["table sink bowl spoon apple cup nothing take put"] * 3,
    400,
    references=reference_rule(KITCHEN),
)


def test_the_words_in_which_actions_differ_are_their_arguments():
    rule = KITCHEN_TOK.reference_rule
    assert rule is not None
    assert (rule.identifiers, rule.template) == (False, None)
    assert rule.action_template is not None
    assert {"on", "sink"} <= rule.action_template  # every put has them
    assert not set(ITEMS) & rule.action_template
    state = KITCHEN[0].task.initial_state  # random players say what no game takes
    actions = [f"put {a} {b} table" for a in ITEMS for b in ITEMS]
    steps = [helpers.transition(state, a, state) for a in actions]
    noise = helpers.episode("noise", KITCHEN[0].task, steps)
    assert reference_rule([*KITCHEN, noise]) == rule
    assert reference_rule(KITCHEN, markers=False) is None


@pytest.mark.parametrize("item", [*ITEMS, "corkscrew"])  # whatever the word
def test_what_an_action_names_is_marked_with_the_lines_that_hold_it(item):
    state = (f"table: {item}, plate", "sink: nothing")
    result = with_references(KITCHEN_TOK, "tidy", state, action=f"take {item}")
    mark = KITCHEN_TOK.references[0]
    assert result.line_marks(state) == [[mark], []]
    assert result.encode(item)[0] == mark
    ids = prompts.state_ids(result, state)
    assert ids[1:3] == [KITCHEN_TOK.line(0), mark]
    assert ids.count(mark) == 2  # before its line and before its word
    assert result.context_view.line_marks(state) == [[mark], []]


def test_lines_are_marked_by_the_place_in_the_action_also_of_known_arguments():
    rule = RULE._replace(template=frozenset({"book"}), action_template=frozenset())
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=rule)
    state = ("T25 costs 42", "Ada pays", "T68 costs 42")
    result = with_references(tok, "book T25", state, action="book T25 Ada")
    first, second = tok.references[ARGUMENTS : ARGUMENTS + 2]
    assert result.line_marks(state) == [[first], [second], []]
    assert result.encode("T25") == tok.references[:1]  # as the instruction names it
    assert result.encode("Ada") == [second]  # the mark of its line


def test_a_word_that_many_lines_hold_marks_none():
    few = [f"shelf {i}: bowl" for i in range(MARKED_LINES)]
    result = with_references(KITCHEN_TOK, "tidy", few, action="take bowl")
    assert all(result.line_marks(few))
    many = [*few, "floor: bowl"]
    assert not any(result.line_marks(many))


def test_without_an_action_or_a_rule_no_line_is_marked():
    state = KITCHEN[0].task.initial_state
    for tok in (KITCHEN_TOK, with_references(KITCHEN_TOK, "tidy", state), PLAIN):
        assert tok.line_marks(state) == [[]] * len(state)
    old = RULE._replace(template=frozenset({"book"}))  # of a run before line marks
    tok = TextTokenizer.train(["book T25 costs 42"], 400, references=old)
    result = with_references(tok, "", STATE, action="book T25")
    assert result.line_marks(STATE) == [[], []]


@given(st.text(alphabet="studio vault(),.7\n", max_size=30), st.text(max_size=20))
def test_any_text_round_trips_with_markers(text, other):
    instruction = f"from studio to {other} vault 7"
    result = with_references(MARKED, instruction, [text, other])
    for shown in (text, other, f"{text}{other}", instruction):
        assert result.decode(result.encode(shown)) == shown


@pytest.mark.parametrize("tok", [MARKED, KITCHEN_TOK])
def test_a_saved_tokenizer_keeps_its_markers(tok, tmp_path):
    tok.save(tmp_path)
    assert TextTokenizer.load(tmp_path).reference_rule == tok.reference_rule
    old = '{"words": ["book"], "numbers": true}'
    assert ReferenceRule.parse(old) == ReferenceRule(frozenset({"book"}), True)


def test_rewards_are_written_in_digits():
    """The grammar of replies takes numbers for rewards, and no references."""
    result = view("42", *STATE)
    ids = prompts.reward_and_outcome_ids(result, 42.0, "go")
    assert not set(ids) & set(TOK.references)
