"""The critic of PPO: values of states, read before the policy writes there.

turns -> values at the columns that predict sampled tokens -> advantages (advantages.py)
-> returns -> the critic is fitted to them. A critic over turns is read where a turn
begins: a turn is one action, so time counts in turns, as it does for the other
baselines. A critic over tokens is read before each sampled token, and the discount
applies between turns only. A critic may have several heads, which are fitted to the
same returns and differ where nothing was learnt.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from dreamgym.rl import losses
from dreamgym.rl.config import CriticConfig
from worldmodel.backbone.mesh import to_host
from worldmodel.backbone.model import Model, apply_decoder
from worldmodel.backbone.scalar_head import HEAD, with_scalar_head
from worldmodel.backbone.streams import bucket
from worldmodel.fitting.arrays import Ratio
from worldmodel.fitting.batches import Example, Tokens, epochs, pack, rows_of
from worldmodel.fitting.config import ComputeConfig, OptimizerConfig
from worldmodel.fitting.learner import (
    Learner,
    TrainState,
    bind,
    merge,
    on_logits,
    require_finite,
)


def critic_loss(logits, batch: Tokens, *, clip: float):
    """Return the value loss of the columns before the tokens in the mask.

    It is the mean over heads, to which the last axis of `logits` belongs. The batch has
    the column `returns`, and for each head a column of its values before the fit.
    """
    chex.assert_rank(logits, 3)
    chex.assert_equal_shape_prefix([logits, batch.mask], 2)
    returns, mask, weight = (
        jnp.asarray(x)[:, 1:]
        for x in (batch.columns["returns"], batch.mask, batch.weight)
    )
    loss = Ratio(jnp.zeros(()), jnp.zeros(()))
    for head in range(logits.shape[-1]):
        old_value = jnp.asarray(batch.columns[_old_value(head)])[:, 1:]
        # As with logits, the output at a column belongs to the token after it.
        value = logits[:, :-1, head]
        loss += losses.value_loss(value, old_value, returns, mask, weight, clip=clip)
    return loss, {}


def _old_value(head: int) -> str:
    """Return the name of the column of a head's values before the fit."""
    return f"old_value_{head}"


def initial_ensemble(
    count: int, norm_scale: Float[np.ndarray, " D"], seed: int
) -> Float[np.ndarray, "H D"]:
    """Return heads that disagree everywhere and whose mean is zero; a single one is 0.

    `norm_scale` is the scale of the norm that hidden states come from: their values
    then differ between heads by about 1, the scale of returns. Fitting makes heads
    agree where there are returns and leaves their differences elsewhere, as in
    ensembles with random priors (arXiv:1806.03335).
    """
    norm = np.sqrt((norm_scale.astype(np.float64) ** 2).sum())
    drawn = np.random.default_rng(seed).normal(size=(count, len(norm_scale))) / norm
    return (drawn - drawn.mean(0)).astype(np.float32)


def _values(params: nnx.State, batch: Tokens, *, definition: nnx.GraphDef) -> jax.Array:
    rows = (batch.ids, batch.position, batch.segment)
    before = apply_decoder(definition, params, *rows).logits()[:, :-1]
    # Moved to the token that they are before.
    return jnp.pad(before, ((0, 0), (1, 0), (0, 0)))


class Critic:
    """Values of turns or tokens, and their fit; the state is passed in and returned.

    Arrays [N] have one number for each position, turn after turn, and within a turn
    token after token; arrays [N, H] have one for each head.
    """

    def __init__(
        self,
        model: Model,
        config: CriticConfig,
        *,
        rows: int,
        width: int,
        seed: int = 0,
    ):
        """A batch has `rows` packed rows of `width` tokens, as in policy updates.

        The `seed` is that of several heads.
        """
        self.config, self._rows, self._width = config, rows, width
        norm_scale = to_host(
            dict(nnx.to_flat_state(model.params))["norm", "scale"][...]
        )
        initial = initial_ensemble(config.ensemble_size, norm_scale, seed)
        self._model = with_scalar_head(model, initial)
        shared = config.network == "shared"
        top = {str(path[0]) for path, _ in nnx.to_flat_state(self._model.params)}
        optimizer = OptimizerConfig(
            learning_rate=config.learning_rate,
            warmup_steps=1,
            cosine_decay=False,
            weight_decay=0.0,
        )
        self._learner = Learner(
            self._model,
            optimizer,
            on_logits(bind(critic_loss, clip=config.value_clip)),
            # A shared trunk is the policy's, so that only the head may be fitted: the
            # value loss would move the policy outside its trust region.
            ComputeConfig(frozen=tuple(sorted(top - {HEAD})) if shared else ()),
        )
        self._values = jax.jit(bind(_values, definition=self._model.definition))

    def init(self) -> TrainState:
        """Return a critic whose mean value is 0, with a new optimiser."""
        return self._learner.init()

    def positions(self, example: Example) -> list[int]:
        """Return the sampled tokens of a turn before which values are read."""
        sampled = [i for i, trains in enumerate(example.mask) if trains]
        return sampled[:1] if self.config.value_level == "turn" else sampled

    def values(
        self, state: TrainState, policy: nnx.State, examples: Sequence[Example]
    ) -> Float[np.ndarray, "N H"]:
        """Return the value of the state at each position, by each head."""
        params = self._params(state, policy)
        positions = [self.positions(e) for e in examples]
        count = sum(map(len, positions))
        tokens = self._packed(
            _value_examples(examples, positions, row=np.arange(count))
        )
        out = np.zeros((count, self.config.ensemble_size), np.float32)

        def piece(start: int, stop: int, size: int) -> tuple[Tokens, np.ndarray]:
            batch = rows_of(tokens, np.arange(start, stop), size)
            return batch, to_host(self._values(params, batch))

        rows, width = tokens.ids.shape
        for batch, values in self._learner.microbatches.run(
            rows, self._rows, width, piece
        ):
            out[batch.columns["row"][batch.mask]] = values[batch.mask]
        return out

    def fit(
        self,
        state: TrainState,
        policy: nnx.State,
        examples: Sequence[Example],
        returns: Float[np.ndarray, " N"],
        values: Float[np.ndarray, "N H"],
        *,
        seed: int,
    ) -> tuple[TrainState, dict[str, float]]:
        """Fit the critic to the returns in several passes over the batch.

        `values` are the critic's values before the fit; the buffers of `state` are
        donated. The metrics are `value_loss` and `explained_variance`, the share of the
        variance of the returns that the mean of `values` over heads explains.

        Raises:
          FloatingPointError: a loss that is not finite.
        """
        if self.config.network == "shared":
            # A copy, because the learner donates buffers, and these are the policy's.
            params = jax.tree.map(jnp.copy, self._params(state, policy))
            state = state._replace(params=params)
        positions = [self.positions(e) for e in examples]
        # `values` are from before the first step: value clipping (losses.value_loss) is
        # relative to them in every epoch, as PPO's ratio is to the sampling policy.
        old_values = {_old_value(i): column for i, column in enumerate(values.T)}
        tokens = self._packed(
            _value_examples(examples, positions, returns=returns, **old_values)
        )
        steps = -(-len(tokens.ids) // self._rows) * self.config.epochs
        batches = epochs(tokens, self._rows, seed=seed, start=0)
        total: dict[str, Ratio] = {}
        for _ in range(steps):
            state, metrics = self._learner.update(state, [next(batches)])
            total = merge(total, metrics)
        loss = float(total["loss"].value())
        require_finite("critic loss", loss, int(state.step))
        # Of the values before the fit: those that the advantages were computed with.
        error = returns - values.mean(1)
        residual = np.var(error) / max(float(np.var(returns)), 1e-12)
        return state, {"value_loss": loss, "explained_variance": float(1.0 - residual)}

    def _params(self, state: TrainState, policy: nnx.State) -> nnx.State:
        """Return the critic's parameters; a shared trunk is the current policy's."""
        if self.config.network == "separate":
            return state.params
        params = dict(nnx.to_flat_state(state.params))
        trunk = {p: x for p, x in nnx.to_flat_state(policy) if str(p[0]) != HEAD}
        return nnx.from_flat_state(params | trunk)

    def _packed(self, examples: Sequence[Example]) -> Tokens:
        longest = max(len(e.ids) for e in examples)
        width = self._width
        return pack(examples, width if longest <= width else bucket(longest))


def _value_examples(
    examples: Sequence[Example],
    positions: Sequence[Sequence[int]],
    **columns: Float[np.ndarray, " N"] | Int[np.ndarray, " N"],
) -> list[Example]:
    """Return turns up to their last position, with mask and columns at positions."""
    out, start = [], 0
    for e, at in zip(examples, positions, strict=True):
        size = at[-1] + 1
        span = slice(start, start + len(at))
        start += len(at)
        mask = np.zeros(size, bool)
        mask[at] = True
        values = {}
        for name, numbers in columns.items():
            values[name] = np.zeros(size, numbers.dtype)
            values[name][at] = numbers[span]
        token_type = np.zeros(size, np.int32)
        out.append(Example(e.ids[:size], mask, token_type, columns=values))
    return out
