"""Refits of a reward model inside a loop, to the rollouts of the present policy.

rollouts whose outcome is known -> pairs won over lost -> accuracy and pay gap before ->
a few steps on these pairs and on some that the model was first fitted to -> the same
numbers after -> new weights (Cooper, arXiv:2508.05613; the model is refitted in turn
with the policy, as in online process reward learning).

The numbers before a refit are of pairs that the model has not seen; those after it are
of pairs that it was just fitted to.
"""

from collections.abc import Sequence

import numpy as np

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
from worldmodel.fitting.learner import require_finite

_ROWS_MULTIPLE = 16


class RewardModelRefit:
    """Refits of one reward model under one configuration.

    `original` are the pairs that the model was first fitted to.
    """

    def __init__(
        self,
        model: RewardModel,
        original: Sequence[Preference],
        config: RewardModelSourceConfig,
        *,
        seed: int,
    ):
        self._model, self._original, self._seed = model, original, seed
        self._config, self._scale = config.refit, config.scale
        c = config.refit
        self._learner = (
            pair_learner(model.model, c.learning_rate, c.batch_pairs, c.steps)
            if c.steps
            else None
        )

    @property
    def weights(self) -> RewardModelWeights:
        """The weights that the model scores with."""
        return self._model.weights

    def load(self, weights: RewardModelWeights) -> None:
        """Let the model score with these weights."""
        self._model.load_weights(weights)

    def refit(self, rollouts: Sequence[Episode], update: int) -> dict[str, float]:
        """Refit the model to rollouts, if one is due after this update.

        Returns the metrics `reward_refit/NAME`: the number of new `pairs`; and of the
        model before and after, `accuracy_` on the new pairs, `pay_gap_`, what it pays
        the better attempt less what it pays the worse one, and `original_accuracy_` on
        the original pairs that the refit draws. Without a new pair the model stays.

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
        new = rollout_pairs(
            rollouts, self._original, max_pairs=c.max_pairs_per_task, seed=seed
        )
        row = {"pairs": float(len(new))}
        if new:
            drawn = self._drawn(len(new), seed)
            row |= self._measures(new, drawn, "before")
            if self._learner is not None:
                self._fit([*new, *drawn], seed)
                row |= self._measures(new, drawn, "after")
        return {f"reward_refit/{name}": value for name, value in row.items()}

    def _drawn(self, new: int, seed: int) -> list[Preference]:
        """Return original pairs: `original_share` of them and the `new` ones."""
        share = self._config.original_share
        count = round(new * share / (1.0 - share))
        order = np.random.default_rng((seed, 1)).permutation(len(self._original))
        return [self._original[i] for i in order[:count]]

    def _fit(self, pairs: Sequence[Preference], seed: int) -> None:
        assert self._learner is not None
        c, model = self._config, self._model
        batches = AttemptBatches(
            pair_groups(model.tokenizer, pairs, history=model.history),
            c.batch_pairs,
            width=model.width,
            seed=seed,
            rows_multiple=_ROWS_MULTIPLE,
        )
        state = self._learner.init(model.model.params)
        for step in range(c.steps):
            state, metrics = self._learner.update(state, [batches.at(step)])
            loss = float(metrics["loss"].value())
            require_finite("loss of the reward model's refit", loss, step + 1)
        model.load_weights(RewardModelWeights(state.params, model.mean_score))
        model.center(pairs)

    def _measures(
        self, new: Sequence[Preference], drawn: Sequence[Preference], when: str
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
