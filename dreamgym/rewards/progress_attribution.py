"""Progress attribution: a reward model whose scores of an attempt sum to its outcome.

episodes, won (1) and lost (0) -> R_phi of each step -> (sum over the steps - outcome)^2
-> the score of a step is its share of the outcome, and is what the step is paid
(SPA-RL, arXiv:2505.20732: a progress estimator that is fitted by a squared error).

Unlike in the paper the estimator reads a step alone, without the steps before it, so
that a step which changes nothing does not change what the other steps are paid.
"""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from dreamgym.rewards.reward_model import (
    AttemptBatches,
    Progress,
    RewardModel,
    attempt_examples,
    fit_batches,
    score_learner,
)
from dreamgym.rewards.reward_model_config import RewardModelConfig
from worldmodel.backbone.model import Model
from worldmodel.backbone.scalar_head import with_scalar_head
from worldmodel.data.records import Episode
from worldmodel.fitting.arrays import AnyArray, Ratio
from worldmodel.fitting.batches import Example, Tokens
from worldmodel.fitting.learner import Learner, bind
from worldmodel.text.tokenizer import TextTokenizer

WON = 0.5
"""An attempt is predicted to be won where its shares sum to more than this."""


def outcome_error(
    scores: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    attempt: Int[AnyArray, "B T"],
    outcome: Num[AnyArray, "B T"],
    *,
    attempts: int,
) -> tuple[Ratio, Ratio]:
    """Return ((sum of shares - outcome)^2, share predicted right) over attempts.

    Args:
      scores: the shares, at the positions of `mask`.
      attempt: the number of the attempt that a step is of.
      outcome: of the step's attempt, 1 if it was won and 0 if it was lost.
      attempts: the number of attempts; one without steps does not count.
    """
    index = jnp.ravel(attempt)

    def sums(x: Array) -> Array:
        return jax.ops.segment_sum(jnp.where(mask, x, 0.0).ravel(), index, attempts)

    steps = sums(jnp.ones_like(scores))
    target = sums(jnp.asarray(outcome, scores.dtype)) / jnp.maximum(steps, 1.0)
    total, valid = sums(scores), steps > 0
    right = (total > WON) == (target > WON)
    number = valid.sum().astype(scores.dtype)
    return (
        Ratio(jnp.where(valid, (total - target) ** 2, 0.0).sum(), number),
        Ratio((valid & right).sum().astype(scores.dtype), number),
    )


def _loss(logits: Array, batch: Tokens, *, attempts: int):
    columns = batch.columns
    error, right = outcome_error(
        logits[..., 0],
        batch.mask,
        columns["attempt"],
        columns["outcome"],
        attempts=attempts,
    )
    return error, {"right": right}


def scored_attempts(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes with a known outcome and at least one step."""
    return [e for e in episodes if e.success is not None and e.transitions]


def fit(
    model: Model,
    tok: TextTokenizer,
    attempts: Sequence[Episode],
    config: RewardModelConfig,
    *,
    seed: int,
    directory: Path,
    progress: Progress | None = None,
) -> tuple[RewardModel, list[dict[str, float | int]]]:
    """Fit R_phi to the outcomes of attempts; return it and its learning curve.

    A batch has twice as many attempts as `batch_pairs`, and no past actions are read.
    The fit resumes from a checkpoint in `directory`, if there is one.

    Raises:
      ValueError: there are no attempts.
      FloatingPointError: the loss is not finite; the message names the update.
    """
    if not attempts:
        raise ValueError("nothing to fit a reward model to: no attempts")
    c, size = config, 2 * config.batch_pairs
    batches = AttemptBatches(
        outcome_groups(tok, attempts), size, width=c.row_tokens, seed=seed
    )
    start = with_scalar_head(model)
    learner = outcome_learner(start, c.learning_rate, size, c.steps)
    params, curve = fit_batches(
        learner, batches, c, measure="right", directory=directory, progress=progress
    )
    fitted = RewardModel(
        start._replace(params=params),
        tok,
        history=0,
        width=c.row_tokens,
        objective="progress",
    )
    return fitted, curve


def outcome_groups(
    tok: TextTokenizer, attempts: Sequence[Episode]
) -> list[list[list[Example]]]:
    """Return for each attempt a group of its steps' examples, with its outcome."""
    return [
        [
            [
                x.with_columns(outcome=int(bool(e.success)))
                for x in attempt_examples(tok, e.task, e.transitions, history=0)
            ]
        ]
        for e in attempts
    ]


def outcome_learner(
    model: Model, learning_rate: float, batch_attempts: int, steps: int
) -> Learner:
    """Return the learner of a fit of R_phi to outcomes, in so many steps."""
    loss = bind(_loss, attempts=batch_attempts)
    return score_learner(model, loss, learning_rate, steps)


def predicted_sums(
    model: RewardModel, attempts: Sequence[Episode]
) -> Float[np.ndarray, " N"]:
    """Return the sum of each attempt's shares, which predicts its outcome."""
    shares = model.scores([(e.task, e.transitions) for e in attempts])
    return np.array([x.sum() for x in shares])


def predicted_outcomes(
    model: RewardModel, fitted: Sequence[Episode], held_out: Sequence[Episode]
) -> dict[str, Float[np.ndarray, " N"]]:
    """Return the outcomes that the sums of shares predict for held-out attempts.

    Next to those of the "model" stand two that know the fitted attempts alone: their
    mean outcome ("constant"), and the least-squares line through their outcomes by
    number of steps ("length").
    """
    outcome = outcomes_of(fitted)
    line, *_ = np.linalg.lstsq(_lengths(fitted), outcome)
    return {
        "model": predicted_sums(model, held_out),
        "constant": np.full(len(held_out), outcome.mean()),
        "length": _lengths(held_out) @ line,
    }


def outcomes_of(attempts: Sequence[Episode]) -> Float[np.ndarray, " N"]:
    """Return 1 for each won attempt, and 0 for each lost one."""
    return np.array([float(bool(e.success)) for e in attempts])


def _lengths(attempts: Sequence[Episode]) -> Float[np.ndarray, "N 2"]:
    """Return a row (1, number of steps) for each attempt."""
    return np.array([[1.0, len(e.transitions)] for e in attempts])
