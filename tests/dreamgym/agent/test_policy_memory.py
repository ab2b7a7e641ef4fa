"""What a policy remembers of other tasks: its context, and what it learns by it.

A house has two doors, one of them safe. Which one is named nowhere: a task names its
house, and other tasks in the same house have shown it. Without a memory of them nobody
can be right more often than by chance in houses that nobody has imitated.
"""

import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

from dreamgym.agent.attribution import attribute_action
from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.early_experience.reflection_writers import RejectionSamplingWriter
from dreamgym.agent.policy import Policy, Situation
from dreamgym.config.shapes import MODELS
from worldmodel.backbone.model import create
from worldmodel.completion import score
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.fitting import supervised
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.memory import EpisodicMemory
from worldmodel.memory.episodic import SameSteps
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer

HOUSES, DOORS, PER_HOUSE = 16, ("left", "right"), 4
STATE = ("at two doors",)


def safe_door(house):
    return DOORS[bin(house).count("1") % 2]  # no rule that a tiny model could find


def visit(house, number, door, source="random", mirror=False):
    """Return an episode that opens a door of a house, or of its mirror image."""
    won = (door == safe_door(house)) != mirror
    step = Transition(
        state=STATE,
        action=f"open {door}",
        next_state=("outside",) if won else ("in the pit",),
        rewards={"task": float(won)},
        terminated=True,
        success=won,
    )
    task = Task(id=f"{house}-{number}", instruction=f"leave house {house:02d}")
    return Episode(
        id=task.id, task=task, transitions=(step,), source=source, success=won
    )


EXPERTS = [
    visit(h, n, safe_door(h), "expert")
    for h in range(HOUSES // 2)
    for n in range(PER_HOUSE)
]
UNSEEN = [visit(h, "test", safe_door(h)) for h in range(HOUSES // 2, HOUSES)]
COLLECTED = [visit(h, f"r{d}", d) for h in range(HOUSES) for d in DOORS]
"""A random visit to each door of each house; no expert enters the later houses."""
LOSSES = [e for e in COLLECTED if not e.success]
TEXTS = [x for e in [*COLLECTED, *EXPERTS] for x in (e.task.instruction, *STATE)]
TOK = TextTokenizer.train(
    [*TEXTS, "open left", "open right", "outside", "in the pit", *"0123456789"], 340
)


def policy(memory=None, **settings):
    model = create(MODELS["nano"].model(TOK.vocab_size), seed=0)
    config = PolicyConfig(action_tokens=6, **settings)
    return Policy(model, TOK, config, memory=memory)


def situations(episodes):
    return [Situation.at_step(e.task, e.transitions, 0) for e in episodes]


def names(ids):
    return [name for i in ids if (name := TOK.name(i)) is not None]


def test_what_is_remembered_stands_before_the_usual_context():
    memory = EpisodicMemory(COLLECTED)
    (here,) = situations(UNSEEN[:1])
    plain = policy().context(*here[:5])
    ids = policy(memory, memories=2).context(*here[:5])
    assert ids[-len(plain) :] == plain
    # Of its own house: a loss, a win; both begin like `plain` and so say nothing more.
    before = names(ids[: -len(plain)])
    assert sorted(before) == ["demo", "demo", "lose", "reward", "win"]
    room = len(ids) - len(plain)
    one = policy(memory, memories=2, memory_tokens=room - 1).context(*here[:5])
    assert names(one[: -len(plain)]).count("demo") == 1  # the other one does not fit
    assert policy(memory).context(*here[:5]) == plain
    assert policy(None, memories=2).context(*here[:5]) == plain
    assert policy(EpisodicMemory([]), memories=2).context(*here[:5]) == plain


def test_a_demonstration_does_not_remember_itself():
    """Its own episode would be the most similar of all, and hold the answer."""
    demonstration = visit(0, 0, safe_door(0), "expert")
    alone = policy(EpisodicMemory([demonstration]), memories=1)
    assert early.bc_examples(alone, [demonstration]) == early.bc_examples(
        policy(), [demonstration]
    )
    pair = policy(EpisodicMemory([demonstration, LOSSES[0]]), memories=2)
    (example,) = early.bc_examples(pair, [demonstration])
    assert names(example.ids).count("demo") == 1
    assert "lose" in names(example.ids)
    assert "win" not in names(example.ids)


def test_play_and_imitation_read_the_same():
    some = policy(EpisodicMemory(COLLECTED), memories=2)
    both = situations([UNSEEN[0], COLLECTED[0], COLLECTED[1]])
    keys = jax.random.split(jax.random.key(0), 3)
    turns = some.act(both, keys, temperature=0.0)
    assert [list(t.context) for t in turns] == [some.context(*s[:5]) for s in both]
    # One state and one instruction, but each task leaves out its own episodes.
    assert turns[1].context != turns[2].context
    examples = early.bc_examples(some, COLLECTED[:2])
    for turn, example in zip(turns[1:], examples, strict=True):
        assert tuple(example.ids[: len(turn.context)]) == turn.context
    after = some.replace(some.model)
    assert after.context(*both[0][:5]) == some.context(*both[0][:5])
    writer = RejectionSamplingWriter(some, samples=1, temperature=1.0)
    assert writer.policy.context(*both[0][:5]) == some.context(*both[0][:5])


def test_what_is_remembered_is_a_part_of_the_reasons_for_an_action():
    some = policy(EpisodicMemory(COLLECTED), memories=2)
    (here,) = situations(UNSEEN[:1])
    result = attribute_action(some, here, "open left")
    kinds = [part.kind for part in result.parts]
    assert kinds == ["instruction", "state", "memory", "memory"]
    texts = [part.text for part in result.parts[2:]]
    where = "(in: leave house 08 / at two doors)"
    (steps,) = some.recall([(here.task, here.state)])
    assert texts == [str(s) for s in steps]
    assert f"open right: reward 1, won {where}" in texts
    assert f"open left: not won {where}" in texts

    def log_prob(steps, where=here):
        player = some.with_memory(SameSteps(steps))
        ids = player.context(*where[:5])
        turn = prompts.turn_ids(TOK, "open left")
        (scored,) = score(player.model, [[*ids, *turn]])
        return sum(scored.logp[len(ids) + 1 :])

    full = log_prob(steps)
    no_line = full - log_prob(steps, here._replace(state=()))  # it remembers the same
    expected = [no_line, full - log_prob(steps[1:]), full - log_prob(steps[:1])]
    effects = [part.effect for part in result.parts[1:]]
    np.testing.assert_allclose(effects, expected, atol=1e-4)
    assert abs(effects[1] - effects[2]) > 1e-4


def test_settings_that_make_no_sense_are_named():
    with pytest.raises(ValueError, match="got -1 and 96"):
        PolicyConfig(memories=-1)
    with pytest.raises(ValueError, match="got 1 and 0"):
        PolicyConfig(memories=1, memory_tokens=0)
    with pytest.raises(ValueError, match="memory_tokens bounds what memories adds"):
        PolicyConfig(memory_tokens=32)


@pytest.mark.slow
def test_what_other_tasks_have_shown_is_used_by_the_policy_that_remembers():
    config = supervised.FitConfig(
        steps=200,
        batch_rows=8,
        row_tokens=96,
        eval_every=200,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=5),
    )
    here, mirrored = [], []
    for h in range(HOUSES):
        here.append(visit(h, "visit", "left"))
        mirrored.append(visit(h, "visit", "left", mirror=True))
    keys = jax.vmap(jax.random.key)(np.arange(len(UNSEEN), dtype=np.uint32))
    right = {}
    for memories in (2, 0):
        learner = policy(EpisodicMemory(here), memories=memories)
        examples = early.bc_examples(learner, EXPERTS)
        with tempfile.TemporaryDirectory() as folder:
            model, _ = supervised.fit(
                learner.model, examples, config, seed=0, directory=Path(folder)
            )
        right[memories] = 0
        for visits in (here, mirrored):
            # The same weights: where the safe doors are is in the memory alone.
            player = learner.replace(model).with_memory(EpisodicMemory(visits))
            turns = player.act(situations(UNSEEN), keys, temperature=0.0)
            for turn, e in zip(turns, UNSEEN, strict=True):
                safe = e.transitions[0].action == turn.action
                right[memories] += safe if visits is here else not safe
    # Without a memory both worlds are one to it, and it errs in one of them.
    assert right[2] >= 14
    assert right[0] == 8
