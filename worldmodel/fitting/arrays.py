"""Statistics as (total, count) until they are printed, and masked reductions."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

AnyArray = Array | np.ndarray
"""On the host or on the device: what a pure function may be given."""


class Ratio(NamedTuple):
    """A mean kept as total / count, so that microbatches add exactly."""

    total: Float[Array, ""]
    count: Float[Array, ""]

    def __add__(self, other: "Ratio") -> "Ratio":  # type: ignore[override]
        return Ratio(self.total + other.total, self.count + other.count)

    def value(self) -> Float[Array, ""]:
        """The mean, 0 of an empty set."""
        return self.total / safe_count(self.count)


def safe_count(count: Float[AnyArray, ""]) -> Float[Array, ""]:
    """What to divide a sum by: its weights, which may add up to less than 1, or 1 where
    there are none."""
    return jnp.where(count > 0, count, 1.0)


def masked_ratio(
    x: Float[Array, "*S"],
    mask: Bool[AnyArray, "*S"],
    weight: Float[AnyArray, "*S"] | float = 1.0,
) -> Ratio:
    """Weighted sum of the entries where `mask`, and of their weights.

    Padding may hold anything.
    """
    return Ratio(
        jnp.where(mask, x * weight, 0.0).sum(), jnp.where(mask, weight, 0.0).sum()
    )
