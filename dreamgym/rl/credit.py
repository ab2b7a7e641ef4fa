"""Which turn gets how much: rewards of a batch of episodes -> its advantages."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from dreamgym.rl.advantages import (
    gae,
    group_advantages,
    preferences,
    usable,
    whitened,
)
from dreamgym.rl.config import UpdateConfig

Flat = Float[np.ndarray, " N"]
"""A number a turn (or a token), episode after episode."""


class Grid:
    """Turns (or tokens) of episodes as rows [B, T], and back in their order [N].

    `length` counts an episode's; `scored` are the episodes whose outcome is known,
    `lost` counts what came after the last trusted state of those that were cut.
    """

    def __init__(
        self,
        length: Int[np.ndarray, " B"],
        scored: Bool[np.ndarray, " B"],
        lost: Int[np.ndarray, " B"],
    ):
        self._length, self._scored, self._lost = length, scored, lost
        self._taken = np.arange(length.max()) < length[:, None]

    def _rows(self, flat: Sequence[float] | np.ndarray) -> Float[np.ndarray, "B T"]:
        out = np.zeros(self._taken.shape)
        out[self._taken] = flat
        return out

    def _spread(self, each: Float[np.ndarray, " B"]) -> Flat:
        """A number an episode as that of each of its turns."""
        return np.broadcast_to(each[:, None], self._taken.shape)[self._taken]

    def compared(
        self,
        rewards: Sequence[float] | Flat,
        states: Int[np.ndarray, " N"],
        config: UpdateConfig,
        size: int,
    ) -> tuple[Flat, Bool[np.ndarray, " N"]]:
        """(advantage over other returns, whether it carries a signal).

        Groups of `size` episodes follow each other; `states` numbers the state in which
        each turn begins.
        """
        groups = (len(self._length) // size, size, -1)
        counted = (self._taken & self._scored[:, None]).reshape(groups)
        adv = group_advantages(
            self._rows(rewards).reshape(groups), counted,
            self._rows(states).reshape(groups).astype(int), discount=config.discount,
            divide_by_std=config.normalize_advantages == "group",
            baseline=config.baseline, credit=config.credit,
        )  # fmt: skip
        use, shape = usable(counted, adv), self._taken.shape
        return adv.reshape(shape)[self._taken], use.reshape(shape)[self._taken]

    def kept(self, won: Bool[np.ndarray, " B"]) -> tuple[Flat, Bool[np.ndarray, " N"]]:
        """(1, whether it is of a won episode): what filtered SFT imitates."""
        use = self._spread((won & self._scored).astype(np.float32))
        return use, use > 0

    def preferred(
        self, margins: Sequence[float] | Flat, won: Bool[np.ndarray, " B"],
        written: Int[np.ndarray, " B"], config: UpdateConfig, size: int,
    ) -> tuple[Flat, Bool[np.ndarray, " N"]]:  # fmt: skip
        """(DPO's weight, whether it is in a pair); `margins` a turn, advantages.py.

        Times the tokens `written` in the episode: a mean over episodes takes it out.
        """
        shape = (len(self._length) // size, size)
        each = preferences(
            self._rows(margins).sum(1).reshape(shape), won.reshape(shape),
            self._scored.reshape(shape), beta=config.beta,
        ).reshape(-1)  # fmt: skip
        adv = self._spread((each * written).astype(np.float32))
        return adv, adv != 0

    def judged(
        self,
        rewards: Sequence[float] | Flat,
        values: Flat,
        discount: float | Flat,
        config: UpdateConfig,
    ) -> tuple[Flat, Bool[np.ndarray, " N"], Flat]:
        """(GAE, whether it counts, return) of each turn or token, by a critic's values.

        An episode that was cut goes as far as its last trusted state, in which the turn
        that was cut began: what follows is worth what the critic says of that state.
        `discount` lies after each of them.
        """
        worth = self._rows(values)
        ends = self._length - self._lost
        cut = self._lost > 0
        known = np.arange(worth.shape[1]) < ends[:, None]
        known &= (self._scored | cut)[:, None]
        at = np.minimum(ends, worth.shape[1] - 1)
        last = np.where(cut, worth[np.arange(len(at)), at], 0.0)
        rate = self._rows(np.broadcast_to(discount, values.shape))
        adv, returns = gae(
            self._rows(rewards), worth, last, known, discount=rate,
            decay=config.critic.decay,
        )  # fmt: skip
        if config.normalize_advantages != "none":
            adv = whitened(adv, known)
        return adv[self._taken], known[self._taken], returns[self._taken]
