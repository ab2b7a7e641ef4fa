"""Group-relative advantages of turns (GRPO, arXiv:2402.03300 section 4.1), on arrays.

rewards [N, G, T] -> discounted returns-to-go -> minus the mean over the members of the
group that act at that turn. The paper gives every token of an answer the advantage of
its whole answer; an episode of many turns is credited turn by turn instead, and with a
discount below 1 a turn that wastes time is worse than one that does not.
"""

import numpy as np
from jaxtyping import Bool, Float


def returns_to_go(
    rewards: Float[np.ndarray, "*B T"], discount: float
) -> Float[np.ndarray, "*B T"]:
    """sum over k >= t of discount^(k - t) r_k, for each turn t."""
    out = np.zeros_like(rewards, dtype=np.float64)
    after = np.zeros(rewards.shape[:-1])
    for t in reversed(range(rewards.shape[-1])):
        after = rewards[..., t] + discount * after
        out[..., t] = after
    return out


def turn_advantages(
    rewards: Float[np.ndarray, "N G T"],
    counted: Bool[np.ndarray, "N G T"],
    *,
    discount: float,
    divide_by_std: bool,
) -> Float[np.ndarray, "N G T"]:
    """Return-to-go minus its mean over the counted members of the group at that turn.

    `counted` is true for the turns of scored episodes. Where fewer than two members
    count there is nothing to compare with: 0, to be left out (`usable`). With one turn
    and no discount this is the advantage of GRPO, divided by the group's std or not.
    """
    go = returns_to_go(np.where(counted, rewards, 0.0), discount)
    count = counted.sum(1, keepdims=True)
    mean = np.where(counted, go, 0.0).sum(1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(counted & (count >= 2), go - mean, 0.0)
    if divide_by_std:
        var = (centred**2).sum(1, keepdims=True) / np.maximum(count, 1)
        centred = centred / (np.sqrt(var) + 1e-4)
    return centred.astype(np.float32)


def usable(
    counted: Bool[np.ndarray, "N G T"], advantages: Float[np.ndarray, "N G T"]
) -> Bool[np.ndarray, "N G T"]:
    """Turns that carry a signal: counted, and not all of the group's are equal."""
    differs = (np.abs(np.where(counted, advantages, 0.0)) > 1e-6).any(1, keepdims=True)
    return counted & differs
