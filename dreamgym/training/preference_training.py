"""Offline DPO: a policy trained from recorded pairs of attempts (arXiv:2305.18290).

pairs -> the turns of both attempts -> log p(policy) - log p(start) of each attempt ->
the weights of DPO's gradient (rl/advantages.dpo_weights) -> updates (rl/update.py)

Nothing is played: it is the loss that a loop with the estimator "preference_pairs" has
on its own groups, with a pair as a group of two. An update has no trust region: beta is
what holds the policy near its start, as in the paper.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from dreamgym.agent.policy import Policy
from dreamgym.agent.recorded_turns import recorded_attempt
from dreamgym.rewards.preferences import Preference
from dreamgym.rl.config import KLPenaltyConfig, SurrogateConfig, UpdateConfig
from dreamgym.rl.credit import TurnGrid
from dreamgym.rl.dpo_config import DPOConfig
from dreamgym.rl.update import Updater
from worldmodel.fitting import checkpoint
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState, require_finite
from worldmodel.fitting.supervised import MAX_WIDENING, row_tokens_for

Progress = Callable[[int, dict[str, float | int]], None]

SAME_ACTIONS = "same_actions"
"""Why a pair is left out: both attempts took the same actions, so that nothing tells
which was better."""
TEST_TASK = "test_task"
"""Why a pair is left out: the policy will play its task as a test game."""
TEMPERATURE = 1.0
"""That of the distribution whose log-probabilities are compared."""


class PairTurns(NamedTuple):
    """The turns of a pair as examples: those of the better and of the worse attempt.

    Turns that both begin with are left out: in the difference of both attempts they
    cancel, and so does their gradient.
    """

    better: list[Example]
    worse: list[Example]


class PairMetrics(NamedTuple):
    """What DPO says of pairs: the mean loss, accuracy and margin.

    A pair's margin is beta times the difference of its attempts' log ratios to the
    reference, that of their implicit rewards; its loss is -log sigmoid(margin). The
    accuracy is the share of margins above 0, where a margin of 0 is half right.
    """

    loss: float
    accuracy: float
    margin: float

    @classmethod
    def of(cls, margins: Float[np.ndarray, " P"]) -> "PairMetrics":
        """Return the metrics of the margins of at least one pair."""
        right = np.where(margins == 0, 0.5, margins > 0)
        loss = np.logaddexp(0.0, -margins)
        return cls(float(loss.mean()), float(right.mean()), float(margins.mean()))


def pair_turns(
    policy: Policy, pairs: Sequence[Preference], config: DPOConfig
) -> tuple[list[PairTurns], dict[str, int]]:
    """Return the turns of the pairs that can be learnt from, and counts of the others.

    The counts are by reason: `test_task`, `unwritable_action`, `too_long` or
    `same_actions`.
    """
    grammar, counts, out = policy.grammar(TEMPERATURE), Counter[str](), []
    for pair in pairs:
        sides = []
        if pair.task.split == "test":
            counts[TEST_TASK] += 1
            continue
        for steps in (pair.better, pair.worse):
            attempt = recorded_attempt(
                policy,
                grammar,
                pair.task,
                steps,
                max_tokens=MAX_WIDENING * config.row_tokens,
                counts=counts,
            )
            if attempt is None:
                break
            sides.append(attempt)
        if len(sides) < 2:
            continue
        if [e.ids for e in sides[0]] == [e.ids for e in sides[1]]:
            counts[SAME_ACTIONS] += 1
            continue
        shared = _shared_turns(*sides)
        out.append(PairTurns(*(side[shared:] for side in sides)))
    return out, dict(counts)


def _shared_turns(better: Sequence[Example], worse: Sequence[Example]) -> int:
    """Return how many turns both attempts begin with; each has one more at least."""
    limit = min(len(better), len(worse)) - 1
    pairs = zip(better[:limit], worse, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a.ids != b.ids), limit)


class PreferenceTrainer:
    """Trains one policy from the turns of pairs, with its start as the reference."""

    def __init__(self, policy: Policy, pairs: Sequence[PairTurns], config: DPOConfig):
        """Prepare the updates; rows hold the longest turn of the `pairs`."""
        self._config = config
        turns = [e for pair in pairs for side in pair for e in side]
        update = UpdateConfig(
            advantage_estimator="preference_pairs",
            surrogate=SurrogateConfig(
                importance_level="none", loss_aggregation="episode"
            ),
            kl_penalty=KLPenaltyConfig(coefficient=0.0),
            max_update_kl=0.0,
            max_turn_kl=0.0,
            dpo_beta=config.beta,
            temperature=TEMPERATURE,
            learning_rate=config.learning_rate,
            warmup_steps=5,
            num_minibatches=1,
            batch_rows=config.batch_rows,
            row_tokens=row_tokens_for(turns, config.row_tokens),
        )
        grammar, reference = policy.grammar(TEMPERATURE), policy.model.params
        self._updater = Updater(policy.model, reference, grammar, update)

    def init(self) -> TrainState:
        """Return the state before the first update."""
        return self._updater.learner.init()

    def update(
        self, state: TrainState, pairs: Sequence[PairTurns], *, seed: int
    ) -> tuple[TrainState, PairMetrics, dict[str, float]]:
        """Make one step of DPO on the pairs; the buffers of `state` are donated.

        Returns the new state, the metrics of the pairs before the step, and those of
        the step (`grad_norm`, `update_kl`).

        Raises:
          FloatingPointError: the loss is not finite.
        """
        examples, length, log_ratios = self._log_ratios(state, pairs)
        grid = TurnGrid(length, np.ones(len(length), bool), np.zeros(len(length), int))
        episode = np.repeat(np.arange(len(length)), length)
        tokens = np.bincount(episode, [np.sum(e.mask) for e in examples])
        better = np.arange(len(length)) % 2 == 0
        weights, mask = grid.dpo_weights(
            log_ratios, better, tokens.astype(int), self._updater.config, 2
        )
        batch = [
            # Every attempt counts alike in the mean over attempts, whatever its length.
            examples[i]
            ._replace(weight=1.0 / float(tokens[episode[i]]))
            .with_columns(advantage=float(weights[i]))
            for i in np.flatnonzero(mask)
        ]
        metrics = self._metrics(length, log_ratios)
        require_finite("loss of DPO", metrics.loss, int(state.step) + 1)
        if not batch:  # all pairs are so far apart that their gradient is 0
            state = state._replace(step=state.step + 1)
            return state, metrics, {"grad_norm": 0.0, "update_kl": 0.0}
        state, step = self._updater.update(state, batch, seed=seed)
        return state, metrics, {k: step[k] for k in ("grad_norm", "update_kl")}

    def evaluate(self, state: TrainState, pairs: Sequence[PairTurns]) -> PairMetrics:
        """Return the metrics of pairs without an update."""
        _, length, log_ratios = self._log_ratios(state, pairs)
        return self._metrics(length, log_ratios)

    def _metrics(
        self, length: np.ndarray, log_ratios: Float[np.ndarray, " N"]
    ) -> PairMetrics:
        episode = np.repeat(np.arange(len(length)), length)
        both = np.bincount(episode, log_ratios, len(length)).reshape(-1, 2)
        return PairMetrics.of(self._config.beta * (both[:, 0] - both[:, 1]))

    def _log_ratios(
        self, state: TrainState, pairs: Sequence[PairTurns]
    ) -> tuple[list[Example], np.ndarray, Float[np.ndarray, " N"]]:
        """Return all turns, the length of each attempt, and the turns' log ratios."""
        sides = [side for pair in pairs for side in pair]
        length = np.array([len(side) for side in sides])
        examples = self._updater.with_sampler_logp(
            state.params, [e for side in sides for e in side]
        )
        return examples, length, self._updater.reference_log_ratio(examples)


def train_preferences(
    policy: Policy,
    pairs: Sequence[PairTurns],
    config: DPOConfig,
    *,
    held_out: Sequence[PairTurns],
    seed: int,
    directory: Path,
    progress: Progress | None = None,
) -> tuple[Policy, list[dict[str, float | int]], PairMetrics]:
    """Train a policy from pairs; return it, its curve, and what it says of `held_out`.

    Each epoch has the pairs in a random order. Rows of the curve have the metrics of
    the pairs since the last one, as they were before their update, and those of the
    held-out pairs under `held_out/`. It resumes from a checkpoint in `directory`.

    Raises:
      ValueError: there are no pairs, or none is held out.
      FloatingPointError: the loss is not finite; the message names the update.
    """
    if not pairs or not held_out:
        raise ValueError(
            f"expected pairs to train from and pairs held out, got {len(pairs)} and "
            f"{len(held_out)}"
        )
    trainer = PreferenceTrainer(policy, [*pairs, *held_out], config)
    state, curve = trainer.init(), list[dict[str, float | int]]()
    saved = checkpoint.restore(directory, state)
    if saved is not None:
        _, state, host = saved
        state, curve = TrainState(*state), host["curve"]
    totals: dict[str, float] = {}
    count, result = 0, None
    for step in range(int(state.step) + 1, config.updates + 1):
        batch = _batch(pairs, config.batch_pairs, step - 1, seed)
        state, metrics, update = trainer.update(state, batch, seed=seed + step)
        for name, value in (metrics._asdict() | update).items():
            totals[name] = totals.get(name, 0.0) + len(batch) * value
        count += len(batch)
        if step % config.eval_every and step != config.updates:
            continue
        row: dict[str, float | int] = {"step": step}
        row |= {name: total / count for name, total in totals.items()}
        result = trainer.evaluate(state, held_out)
        row |= {f"held_out/{k}": v for k, v in result._asdict().items()}
        totals, count, curve = {}, 0, [*curve, row]
        checkpoint.save(directory, step, state, {"curve": curve})
        if progress is not None:
            progress(step, row)
    result = trainer.evaluate(state, held_out) if result is None else result
    trained = policy.replace(policy.model._replace(params=state.params))
    return trained, curve, result


def _batch(
    pairs: Sequence[PairTurns], size: int, step: int, seed: int
) -> list[PairTurns]:
    """Return the batch of a step, a function of the seed and the step alone."""
    epoch, batch = divmod(step, -(-len(pairs) // size))
    order = np.random.default_rng((seed, epoch)).permutation(len(pairs))
    return [pairs[i] for i in order[batch * size : (batch + 1) * size]]
