"""Numbers as what they change by: by hand, there and back, and where they are used."""

import dataclasses
import json
import random
import string

import pytest

from tests import doubles
from worldmodel import reasoning
from worldmodel.data.records import Episode, Transition
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.examples import train_tokenizer, transition_examples
from worldmodel.memory import ReplayMemory
from worldmodel.text import edits, prompts
from worldmodel.text.identifiers import ReferenceRule
from worldmodel.text.references import reference_rule
from worldmodel.text.writing.number_changes import (
    ALL_LINES,
    ChangeRule,
    change_rule,
    read_changes,
    unread_changes,
    with_changes,
    write_changes,
)
from worldmodel.text.writing.states import StateWriting

HAND = [
    (("ice 9",), ("ice 13",), ("ice +4",)),
    (("sand 4", "turn 3"), ("sand 0", "turn 4"), ("sand +-4", "turn +1")),
    (("row 2 column 5",), ("row 3 column 5",), ("row +1 column 5",)),
    (("depth -3",), ("depth -5",), ("depth +-2",)),
    # A new thing, of which there was none; a line that only moved.
    (("ice 9",), ("ice 9", "sand 2"), ("ice 9", "sand +2")),
    ((), ("row 2 column 5", "wall # 3"), ("row 2 column 5", "wall # +3")),
    (("ice 9", "sand 2"), ("sand 2", "ice 9"), ("sand 2", "ice 9")),
    # Two lines with the same words: it could not be told which one.
    (("gate 1", "gate 2"), ("gate 1", "gate 5"), ("gate 1", "gate 5")),
    # Decimals, as many as there were; those of JSON come and go.
    (("cash $12.50",), ("cash $10.00",), ("cash $+-2.50",)),
    (("offen 12,50 €",), ("offen 10,00 €",), ("offen +-2,50 €",)),
    (("price 3.5",), ("price 4.5",), ("price +1",)),
    (("price 3.5",), ("price 3.0",), ("price +-0.5",)),
    (("price 3.0",), ("price 3.25",), ("price +0.25",)),
    (("price 3.25",), ("price 4.0",), ("price 4.0",)),  # else read as 4.00
    (("price 3",), ("price 3.50",), ("price +0.50",)),
    ((), ("paid 2,00 €",), ("paid +2,00 €",)),
    # Signs around a number.
    (("hp 10/20",), ("hp 7/20",), ("hp +-3/20",)),
    (
        ('{"ice": 3, "cash": 1.5}',),
        ('{"ice": 4, "cash": 1.0}',),
        ('{"ice": +1, "cash": +-0.5}',),
    ),
    (("[ 4 ]",), ("[ -1 ]",), ("[ +-5 ]",)),
    (("cash 12.50",), ("cash 11.50",), ("cash +-1",)),
    (("full 90%.",), ("full 95%.",), ("full +5%.",)),
    # No numbers: codes, times, dates, places, thousands, leading zeros.
    (("code A7",), ("code A9",), ("code A9",)),
    (("at 7:30",), ("at 7:40",), ("at 7:40",)),
    (("on 2026-11-28",), ("on 2026-11-29",), ("on 2026-11-29",)),
    (("on 2026/11/28",), ("on 2026/11/29",), ("on 2026/11/29",)),
    (("at (3,4)",), ("at (3,5)",), ("at (3,5)",)),
    (("at (3,12)",), ("at (3,13)",), ("at (3,13)",)),
    (("[10,20]",), ("[11,20]",), ("[11,20]",)),
    (("sword (+1)",), ("sword (+2)",), ("sword (+2)",)),
    (("a \0",), ("a 5",), ("a 5",)),
    (("sum 1,250.00",), ("sum 1,150.00",), ("sum 1,150.00",)),
    (("id 007",), ("id 008",), ("id 008",)),
    (("x", "ice 9"), (), ()),
]


@pytest.mark.parametrize(("before", "after", "written"), HAND)
def test_changes_by_hand(before, after, written):
    assert write_changes(before, after) == written
    assert read_changes(before, written) == after


@pytest.mark.medium
def test_whatever_is_written_is_read_back():
    rng = random.Random(0)
    pieces = ("ice", "sand", "+4", "+-2", "-1", "0", "7", "12", "A3")
    pieces += ("$1.50", "$12.00", "2,50", "1.5", "-0.5,", "(3)", "3/4", "7:30")

    def line():
        return " ".join(rng.choice(pieces) for _ in range(rng.randint(1, 4)))

    written = decimals = 0
    for _ in range(2000):
        before = tuple(line() for _ in range(rng.randint(0, 4)))
        after = tuple(rng.choice([line(), *before]) for _ in range(rng.randint(0, 4)))
        changes = write_changes(before, after)
        assert write_changes(before, changes) == changes
        if changes == after:  # a state that holds `+4` itself may be misread
            continue
        written += 1
        decimals += "." in "".join(set(changes) - set(after))
        script = edits.with_swaps(before, edits.diff(before, changes))
        assert read_changes(before, edits.apply(before, script)) == after
    assert written > 300
    assert decimals > 50


def test_a_line_that_was_there_holds_no_change():
    before, after = ("bonus +4", "ice 3"), ("bonus +4", "ice 5")
    written = write_changes(before, after)
    assert written == ("bonus +4", "ice +2")
    assert read_changes(before, written) == after
    assert not unread_changes(before, after)


@pytest.mark.parametrize("line", ["ice 2 + 3", "ice + sand", "C++", "ice a+2", "(+2)"])
def test_other_signs_are_no_changes(line):
    assert not unread_changes(("ice 3",), (line,))


@pytest.mark.parametrize("word", ["+0", "+04", "$+-0.0", "+-", "+4x", "+-0"])
def test_words_that_only_look_like_a_change_are_reported(word):
    assert unread_changes(("ice 3",), read_changes(("ice 3",), (f"ice {word}",)))


def shop(count, *, turns=False, tasks=12):
    """Episodes in which `get N ice` adds to what is there; without `turns` sums."""
    rng = random.Random(1)
    out = []
    for i in range(tasks):
        state, steps = ("said ok", "ice 0"), []
        for _ in range(count):
            n, held = rng.randint(2, 99), int(state[1].split()[1])
            new = n if turns else held + n
            after = ("said ok", f"ice {new}")
            steps.append(
                Transition(state=state, action=f"get {n} ice", next_state=after)
            )
            state = after
        task = dataclasses.replace(doubles.task(0, 1, 2), id=f"t{i}")
        out.append(
            Episode(
                id=f"e{i}",
                task=task,
                transitions=tuple(steps),
                source="random",
                success=False,
            )
        )
    return out


def test_changes_are_for_sums_and_not_for_what_the_action_says():
    assert change_rule(shop(5)) == ALL_LINES
    assert change_rule(shop(5, turns=True)) is None  # the action has the number itself
    assert change_rule(shop(1, tasks=3)) is None  # too few to tell
    literal = shop(5)
    first = literal[0].transitions[0]
    first = dataclasses.replace(first, next_state=("said ok", "score +4"))
    literal[0] = dataclasses.replace(literal[0], transitions=(first,))
    assert change_rule(literal) is None  # `+4` is a word of the environment


def with_lines(episodes, line_of):
    """The episodes with a third line, which is `line_of` of the step and the action."""
    out = []
    for e in episodes:
        steps, line = [], line_of(0, "get 0 ice")
        for i, t in enumerate(e.transitions):
            after = line_of(i + 1, t.action)
            steps.append(
                dataclasses.replace(
                    t, state=(*t.state, line), next_state=(*t.next_state, after)
                )
            )
            line = after
        out.append(dataclasses.replace(e, transitions=tuple(steps)))
    return out


def test_each_kind_of_lines_is_decided_alone():
    # The same action says by how much one line changes, and what another one says.
    episodes = with_lines(shop(5), lambda _, action: f"got {action.split()[1]} now")
    rule = change_rule(episodes)
    assert rule.covers("ice \0")
    assert not rule.covers("got \0 now")
    t = episodes[0].transitions[1]
    written = write_changes(t.state, t.next_state, rule)
    assert written[1].startswith("ice +")
    assert written[2] == t.next_state[2]
    # Where most lines stay as they are, a counter alone has changes.
    episodes = with_lines(shop(5, turns=True), lambda i, _: f"left {100 - i}")
    rule = change_rule(episodes)
    assert rule.covers("left \0")
    assert not rule.covers("ice \0")
    t = episodes[0].transitions[1]
    assert write_changes(t.state, t.next_state, rule)[2] == "left +-1"


def test_the_action_decides_where_the_state_holds_nearly_every_number():
    # Shelves of up to nine things each: any number and any change stands somewhere.
    def lines(counts):
        return tuple(f"shelf {name} {n}" for name, n in counts.items())

    rng, steps = random.Random(0), []
    for _ in range(60):
        counts = {name: rng.randint(1, 9) for name in string.ascii_lowercase}
        name = rng.choice([name for name, n in counts.items() if n > 3])
        size = rng.randint(2, 3)
        state = lines(counts)
        after = lines(counts | {name: counts[name] - size})
        action = f"take {size} of {name}"
        steps.append(Transition(state=state, action=action, next_state=after))
    (episode,) = shop(1, tasks=1)
    assert change_rule([dataclasses.replace(episode, transitions=tuple(steps))])
    # An action that says what is left, and not how many are taken.
    said = []
    for t in steps:
        (new,) = set(t.next_state) - set(t.state)
        said.append(dataclasses.replace(t, action=f"leave {new.split()[-1]}"))
    assert change_rule([dataclasses.replace(episode, transitions=tuple(said))]) is None


@pytest.mark.parametrize("line", ["sword (+2)", "walls +-- |--+"])
def test_a_line_that_stays_may_hold_what_looks_like_a_change(line):
    assert change_rule(with_lines(shop(5), lambda *_: line)) == ALL_LINES


@pytest.mark.parametrize("first", [1, 2])
def test_a_counter_has_changes_whatever_numbers_its_actions_have(first):
    rng, steps = random.Random(0), []
    for _ in range(60):
        left, door = rng.randint(2, 5), rng.randint(first, 4)
        old, new = f"tries left {left}", f"tries left {left - 1}"
        action = f"open {door}"
        steps.append(Transition(state=(old,), action=action, next_state=(new,)))
    (episode,) = shop(1, tasks=1)
    assert change_rule([dataclasses.replace(episode, transitions=tuple(steps))])


def test_decimals_of_the_action_are_at_hand():
    def pays(spelled):
        rng, steps = random.Random(0), []
        for _ in range(30):
            cents, price = rng.randint(5000, 9000), rng.randint(100, 4000)
            old, new = (f"cash {spelled(x)}" for x in (cents, cents - price))
            action = f"pay {spelled(price)}"
            steps.append(Transition(state=(old,), action=action, next_state=(new,)))
        (episode,) = shop(1, tasks=1)
        return dataclasses.replace(episode, transitions=tuple(steps))

    def euro(cents):
        return f"{cents // 100},{cents % 100:02} €"

    for spelled in (lambda cents: f"${cents / 100:.2f}", euro):
        rule = change_rule([pays(spelled)])
        assert rule is not None
        t = pays(spelled).transitions[0]
        (line,) = write_changes(t.state, t.next_state, rule)
        assert t.action.split()[1].strip("$") in line
        assert read_changes(t.state, (line,)) == t.next_state


def test_rare_kinds_are_decided_together():
    # Each task is about another thing, whose number changes four or five times.
    def with_things(episodes):
        return [
            dataclasses.replace(
                e,
                transitions=tuple(
                    dataclasses.replace(
                        t,
                        state=tuple(x.replace("ice", thing) for x in t.state),
                        next_state=tuple(x.replace("ice", thing) for x in t.next_state),
                    )
                    for t in e.transitions
                ),
            )
            for e, thing in zip(episodes, "abcdefghijkl", strict=True)
        ]

    def says(_, action):
        return f"got {action.split()[1]} now"

    rule = change_rule(with_lines(with_things(shop(5)), says))
    assert rule == ChangeRule(True, frozenset({"got \0 now"}))
    rule = change_rule(
        with_lines(with_things(shop(5, turns=True)), lambda i, _: f"left {100 - i}")
    )
    assert rule == ChangeRule(False, frozenset({"left \0"}))
    # Fewer than 20 changed numbers of rare kinds together: all kinds decide for them.
    few = [*with_things(shop(5))[:3], *shop(5)]
    assert change_rule(few) == ALL_LINES


def test_a_rule_is_written_and_read():
    rule = reference_rule(with_lines(shop(5), lambda _, a: f"got {a.split()[1]} now"))
    assert rule.changes == ChangeRule(False, frozenset({"ice \0"}))
    assert ReferenceRule.parse(rule.json()) == rule
    # Files of earlier versions say only whether numbers are written as changes.
    for changes in (True, False):
        text = json.dumps({**json.loads(rule.json()), "changes": changes})
        assert ReferenceRule.parse(text).changes == (ALL_LINES if changes else None)


@pytest.fixture(scope="module")
def fitted():
    episodes = [reasoning.annotate(e) for e in shop(5)]
    tok = train_tokenizer(episodes, 400)
    config = ExperienceConfig(demonstrations=1)
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    written = [
        reasoning.set_rule_traces(e, enabled=True, writing=tok.writing)
        for e in episodes
    ]
    return tok, episodes, transition_examples(tok, written, memory, config)


def test_replies_have_changes_in_reasoning_and_state(fitted):
    tok, episodes, examples = fitted
    assert tok.writing.changes == ALL_LINES
    t = episodes[0].transitions[1]
    query_tok = prompts.query_tokenizer(
        tok, episodes[0].task, (), (), t.state, t.action
    )
    change = f"+{t.action.split()[1]}"
    ids = prompts.effect_ids(query_tok, t.state, t.next_state)
    assert change in query_tok.decode([i for i in ids if tok.name(i) is None])
    reply = prompts.reply_ids(query_tok, t)
    assert prompts.parse_reply(query_tok, reply, t.state).next_state == t.next_state
    changed = reasoning.set_rule_traces(
        episodes[0], enabled=True, writing=StateWriting(changes=ALL_LINES)
    )
    assert change in changed.transitions[1].reasoning
    assert t.next_state[1].split()[1] not in changed.transitions[1].reasoning.split()
    # The sums are in no reply: the model need not add.
    steps = [t for e in episodes for t in e.transitions]
    assert len(examples) == len(steps)
    for example, step in zip(examples, steps, strict=True):
        reply = [i for i, x in zip(example.ids, example.mask, strict=True) if x]
        text = tok.decode([i for i in reply if tok.name(i) is None])
        if step.state[1] != "ice 0":  # else the sum is what the action says
            assert step.next_state[1].split()[1] not in text.split()


def test_a_thought_of_another_writer_stays_as_it_is():
    (episode,) = shop(1, tasks=1)
    step = dataclasses.replace(episode.transitions[0], reasoning="more ice")
    episode = dataclasses.replace(episode, transitions=(step,))
    assert with_changes([episode]) != [episode]
    changed = reasoning.set_rule_traces(
        episode, enabled=True, writing=StateWriting(changes=ALL_LINES)
    )
    assert changed == episode


def test_a_change_of_what_is_not_there_is_from_zero(fitted):
    tok = fitted[0]
    reply = [
        tok.control("next"),
        tok.control("add"),
        *tok.encode("sand +4"),
        *prompts.reward_and_outcome_ids(tok, 0.0, "go"),
    ]
    answer = prompts.parse_reply(tok, reply, ("said ok", "ice 3"))
    assert answer.error is None
    assert answer.next_state == ("said ok", "ice 3", "sand 4")
    answer = prompts.parse_reply(tok, reply, ("sand 1", "sand 2"))
    assert "a change of a number" in answer.error
    assert not unread_changes((), ("sand 4 -4 ++4 a+4",))


def test_the_rule_is_saved_and_may_be_left_out(tmp_path):
    episodes = shop(5)
    tok = train_tokenizer(episodes, 400, directory=tmp_path)
    assert type(tok).load(tmp_path).writing.changes == ALL_LINES
    rule = reference_rule(episodes, changes=False)
    assert rule is None or rule.changes is None
    # Sums are computed digit by digit, changes are copied.
    assert tok.reference_rule.numbers
    assert rule is None or not rule.numbers
