"""Subgoals: by hindsight, along an episode, in the context, and learned by.

In the house with two doors the colour of a light is shown at the start alone, two steps
before one of two doors must be opened. What the manager writes under the light is all
that its worker has at the doors.
"""

import dataclasses
from collections import Counter

import jax
import numpy as np
import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.policy import Policy, Situation
from dreamgym.agent.recorded_turns import recorded_attempt
from dreamgym.agent.rollout import rollout
from dreamgym.agent.subgoals import (
    SubgoalStep,
    follow_subgoals,
    present_subgoal,
    subgoal_ids,
    with_subgoals,
)
from dreamgym.config.shapes import MODELS
from dreamgym.envs.base import TextEnv
from dreamgym.envs.vector import RealVectorEnv
from tests import doubles
from worldmodel.backbone.model import create
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tokenizer import TextTokenizer

COLOURS = ("red", "blue")


def steps_of(states, actions=(), thoughts=()):
    """Return the transitions between the states."""
    count = len(states) - 1
    actions = actions or ["wait"] * count
    thoughts = thoughts or [None] * count
    return [
        Transition(
            state=before,
            action=action,
            next_state=after,
            rewards={},
            terminated=False,
            thought=thought,
        )
        for before, after, action, thought in zip(
            states, states[1:], actions, thoughts, strict=False
        )
    ]


def test_a_subgoal_is_the_latest_new_line_of_the_next_steps():
    states = [
        ("at hall", "door shut"),
        ("at hall", "door open"),
        ("at kitchen", "stove cold"),
        ("at kitchen", "stove cold"),
        ("at kitchen", "stove hot"),
        ("at hall", "stove hot"),
    ]
    task = Task(id="t", instruction="heat the stove", initial_state=states[0])
    steps = tuple(steps_of(states))
    episode = Episode(
        id="e", task=task, transitions=steps, source="expert", success=None
    )

    def thoughts(limit):
        return [t.thought for t in with_subgoals(episode, limit).transitions]

    # Of `at kitchen` and `stove cold` the second has a word of the instruction. At the
    # end `at hall` is new to what was seen since, `stove hot` is not.
    assert thoughts(2) == ["stove cold", None, "stove hot", None, "at hall"]
    # Nothing new follows the third step: it has no subgoal.
    assert thoughts(1) == ["door open", "stove cold", None, "stove hot", "at hall"]
    # The last state of the window first, and a line that was seen before is not new.
    assert thoughts(9) == ["stove hot", None, None, None, "at hall"]
    relabelled = with_subgoals(with_subgoals(episode, 1), 9)
    assert relabelled == with_subgoals(episode, 9)


def test_a_subgoal_holds_until_it_is_reached_replaced_or_too_old():
    states = [("a",), ("b",), ("c",), ("d",), ("d",), ("d",), ("d",)]
    thoughts = [" c ", None, None, "x", "y", None]
    steps = steps_of(states, thoughts=thoughts)
    rows, left = follow_subgoals(steps, 2)
    assert rows == [
        SubgoalStep("c", False),
        SubgoalStep("c", True),
        SubgoalStep("", False),
        SubgoalStep("x", False),
        SubgoalStep("y", False),
        SubgoalStep("y", False),
    ]
    assert left == ""  # two steps were taken for it
    assert follow_subgoals(steps, 3)[1] == "y"
    assert [present_subgoal(steps[:n], 3) for n in range(5)] == ["", "c", "", "", "x"]
    assert present_subgoal(steps, 0) == ""


def test_what_stood_there_before_is_not_reached():
    steps = steps_of([("a",), ("a", "b"), ("a",)], thoughts=["a", "b"])
    assert [row.reached for row in follow_subgoals(steps, 5)[0]] == [False, False]
    steps = steps_of([("a",), ("b",), ("a",)], thoughts=["b", "a"])
    assert [row.reached for row in follow_subgoals(steps, 5)[0]] == [True, True]


class House(TextEnv):
    """A light, two steps in the dark, and two doors, of which one has its colour."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.colour, self.number = (options or {})["task"].options["light"]
        self.count = 0
        return self.text(f"light {self.colour}"), {"instruction": "leave"}

    def text(self, place):
        return f"{place}\nday {self.number}"

    def step(self, action):
        self.count += 1
        if self.count < 3:
            return self.text(f"dark {self.count}"), 0.0, False, False, {}
        colour = action.removeprefix("open ")
        won = colour == self.colour
        info = {"success": won}
        return self.text(f"room {colour}"), float(won), True, False, info


def task(colour, number):
    return Task(
        id=f"{colour}-{number}",
        instruction="leave",
        options={"light": [colour, number]},
        initial_state=(f"light {colour}", f"day {number}"),
    )


def expert(t):
    colour, number = t.options["light"]
    day = f"day {number}"
    places = [f"light {colour}", "dark 1", "dark 2", f"room {colour}"]
    steps = steps_of(
        [(place, day) for place in places], ["wait", "wait", f"open {colour}"]
    )
    steps[-1] = dataclasses.replace(steps[-1], terminated=True, success=True)
    return Episode(
        id=t.id, task=t, transitions=tuple(steps), source="expert", success=True
    )


TASKS = [task(colour, number) for number in range(6) for colour in COLOURS]
TEXTS = [
    text
    for e in map(expert, TASKS)
    for t in e.transitions
    for text in (*t.state, *t.next_state, t.action)
]
TOK = TextTokenizer.train([*TEXTS, "leave", *"0123456789"], vocab_size=340)


def policy(**settings):
    model = create(MODELS["nano"].model(TOK.vocab_size), seed=0)
    config = PolicyConfig(action_tokens=6, thought_tokens=6, history=2, **settings)
    return Policy(model, TOK, config)


def play(player, tasks):
    envs = RealVectorEnv([House() for _ in tasks], max_steps=3)
    return rollout(player, envs, tasks, key=jax.random.key(0), temperature=0.0)


@pytest.mark.medium
def test_play_and_its_record_have_the_same_contexts():
    """What the policy read in play is what its episode says, also with a subgoal."""

    class Manager(Policy):
        """Writes a subgoal under the light, whatever its model would write."""

        def act(self, situations, keys, *, temperature):
            turns = super().act(situations, keys, temperature=temperature)
            return [
                turn._replace(thought="" if s.past else "room red")
                for turn, s in zip(turns, situations, strict=True)
            ]

    plain = policy(subgoal_steps=3)
    player = Manager(plain.model, plain.tokenizer, plain.config)
    (trajectory,) = play(player, TASKS[:1])
    steps = trajectory.episode.transitions
    situations = [
        Situation.at_step(TASKS[0], steps, i, subgoal_steps=3) for i in range(3)
    ]
    assert [s.subgoal for s in situations] == ["", "room red", "room red"]
    contexts = [tuple(plain.context(*s[:6])) for s in situations]
    assert [turn.context for turn in trajectory.turns] == contexts
    subgoal = tuple(subgoal_ids(TOK, "room red"))
    assert contexts[1][-len(subgoal) :] == subgoal
    assert contexts[1] == (*plain.context(*situations[1][:5]), *subgoal)
    assert subgoal_ids(TOK, "") == []


def test_imitation_learns_to_write_subgoals_and_to_act_for_them():
    episode = expert(TASKS[0])
    examples = early.bc_examples(policy(subgoal_steps=3), [episode])
    texts = [[TOK.name(i) or TOK.decode([i]) for i in e.ids] for e in examples]
    # Written in the first turn, read before the others, whose own thought is empty.
    assert [t.count("why") for t in texts] == [1, 2, 2]
    target = [i for i, m in zip(examples[0].ids, examples[0].mask, strict=True) if m]
    assert TOK.decode(target[: len(TOK.encode("room red"))]) == "room red"
    assert [sum(e.mask) for e in examples[1:]] == [
        len(TOK.encode(action)) + 2 for action in ("wait", "open red")
    ]
    flat = early.bc_examples(policy(), [episode])
    assert [len(e.ids) < len(x.ids) for e, x in zip(flat, examples, strict=True)]


def test_steps_that_differ_in_their_subgoal_alone_are_two_examples():
    t = Task(id="t", instruction="leave", initial_state=("dark 1",))
    still, ends = [("dark 1",)] * 2, [("dark 1",)] * 2 + [("dark 2",)]
    two = [
        Episode(
            id=str(i), task=t, transitions=tuple(steps_of(x)), source="x", success=True
        )
        for i, x in enumerate((ends, still))
    ]
    base = policy(subgoal_steps=3)
    blind = dataclasses.replace(base.config, history=0)
    # One writes the subgoal, one acts for it, and one has none.
    player = Policy(base.model, TOK, blind)
    assert len(early.bc_examples(player, two)) == 3
    turns = player.act(
        [Situation(t, (), still[0], subgoal=x) for x in ("", "dark 2")],
        jax.random.split(jax.random.key(0), 2),
        temperature=0.0,
    )
    assert turns[0].context != turns[1].context


def test_every_record_is_read_with_its_subgoals():
    player, episode = policy(subgoal_steps=3), with_subgoals(expert(TASKS[0]), 3)
    subgoal, counts = subgoal_ids(TOK, "room red"), Counter()
    examples = recorded_attempt(
        player,
        player.grammar(1.0),
        episode.task,
        episode.transitions,
        max_tokens=99,
        counts=counts,
    )
    assert examples is not None
    texts = [bytes_of(e.ids) for e in examples]
    assert [bytes_of(subgoal) in text for text in texts] == [True] * 3  # once written
    # Next states are predicted where the policy acts: with the subgoal, but the first.
    effects = early.iwm_examples(player, [expert(TASKS[0])], [])
    found = [bytes_of(subgoal) in bytes_of(e.ids) for e in effects]
    assert found == [False, True, True]


def bytes_of(ids):
    return np.asarray(ids, np.int32).tobytes()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="subgoal_steps must be >= 0, got -1"):
        PolicyConfig(subgoal_steps=-1, thought_tokens=6)
    with pytest.raises(ValueError, match="thought_tokens is 0: set it to what a line"):
        PolicyConfig(subgoal_steps=4)


@pytest.mark.slow
def test_the_worker_knows_at_the_doors_what_the_manager_wrote_under_the_light():
    train, held = TASKS[:8], TASKS[8:]
    won, reached = {}, {}
    for limit in (3, 0):
        learner = policy(subgoal_steps=limit)
        examples = early.bc_examples(learner, [expert(t) for t in train])
        model = doubles.fit(learner.model, examples)
        games = play(learner.replace(model), held)
        won[limit] = sum(bool(t.episode.success) for t in games)
        reached[limit] = [
            row.reached
            for t in games
            for row in follow_subgoals(t.episode.transitions, 3)[0]
        ]
    # At the doors both colours look the same to the flat policy: one of each pair.
    assert won == {3: 4, 0: 2}
    assert sum(reached[3]) == 4
    assert not any(reached[0])
