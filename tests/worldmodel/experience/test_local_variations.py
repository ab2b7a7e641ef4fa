"""Variations of tasks by the local model: what is written, cut and refused."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.worldmodel.experience.test_local import HERE, others, scripted
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask, seed_tasks
from worldmodel.experience import task_writer
from worldmodel.text.task_variations import variation_ids, variation_reply_ids

SEEDS = [
    Task(
        id=f"s{i}",
        instruction="make it bright",
        family="room",
        env="room",
        options={"level": 3, "seed": 4, "calls": [{"tool": "open"}]},
        initial_state=HERE,
        lineage=("s",),
    )
    for i in range(2)
]


def test_a_variation_is_a_new_task_with_its_line(tok, text_model, monkeypatch):
    new = Task(id="?", instruction="go through the door", initial_state=("the end",))
    good = variation_reply_ids(tok, new)
    texts = [(good, [0] * len(good)), (good[:-1], [0] * (len(good) - 1))]
    monkeypatch.setattr(task_writer, "generate", scripted(*texts))
    one, none = others(tok, text_model).vary(seed_tasks(SEEDS), key=jax.random.key(0))
    assert none is None
    assert (one.instruction, one.initial_state) == (new.instruction, new.initial_state)
    assert (one.split, one.family, one.env) == ("generated", "room", "room")
    # A seed would lead to the seed task, and of another instruction nobody knows the
    # expected calls.
    assert one.options == {"level": 3}
    assert one.lineage == ("s", "s0")
    assert one.id not in {"?", "s0"}


@pytest.mark.parametrize(
    ("instruction", "lines"),
    [("go", 40), ("go there " * 30, 1), ("", 2)],
)
def test_every_task_of_the_family_could_be_written(
    tok, text_model, monkeypatch, instruction, lines
):
    """Long states, long instructions, and tasks without any."""
    state = tuple(f"row {i} of the shelf" for i in range(lines))
    task = dataclasses.replace(
        SEEDS[0], instruction=instruction.strip(), initial_state=state
    )
    reply = variation_reply_ids(tok, task)
    grammars = []

    def generate(model, contexts, grammar, keys, *, max_tokens):
        grammars.append((grammar, max_tokens))
        return scripted((reply, [0] * len(reply)))(
            model, contexts, grammar, keys, max_tokens=max_tokens
        )

    monkeypatch.setattr(task_writer, "generate", generate)
    (written,) = others(tok, text_model).vary(seed_tasks([task]), key=jax.random.key(0))
    assert written.initial_state == state
    assert written.instruction == task.instruction
    ((grammar, max_tokens),) = grammars
    assert len(reply) <= max_tokens
    assert grammar.parse(reply) is not None


def test_a_variation_that_was_cut_is_none(tok, text_model, monkeypatch):
    """The tokens that close it were forced, and the last line is missing."""
    reply = variation_reply_ids(tok, SEEDS[0])
    forced = scripted((reply, [0] * len(reply)))

    def cut(*args, **kwargs):
        (out,) = forced(*args, **kwargs)
        sampled = np.array(out.sampled)
        sampled[0, len(reply) - 1] = False
        return [out._replace(sampled=sampled)]

    monkeypatch.setattr(task_writer, "generate", cut)
    assert others(tok, text_model).vary(
        seed_tasks(SEEDS[:1]), key=jax.random.key(0)
    ) == [None]


def test_a_task_beyond_the_models_positions_has_no_variation(tok, text_model):
    long = tuple(f"row {i} of the shelf" for i in range(60))
    task = dataclasses.replace(SEEDS[0], initial_state=long)
    out = others(tok, text_model).vary(
        seed_tasks([task, *SEEDS]), key=jax.random.key(0)
    )
    assert len(out) == 3
    assert out[0] is None


def test_random_variations_are_none_or_whole(tok, text_model):
    out = others(tok, text_model).vary(seed_tasks(SEEDS * 8), key=jax.random.key(1))
    assert len(out) == 16
    for one in filter(None, out):
        assert one.instruction.strip()
        assert all(line.strip() for line in one.initial_state)
    assert others(tok, text_model).vary([], key=jax.random.key(0)) == []


def test_a_variation_has_the_seeds_that_the_model_was_fitted_to(
    tok, text_model, monkeypatch
):
    """Of a group of four as many as the settings say; all stand in its lineage."""
    group = [
        SeedTask(dataclasses.replace(SEEDS[0], id=f"s{i}", lineage=()), i / 3)
        for i in range(4)
    ]
    new = Task(id="?", instruction="go", initial_state=("the end",))
    good, contexts = variation_reply_ids(tok, new), []

    def generate(model, asked, grammar, keys, *, max_tokens):
        contexts.extend(asked)
        return scripted((good, [0] * len(good)))(
            model, asked, grammar, keys, max_tokens=max_tokens
        )

    monkeypatch.setattr(task_writer, "generate", generate)
    model = others(tok, text_model)
    model.config = dataclasses.replace(model.config, variation_seeds=3)
    (one,) = model.vary([group], key=jax.random.key(0))
    budget = model.config.context_budget
    assert contexts == [variation_ids(tok, group[:3], budget)]
    assert one.lineage == ("s0", "s1", "s2")


def test_seeds_that_do_not_fit_are_not_in_the_lineage(tok, text_model, monkeypatch):
    group = [
        SeedTask(dataclasses.replace(SEEDS[0], id=f"s{i}", lineage=()))
        for i in range(3)
    ]
    good = variation_reply_ids(
        tok, Task(id="?", instruction="go", initial_state=("x",))
    )
    monkeypatch.setattr(task_writer, "generate", scripted((good, [0] * len(good))))
    model = others(tok, text_model)
    model.config = dataclasses.replace(model.config, context_budget=0)
    (one,) = model.vary([group], key=jax.random.key(0))
    assert one.lineage == ("s0",)
