"""The policy update: turns -> packed tokens -> clipped steps -> the trust region.

Only tokens that the policy sampled enter the loss; observations, forced tokens and
padding never do. Log-probabilities are those of the sampler's own distribution: the
same temperature and the same masks of allowed tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from dreamgym.rl.config import LossWeights, UpdateConfig
from dreamgym.rl.policy_loss import (
    decoder_log_probs,
    sampled_entropy,
    sampled_policy_loss,
    size_terms,
    token_logp,
)
from dreamgym.rl.sampled_rows import SampledRows, sampled_rows
from dreamgym.rl.trust_region import UpdateSize, backtracking_line_search
from worldmodel.backbone.grammar import Grammar
from worldmodel.backbone.mesh import to_host
from worldmodel.backbone.model import DecoderOutput, Model
from worldmodel.backbone.streams import bucket
from worldmodel.fitting.arrays import Ratio, safe_count
from worldmodel.fitting.batches import Example, Tokens, pack, rows_of
from worldmodel.fitting.config import ComputeConfig, OptimizerConfig
from worldmodel.fitting.learner import (
    Learner,
    TrainState,
    bind,
    copy_params,
    merge,
    require_finite,
)
from worldmodel.fitting.losses import cross_entropy, read_logp

T = TypeVar("T")


def merge_equal_turns(examples: Sequence[Example]) -> list[Example]:
    """Return fewer examples with the same loss: equal turns once, with summed weights.

    The rollouts of a group begin in one state, and often act alike. The clipped
    surrogate is linear in advantages of the same sign, so these are averaged. The
    log-probabilities of equal turns of one policy differ by rounding at most, and the
    first are used; replayed turns of earlier policies have others and stay separate. A
    turn with an advantage for each token is not merged.
    """
    groups: dict[tuple, list[Example]] = {}
    out = []
    for e in examples:
        advantage = e.columns["advantage"]
        if isinstance(advantage, float):
            # Rounded: equal turns that were sampled in different batches differ by the
            # rounding of their float sums.
            sampler_logp = round(float(np.sum(e.columns["sampler_logp"])), 2)
            # Of one sign: below and above 0 the clipped loss has different slopes.
            key = tuple(e.ids), advantage > 0, sampler_logp
            groups.setdefault(key, []).append(e)
        else:
            out.append(e)
    for equal in groups.values():
        weights = np.array([e.weight for e in equal], float)
        advantages = np.array([e.columns["advantage"] for e in equal], float)
        mean = float(weights @ advantages / weights.sum())
        example = equal[0]._replace(weight=float(weights.sum()))
        out.append(example.with_columns(advantage=mean))
    return out


class Updater:
    """Updates one policy from its rollouts, against a fixed reference policy."""

    def __init__(
        self,
        model: Model,
        reference: nnx.State,
        grammar: Grammar,
        config: UpdateConfig,
    ):
        self.config = config
        # Row 2 p holds the tokens of phase p, row 2 p + 1 those that may begin it; a
        # turn's `token_type` numbers these rows (policy_loss.distribution).
        self._masks = np.stack(
            [np.asarray(grammar.allowed), np.asarray(grammar.first)], axis=1
        ).reshape(-1, grammar.allowed.shape[1])
        self._reference = reference
        optimizer = OptimizerConfig(
            learning_rate=config.learning_rate,
            warmup_steps=config.warmup_steps,
            # The number of updates is open: alarms or a budget may end the loop.
            cosine_decay=False,
            # Decay pulls towards zero, which no loss term or trust region asks for.
            weight_decay=0.0,
        )
        self.learner = Learner(
            model,
            optimizer,
            bind(sampled_policy_loss, config=config),
            ComputeConfig(ema_decay=config.kl_penalty.reference_ema_decay),
        )
        self._auxiliary = Learner(model, optimizer, _auxiliary_loss)
        distribution_of = bind(
            decoder_log_probs, model.definition, temperature=config.temperature
        )
        self._log_probs = jax.jit(distribution_of)
        self._token_logp = jax.jit(bind(token_logp, distribution_of))
        self._entropy = jax.jit(bind(sampled_entropy, distribution_of))
        self._size_terms = jax.jit(bind(size_terms, distribution_of))

    def update(
        self,
        state: TrainState,
        examples: Sequence[Example],
        *,
        seed: int,
        weights: LossWeights | None = None,
        auxiliary: Sequence[Example] = (),
        visitation_weights: Sequence[float] | np.ndarray | None = None,
        advantage_scale: float = 1.0,
    ) -> tuple[TrainState, dict[str, float]]:
        """Make one pass over the examples in `minibatches` steps; limit its size.

        Examples have the columns `sampler_logp` and `advantage`. `weights` are those of
        the loss terms, the config's by default. `auxiliary` are examples of the
        auxiliary loss, which is a mean of its own. The buffers of `state` are donated.

        Metrics are those of `policy_loss` (`kl` only where its penalty has a weight),
        the size of the update (`update_kl...`, see trust_region.UpdateSize),
        `step_fraction`, the fraction of the step that was taken, and `surrogate_gain`.
        With `visitation_weights`, one for each example, the gain is the sum of
        advantages under the new policy in these weights, times `advantage_scale`, by
        which advantages were divided; otherwise it is the mean over turns.

        Raises:
          FloatingPointError: a loss that is not finite.
          MemoryError: not even one row fits (fitting/microbatches.py).
        """
        tokens = self._packed(merge_equal_turns(examples))
        if weights is None:
            weights = LossWeights(
                kl=self.config.kl_penalty.coefficient,
                entropy=self.config.entropy_coefficient,
            )
        old = copy_params(state.params)  # the steps below donate their state's buffers
        learner_logp = None
        if self.config.surrogate.importance_cap:
            learner_logp = self._map_rows(
                tokens, lambda *batch: self._token_logp(old, *batch, self._masks)
            )
        order = np.random.default_rng(seed).permutation(tokens.ids.shape[0])
        minibatches = np.array_split(
            order, min(self.config.num_minibatches, len(order))
        )
        total: dict[str, Ratio] = {}
        for number, index in enumerate(minibatches):
            share = auxiliary[number :: len(minibatches)] if weights.auxiliary else ()
            auxiliary_batch = self._packed(share) if share else None
            state, step_metrics = self._step(
                state, tokens, index, weights, learner_logp, auxiliary_batch
            )
            total = merge(total, step_metrics)
        metrics = {k: float(v.value()) for k, v in total.items()}
        require_finite("loss", metrics["loss"], int(state.step))

        gain_scale = 1.0
        if visitation_weights is not None:
            weighted = [
                e.with_columns(advantage=np.multiply(e.columns["advantage"], v))
                for e, v in zip(examples, visitation_weights, strict=True)
            ]
            tokens = self._packed(merge_equal_turns(weighted))
            gain_scale = len(examples) * advantage_scale  # a sum, in units of return
        params, size, fraction = backtracking_line_search(
            old,
            state.params,
            lambda new: self.update_size(new, old, tokens),
            self.config.max_update_kl or np.inf,
            max_turn_kl=self.config.max_turn_kl or np.inf,
        )
        metrics |= {
            "update_kl": size.mean_kl,
            "update_kl_max": size.max_kl,
            "update_kl_max_turn": size.max_turn_kl,
            "update_kl_mean_turn": size.mean_turn_kl,
            "surrogate_gain": size.gain * gain_scale,
            "step_fraction": fraction,
        }
        return state._replace(params=params), metrics

    def update_size(self, new: nnx.State, old: nnx.State, tokens: Tokens) -> UpdateSize:
        """Measure how far apart two policies are, on the packed rows of a batch."""
        zero = Ratio(jnp.zeros(()), jnp.zeros(()))
        kl, gain, turn_kl, max_kl, max_turn_kl = zero, zero, zero, 0.0, 0.0
        for terms in self._pieces(
            tokens, lambda *batch: self._size_terms(new, old, *batch[:2], self._masks)
        ):
            kl, gain, turn_kl = kl + terms[0], gain + terms[1], turn_kl + terms[4]
            # np.maximum propagates NaN; max may lose it.
            max_kl = float(np.maximum(max_kl, terms[2]))
            max_turn_kl = float(np.maximum(max_turn_kl, terms[3]))
        return UpdateSize(
            mean_kl=float(kl.value()),
            max_kl=max_kl,
            max_turn_kl=max_turn_kl,
            gain=float(gain.value()),
            mean_turn_kl=float(turn_kl.value()),
        )

    def reference_log_ratio(
        self, examples: Sequence[Example]
    ) -> Float[np.ndarray, " N"]:
        """Return log p(sampler) - log p(reference), summed over an example's tokens.

        It is the k1 estimate of the KL divergence of a turn from the reference.
        """
        tokens, logp = self._numbered(self._token_logp, self._reference, examples)
        out, mask = np.zeros(len(examples)), tokens.mask
        log_ratios = (tokens.columns["sampler_logp"] - logp)[mask]
        np.add.at(out, tokens.columns["row"][mask], log_ratios)
        return out

    def sampler_kl(self, params: nnx.State, examples: Sequence[Example]) -> float:
        """Estimate the KL divergence of the sampler from a policy, in nats per token.

        The mean over sampled tokens of p / s - 1 - log(p / s), p under the policy with
        these parameters and s under the sampler, is the estimate (k3, Schulman 2020:
        unbiased, and never negative).
        """
        tokens, logp = self._numbered(self._token_logp, params, examples)
        log_ratios = (logp - tokens.columns["sampler_logp"])[tokens.mask]
        return float(np.mean(np.expm1(log_ratios) - log_ratios))

    def mean_entropy(
        self, params: nnx.State, examples: Sequence[Example]
    ) -> Float[np.ndarray, " N"]:
        """Return the mean entropy in nats at the sampled tokens of each example.

        It is that of the sampler's distribution under the policy with these parameters.
        """
        tokens, entropy = self._numbered(self._entropy, params, examples)
        rows = tokens.columns["row"][tokens.mask]
        total = np.bincount(rows, entropy[tokens.mask], len(examples))
        return total / np.maximum(np.bincount(rows, minlength=len(examples)), 1)

    def with_sampler_logp(
        self, params: nnx.State, examples: Sequence[Example]
    ) -> list[Example]:
        """Return examples with log p of their tokens as the column `sampler_logp`.

        The tokens count as sampled from the policy with these parameters: turns that
        were recorded elsewhere can then be learnt from.
        """
        blank = [e.with_columns(sampler_logp=0.0) for e in examples]
        tokens, logp = self._numbered(self._token_logp, params, blank)
        rows, values = tokens.columns["row"][tokens.mask], logp[tokens.mask]
        # The tokens of an example stand in one row, in their order.
        order = np.argsort(rows, kind="stable")
        ends = np.cumsum([np.sum(e.mask) for e in examples])[:-1]
        out = []
        for e, part in zip(examples, np.split(values[order], ends), strict=True):
            column = np.zeros(len(e.ids), np.float32)
            column[np.asarray(e.mask, bool)] = part
            out.append(e.with_columns(sampler_logp=column))
        return out

    def _numbered(
        self,
        at_tokens: Callable[..., jax.Array],
        params: nnx.State,
        examples: Sequence[Example],
    ) -> tuple[Tokens, Float[np.ndarray, "B S"]]:
        """Return the sampled tokens of the examples, and a function of each of them.

        Their column `row` is the number of the example. `at_tokens` is a function of
        parameters, rows, sampled tokens and masks, such as the log-probability.
        """
        tokens = self._packed([e.with_columns(row=i) for i, e in enumerate(examples)])
        values = self._map_rows(
            tokens, lambda *batch: at_tokens(params, *batch, self._masks)
        )
        return sampled_rows(tokens).tokens, values

    def _packed(self, examples: Sequence[Example]) -> Tokens:
        # A turn trains in the context it was sampled in: rows grow to hold all of it.
        longest, width = max(len(e.ids) for e in examples), self.config.row_tokens
        return pack(examples, width if longest <= width else bucket(longest))

    def _pieces(
        self,
        tokens: Tokens,
        compute: Callable[[Tokens, SampledRows, np.ndarray], T],
        index: np.ndarray | None = None,
    ) -> Iterator[T]:
        """Yield `compute(rows, sampled, index)` of all rows, or `index`, in pieces."""
        rows = np.arange(len(tokens.ids)) if index is None else index
        sampled = sampled_rows(tokens)  # of all, so that pieces have one shape
        return self.learner.microbatches.run(
            len(rows),
            self.config.batch_rows,
            tokens.ids.shape[1],
            lambda start, stop, size: compute(
                rows_of(tokens, rows[start:stop], size),
                rows_of(sampled, rows[start:stop], size),
                rows[start:stop],
            ),
        )

    def _map_rows(
        self, tokens: Tokens, fn: Callable[[Tokens, SampledRows], jax.Array]
    ) -> Float[np.ndarray, "B S"]:
        """Return a function of rows and their sampled tokens on all rows."""
        pieces = self._pieces(
            tokens,
            lambda rows, sampled, index: to_host(fn(rows, sampled))[: len(index)],
        )
        return np.concatenate(list(pieces))

    def _step(
        self,
        state: TrainState,
        tokens: Tokens,
        index: np.ndarray,
        weights: LossWeights,
        learner_logp: Float[np.ndarray, "B S"] | None,
        auxiliary: Tokens | None,
    ):
        """Make one optimiser step on the rows `index` and on the auxiliary batch."""
        args = {
            "masks": self._masks,
            "kl_weight": np.float32(weights.kl),
            "entropy_weight": np.float32(weights.entropy),
        }
        # An average of past policies as reference follows the policy slowly, so that
        # the KL penalty does not tie it to its start for good.
        reference = self._reference if state.average is None else state.average

        def gradient(batch: Tokens, sampled: SampledRows, rows: np.ndarray):
            more = {}
            if weights.kl:  # without a weight the pass would only report the distance
                more["ref_logp"] = self._log_probs(
                    reference, batch, sampled, self._masks
                )
            if learner_logp is not None:
                # Pieces are padded to one size, so that one program serves them all.
                padding = len(batch.ids) - len(rows)
                more["learner_logp"] = np.pad(
                    learner_logp[rows], ((0, padding), (0, 0))
                )
            return self.learner.gradient(
                state.params,
                batch,
                read=sampled.position,
                sampled=sampled,
                **args,
                **more,
            )

        grads, total = None, {}
        for piece_grads, metrics in self._pieces(tokens, gradient, index):
            if grads is None:
                grads = piece_grads
            else:
                grads = self.learner.add_gradients(grads, piece_grads)
            total = merge(total, metrics)
        if auxiliary is not None:
            grads, loss = self._with_auxiliary(
                state, grads, total, weights.auxiliary, auxiliary
            )
            total |= {"auxiliary_loss": loss}
        return self.learner.apply(state, grads, total)

    def _with_auxiliary(
        self,
        state: TrainState,
        grads: Any,
        total: dict[str, Ratio],
        weight: float,
        auxiliary: Tokens,
    ) -> tuple[Any, Ratio]:
        """Return the gradients plus those of the auxiliary loss, and that loss.

        `weight` applies to the means of both losses. Gradients are sums that are
        divided by the policy loss's count, so the auxiliary ones are scaled by it.
        """
        more, metrics = None, {}
        for piece_grads, piece_metrics in self._pieces(
            auxiliary, lambda rows, *_: self._auxiliary.gradient(state.params, rows)
        ):
            if more is None:
                more = piece_grads
            else:
                more = self._auxiliary.add_gradients(more, piece_grads)
            metrics = merge(metrics, piece_metrics)
        scale = weight * total["loss"].count / safe_count(metrics["loss"].count)
        return _add_scaled(grads, more, scale), metrics["loss"]


def _auxiliary_loss(output: DecoderOutput, batch: Tokens):
    logp = read_logp(output, batch.ids)
    return cross_entropy(logp, batch.mask, batch.weight), {}


@jax.jit
def _add_scaled(grads, more, scale):
    return jax.tree.map(lambda a, b: a + scale * b, grads, more)
