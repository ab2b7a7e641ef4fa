"""The reward model R_phi, fitted to preferences between attempts.

progress_attribution.py fits the same model to outcomes of single attempts instead.

transition -> task, past actions, state, action and effect as ids -> a decoder with a
scalar head -> R(s, a, s') at the last id. Pairs of attempts -> the Bradley-Terry loss
-log sigmoid(R(better) - R(worse)) (Christiano et al., arXiv:1706.03741, Eq. 1).

Unlike in the paper the R of an attempt is the mean over its steps, not the sum: lost
attempts are longer, so that with a sum a constant R would tell them apart.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from dreamgym.rewards.preferences import Preference
from dreamgym.rewards.reward_model_config import RewardModelConfig
from worldmodel.backbone.mesh import to_host
from worldmodel.backbone.model import Model, apply_decoder
from worldmodel.backbone.scalar_head import HEAD, place_head, with_scalar_head
from worldmodel.backbone.streams import bucket
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.data.records import Task, Transition, atomic_write
from worldmodel.fitting import checkpoint
from worldmodel.fitting.arrays import AnyArray, Ratio
from worldmodel.fitting.batches import Example, Tokens, pack, rows_of
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.fitting.learner import (
    Learner,
    TrainState,
    bind,
    on_logits,
    require_finite,
)
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer

SCHEMA = "dreamgym.reward/1"
_FILE = "reward.json"

Progress = Callable[[int, dict[str, float | int]], None]


def transition_ids(
    tok: TextTokenizer, task: Task, past: Sequence[str], t: Transition, *, history: int
) -> list[int]:
    """Return the ids that R_phi reads of a step; its score is that of the last id."""
    query = prompts.query_ids(tok, task, past, (), t.state, t.action, history=history)
    effect = prompts.effect_ids(tok, t.state, t.next_state)
    return [*query, *effect, tok.control("reward")]


def attempt_examples(
    tok: TextTokenizer,
    task: Task,
    steps: Sequence[Transition],
    *,
    history: int,
    past: Sequence[str] = (),
) -> list[Example]:
    """Return an example for each step of an attempt; the mask marks its last id."""
    out = []
    for t in steps:
        ids = transition_ids(tok, task, past, t, history=history)
        n = len(ids)
        out.append(Example(ids, [False] * (n - 1) + [True], [0] * n))
        past = (*past, t.action)
    return out


def bradley_terry(
    scores: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    side: Int[AnyArray, "B T"],
    *,
    pairs: int,
) -> tuple[Ratio, Ratio]:
    """Return (-log sigmoid(R(better) - R(worse)), share ranked right) over pairs.

    Args:
      scores: R at the positions of `mask`.
      side: 2 i at the steps of the better attempt of pair i, 2 i + 1 at those of the
        worse one.
      pairs: the number of pairs; one without steps on both sides does not count.
    """
    flat, index = jnp.where(mask, scores, 0.0).reshape(-1), jnp.ravel(side)
    count = jnp.asarray(mask).reshape(-1).astype(scores.dtype)
    total = jax.ops.segment_sum(flat, index, 2 * pairs)
    steps = jax.ops.segment_sum(count, index, 2 * pairs)
    mean = (total / jnp.maximum(steps, 1.0)).reshape(pairs, 2)
    valid = steps.reshape(pairs, 2).min(axis=1) > 0  # a padded batch has empty pairs
    margin, number = mean[:, 0] - mean[:, 1], valid.sum().astype(scores.dtype)
    loss = jnp.where(valid, jax.nn.softplus(-margin), 0.0).sum()
    # A tie is half right: a model that always says the same ranks half of them.
    right = jnp.where(margin > 0, 1.0, jnp.where(margin == 0, 0.5, 0.0))
    return Ratio(loss, number), Ratio(jnp.where(valid, right, 0.0).sum(), number)


def _loss(logits, batch: Tokens, *, pairs: int):
    loss, right = bradley_terry(
        logits[..., 0], batch.mask, batch.columns["attempt"], pairs=pairs
    )
    return loss, {"ranked": right}


class RewardModelWeights(NamedTuple):
    """What a fit of R_phi changes: its parameters and the mean score it subtracts."""

    params: nnx.State
    mean_score: float


def _scores(params: nnx.State, batch: Tokens, *, definition: nnx.GraphDef) -> jax.Array:
    rows = (batch.ids, batch.position, batch.segment)
    return apply_decoder(definition, params, *rows).logits()[..., 0]


class RewardModel:
    """A fitted reward model R_phi.

    Pairs determine R only up to a constant: `mean_score`, the mean over the steps of
    the fit, is subtracted, so that a score of 0 is that of an average step. With the
    `objective` "progress" the scores of an attempt sum to its outcome, and nothing is
    subtracted.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: TextTokenizer,
        *,
        history: int,
        width: int,
        mean_score: float = 0.0,
        objective: str = "preference",
    ):
        self.model, self.tokenizer, self.objective = model, tokenizer, objective
        self.history, self.width, self.mean_score = history, width, mean_score
        self._scores = jax.jit(bind(_scores, definition=model.definition))

    def scores(
        self,
        attempts: Sequence[tuple[Task, Sequence[Transition]]],
        pasts: Sequence[Sequence[str]] | None = None,
    ) -> list[Float[np.ndarray, " S"]]:
        """Return the score of each step of each attempt.

        `pasts` are the actions before each attempt; None if all start their task.
        """
        pasts = [()] * len(attempts) if pasts is None else pasts
        examples = [
            e
            for (task, steps), past in zip(attempts, pasts, strict=True)
            for e in attempt_examples(
                self.tokenizer, task, steps, history=self.history, past=past
            )
        ]
        ends = np.cumsum([len(steps) for _, steps in attempts])[:-1]
        scores = self.example_scores(examples) - self.mean_score
        return np.split(scores, ends) if attempts else []

    def example_scores(self, examples: Sequence[Example]) -> Float[np.ndarray, " N"]:
        """Return the score of each example, at the one id that its mask marks.

        Nothing is subtracted.
        """
        examples = [e.with_columns(row=i) for i, e in enumerate(examples)]
        out = np.zeros(len(examples))
        # Batches of one shape, so that one compiled program scores any number of steps.
        rows = 16
        tokens = pack(examples, _width(examples, self.width))
        for at in range(0, len(tokens.ids) if examples else 0, rows):
            index = np.arange(at, min(at + rows, len(tokens.ids)))
            batch = rows_of(tokens, index, rows)
            scores = to_host(self._scores(self.model.params, batch))
            out[batch.columns["row"][batch.mask]] = scores[batch.mask]
        return out

    def margins(self, pairs: Sequence[Preference]) -> Float[np.ndarray, " N"]:
        """Return R(better) - R(worse) of each pair; above 0 it is ranked right."""
        both = [(p.task, side) for p in pairs for side in (p.better, p.worse)]
        mean = np.array([x.mean() for x in self.scores(both)]).reshape(-1, 2)
        return mean[:, 0] - mean[:, 1]

    @property
    def weights(self) -> RewardModelWeights:
        """The present weights."""
        return RewardModelWeights(self.model.params, self.mean_score)

    def load_weights(self, weights: RewardModelWeights) -> None:
        """Score with these weights from now on."""
        self.model = self.model._replace(params=weights.params)
        self.mean_score = weights.mean_score

    def center(self, pairs: Sequence[Preference]) -> None:
        """Set `mean_score` so that the mean score of the pairs' steps is 0."""
        both = [(p.task, side) for p in pairs for side in (p.better, p.worse)]
        self.mean_score += float(np.concatenate(self.scores(both)).mean())

    def save(self, directory: Path) -> None:
        """Write a model directory, with the head of the score in a file of its own."""
        decoder = nnx.merge(self.model.definition, self.model.params)
        head = to_host(decoder.head[...])[0].tolist()
        # A model directory has no place for a scalar head; what is saved there is a
        # decoder that any tool can load.
        config = dataclasses.replace(self.model.config, tie_word_embeddings=True)
        del decoder.head
        decoder.config = config
        definition, params = nnx.split(decoder)
        trunk = self.model._replace(definition=definition, params=params, config=config)
        save_model(directory, trunk, self.tokenizer)
        row = {
            "schema": SCHEMA,
            "objective": self.objective,
            "history": self.history,
            "width": self.width,
            "centre": self.mean_score,
            "head": head,
        }
        with atomic_write(directory / _FILE) as file:
            json.dump(row, file)

    @classmethod
    def load(cls, directory: Path, mesh: Mesh | None = None) -> "RewardModel":
        """Load a model that `save` wrote, onto a mesh of devices or one of them.

        Raises:
          ValueError: the directory holds no reward model, or one of another version.
        """
        path = directory / _FILE
        if not path.is_file():
            raise ValueError(f"{directory}: expected a reward model, got no {_FILE}")
        row = json.loads(path.read_text())
        schema = row.get("schema")
        if schema != SCHEMA:
            raise ValueError(f"{path}: schema must be {SCHEMA!r}, got {schema!r}")
        trunk, tok = load_model(directory, mesh=mesh)
        model = with_scalar_head(trunk)
        model = model._replace(params=_with_head(model, row["head"]))
        return cls(
            model,
            tok,
            history=row["history"],
            width=row["width"],
            mean_score=row["centre"],
            # Models of older versions have no entry, and are all of this objective.
            objective=row.get("objective", "preference"),
        )


def _with_head(model: Model, head: Sequence[float]) -> nnx.State:
    flat = dict(nnx.to_flat_state(model.params))
    (path,) = (p for p in flat if p[0] == HEAD)
    values = np.array([head], np.float32)
    flat[path] = flat[path].replace(place_head(values, model.mesh))
    return nnx.from_flat_state(flat)


def _width(examples: Sequence[Example], width: int) -> int:
    """Return `width`, or the longest example's length rounded up (streams.bucket)."""
    longest = max((len(e.ids) for e in examples), default=0)
    return width if longest <= width else bucket(longest)


def fit(
    model: Model,
    tok: TextTokenizer,
    pairs: Sequence[Preference],
    config: RewardModelConfig,
    *,
    seed: int,
    directory: Path,
    progress: Progress | None = None,
) -> tuple[RewardModel, list[dict[str, float | int]]]:
    """Fit R_phi, starting from a model's weights; return it and its learning curve.

    The fit resumes from a checkpoint in `directory`, if there is one.

    Raises:
      ValueError: there are no pairs.
      FloatingPointError: the loss is not finite; the message names the update.
    """
    if not pairs:
        raise ValueError("nothing to fit a reward model to: no pairs")
    c = config
    batches = AttemptBatches(
        pair_groups(tok, pairs, history=c.history),
        c.batch_pairs,
        width=c.row_tokens,
        seed=seed,
    )
    start = with_scalar_head(model)
    learner = pair_learner(start, c.learning_rate, c.batch_pairs, c.steps)
    params, curve = fit_batches(
        learner, batches, c, measure="ranked", directory=directory, progress=progress
    )
    raw = RewardModel(
        start._replace(params=params), tok, history=c.history, width=c.row_tokens
    )
    raw.center(pairs)
    return raw, curve


def fit_batches(
    learner: Learner,
    batches: "AttemptBatches",
    config: RewardModelConfig,
    *,
    measure: str,
    directory: Path,
    progress: Progress | None = None,
) -> tuple[nnx.State, list[dict[str, float | int]]]:
    """Fit to batches of attempts; return parameters and a curve of loss and `measure`.

    The fit resumes from a checkpoint in `directory`, if there is one. A batch is of
    whole attempts and of one fixed shape, and the loss is over attempts:
    fitting/supervised.py packs single examples under a cross-entropy, so the loop
    stands here.

    Raises:
      FloatingPointError: the loss is not finite; the message names the update.
    """
    c, state, curve = config, learner.init(), []
    saved = checkpoint.restore(directory, state)
    if saved is not None:
        _, state, host = saved
        state, curve = TrainState(*state), host["curve"]
    window: dict[str, Ratio] = {}
    for step in range(int(state.step) + 1, c.steps + 1):
        state, metrics = learner.update(state, [batches.at(step - 1)])
        for name in ("loss", measure):
            total = window.get(name)
            window[name] = metrics[name] if total is None else total + metrics[name]
        if step % c.save_every and step != c.steps:
            continue
        row: dict[str, float | int] = {"step": step}
        row |= {k: float(v.value()) for k, v in window.items()}
        require_finite("loss of the reward model", row["loss"], step)
        window, curve = {}, [*curve, row]
        checkpoint.save(directory, step, state, {"curve": curve})
        if progress is not None:
            progress(step, row)
    return state.params, curve


def pair_learner(
    model: Model, learning_rate: float, batch_pairs: int, steps: int
) -> Learner:
    """Return the learner of a fit of R_phi to pairs, in so many steps."""
    loss = bind(_loss, pairs=batch_pairs)
    return score_learner(model, loss, learning_rate, steps)


def score_learner(
    model: Model, loss: Callable[..., Any], learning_rate: float, steps: int
) -> Learner:
    """Return the learner of a loss of (scores of one column, Tokens)."""
    optimizer = OptimizerConfig(
        learning_rate=learning_rate, warmup_steps=min(20, steps)
    )
    return Learner(model, optimizer, on_logits(loss), steps=steps)


def pair_groups(
    tok: TextTokenizer, pairs: Sequence[Preference], *, history: int
) -> list[list[list[Example]]]:
    """Return for each pair the examples of the better attempt and of the worse one."""
    return [
        [attempt_examples(tok, p.task, x, history=history) for x in (p.better, p.worse)]
        for p in pairs
    ]


class AttemptBatches:
    """Batches of whole groups of attempts, all of one shape, in a random order.

    A group is a pair of attempts, or one attempt alone. The column `attempt` numbers
    the attempts of a batch, group after group. Each epoch has another order.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Sequence[Example]]],
        size: int,
        *,
        width: int,
        seed: int,
        rows_multiple: int = 1,
    ):
        """Pack groups, all of as many attempts; a batch has `size` of them, at most.

        Its rows are a multiple of `rows_multiple`. Where other groups follow later, a
        larger multiple lets fewer shapes compile.
        """
        self._size, self._seed, self._attempts = size, seed, len(groups[0])
        width = _width([e for group in groups for x in group for e in x], width)
        self._groups = [
            pack(
                [
                    e.with_columns(attempt=attempt)
                    for attempt, examples in enumerate(group)
                    for e in examples
                ],
                width,
            )
            for group in groups
        ]
        # One shape: the rows of the largest batch there can be.
        large = sorted((len(x.ids) for x in self._groups), reverse=True)
        self._rows = bucket(sum(large[:size]), rows_multiple)
        self._order = -1, np.arange(0)

    def at(self, step: int) -> Tokens:
        """Return the batch of a step, a function of the seed and the step alone."""
        steps = -(-len(self._groups) // self._size)
        epoch, batch = divmod(step, steps)
        if self._order[0] != epoch:
            rng = np.random.default_rng((self._seed, epoch))
            self._order = epoch, rng.permutation(len(self._groups))
        numbers = self._order[1][batch * self._size : (batch + 1) * self._size]
        groups = [
            x.with_columns(attempt=x.columns["attempt"] + np.int32(self._attempts * i))
            for i, x in enumerate(self._groups[number] for number in numbers)
        ]
        tokens = jax.tree.map(lambda *rows: np.concatenate(rows), *groups)
        return rows_of(tokens, np.arange(len(tokens.ids)), self._rows)
