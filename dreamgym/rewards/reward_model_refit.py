"""Refits of a reward model inside a loop, to the rollouts of the present policy.

rollouts whose outcome is known -> new records -> how well the model knows them -> a few
steps on these records and on some that the model was first fitted to -> the same
measures after -> new weights (Cooper, arXiv:2508.05613; the model is refitted in turn
with the policy, as in online process reward learning).

The records of a model of preferences are pairs of a won and a lost rollout
(`PairRefit`), those of a model of shares are single rollouts with their outcomes
(`OutcomeRefit`; SPA-RL, arXiv:2505.20732, fits its progress estimator to rollouts).

The measures before a refit are of records that the model has not seen; those after it
are of records that it was just fitted to.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np
from jaxtyping import Float

from dreamgym.rewards import progress_attribution
from dreamgym.rewards.config import RewardModelSourceConfig
from dreamgym.rewards.preferences import Preference, rollout_pairs
from dreamgym.rewards.reward_function import attempt_pay
from dreamgym.rewards.reward_model import (
    AttemptBatches,
    RewardModel,
    RewardModelWeights,
    pair_groups,
    pair_learner,
)
from worldmodel.data.records import Episode
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import Learner, require_finite

_ROWS_MULTIPLE = 16

Record = TypeVar("Record", Preference, Episode)


class RewardModelRefit(abc.ABC, Generic[Record]):
    """Refits of one reward model under one configuration.

    `original` are the records that the model was first fitted to.
    """

    unit: ClassVar[str]
    """What a record is, as the metric of their number is called."""

    def __init__(
        self,
        model: RewardModel,
        original: Sequence[Record],
        config: RewardModelSourceConfig,
        *,
        seed: int,
    ):
        self._model, self._original, self._seed = model, original, seed
        self._config, self._scale = config.refit, config.scale
        self._learner = self._make_learner() if config.refit.steps else None

    @property
    def weights(self) -> RewardModelWeights:
        """The weights that the model scores with."""
        return self._model.weights

    def load(self, weights: RewardModelWeights) -> None:
        """Let the model score with these weights."""
        self._model.load_weights(weights)

    def refit(self, rollouts: Sequence[Episode], update: int) -> dict[str, float]:
        """Refit the model to rollouts, if one is due after this update.

        Returns the metrics `reward_refit/NAME`: the number of new records under their
        `unit`, and the subclass's measures of the model before and after. Without a new
        record the model stays.

        Args:
          rollouts: episodes from their task's start; those without a score are left
            out.
          update: the number of the update, from 1.

        Raises:
          FloatingPointError: the loss is not finite.
        """
        c = self._config
        if update % c.every:
            return {}
        seed = self._seed + update
        new = self._new_records(rollouts, seed)
        row = {self.unit: float(len(new))}
        if new:
            drawn = self._draw_originals(len(new), seed)
            row |= self._measures(new, drawn, "before")
            if self._learner is not None:
                self._fit(self._learner, [*new, *drawn], seed)
                row |= self._measures(new, drawn, "after")
        return {f"reward_refit/{name}": value for name, value in row.items()}

    def _draw_originals(self, new: int, seed: int) -> list[Record]:
        """Return original records: `original_share` of them and the `new` ones."""
        share = self._config.original_share
        count = round(new * share / (1.0 - share))
        order = np.random.default_rng((seed, 1)).permutation(len(self._original))
        return [self._original[i] for i in order[:count]]

    def _fit(self, learner: Learner, records: list[Record], seed: int) -> None:
        model = self._model
        batches = AttemptBatches(
            self._groups(records),
            self._batch_records,
            width=model.width,
            seed=seed,
            rows_multiple=_ROWS_MULTIPLE,
        )
        state = learner.init(model.model.params)
        for step in range(self._config.steps):
            state, metrics = learner.update(state, [batches.at(step)])
            loss = float(metrics["loss"].value())
            require_finite("loss of the reward model's refit", loss, step + 1)
        model.load_weights(RewardModelWeights(state.params, model.mean_score))

    @property
    @abc.abstractmethod
    def _batch_records(self) -> int:
        """Records of a batch."""

    @abc.abstractmethod
    def _make_learner(self) -> Learner:
        """Return the learner of batches of so many records."""

    @abc.abstractmethod
    def _new_records(self, rollouts: Sequence[Episode], seed: int) -> list[Record]:
        """Return the records that rollouts give."""

    @abc.abstractmethod
    def _groups(self, records: list[Record]) -> list[list[list[Example]]]:
        """Return the examples of each record's attempts."""

    @abc.abstractmethod
    def _measures(
        self, new: list[Record], drawn: list[Record], when: str
    ) -> dict[str, float]:
        """Return measures of the model on new records and on original ones."""


class PairRefit(RewardModelRefit[Preference]):
    """Refits of a model of preferences to pairs of a won and a lost rollout.

    Measures: `accuracy_` on the new pairs; `pay_gap_`, what the model pays the better
    attempt less what it pays the worse one; and `original_accuracy_` on the original
    pairs that the refit draws.
    """

    unit = "pairs"

    @property
    def _batch_records(self) -> int:
        return self._config.batch_pairs

    def _make_learner(self) -> Learner:
        c = self._config
        return pair_learner(self._model.model, c.learning_rate, c.batch_pairs, c.steps)

    def _new_records(self, rollouts: Sequence[Episode], seed: int) -> list[Preference]:
        count = self._config.max_pairs_per_task
        return rollout_pairs(rollouts, self._original, max_pairs=count, seed=seed)

    def _groups(self, records: list[Preference]) -> list[list[list[Example]]]:
        model = self._model
        return pair_groups(model.tokenizer, records, history=model.history)

    def _fit(self, learner: Learner, records: list[Preference], seed: int) -> None:
        super()._fit(learner, records, seed)
        self._model.center(records)

    def _measures(
        self, new: list[Preference], drawn: list[Preference], when: str
    ) -> dict[str, float]:
        attempts = [
            (p.task, side) for p in (*new, *drawn) for side in (p.better, p.worse)
        ]
        scores = self._model.scores(attempts)
        mean = np.array([x.mean() for x in scores]).reshape(-1, 2)
        pay = np.array([attempt_pay(x, self._scale) for x in scores]).reshape(-1, 2)
        right, count = mean[:, 0] > mean[:, 1], len(new)
        out = {
            f"accuracy_{when}": float(right[:count].mean()),
            f"pay_gap_{when}": float((pay[:, 0] - pay[:, 1])[:count].mean()),
        }
        if drawn:
            out[f"original_accuracy_{when}"] = float(right[count:].mean())
        return out


class OutcomeRefit(RewardModelRefit[Episode]):
    """Refits of a model of shares to rollouts and their outcomes.

    Measures: `error_`, the mean squared error of the sum of an attempt's shares on the
    new rollouts; `accuracy_`, how often that sum says right which were won;
    `original_error_` on the original attempts that the refit draws; and, where the
    rollouts have both outcomes, `pay_gap_`, what the model pays a won rollout less what
    it pays a lost one, in the mean.
    """

    unit = "attempts"

    @property
    def _batch_records(self) -> int:
        return 2 * self._config.batch_pairs  # a pair is two attempts

    def _make_learner(self) -> Learner:
        c = self._config
        return progress_attribution.outcome_learner(
            self._model.model, c.learning_rate, self._batch_records, c.steps
        )

    def _new_records(self, rollouts: Sequence[Episode], seed: int) -> list[Episode]:
        del seed  # all of them
        return progress_attribution.scored_attempts(rollouts)

    def _groups(self, records: list[Episode]) -> list[list[list[Example]]]:
        return progress_attribution.outcome_groups(self._model.tokenizer, records)

    def _measures(
        self, new: list[Episode], drawn: list[Episode], when: str
    ) -> dict[str, float]:
        attempts, count = [*new, *drawn], len(new)
        sums = progress_attribution.predicted_sums(self._model, attempts)
        outcome = progress_attribution.outcomes_of(attempts)
        error: Float[np.ndarray, " N"] = (sums - outcome) ** 2
        won, pay = outcome[:count] > 0, self._scale * sums[:count]
        right = (sums[:count] > progress_attribution.WON) == won
        out = {
            f"error_{when}": float(error[:count].mean()),
            f"accuracy_{when}": float(right.mean()),
        }
        if 0 < won.sum() < count:
            out[f"pay_gap_{when}"] = float(pay[won].mean() - pay[~won].mean())
        if drawn:
            out[f"original_error_{when}"] = float(error[count:].mean())
        return out
