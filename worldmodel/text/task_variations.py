"""New tasks from a few tried ones (DreamGym, Eq. 6): what a model reads and writes.

seed tasks, each with how often it was won -> context ids -> the ids of a new task ->
its instruction and initial state. `nearest_tasks` says which tasks a new one is made
from, when a model is fitted and when it is asked.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from worldmodel.data.records import State, Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.text.ngrams import HashedNgrams
from worldmodel.text.prompts import control_runs, state_ids
from worldmodel.text.references import AnyTokenizer
from worldmodel.text.tokenizer import MAX_LINES

NEAREST = 8
"""The seed tasks of a new one are drawn from so many that are most similar to it, and
to each other."""
DIMENSIONS = 256
BLOCK = 1024
"""Tasks that are compared with all others at a time."""


# --- similarity --------------------------------------------------------------


def task_text(task: Task) -> str:
    """Return the instruction and the initial state."""
    return "\n".join((task.instruction, *task.initial_state))


def task_vectors(tasks: Sequence[Task]) -> Float[np.ndarray, "N D"]:
    """Return a unit vector of the trigrams of each task's instruction and state."""
    encoder = HashedNgrams(DIMENSIONS)
    rows = [encoder.vector(task_text(task)) for task in tasks]
    return np.array(rows).reshape(-1, DIMENSIONS)


def nearest_tasks(tasks: Sequence[Task], count: int = NEAREST) -> list[list[int]]:
    """Return for each task the positions of the most similar ones, the nearest first.

    Tasks that read the same are left out.
    """
    vectors, out = task_vectors(tasks), list[list[int]]()
    texts = [(t.instruction, t.initial_state) for t in tasks]
    for begin in range(0, len(tasks), BLOCK):
        similarities = vectors[begin : begin + BLOCK] @ vectors.T
        for i, row in enumerate(similarities, begin):
            order = np.argsort(-row, kind="stable").tolist()
            near = (j for j in order if texts[j] != texts[i])
            out.append([j for j, _ in zip(near, range(count), strict=False)])
    return out


# --- what a model reads and writes -------------------------------------------


def fitting_seeds(
    tok: AnyTokenizer, seeds: Sequence[SeedTask], budget: float | int
) -> list[SeedTask]:
    """Return the first seed, and those behind it that have at most `budget` ids.

    From the first one on that does not fit all are left out.
    """
    count, used = 1, 0
    for seed in seeds[1:]:
        used += len(_seed_ids(tok.context_view, seed))
        if used > budget:
            break
        count += 1
    return list(seeds[:count])


def variation_ids(
    tok: AnyTokenizer, seeds: Sequence[SeedTask], budget: float | int = math.inf
) -> list[int]:
    """Return the context of Eq. 6: the seed tasks with their initial states.

    A seed that was tried stands behind a token of its outcome: "win" from two thirds of
    won attempts on, "lose" up to one third, else "go". Only `fitting_seeds` are read.
    """
    context_tok, out = tok.context_view, list[int]()
    for seed in fitting_seeds(tok, seeds, budget):
        out += _seed_ids(context_tok, seed)
    return [*out, tok.control("task")]


def _seed_ids(tok: AnyTokenizer, seed: SeedTask) -> list[int]:
    task, success = seed
    return [
        tok.control("vary"),
        *([] if success is None else [tok.control(_outcome(success))]),
        *tok.encode(task.instruction),
        *state_ids(tok, task.initial_state, plain=True),
    ]


def _outcome(success: float) -> str:
    if success >= 2 / 3:
        return "win"
    return "lose" if success <= 1 / 3 else "go"


def variation_reply_ids(tok: AnyTokenizer, task: Task) -> list[int]:
    """Return a task and its initial state, after `task`."""
    return [
        *tok.encode(task.instruction),
        *state_ids(tok, task.initial_state, plain=True),
        tok.control("end"),
    ]


def parse_variation(
    tok: AnyTokenizer, ids: Sequence[int], *, has_instruction: bool = True
) -> tuple[str, State] | None:
    """Return (instruction, initial state), or None where the reply is malformed."""
    parts = control_runs(tok, ids)
    instruction = tok.decode(parts[0][1]).strip()
    state = [tok.decode(run) for name, run in parts if name.startswith("line")]
    order = [f"line{min(i, MAX_LINES - 1)}" for i in range(len(state))]
    expected = ["state", *order, "end"]
    lacks_instruction = has_instruction and not instruction
    if [name for name, _ in parts[1:]] != expected or lacks_instruction:
        return None
    good = all(x.strip() and len(x.splitlines()) == 1 for x in state)
    return (instruction, tuple(state)) if good and state else None
