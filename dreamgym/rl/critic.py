"""The critic of PPO: what a state is worth, read before the policy writes there.

turns -> V of the columns that predict sampled tokens -> GAE (advantages.py) -> returns
-> the critic is fitted to them. Over turns it is read where a turn begins: a turn is
one action, so time counts in turns, as the discount of the other baselines does. Over
tokens it is read before each of them, and the discount lies between turns alone.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from dreamgym.rl import losses
from worldmodel.backbone.model import Model, apply_decoder
from worldmodel.backbone.scalar_head import HEAD, with_scalar_head
from worldmodel.fitting.arrays import Ratio
from worldmodel.fitting.batches import Example, Tokens, epochs, pack, rows_of
from worldmodel.fitting.learner import (
    ComputeConfig,
    Learner,
    TrainState,
    merge,
    on_logits,
    require_finite,
)
from worldmodel.fitting.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """How values are read, and how they are fitted.

    One value a "turn" or one a "token" (`over`). `trunk` "shared" reads them off the
    policy's own last hidden states by a linear head, without a gradient to the policy;
    "own" gives the critic a network that begins as the policy's. `decay` is GAE's
    lambda; `clip` bounds how far a value moves in an update (0: not); `passes` over the
    batch an update.
    """

    over: str = "turn"
    trunk: str = "shared"
    decay: float = 0.95
    clip: float = 0.2
    learning_rate: float = 3e-3
    passes: int = 2

    def __post_init__(self):
        if self.over not in ("turn", "token"):
            raise ValueError(f"over must be 'turn' or 'token', got {self.over!r}")
        if self.trunk not in ("shared", "own"):
            raise ValueError(f"trunk must be 'shared' or 'own', got {self.trunk!r}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be in [0, 1], got {self.decay}")
        if self.clip < 0 or self.learning_rate <= 0 or self.passes < 1:
            raise ValueError(
                "clip must be >= 0, learning_rate > 0 and passes >= 1, got "
                f"{self.clip}, {self.learning_rate} and {self.passes}"
            )


def critic_loss(logits, batch: Tokens, *, clip: float):
    """Of the columns before the marked tokens, from `returns` and `old_value`."""
    told = (batch.columns["old_value"], batch.columns["returns"])
    old, returns, mask, weight = (
        jnp.asarray(x)[:, 1:] for x in (*told, batch.mask, batch.weight)
    )
    loss = losses.value_loss(logits[:, :-1, 0], old, returns, mask, weight, clip=clip)
    return loss, {}


class Critic:
    """Values of turns or tokens, fitted to their returns. Holds no state of its own.

    Numbers of N follow the turns, and in each of them its tokens.
    """

    def __init__(self, model: Model, config: CriticConfig, *, rows: int, width: int):
        """`rows` of `width` tokens make a batch, as in the policy's updates."""
        self.config, self._rows, self._width = config, rows, width
        self._model = with_scalar_head(model)
        shared = config.trunk == "shared"
        top = {str(path[0]) for path, _ in nnx.to_flat_state(self._model.params)}
        optimizer = OptimizerConfig(
            learning_rate=config.learning_rate, warmup=1, decay=False, weight_decay=0.0
        )
        self._learner = Learner(
            self._model, optimizer,
            on_logits(functools.partial(critic_loss, clip=config.clip)),
            ComputeConfig(frozen=tuple(sorted(top - {HEAD})) if shared else ()),
        )  # fmt: skip
        definition = self._model.definition

        def values(params: nnx.State, batch: Tokens) -> jax.Array:
            rows = (batch.ids, batch.position, batch.segment)
            found = apply_decoder(definition, params, *rows).logits()[:, :-1, 0]
            return jnp.pad(found, ((0, 0), (1, 0)))  # to the column it is asked for

        self._values = jax.jit(values)

    def init(self) -> TrainState:
        """Values of 0, and a fresh optimiser."""
        return self._learner.init()

    def places(self, example: Example) -> list[int]:
        """The sampled tokens of a turn before which values are read."""
        found = [i for i, sampled in enumerate(example.mask) if sampled]
        return found[:1] if self.config.over == "turn" else found

    def values(
        self, state: TrainState, policy: nnx.State, examples: Sequence[Example]
    ) -> Float[np.ndarray, " N"]:
        """V of the state at each place."""
        params = self._params(state, policy)
        places = [self.places(e) for e in examples]
        total = sum(map(len, places))
        tokens = self._packed(_marked(examples, places, row=np.arange(total)))
        out = np.zeros(total, np.float32)

        def told(start: int, stop: int, size: int) -> tuple[Tokens, np.ndarray]:
            batch = rows_of(tokens, np.arange(start, stop), size)
            return batch, np.asarray(self._values(params, batch))

        count, width = tokens.ids.shape
        for batch, found in self._learner.microbatches.run(
            count, self._rows, width, told
        ):
            out[batch.columns["row"][batch.mask]] = found[batch.mask]
        return out

    def fit(
        self,
        state: TrainState,
        policy: nnx.State,
        examples: Sequence[Example],
        returns: Float[np.ndarray, " N"],
        values: Float[np.ndarray, " N"],
        *,
        seed: int,
    ) -> tuple[TrainState, dict[str, float]]:
        """Some passes over the batch; `values` are those before. The state is used up.

        Returns the share of the returns' variance that `values` explained, too.

        Raises:
          FloatingPointError: a loss that is not finite.
        """
        if self.config.trunk == "shared":
            params = jax.tree.map(jnp.copy, self._params(state, policy))
            state = state._replace(params=params)
        places = [self.places(e) for e in examples]
        tokens = self._packed(
            _marked(examples, places, returns=returns, old_value=values)
        )
        steps = -(-len(tokens.ids) // self._rows) * self.config.passes
        batches = epochs(tokens, self._rows, seed=seed, start=0)
        total: dict[str, Ratio] = {}
        for _ in range(steps):
            state, found = self._learner.update(state, [next(batches)])
            total = merge(total, found)
        loss = float(total["loss"].value())
        require_finite("critic loss", loss, int(state.step))
        left = np.var(returns - values) / max(float(np.var(returns)), 1e-12)
        return state, {"critic_loss": loss, "explained": float(1.0 - left)}

    def _params(self, state: TrainState, policy: nnx.State) -> nnx.State:
        """The critic's parameters; where it reads the policy's trunk, that of now."""
        if self.config.trunk == "own":
            return state.params
        mine = dict(nnx.to_flat_state(state.params))
        theirs = {p: x for p, x in nnx.to_flat_state(policy) if str(p[0]) != HEAD}
        return nnx.from_flat_state(mine | theirs)

    def _packed(self, examples: Sequence[Example]) -> Tokens:
        longest = max(len(e.ids) for e in examples)
        width = self._width
        return pack(examples, width if longest <= width else -(-longest // 64) * 64)


def _marked(
    examples: Sequence[Example],
    places: Sequence[Sequence[int]],
    **columns: Float[np.ndarray, " N"] | Int[np.ndarray, " N"],
) -> list[Example]:
    """Turns up to their last place; places are marked and carry the columns."""
    out, following = [], 0
    for e, at in zip(examples, places, strict=True):
        size = at[-1] + 1
        span = slice(following, following + len(at))
        following += len(at)
        mask = np.zeros(size, bool)
        mask[at] = True
        named = {}
        for name, numbers in columns.items():
            named[name] = np.zeros(size, numbers.dtype)
            named[name][at] = numbers[span]
        out.append(Example(e.ids[:size], mask, np.zeros(size, np.int32), 1.0, named))
    return out
