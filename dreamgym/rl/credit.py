"""Which turn gets how much: rewards of a batch of episodes -> its advantages."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from dreamgym.rl.advantages import gae, turn_advantages, usable, whitened
from dreamgym.rl.config import UpdateConfig

Flat = Float[np.ndarray, " N"]
"""A number a turn, episode after episode."""


class Grid:
    """Turns of episodes as rows [B, T], and back in their order [N].

    `length` counts an episode's turns; `scored` are those whose outcome is known, `cut`
    those that ended because an answer was not trusted.
    """

    def __init__(
        self,
        length: Int[np.ndarray, " B"],
        scored: Bool[np.ndarray, " B"],
        cut: Bool[np.ndarray, " B"],
    ):
        self._length, self._scored, self._cut = length, scored, cut
        self._taken = np.arange(length.max()) < length[:, None]

    def _rows(self, flat: Sequence[float] | Flat) -> Float[np.ndarray, "B T"]:
        out = np.zeros(self._taken.shape)
        out[self._taken] = flat
        return out

    def compared(
        self, rewards: Sequence[float], config: UpdateConfig, size: int
    ) -> tuple[Flat, Bool[np.ndarray, " N"]]:
        """(advantage over other returns, whether it carries a signal).

        Groups of `size` episodes follow each other.
        """
        groups = (len(self._length) // size, size, -1)
        counted = (self._taken & self._scored[:, None]).reshape(groups)
        adv = turn_advantages(
            self._rows(rewards).reshape(groups), counted, discount=config.discount,
            divide_by_std=config.divide_by_std, baseline=config.baseline,
        )  # fmt: skip
        use, shape = usable(counted, adv), self._taken.shape
        return adv.reshape(shape)[self._taken], use.reshape(shape)[self._taken]

    def judged(
        self, rewards: Sequence[float], values: Flat, config: UpdateConfig
    ) -> tuple[Flat, Bool[np.ndarray, " N"], Flat]:
        """(GAE, whether it counts, return) of each turn, by a critic's values.

        An episode that was cut goes as far as its last trusted state, in which the turn
        that was cut began: what follows is worth what the critic says of that state.
        """
        worth = self._rows(values)
        ends = self._length - self._cut
        known = np.arange(worth.shape[1]) < ends[:, None]
        known &= (self._scored | self._cut)[:, None]
        at = np.minimum(ends, worth.shape[1] - 1)
        last = np.where(self._cut, worth[np.arange(len(at)), at], 0.0)
        adv, returns = gae(
            self._rows(rewards), worth, last, known, discount=config.discount,
            decay=config.critic.decay,
        )  # fmt: skip
        if config.divide_by_std:
            adv = whitened(adv, known)
        return adv[self._taken], known[self._taken], returns[self._taken]
