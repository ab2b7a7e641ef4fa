"""Policies whose tokenizer has references: actions name things of the situation."""

import dataclasses

from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.early_experience.reflection import reflection_cases
from dreamgym.agent.policy import Policy, PolicyConfig
from tests import doubles, helpers
from worldmodel.data.records import Branch, Task
from worldmodel.fitting.supervised import FitConfig
from worldmodel.text import prompts
from worldmodel.text.identifiers import ReferenceRule
from worldmodel.text.references import NUMBERS
from worldmodel.text.tokenizer import TextTokenizer

STATE = ("T25 costs 42", "T68 costs 17")
TASK = Task(id="t", instruction="book T68", initial_state=STATE)
RULE = ReferenceRule(frozenset({"book", "costs"}), numbers=True)
TOK = TextTokenizer.train(["book T25 costs 42"], 400, references=RULE)
POLICY = Policy(doubles.model(), TOK, PolicyConfig())
EPISODE = helpers.episode(
    "e",
    TASK,
    [
        helpers.transition(STATE, "book T68", ("T68",), terminated=True, success=True),
    ],
)


def test_an_action_is_written_and_read_back_with_references():
    (example,) = early.bc_examples(POLICY, [EPISODE])
    tok = POLICY.tokenizer_in(TASK, (), STATE)
    context = POLICY.context(TASK, (), STATE)
    assert example.ids[: len(context)] == context
    turn = example.ids[len(context) :]
    assert len(set(turn) & set(TOK.references)) == 1
    assert prompts.parse_turn(tok, turn) == ("book T68", None)
    # The same token stands for the train in the state.
    assert (set(turn) & set(TOK.references)) < set(context)


def test_a_thing_has_the_same_reference_in_every_task():
    """Whatever it is called: what the policy learns of one trip holds for another."""
    turns = set()
    for first, second in (("T25", "T68"), ("T90", "T7")):
        state = (f"{first} costs 42", f"{second} costs 17")
        task = Task(id="t", instruction="book the cheapest", initial_state=state)
        tok = POLICY.tokenizer_in(task, (), state)
        turns.add(tuple(prompts.turn_ids(tok, f"book {second}")))
    assert len(turns) == 1


def test_an_action_can_copy_what_the_subgoal_names():
    config = dataclasses.replace(POLICY.config, thought_tokens=8, subgoal_steps=3)
    player = Policy(POLICY.model, TOK, config)
    with_subgoal = player.tokenizer_in(TASK, (), STATE, (), (), "have Q77")
    without = player.tokenizer_in(TASK, (), STATE)
    assert set(with_subgoal.encode("book Q77")) & set(TOK.references)
    assert not set(without.encode("book Q77")) & set(TOK.references)


def test_a_policy_reads_ranks_of_numbers_and_writes_references():
    """So that it sees which trip is cheaper: 17 is the smallest number, 42 the next."""
    smallest, next_one = TOK.references[-NUMBERS:][:2]
    context = POLICY.context(TASK, (), STATE)
    for rank, number in ((smallest, "17"), (next_one, "42")):
        digits = TOK.encode(number)
        at = context.index(rank) + 1
        assert context[at : at + len(digits)] == digits
    turn = prompts.turn_ids(POLICY.tokenizer_in(TASK, (), STATE), "book 17")
    assert smallest in turn
    assert not set(TOK.encode("17")) & set(turn)


def test_without_names_one_draw_is_enough():
    fit = FitConfig(steps=10, batch_rows=1, row_tokens=100)
    examples = early.bc_examples(POLICY, [EPISODE])
    assert early.draws(fit, examples, {}) == 1
    names = {"doors": (("hall", "attic"),)}
    # 1,000 tokens are read: each of a few tens of tokens many times, at most MAX_DRAWS.
    assert early.draws(fit, examples, names) == early.MAX_DRAWS
    assert 1 < early.draws(fit, examples * 40, names) < early.MAX_DRAWS


def test_copies_exchange_names_in_state_and_action_alike():
    task = Task(id="h", instruction="go", family="doors", initial_state=("at hall",))
    step = helpers.transition(("at hall",), "go to attic", ("at attic",))
    policy, groups = doubles.policy(), {"doors": (("attic", "hall"),)}
    tok = policy.tokenizer
    copies = early.bc_examples(
        policy, [helpers.episode("d", task, [step])], draws=6, names=groups
    )
    texts = [tok.decode(e.ids) for e in copies]
    swapped = (
        texts[0].replace("hall", "?").replace("attic", "hall").replace("?", "attic")
    )
    assert "hall" in texts[0]
    assert set(texts) == {texts[0], swapped}


DOORS = {"doors": (("attic", "hall"),)}
DOOR_TASK = Task(id="h", instruction="go", family="doors", initial_state=("at hall",))


def swapped(text):
    return text.replace("hall", "?").replace("attic", "hall").replace("?", "attic")


def test_next_states_of_steps_and_branches_have_the_names_of_their_copy():
    there = helpers.transition(("at hall",), "go to attic", ("at attic",))
    stays = helpers.transition(("at hall",), "go to hall", ("still at hall",))
    policy = doubles.policy()
    arguments = (
        policy,
        [helpers.episode("d", DOOR_TASK, [there])],
        [Branch(episode="d", step=0, transition=stays)],
    )
    for reasoning in (False, True):
        plain = early.iwm_examples(*arguments, reasoning=reasoning)
        copies = early.iwm_examples(
            *arguments, reasoning=reasoning, draws=6, names=DOORS
        )
        assert copies[:2] == plain
        texts = [policy.tokenizer.decode(e.ids) for e in copies]
        first, second = texts[:2]
        assert set(texts[::2]) == {first, swapped(first)}
        assert set(texts[1::2]) == {second, swapped(second)}
        # A branch has the names of its episode.
        pairs = set(zip(texts[::2], texts[1::2], strict=True))
        assert pairs == {(first, second), (swapped(first), swapped(second))}


def test_a_thought_has_the_names_of_its_state():
    there = helpers.transition(("at hall",), "go to attic", ("at attic",))
    stays = helpers.transition(("at hall",), "go to hall", ("at hall",))
    (case,) = reflection_cases(
        [helpers.episode("d", DOOR_TASK, [there])],
        [Branch(episode="d", step=0, transition=stays)],
        per_state=1,
        seed=0,
    )
    policy, thoughts = doubles.policy(), ["hall stays so attic"]
    (plain,) = early.sr_examples(policy, [case], thoughts)
    copies = early.sr_examples(policy, [case], thoughts, draws=6, names=DOORS)
    assert (len(copies), copies[0]) == (6, plain)
    text = policy.tokenizer.decode(plain.ids)
    assert {policy.tokenizer.decode(e.ids) for e in copies} == {text, swapped(text)}


def test_a_policy_may_write_references():
    allowed = POLICY.grammar(1.0).allowed
    assert allowed[-1][TOK.references].all()
