"""Advantages of turns, against a group (GRPO, arXiv:2402.03300 4.1) or a critic (GAE).

rewards [N, G, T] -> discounted returns-to-go -> minus the mean over the members of the
group that act at that turn. The paper gives every token of an answer the advantage of
its whole answer; an episode of many turns is credited turn by turn instead, and with a
discount below 1 a turn that wastes time is worse than one that does not.
"""

import numpy as np
from jaxtyping import Bool, Float, Int


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


BASELINES = ("group", "others", "batch")
"""What returns are compared with; see turn_advantages."""
OTHER = ("critic", "success", "pairs")
"""Whence advantages come where returns are not compared; see UpdateConfig."""


def turn_advantages(
    rewards: Float[np.ndarray, "N G T"],
    counted: Bool[np.ndarray, "N G T"],
    *,
    discount: float,
    divide_by_std: bool,
    baseline: str = "group",
) -> Float[np.ndarray, "N G T"]:
    """Return-to-go minus a baseline of the counted members at that turn.

    `counted` is true for the turns of scored episodes. The baseline is the mean of the
    "group" (GRPO; Dr. GRPO without the std), of the "others" in it (RLOO,
    arXiv:2402.14740) or of the whole "batch" (REINFORCE with a baseline; needs no
    groups). Where fewer than two count there is nothing to compare with: 0, to be left
    out (`usable`). With one turn and no discount the first is GRPO's advantage.

    Raises:
      ValueError: an unknown baseline.
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline must be one of {BASELINES}, got {baseline!r}")
    go = returns_to_go(np.where(counted, rewards, 0.0), discount)
    axes = (0, 1) if baseline == "batch" else (1,)
    count = counted.sum(axes, keepdims=True)
    total = np.where(counted, go, 0.0).sum(axes, keepdims=True)
    mean = total / np.maximum(count, 1)
    centred = np.where(counted & (count >= 2), go - mean, 0.0)
    if baseline == "others":  # r - mean of the n - 1 others is n / (n - 1) (r - mean)
        centred = centred * count / np.maximum(count - 1, 1)
    if divide_by_std:
        var = (centred**2).sum(axes, keepdims=True) / np.maximum(count, 1)
        centred = _divided(centred, np.sqrt(var), go)
    return centred.astype(np.float32)


CREDITS = ("turn", "episode", "state")
"""What of a group is compared; see group_advantages."""


def group_advantages(
    rewards: Float[np.ndarray, "N G T"],
    counted: Bool[np.ndarray, "N G T"],
    states: Int[np.ndarray, "N G T"],
    *,
    discount: float,
    divide_by_std: bool,
    baseline: str = "group",
    credit: str = "turn",
) -> Float[np.ndarray, "N G T"]:
    """Return the advantage of each turn over others of its group, by a `credit`.

    "turn" compares the returns-to-go of the members that act at that turn
    (`turn_advantages`). "episode" compares whole returns and gives every turn of an
    episode the advantage of it, as GRPO does (arXiv:2402.03300, 4.1.2). "state" adds to
    that the advantage among the turns of the group that begin in one and the same state
    (GiGPO, arXiv:2505.10978, eq. 8): `states` numbers them. Members that act at one
    turn may be in different states, and then a turn is credited for where it stands,
    not for what it does.

    Raises:
      ValueError: an unknown credit or baseline.
    """
    if credit not in CREDITS:
        raise ValueError(f"credit must be one of {CREDITS}, got {credit!r}")
    how = {"divide_by_std": divide_by_std, "baseline": baseline}
    if credit == "turn":
        return turn_advantages(rewards, counted, discount=discount, **how)
    go = returns_to_go(np.where(counted, rewards, 0.0), discount)
    members = counted.any(-1, keepdims=True)
    whole = turn_advantages(go[..., :1], members, discount=1.0, **how)
    adv = np.where(counted, whole, 0.0)
    if credit == "state":
        adv = adv + state_advantages(go, counted, states, divide_by_std=divide_by_std)
    return adv.astype(np.float32)


def state_advantages(
    returns: Float[np.ndarray, "N G T"],
    counted: Bool[np.ndarray, "N G T"],
    states: Int[np.ndarray, "N G T"],
    *,
    divide_by_std: bool,
) -> Float[np.ndarray, "N G T"]:
    """Return each return minus the mean over the counted turns in the same state.

    Of the same group: the step-level advantage of GiGPO (arXiv:2505.10978, eq. 7). 0
    where no other turn of the group begins in that state.
    """
    out = np.zeros(returns.shape, np.float64)
    if not counted.any():
        return out.astype(np.float32)
    group = np.broadcast_to(np.arange(len(returns))[:, None, None], returns.shape)
    pairs = np.stack([group[counted], states[counted]])
    _, place, count = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    place, x = place.reshape(-1), returns[counted].astype(np.float64)
    centred = x - (np.bincount(place, x) / count)[place]
    if divide_by_std:
        std = np.sqrt(np.bincount(place, centred**2) / count)
        centred = _divided(centred, std[place], x)
    out[counted] = np.where(count[place] > 1, centred, 0.0)
    return out.astype(np.float32)


def _divided(centred: np.ndarray, std: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the quotient; 0 where the spread is rounding, at whatever scale."""
    tiny = 1e-6 * float(np.abs(scale).max(initial=0.0))
    return np.where(std > tiny, centred / np.maximum(std, tiny or 1.0), 0.0)


def gae(
    rewards: Float[np.ndarray, "B T"],
    values: Float[np.ndarray, "B T"],
    last: Float[np.ndarray, " B"],
    taken: Bool[np.ndarray, "B T"],
    *,
    discount: float | Float[np.ndarray, "B T"],
    decay: float,
) -> tuple[Float[np.ndarray, "B T"], Float[np.ndarray, "B T"]]:
    """(advantages, returns) of generalised advantage estimation (arXiv:1506.02438).

    Over turns or over tokens: T counts either, and what is not `taken` (beyond the end,
    another's tokens) is skipped, however long it is. `discount` lies between a step and
    the next one taken; of tokens it is 1 inside a turn. `last` is the value of what
    follows the last step taken: 0 where the episode ended, the critic's where it was
    cut. Returns are advantages plus values: what the critic is fitted to. `decay` 0
    gives one-step errors (eq. 9), 1 the return minus the value.
    """
    adv = np.zeros(rewards.shape, np.float64)
    rate = np.broadcast_to(np.asarray(discount, np.float64), rewards.shape)
    ahead, after = np.asarray(last, np.float64), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        now = taken[:, t]
        value = np.where(now, values[:, t], 0.0)
        error = np.where(now, rewards[:, t], 0.0) + rate[:, t] * ahead - value
        after = np.where(now, error + rate[:, t] * decay * after, after)
        adv[:, t] = np.where(now, after, 0.0)
        ahead = np.where(now, value, ahead)
    returns = np.where(taken, adv + np.where(taken, values, 0.0), 0.0)
    return adv.astype(np.float32), returns.astype(np.float32)


def preferences(
    margin: Float[np.ndarray, "N G"],
    won: Bool[np.ndarray, "N G"],
    scored: Bool[np.ndarray, "N G"],
    *,
    beta: float,
) -> Float[np.ndarray, "N G"]:
    """How much each episode's log-probability is to grow, by DPO (arXiv:2305.18290).

    Every won episode of a group is preferred to every lost one; `margin` is the log of
    policy over reference of an episode's actions. The loss of a pair, -log sigmoid(beta
    (margin_won - margin_lost)), has the gradient of -w (log p_won - log p_lost) with
    w = beta sigmoid(-beta (margin_won - margin_lost)) held fixed (eq. 7). Returned are
    the sums of w over an episode's pairs, negative where it lost, times episodes in
    pairs over pairs, so that a mean over those episodes is the mean over pairs.
    """
    good, bad = won & scored, ~won & scored
    pair = good[:, :, None] & bad[:, None, :]
    gap = np.where(pair, margin[:, :, None] - margin[:, None, :], 0.0)
    weight = np.where(pair, beta / (1.0 + np.exp(beta * gap)), 0.0)
    used = (pair.any(2) | pair.any(1)).sum()
    out = (weight.sum(2) - weight.sum(1)) * used / max(pair.sum(), 1)
    return out.astype(np.float32)


def whitened(
    adv: Float[np.ndarray, "*B"], counted: Bool[np.ndarray, "*B"]
) -> Float[np.ndarray, "*B"]:
    """Advantages of the batch with mean 0 and standard deviation 1; 0 elsewhere."""
    if counted.sum() < 2:
        return np.zeros_like(adv)
    known = adv[counted].astype(np.float64)
    out = (adv - known.mean()) / (known.std() + 1e-8)
    return np.where(counted, out, 0.0).astype(np.float32)


def unit_rms(
    adv: Float[np.ndarray, "*B"], counted: Bool[np.ndarray, "*B"]
) -> tuple[Float[np.ndarray, "*B"], float]:
    """Return (advantages divided by their root mean square, that).

    It is of those counted; where they are all 0 nothing is divided.
    """
    known = adv[counted].astype(np.float64)
    scale = float(np.sqrt((known**2).mean())) if len(known) else 0.0
    if not scale:
        return adv, 1.0
    return (adv / scale).astype(np.float32), scale


def usable(
    counted: Bool[np.ndarray, "N G T"], advantages: Float[np.ndarray, "N G T"]
) -> Bool[np.ndarray, "N G T"]:
    """Turns that carry a signal: counted, and not all of the group's are equal."""
    size = np.abs(np.where(counted, advantages, 0.0))
    differs = (size > 1e-6 * size.max(initial=0.0)).any(1, keepdims=True)
    return counted & differs
