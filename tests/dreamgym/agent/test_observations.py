"""What a policy remembers of past observations: its context, and what it learns by it.

In the twin corridors a light is seen once, red or blue, and two rooms later the agent
has to say which it was; everything else is equal in both. Without a memory of what was
seen nobody can be right more often than by chance.
"""

import dataclasses

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy, Situation
from dreamgym.config.presets import preset
from dreamgym.config.shapes import MODELS
from tests import doubles
from worldmodel.backbone.model import create
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tokenizer import TextTokenizer

COLOURS = ("red", "blue")


def walk(colour, number):
    """Return an expert's episode: see the light, walk on, say its colour."""
    states = [
        (f"light {colour}", "at start"),
        ("at bridge",),
        ("at gate", f"guard {number}"),
        ("done",),
    ]
    actions = ["go", "go", f"say {colour}"]
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
        id=f"{colour}-{number}",
        instruction="say what the light was",
        initial_state=states[0],
    )
    return Episode(
        id=task.id, task=task, transitions=steps, source="expert", success=True
    )


EPISODES = [walk(c, n) for n in range(6) for c in COLOURS]
TEXTS = [line for e in EPISODES for t in e.transitions for line in (*t.state, t.action)]
TOK = TextTokenizer.train([*TEXTS, "say what the light was", "done"], vocab_size=340)


def policy(**settings):
    model = create(MODELS["nano"].model(TOK.vocab_size), seed=0)
    return Policy(model, TOK, PolicyConfig(action_tokens=6, **settings))


def last_situations(episodes):
    return [Situation.at_step(e.task, e.transitions, 2) for e in episodes]


def test_what_was_seen_and_is_gone_stands_before_its_action():
    (red, blue) = last_situations(EPISODES[:2])
    some = policy(history_states=True)
    ids = some.context(*red[:5])
    names = [TOK.name(i) for i in ids]
    assert names.count("demo") == 3  # the light, two places
    texts = TOK.decode([i for i in ids if TOK.name(i) is None])
    for line in ("light red", "at start", "at bridge", "at gate"):
        assert line in texts
    assert some.context(*blue[:5]) != ids
    plain = policy()
    assert plain.context(*red[:5]) == plain.context(*blue[:5])
    assert [TOK.name(i) for i in plain.context(*red[:5])].count("demo") == 0
    one = policy(history_states=True, history=1)
    assert one.context(*red[:5]) == one.context(*blue[:5])  # the light is too long ago
    few = policy(history_states=True, history_tokens=12)
    assert few.context(*red[:5]) == few.context(*blue[:5])
    short = [TOK.name(i) for i in few.context(*red[:5])]
    assert short.count("past") == 2  # an action stays where its lines do not fit
    assert short.count("demo") < 3


def test_two_situations_that_differ_in_what_was_seen_are_two():
    """Equal situations of a batch are encoded once; these are not equal."""
    some = policy(history_states=True)
    both = last_situations(EPISODES[:2])
    keys = jax.random.split(jax.random.key(0), 2)
    turns = some.act(both, keys, temperature=0.0)
    assert [list(t.context) for t in turns] == [some.context(*s[:5]) for s in both]
    red, blue = EPISODES[:2]
    same_task = dataclasses.replace(blue, task=red.task)
    assert len(early.bc_examples(some, [red, same_task])) == 6
    assert len(early.bc_examples(policy(), [red, same_task])) == 5  # one bridge


def test_past_states_that_are_missing_are_named():
    (red,) = last_situations(EPISODES[:1])
    with pytest.raises(ValueError, match="a past state for each past action, got 0"):
        policy(history_states=True).context(*red[:4])
    with pytest.raises(ValueError, match="history_tokens must be >= 1, got 0"):
        PolicyConfig(history_tokens=0)
    tokens = {"policy.history_tokens": 90}
    with pytest.raises(ValueError, match=r"policy\.history_tokens bounds .* got 90"):
        preset("tiny", tokens).check_new()
    preset("tiny", tokens | {"policy.history_states": True}).check_new()
    for name in ("policy", "experience"):
        none = {f"{name}.history_states": True, f"{name}.history": 0}
        with pytest.raises(ValueError, match=rf"{name}\.history_states adds to past"):
            preset("tiny", none).check_new()


@pytest.mark.slow
def test_a_fact_that_was_shown_once_is_used_by_the_policy_that_remembers():
    train, held = EPISODES[:8], EPISODES[8:]
    right = {}
    for remembers in (True, False):
        learner = policy(history_states=remembers)
        examples = early.bc_examples(learner, train)
        model = doubles.fit(learner.model, examples)
        keys = jax.vmap(jax.random.key)(np.arange(len(held), dtype=np.uint32))
        situations = last_situations(held)
        turns = learner.replace(model).act(situations, keys, temperature=0.0)
        said = [t.action for t in turns]
        right[remembers] = sum(
            action == e.transitions[-1].action
            for action, e in zip(said, held, strict=True)
        )
    # The twins share a context without a memory, and one of each pair is wrong.
    assert right == {True: 4, False: 2}
