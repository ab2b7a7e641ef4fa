"""The learned tier: a model of rewards R_phi, fitted to which attempts are better.

transition -> task, past actions, state, action, effect as ids -> a decoder with one
score -> R(s, a, s') at the last of them. Pairs of attempts -> Bradley-Terry loss
-log sigmoid(R(better) - R(worse)) (Christiano et al., arXiv:1706.03741, eq. 1).

Unlike the paper an attempt's R is the mean of its steps', not their sum: lost attempts
are longer, and by the sum a constant would tell them apart and say nothing of a step.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from dreamgym.rewards.preferences import Preference
from worldmodel.backbone.generate import bucket
from worldmodel.backbone.model import Model, apply_decoder
from worldmodel.backbone.scalar_head import HEAD, with_scalar_head
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.data.records import Task, Transition, atomic_write
from worldmodel.fitting import checkpoint
from worldmodel.fitting.arrays import AnyArray, Ratio
from worldmodel.fitting.batches import Example, Tokens, pack, rows_of
from worldmodel.fitting.learner import Learner, TrainState, on_logits, require_finite
from worldmodel.fitting.optimizer import OptimizerConfig
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer

SCHEMA = "dreamgym.reward/1"
_FILE = "reward.json"

Progress = Callable[[int, dict[str, float | int]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreferenceFitConfig:
    """How a reward model is fitted: `steps` updates of `pairs` pairs each.

    Rows hold `width` tokens (more where a transition needs them). `history` past
    actions are read with a transition. A share `held` of the tasks is held out; at most
    `most` pairs are made of a task's episodes.
    """

    steps: int = 200
    pairs: int = 8
    width: int = 256
    history: int = 4
    learning_rate: float = 1e-3
    held: float = 0.2
    most: int = 8
    save_every: int = 50

    def __post_init__(self):
        counts = (self.steps, self.pairs, self.width, self.most, self.save_every)
        if min(counts) < 1 or self.history < 0:
            raise ValueError(
                "steps, pairs, width, most and save_every must be >= 1, history >= 0, "
                f"got {counts} and {self.history}"
            )
        if self.learning_rate <= 0 or not 0 < self.held < 1:
            raise ValueError(
                "learning_rate must be > 0 and held in (0, 1), got "
                f"{self.learning_rate} and {self.held}"
            )


def transition_ids(
    tok: TextTokenizer, task: Task, past: Sequence[str], t: Transition, *, history: int
) -> list[int]:
    """What R_phi reads of a step; it scores the last id."""
    asked = prompts.query_ids(tok, task, past, (), t.state, t.action, history=history)
    effect = prompts.effect_ids(tok, t.state, t.next_state)
    return [*asked, *effect, tok.control("reward")]


def attempt_examples(
    tok: TextTokenizer,
    task: Task,
    steps: Sequence[Transition],
    *,
    history: int,
    past: Sequence[str] = (),
) -> list[Example]:
    """The steps of an attempt after the `past`, each with its last id marked."""
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
    """(-log sigmoid(R(better) - R(worse)), share ranked right) over pairs.

    Args:
      scores: R of the columns where `mask`.
      side: 2 i of the steps of pair i's better attempt, 2 i + 1 of its worse.
      pairs: how many there can be; one without steps does not count.
    """
    flat, at = jnp.where(mask, scores, 0.0).reshape(-1), jnp.asarray(side).reshape(-1)
    count = jnp.asarray(mask).reshape(-1).astype(scores.dtype)
    total = jax.ops.segment_sum(flat, at, 2 * pairs)
    steps = jax.ops.segment_sum(count, at, 2 * pairs)
    mean = (total / jnp.maximum(steps, 1.0)).reshape(pairs, 2)
    there = steps.reshape(pairs, 2).min(axis=1) > 0
    gap, number = mean[:, 0] - mean[:, 1], there.sum().astype(scores.dtype)
    loss = jnp.where(there, jax.nn.softplus(-gap), 0.0).sum()
    # A tie is half right: a model that says nothing ranks half of them.
    right = jnp.where(gap > 0, 1.0, jnp.where(gap == 0, 0.5, 0.0))
    return Ratio(loss, number), Ratio(jnp.where(there, right, 0.0).sum(), number)


def _loss(logits, batch: Tokens, *, pairs: int):
    loss, right = bradley_terry(
        logits[..., 0], batch.mask, batch.columns["side"], pairs=pairs
    )
    return loss, {"ranked": right}


class RewardModel:
    """A fitted R_phi. `centre` is its mean over the steps that it was fitted to.

    Pairs tell only differences: a score of 0 means what the average step does.
    """

    def __init__(
        self, model: Model, tokenizer: TextTokenizer, *, history: int, width: int,
        centre: float = 0.0,
    ):  # fmt: skip
        self.model, self.tokenizer = model, tokenizer
        self.history, self.width, self.centre = history, width, centre
        definition = model.definition

        def scores(params: nnx.State, batch: Tokens) -> jax.Array:
            rows = (batch.ids, batch.position, batch.segment)
            return apply_decoder(definition, params, *rows).logits()[..., 0]

        self._scores = jax.jit(scores)

    def scores(
        self,
        attempts: Sequence[tuple[Task, Sequence[Transition]]],
        pasts: Sequence[Sequence[str]] | None = None,
    ) -> list[Float[np.ndarray, " S"]]:
        """R of each step of each attempt, less the centre.

        `pasts` are the actions before each; None where all begin at their task's start.
        """
        pasts = [()] * len(attempts) if pasts is None else pasts
        examples = [
            e.with_columns(row=i)
            for i, e in enumerate(
                e
                for (task, steps), past in zip(attempts, pasts, strict=True)
                for e in attempt_examples(
                    self.tokenizer, task, steps, history=self.history, past=past
                )
            )
        ]
        out = np.zeros(len(examples))
        rows = 16
        tokens = pack(examples, _width(examples, self.width))
        for at in range(0, len(tokens.ids) if examples else 0, rows):
            index = np.arange(at, min(at + rows, len(tokens.ids)))
            batch = rows_of(tokens, index, rows)
            found = np.asarray(self._scores(self.model.params, batch))
            out[batch.columns["row"][batch.mask]] = found[batch.mask]
        ends = np.cumsum([len(steps) for _, steps in attempts])[:-1]
        return np.split(out - self.centre, ends) if attempts else []

    def gaps(self, pairs: Sequence[Preference]) -> Float[np.ndarray, " N"]:
        """R(better) - R(worse) of each pair; above 0 it ranks them right."""
        both = [(p.task, side) for p in pairs for side in (p.better, p.worse)]
        mean = np.array([x.mean() for x in self.scores(both)]).reshape(-1, 2)
        return mean[:, 0] - mean[:, 1]

    def save(self, directory: Path) -> None:
        """Write the trunk as a model directory, and its head beside it."""
        decoder = nnx.merge(self.model.definition, self.model.params)
        head = np.asarray(decoder.head[...])[0].tolist()
        config = dataclasses.replace(self.model.config, tie_word_embeddings=True)
        del decoder.head
        decoder.config = config
        definition, params = nnx.split(decoder)
        trunk = self.model._replace(definition=definition, params=params, config=config)
        save_model(directory, trunk, self.tokenizer)
        told = {"schema": SCHEMA, "history": self.history, "width": self.width,
                "centre": self.centre, "head": head}  # fmt: skip
        with atomic_write(directory / _FILE) as file:
            json.dump(told, file)

    @classmethod
    def load(cls, directory: Path) -> "RewardModel":
        """The model that `save` wrote.

        Raises:
          ValueError: no reward model there, or one of another version.
        """
        path = directory / _FILE
        if not path.is_file():
            raise ValueError(f"{directory}: expected a reward model, got no {_FILE}")
        told = json.loads(path.read_text())
        if told.get("schema") != SCHEMA:
            got = told.get("schema")
            raise ValueError(f"{path}: schema must be {SCHEMA!r}, got {got!r}")
        trunk, tok = load_model(directory)
        model = with_scalar_head(trunk)
        model = model._replace(params=_with_head(model.params, told["head"]))
        return cls(
            model, tok, history=told["history"], width=told["width"],
            centre=told["centre"],
        )  # fmt: skip


def _with_head(params: nnx.State, head: Sequence[float]) -> nnx.State:
    flat = dict(nnx.to_flat_state(params))
    (path,) = (p for p in flat if p[0] == HEAD)
    flat[path] = flat[path].replace(jnp.asarray([head], jnp.float32))
    return nnx.from_flat_state(flat)


def _width(examples: Sequence[Example], width: int) -> int:
    """`width`, or what the longest example needs, in steps of 64."""
    longest = max((len(e.ids) for e in examples), default=0)
    return width if longest <= width else bucket(longest)


def fit(
    model: Model,
    tok: TextTokenizer,
    pairs: Sequence[Preference],
    config: PreferenceFitConfig,
    *,
    seed: int,
    directory: Path,
    progress: Progress | None = None,
) -> tuple[RewardModel, list[dict[str, float | int]]]:
    """R_phi, begun at a model's weights, and the curve of its fit.

    A directory with a checkpoint resumes there.

    Raises:
      ValueError: no pairs.
      FloatingPointError: a loss that is not finite, with the update's number.
    """
    if not pairs:
        raise ValueError("nothing to fit a reward model to: no pairs")
    c, history = config, config.history
    sides = [
        [attempt_examples(tok, p.task, x, history=history) for x in (p.better, p.worse)]
        for p in pairs
    ]
    width = _width([e for pair in sides for x in pair for e in x], c.width)
    batches = _Batches(sides, c.pairs, width, seed)
    start = with_scalar_head(model)
    optimizer = OptimizerConfig(
        learning_rate=c.learning_rate, steps=c.steps, warmup=min(20, c.steps)
    )
    learner = Learner(
        start, optimizer, on_logits(functools.partial(_loss, pairs=c.pairs))
    )
    state, curve = learner.init(), []
    found = checkpoint.restore(directory, state)
    if found is not None:
        _, state, host = found
        state, curve = TrainState(*state), host["curve"]
    window: dict[str, Ratio] = {}
    for step in range(int(state.step) + 1, c.steps + 1):
        state, metrics = learner.update(state, [batches.at(step - 1)])
        for name in ("loss", "ranked"):
            old = window.get(name)
            window[name] = metrics[name] if old is None else old + metrics[name]
        if step % c.save_every and step != c.steps:
            continue
        row: dict[str, float | int] = {"step": step}
        row |= {k: float(v.value()) for k, v in window.items()}
        require_finite("loss of the reward model", row["loss"], step)
        window, curve = {}, [*curve, row]
        checkpoint.save(directory, step, state, {"curve": curve})
        if progress is not None:
            progress(step, row)
    raw = RewardModel(
        start._replace(params=state.params), tok, history=history, width=c.width
    )
    both = [(p.task, side) for p in pairs for side in (p.better, p.worse)]
    raw.centre = float(np.concatenate(raw.scores(both)).mean())
    return raw, curve


class _Batches:
    """Batches of whole pairs, all of one shape; epoch by epoch, in drawn order."""

    def __init__(
        self, sides: Sequence[Sequence[Sequence[Example]]], size: int, width: int,
        seed: int,
    ):  # fmt: skip
        self._size, self._seed = size, seed
        self._pairs = [
            pack(
                [e.with_columns(side=side)
                 for side, examples in enumerate(pair) for e in examples],
                width,
            )
            for pair in sides
        ]  # fmt: skip
        # One shape: as many rows as the largest batch there can be takes.
        large = sorted((len(x.ids) for x in self._pairs), reverse=True)
        self._rows = sum(large[:size])
        self._order = -1, np.arange(0)

    def at(self, step: int) -> Tokens:
        """The batch of a step: the same whoever asks."""
        steps = -(-len(self._pairs) // self._size)
        epoch, at = divmod(step, steps)
        if self._order[0] != epoch:
            rng = np.random.default_rng((self._seed, epoch))
            self._order = epoch, rng.permutation(len(self._pairs))
        chosen = self._order[1][at * self._size : (at + 1) * self._size]
        found = [
            pair.with_columns(side=pair.columns["side"] + np.int32(2 * number))
            for number, pair in enumerate(self._pairs[i] for i in chosen)
        ]
        whole = jax.tree.map(lambda *rows: np.concatenate(rows), *found)
        return rows_of(whole, np.arange(len(whole.ids)), self._rows)
