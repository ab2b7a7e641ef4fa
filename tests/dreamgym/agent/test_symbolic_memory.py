"""The table that a policy keeps of an episode: by hand, in its context, and learned by.

In the two radios one of two stations is dead, and which one is heard once, long before
an answer must come over the other one. The state never says it again.
"""

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy, Situation
from dreamgym.agent.symbolic_memory import ToolCount, symbolic_memory
from dreamgym.config.shapes import MODELS
from tests import doubles
from worldmodel.backbone.model import create
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tokenizer import TextTokenizer


def test_the_table_by_hand():
    states = [
        ("kitchen has coin", "at hall"),
        ("kitchen is dark", "at kitchen"),
        ("attic has lamp", "at attic"),
        ("attic has lamp", "at attic", "error: no such thing"),
    ]
    past = ["go kitchen", "go attic", "take bell"]
    table = symbolic_memory(past, states[:3], states[3])
    # `at` and `attic` are in sight; of the kitchen the line that was seen last counts.
    assert table.facts == ("kitchen is dark",)
    assert table.tools == (ToolCount("go", 2, 0), ToolCount("take", 1, 1))
    assert table.lines() == (
        "last seen kitchen is dark",
        "go: calls 2, refused 0",
        "take: calls 1, refused 1",
    )
    # Facts stand in the order in which they were last seen, tools in that of their use.
    back = symbolic_memory(["go a", "take b", "go c"], states[:3], ("at cellar",))
    assert back.facts == ("kitchen is dark", "attic has lamp")
    assert [t.name for t in back.tools] == ["take", "go"]
    assert symbolic_memory([], [], states[0]) == ((), ())


def test_a_call_counts_for_its_tool():
    states = [("result 1",), ("result error: unknown city",), ("result 3",)]
    past = ['weather {"city": "Bonn"}', 'clock {"zone": "x"}']
    table = symbolic_memory(past, states[:2], states[2])
    assert table.tools == (ToolCount("weather", 1, 1), ToolCount("clock", 1, 0))


def test_a_refusal_is_that_of_the_call_whatever_else_stands_there():
    states = [("shop open", "result 1", "result 2"), ("result error: full",)]
    past = ["put {}", 'say {"text": "an error"}']
    table = symbolic_memory(past, states, ("result you said: an error",))
    assert table.tools == (ToolCount("put", 1, 1), ToolCount("say", 1, 0))


def test_what_a_tool_has_answered_is_a_fact_of_its_call():
    get = 'get {"key": "leo"}'
    states = [("shop open",), ("shop open", "result leo is 2")]
    last = ("shop open", "result stored", "result error: full")
    table = symbolic_memory([get, 'put {"key": "b"}\nput {"key": "c"}'], states, last)
    assert table.facts == (f"{get} result leo is 2",)
    assert table.tools == (ToolCount("get", 1, 0), ToolCount("put", 2, 1))
    # Of calls that failed, nothing is a fact: the counts say that they did.
    failed = ("shop open", "result error: no leo")
    table = symbolic_memory([get, get], [states[0], failed], ("shop open",))
    assert table.facts == ()
    assert table.tools == (ToolCount("get", 2, 1),)
    # The same call again stands for its earlier answer.
    again = symbolic_memory([get, get], states, ("shop open", "result leo is 3"))
    assert again.facts == ()


def test_a_call_is_the_same_in_any_order_of_its_arguments():
    old, new = (
        'get {"a": 1, "b": {"x": 1, "y": 2}}',
        'get {"b": {"y": 2, "x": 1}, "a": 1}',
    )
    states = [("result ready",), ("result old",), ("result new",)]
    table = symbolic_memory([old, new, 'put {"c": 1}'], states, ("result stored",))
    assert table.facts == (f"{new} result new",)  # as it was written


def test_what_answers_nothing_is_no_fact():
    calls = ['get {"q": 1}', 'get {"q": 2}\nget {"q": 3}', 'get {"q": 4}']
    states = [
        ("result ready",),
        ("result one",),
        ("result two", "result error: no three"),
    ]
    table = symbolic_memory(calls, states, ("result four",))
    assert table.facts == ('get {"q": 1} result one', 'get {"q": 2} result two')
    # What an answer is told is one, as long as no other one stands for it.
    replies = symbolic_memory(["Paris", "Bonn"], [states[0], ("result no",)], ())
    assert replies.facts == ("result no",)


STATIONS = ("north", "south")


def radio(dead, number):
    """Return an episode: one call fails, two waits, the call that works."""
    alive = STATIONS[1 - STATIONS.index(dead)]
    states = [
        ("at radio", f"day {number}"),
        ("at radio", f"day {number}", "error no answer"),
        ("at bridge", f"day {number}"),
        ("at radio", f"day {number}"),
        ("done",),
    ]
    actions = [f"{dead} call", "wait", "wait", f"{alive} call"]
    steps = tuple(
        Transition(
            state=before,
            action=action,
            next_state=after,
            rewards={"task": float(after == ("done",))},
            terminated=after == ("done",),
            success=after == ("done",),
        )
        for before, action, after in zip(states, actions, states[1:], strict=False)
    )
    task = Task(
        id=f"{dead}-{number}", instruction="reach a station", initial_state=states[0]
    )
    return Episode(
        id=task.id, task=task, transitions=steps, source="expert", success=True
    )


EPISODES = [radio(dead, n) for n in range(6) for dead in STATIONS]
TEXTS = [line for e in EPISODES for t in e.transitions for line in (*t.state, t.action)]
TOK = TextTokenizer.train(
    [*TEXTS, "reach a station", "done", *"0123456789"], vocab_size=340
)


def policy(**settings):
    model = create(MODELS["nano"].model(TOK.vocab_size), seed=0)
    return Policy(model, TOK, PolicyConfig(action_tokens=6, history=2, **settings))


def last_situations(episodes):
    return [Situation.at_step(e.task, e.transitions, 3) for e in episodes]


def names(ids):
    return [name for i in ids if (name := TOK.name(i)) is not None]


def test_the_table_stands_before_the_usual_context_within_its_tokens():
    north, south = last_situations(EPISODES[:2])
    plain = policy().context(*north[:5])
    assert plain == policy().context(*south[:5])  # the twins
    ids = policy(symbolic_memory=99).context(*north[:5])
    assert ids != policy(symbolic_memory=99).context(*south[:5])
    assert ids[-len(plain) :] == plain
    table = ids[: -len(plain)]
    assert names(table) == ["same", "full", "full"]
    rows = "error no answer", "north 0 1", "wait 2 0"
    texts = [i for i in table if TOK.name(i) is None]
    assert texts == [i for row in rows for i in TOK.encode(row)]
    few = policy(symbolic_memory=len(table) - 1).context(*north[:5])
    assert names(few[: -len(plain)]) == ["full", "full"]  # the fact is left out first


def test_play_and_imitation_read_the_same_table():
    some, both = policy(symbolic_memory=32), last_situations(EPISODES[:2])
    keys = jax.random.split(jax.random.key(0), 2)
    turns = some.act(both, keys, temperature=0.0)
    assert [list(t.context) for t in turns] == [some.context(*s[:5]) for s in both]
    assert turns[0].context != turns[1].context
    examples = early.bc_examples(some, EPISODES[:1])
    assert tuple(examples[3].ids[: len(turns[0].context)]) == turns[0].context


def test_settings_and_missing_states_are_named():
    with pytest.raises(ValueError, match="symbolic_memory must be >= 0, got -1"):
        PolicyConfig(symbolic_memory=-1)
    (north,) = last_situations(EPISODES[:1])
    with pytest.raises(ValueError, match="symbolic_memory needs a past state for each"):
        policy(symbolic_memory=9).context(*north[:4])


@pytest.mark.slow
def test_what_a_tool_did_long_ago_is_used_by_the_policy_that_keeps_a_table():
    train, held = EPISODES[:8], EPISODES[8:]
    right = {}
    for tokens in (32, 0):
        learner = policy(symbolic_memory=tokens)
        examples = early.bc_examples(learner, train)
        model = doubles.fit(learner.model, examples)
        keys = jax.vmap(jax.random.key)(np.arange(len(held), dtype=np.uint32))
        turns = learner.replace(model).act(last_situations(held), keys, temperature=0.0)
        right[tokens] = sum(
            turn.action == e.transitions[-1].action
            for turn, e in zip(turns, held, strict=True)
        )
    # The twins share a context without a table, and one of each pair is wrong.
    assert right == {32: 4, 0: 2}
