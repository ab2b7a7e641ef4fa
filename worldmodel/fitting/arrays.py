"""Statistics as (total, count) until they are printed, and masked reductions."""

from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

AnyArray = Array | np.ndarray
"""An array on the host or on the device."""


class Ratio(NamedTuple):
    """A mean stored as total and count, so that microbatches add exactly."""

    total: Float[Array, ""]
    count: Float[Array, ""]

    def __add__(self, other: "Ratio") -> "Ratio":  # type: ignore[override]
        return Ratio(self.total + other.total, self.count + other.count)

    def value(self) -> Float[Array, ""]:
        """Return the mean, 0 of an empty set."""
        return self.total / safe_count(self.count)


def safe_count(count: Float[AnyArray, ""]) -> Float[Array, ""]:
    """Return the divisor of a weighted sum: its total weight, or 1 where that is 0.

    The total weight may be below 1.
    """
    # Not max(count, 1): weights may sum to less than 1 and are still to be divided by.
    return jnp.where(count > 0, count, 1.0)


def masked_ratio(
    x: Float[Array, "*S"],
    mask: Bool[AnyArray, "*S"],
    weight: Float[AnyArray, "*S"] | float = 1.0,
) -> Ratio:
    """Return the weighted mean of the entries where `mask`, as a Ratio.

    Entries outside the mask may be NaN.
    """
    # A mask of another rank would be broadcast, and change what the mean is over.
    chex.assert_equal_shape([x, mask])
    # Masked by `where`, not by a product: 0 times NaN is NaN.
    return Ratio(
        jnp.where(mask, x * weight, 0.0).sum(), jnp.where(mask, weight, 0.0).sum()
    )
