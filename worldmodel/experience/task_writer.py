"""New tasks by the experience model (DreamGym, Eq. 6).

groups of tried tasks -> a prompt each -> a task as the grammar has it, or None.
"""

from collections.abc import Sequence

import jax
import numpy as np

from worldmodel.backbone.generate import generate
from worldmodel.backbone.model import Model
from worldmodel.backbone.streams import bucket
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import variation
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.grammar import variation_grammar
from worldmodel.text.task_variations import (
    fitting_seeds,
    parse_variation,
    variation_ids,
    variation_reply_ids,
)
from worldmodel.text.tokenizer import TextTokenizer


def write_tasks(
    model: Model,
    tok: TextTokenizer,
    config: ExperienceConfig,
    groups: Sequence[Sequence[SeedTask]],
    *,
    key: jax.Array,
) -> list[Task | None]:
    """Return a new task from each group (Eq. 6), None where it is malformed.

    So is one that is longer than all seed tasks, by more than a few tokens, and that of
    seeds for which the model has too few positions. Of a group the first
    `config.variation_seeds` are read, as far as `config.context_budget` goes.
    """
    if not groups:
        return []
    budget = config.context_budget
    groups = [
        fitting_seeds(tok, group[: config.variation_seeds], budget) for group in groups
    ]
    tasks = [seed.task for group in groups for seed in group]
    out: list[Task | None] = [None] * len(groups)
    instructions = [len(tok.encode(t.instruction)) for t in tasks]
    replies = [len(variation_reply_ids(tok, t)) for t in tasks]
    states = [n - m for n, m in zip(replies, instructions, strict=True)]
    limits = (bucket(max(n) + 8, 8) for n in (instructions, states))
    instruction_tokens, state_tokens = limits
    max_tokens = bucket(instruction_tokens + state_tokens + 2, 32)
    grammar = variation_grammar(
        tok,
        config,
        instruction_tokens,
        state_tokens,
        has_instruction=all(t.instruction for t in tasks),
    )
    contexts = [variation_ids(tok, group) for group in groups]
    room = model.config.max_position_embeddings - max_tokens
    fitting = [i for i, ids in enumerate(contexts) if len(ids) <= room]
    if not fitting:
        return out
    sampled = generate(
        model,
        [contexts[i] for i in fitting],
        grammar,
        jax.random.split(key, len(groups))[np.array(fitting)],
        max_tokens=max_tokens,
    )
    for i, row in zip(fitting, sampled, strict=True):
        group, length = groups[i], int(row.length[0])
        parsed = parse_variation(
            tok,
            row.ids[0, :length].tolist(),
            has_instruction=bool(group[0].task.instruction),
        )
        was_cut = not row.sampled[0, :length].all()
        if parsed is not None and not was_cut:
            out[i] = variation(group, *parsed)
    return out
