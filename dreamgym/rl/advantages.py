"""Group-relative advantages (GRPO, arXiv:2402.03300 section 4.1), on arrays."""

import numpy as np
from jaxtyping import Bool, Float


def group_advantages(
    returns: Float[np.ndarray, "N G"],
    scored: Bool[np.ndarray, "N G"],
    *,
    divide_by_std: bool,
) -> Float[np.ndarray, "N G"]:
    """Return minus the mean of the scored members of its group, over their std or not.

    Unscored members, and groups with fewer than two scored ones, get 0 and must be
    left out of the update (`usable`).
    """
    count = scored.sum(1, keepdims=True)
    kept = np.where(scored, returns, 0.0)
    mean = kept.sum(1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(scored & (count >= 2), returns - mean, 0.0)
    if divide_by_std:
        var = (centred**2).sum(1, keepdims=True) / np.maximum(count, 1)
        centred = centred / (np.sqrt(var) + 1e-4)
    return centred.astype(np.float32)


def usable(
    scored: Bool[np.ndarray, "N G"], advantages: Float[np.ndarray, "N G"]
) -> Bool[np.ndarray, "N G"]:
    """Members that carry a signal: scored, in a group whose returns differ."""
    enough = scored.sum(1, keepdims=True) >= 2
    differs = (np.abs(np.where(scored, advantages, 0.0)) > 1e-6).any(1, keepdims=True)
    return scored & enough & differs
