"""Supervised fits: cross-entropy on the targets of examples.

examples -> packed tokens -> updates, checkpointed and resumable bit for bit -> the
model and its learning curve.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from worldmodel.backbone import lora
from worldmodel.backbone.model import DecoderOutput, Model
from worldmodel.backbone.streams import bucket
from worldmodel.fitting import checkpoint
from worldmodel.fitting.arrays import Ratio
from worldmodel.fitting.batches import Example, Tokens, epochs, pack, rows_of
from worldmodel.fitting.config import FitConfig
from worldmodel.fitting.learner import (
    Learner,
    TrainState,
    merge,
    require_finite,
)
from worldmodel.fitting.losses import cross_entropy, parts_cross_entropy, read_logp
from worldmodel.text import prompts

CONTEXT = len(prompts.PARTS)
"""The part index of context tokens, which count in no part's loss."""

MAX_WIDENING = 8
"""The factor by which rows may be wider than configured, where examples need it."""

PROGRESS_INTERVAL = 10
"""Updates between two reports of progress."""

Progress = Callable[[int, dict[str, float | int]], None]


def supervised_loss(
    output: DecoderOutput, batch: Tokens
) -> tuple[Ratio, dict[str, Ratio]]:
    """Return the cross-entropy on the targets, and each part's loss as a metric."""
    logp = read_logp(output, batch.ids)
    loss = cross_entropy(logp, batch.mask, batch.weight)
    parts = parts_cross_entropy(logp, batch.mask, batch.token_type, len(prompts.PARTS))
    names = prompts.PARTS
    return loss, {f"loss/{n}": p for n, p in zip(names, parts, strict=True)}


def fit(
    model: Model,
    examples: Sequence[Example],
    config: FitConfig,
    *,
    seed: int,
    directory: Path,
    held_out: Sequence[Example] = (),
    progress: Progress | None = None,
) -> tuple[Model, list[dict[str, float | int]]]:
    """Fit a model to examples; return the fitted model and its learning curve.

    The parameters of the last update are returned, whatever the held-out loss was: in
    imitation it is lowest after few updates, and the success of the policy is not
    (docs/LOG.md, 2026-11-25). A directory with a checkpoint resumes there.
    `progress` receives the loss since the last row of the curve and the tokens since
    its last call, every PROGRESS_INTERVAL updates and with each row.

    Raises:
      FloatingPointError: the loss is not finite; the message has the update's number.
      ValueError: there are no examples.
    """
    if not examples:
        raise ValueError("nothing to fit: no examples")
    width = row_tokens_for([*examples, *held_out], config.row_tokens)
    positions = model.config.max_position_embeddings
    examples, held_out = (
        drop_too_long(part, width, positions) for part in (examples, held_out)
    )
    if config.context_loss_weight:
        examples = [with_context_loss(e, config.context_loss_weight) for e in examples]
    tokens = pack(examples, width)
    held_out_tokens = pack(held_out, width) if held_out else None
    if config.lora is not None:
        model = lora.attach(model, config.lora, seed=seed)
    learner = Learner(
        model, config.optimizer, supervised_loss, config.compute, steps=config.steps
    )
    state, curve = learner.init(), []
    restored = checkpoint.restore(directory, state)
    if restored is not None:
        _, state, host = restored
        state, curve = TrainState(*state), host["curve"]
    start = int(state.step)
    batches = epochs(tokens, config.batch_rows, seed=seed, start=start)
    window, tokens_read = None, 0
    for step in range(start + 1, config.steps + 1):
        batch = next(batches)
        tokens_read += int(np.count_nonzero(batch.segment))
        state, metrics = learner.update(state, [batch])
        # Summed on the device: reading the number here would wait for every update.
        window = metrics["loss"] if window is None else window + metrics["loss"]
        if step % config.eval_every and step != config.steps:
            if progress is not None and step % PROGRESS_INTERVAL == 0:
                progress(step, {"loss": float(window.value()), "tokens": tokens_read})
                tokens_read = 0
            continue
        row = {"loss": float(window.value())}
        # Once per row and not per update: reading the loss waits for the device.
        require_finite("loss", row["loss"], step)
        if held_out_tokens is not None:
            row |= evaluate(learner, state.params, held_out_tokens, config.batch_rows)
        window = None
        curve.append({"step": step} | row)
        checkpoint.save(directory, step, state, {"curve": curve})
        if progress is not None:
            progress(step, row | {"tokens": tokens_read})
            tokens_read = 0
    return lora.merge(model._replace(params=state.params)), curve


def epochs_read(config: FitConfig, examples: Sequence[Example]) -> int:
    """Return how often a fit reads these examples, at most, rounded up."""
    tokens = max(sum(len(e.ids) for e in examples), 1)
    return math.ceil(config.steps * config.batch_rows * config.row_tokens / tokens)


def row_tokens_for(examples: Sequence[Example], width: int) -> int:
    """Return `width`, or what the longest example needs, so that nothing is cut.

    In steps of 64, and at most MAX_WIDENING times `width`.
    """
    longest = max((len(e.ids) for e in examples), default=0)
    return width if longest <= width else min(bucket(longest), MAX_WIDENING * width)


def drop_too_long(
    examples: Sequence[Example], width: int, positions: int
) -> list[Example]:
    """Return the examples that fit a row and the positions of the model.

    The number of the others is printed.

    Raises:
      ValueError: there are examples, and none of them fits.
    """
    longest = max((len(e.ids) for e in examples), default=0)
    limit = width
    cure = (
        "shorten the states (the longest example has "
        f"{longest} tokens), or widen the rows: set row_tokens of this fit "
        f"(such as pretrain.fit.row_tokens) to {math.ceil(longest / MAX_WIDENING)}"
    )
    if positions < width:
        limit = positions
        cure = (
            "these are all positions that the model has (max_position_embeddings): "
            "shorten the states, or take another model"
        )
    fitting = [e for e in examples if len(e.ids) <= limit]
    if len(fitting) == len(examples):
        return fitting
    message = (
        f"{len(examples) - len(fitting)} of {len(examples)} examples are longer than"
    )
    if not fitting:
        raise ValueError(f"{message} {limit} tokens: {cure}")
    print(f"fit: {message} {limit} tokens and left out: {cure}", file=sys.stderr)
    return fitting


def with_context_loss(example: Example, weight: float | int) -> Example:
    """Return the example with its context trained on too, at the given weight."""
    mask = np.asarray(example.mask)
    return example._replace(
        mask=[True] * len(mask),
        token_type=np.where(mask, example.token_type, CONTEXT).tolist(),
        weight=np.where(mask, example.weight, weight).tolist(),
    )


def held_out_losses(
    model: Model, examples: Sequence[Example], config: FitConfig
) -> dict[str, float | int]:
    """Return the cross-entropy of a model on examples: `held_out/loss`, and by part.

    It is a mean in nats per target token, of the examples that fit a row of `config`
    and the positions of the model; empty if none does.
    """
    width = row_tokens_for(examples, config.row_tokens)
    limit = min(width, model.config.max_position_embeddings)
    examples = [e for e in examples if len(e.ids) <= limit]
    if not examples:
        return {}
    learner = Learner(
        model, config.optimizer, supervised_loss, config.compute, steps=config.steps
    )
    tokens = pack(examples, width)
    return evaluate(learner, model.params, tokens, config.batch_rows)


def evaluate(
    learner: Learner, params, tokens: Tokens, rows: int
) -> dict[str, float | int]:
    """Return held-out losses, in total and by part."""
    total: dict[str, Ratio] = {}
    for at in range(0, tokens.ids.shape[0], rows):
        index = np.arange(at, min(at + rows, tokens.ids.shape[0]))
        metrics = learner.evaluate(params, rows_of(tokens, index, rows))
        total = merge(total, metrics)
    return {
        f"held_out/{k}": float(v.value())
        for k, v in total.items()
        if float(v.count) > 0
    }
