"""Advantages of turns, from comparing episodes or from a critic, on arrays.

rewards [N, G, T] -> discounted returns-to-go -> minus the mean over the members of the
group that act at that turn (GRPO, arXiv:2402.03300, 4.1), or generalised advantage
estimates from values. GRPO gives every token of an answer the advantage of the whole
answer; an episode of many turns is credited turn by turn instead, and with a discount
below 1 a turn that wastes time is worse than one that does not.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

BASELINES = ("group", "others", "batch")
"""Baselines that returns are compared with; see turn_advantages."""
OTHER_ESTIMATORS = ("critic", "success", "pairs")
"""Estimators that do not compare returns; see UpdateConfig."""
CREDITS = ("turn", "episode", "state")
"""The returns that are compared within a group; see group_advantages."""


def returns_to_go(
    rewards: Float[np.ndarray, "*B T"], discount: float
) -> Float[np.ndarray, "*B T"]:
    """Return the sum over k >= t of discount^(k - t) r_k, for each turn t."""
    out = np.zeros_like(rewards, dtype=np.float64)
    return_tp1 = np.zeros(rewards.shape[:-1])
    for t in reversed(range(rewards.shape[-1])):
        return_tp1 = rewards[..., t] + discount * return_tp1
        out[..., t] = return_tp1
    return out


def turn_advantages(
    rewards: Float[np.ndarray, "N G T"],
    mask: Bool[np.ndarray, "N G T"],
    *,
    discount: float,
    divide_by_std: bool,
    baseline: str = "group",
) -> Float[np.ndarray, "N G T"]:
    """Return the return-to-go minus the mean over the members that act at that turn.

    `mask` is true for the turns of scored episodes. The mean is over the "group" (GRPO;
    Dr. GRPO without the division by the standard deviation), over the "others" in it
    (RLOO, arXiv:2402.14740) or over the whole "batch" (REINFORCE with a baseline; needs
    no groups). Turns with fewer than two members have nothing to be compared with: 0,
    to be left out (`has_signal`). With one turn and no discount "group" is GRPO's
    advantage.

    Raises:
      ValueError: an unknown baseline.
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline must be one of {BASELINES}, got {baseline!r}")
    returns = returns_to_go(np.where(mask, rewards, 0.0), discount)
    axes = (0, 1) if baseline == "batch" else (1,)
    count = mask.sum(axes, keepdims=True)
    total = np.where(mask, returns, 0.0).sum(axes, keepdims=True)
    mean = total / np.maximum(count, 1)
    centred = np.where(mask & (count >= 2), returns - mean, 0.0)
    if baseline == "others":  # r - mean of the n - 1 others is n / (n - 1) (r - mean)
        centred = centred * count / np.maximum(count - 1, 1)
    if divide_by_std:
        var = (centred**2).sum(axes, keepdims=True) / np.maximum(count, 1)
        centred = _divide(centred, np.sqrt(var), returns)
    return centred.astype(np.float32)


def group_advantages(
    rewards: Float[np.ndarray, "N G T"],
    mask: Bool[np.ndarray, "N G T"],
    states: Int[np.ndarray, "N G T"],
    *,
    discount: float,
    divide_by_std: bool,
    baseline: str = "group",
    credit: str = "turn",
) -> Float[np.ndarray, "N G T"]:
    """Return the advantage of each turn over others of its group, by a `credit`.

    "turn" compares the returns-to-go of the members that act at that turn
    (`turn_advantages`). "episode" compares returns of episodes and gives all turns of
    an episode its advantage, as GRPO does (arXiv:2402.03300, 4.1.2). "state" adds the
    advantage among the turns of the group that begin in the same state (GiGPO,
    arXiv:2505.10978, eq. 8); `states` numbers them. Members that act at the same turn
    may be in different states; "turn" then also credits a turn for the state it is in.

    Raises:
      ValueError: an unknown credit or baseline.
    """
    if credit not in CREDITS:
        raise ValueError(f"credit must be one of {CREDITS}, got {credit!r}")
    how = {"divide_by_std": divide_by_std, "baseline": baseline}
    if credit == "turn":
        return turn_advantages(rewards, mask, discount=discount, **how)
    returns = returns_to_go(np.where(mask, rewards, 0.0), discount)
    members = np.asarray(mask.any(-1, keepdims=True))
    of_episodes = turn_advantages(returns[..., :1], members, discount=1.0, **how)
    advantages = np.where(mask, of_episodes, 0.0)
    if credit == "state":
        advantages = advantages + state_advantages(
            returns, mask, states, divide_by_std=divide_by_std
        )
    return advantages.astype(np.float32)


def state_advantages(
    returns: Float[np.ndarray, "N G T"],
    mask: Bool[np.ndarray, "N G T"],
    states: Int[np.ndarray, "N G T"],
    *,
    divide_by_std: bool,
) -> Float[np.ndarray, "N G T"]:
    """Return each return minus the mean over the group's turns in the same state.

    This is the step-level advantage of GiGPO (arXiv:2505.10978, eq. 7). It is 0 where
    no other turn of the group begins in that state.
    """
    out = np.zeros(returns.shape, np.float64)
    if not mask.any():
        return out.astype(np.float32)
    group = np.broadcast_to(np.arange(len(returns))[:, None, None], returns.shape)
    pairs = np.stack([group[mask], states[mask]])
    _, place, count = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    place, x = place.reshape(-1), returns[mask].astype(np.float64)
    centred = x - (np.bincount(place, x) / count)[place]
    if divide_by_std:
        std = np.sqrt(np.bincount(place, centred**2) / count)
        centred = _divide(centred, std[place], x)
    out[mask] = np.where(count[place] > 1, centred, 0.0)
    return out.astype(np.float32)


def _divide(centred: np.ndarray, std: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """centred / std; 0 where std is no more than rounding error at this scale."""
    tiny = 1e-6 * float(np.abs(scale).max(initial=0.0))
    return np.where(std > tiny, centred / np.maximum(std, tiny or 1.0), 0.0)


def gae(
    rewards: Float[np.ndarray, "B T"],
    values: Float[np.ndarray, "B T"],
    bootstrap: Float[np.ndarray, " B"],
    mask: Bool[np.ndarray, "B T"],
    *,
    discount: float | Float[np.ndarray, "B T"],
    gae_lambda: float,
) -> tuple[Float[np.ndarray, "B T"], Float[np.ndarray, "B T"]]:
    """Generalised advantage estimation (arXiv:1506.02438): (advantages, returns).

    T counts turns or tokens. Columns outside the mask (after the end, or tokens of
    others) are skipped, however many lie in between. `discount` applies between a step
    and the next one in the mask; inside a turn it is 1 for tokens. `bootstrap` is the
    value after the last step: 0 where the episode ended, the critic's where it was
    aborted. Returns are advantages plus values: the targets of the critic. `gae_lambda`
    0 gives one-step errors (eq. 9), 1 the return minus the value.
    """
    advantages = np.zeros(rewards.shape, np.float64)
    rate = np.broadcast_to(np.asarray(discount, np.float64), rewards.shape)
    value_tp1 = np.asarray(bootstrap, np.float64)
    advantage_tp1 = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        here = mask[:, t]
        value_t = np.where(here, values[:, t], 0.0)
        reward_t = np.where(here, rewards[:, t], 0.0)
        error = reward_t + rate[:, t] * value_tp1 - value_t
        advantage_t = error + rate[:, t] * gae_lambda * advantage_tp1
        advantage_tp1 = np.where(here, advantage_t, advantage_tp1)
        advantages[:, t] = np.where(here, advantage_tp1, 0.0)
        value_tp1 = np.where(here, value_t, value_tp1)
    returns = np.where(mask, advantages + np.where(mask, values, 0.0), 0.0)
    return advantages.astype(np.float32), returns.astype(np.float32)


def dpo_weights(
    log_ratios: Float[np.ndarray, "N G"],
    success: Bool[np.ndarray, "N G"],
    scored: Bool[np.ndarray, "N G"],
    *,
    beta: float,
) -> Float[np.ndarray, "N G"]:
    """Return the weights of episodes' log-probabilities in the gradient of DPO.

    Each successful episode of a group is preferred to each failed one (DPO,
    arXiv:2305.18290). `log_ratios` are the logarithms of policy over reference of an
    episode's actions. The loss of a pair, -log sigmoid(beta (r_success - r_failure)),
    has the gradient of -w (log p_success - log p_failure) with the constant
    w = beta sigmoid(-beta (r_success - r_failure)) (eq. 7). An episode's weight is the
    sum of w over its pairs, negative where it failed, times the number of episodes in
    pairs over the number of pairs: a mean over those episodes is the mean over pairs.
    """
    positive, negative = success & scored, ~success & scored
    pair = positive[:, :, None] & negative[:, None, :]
    margin = np.where(pair, log_ratios[:, :, None] - log_ratios[:, None, :], 0.0)
    weight = np.where(pair, beta / (1.0 + np.exp(beta * margin)), 0.0)
    episodes = (pair.any(2) | pair.any(1)).sum()
    out = (weight.sum(2) - weight.sum(1)) * episodes / max(pair.sum(), 1)
    return out.astype(np.float32)


def whiten(
    advantages: Float[np.ndarray, "*B"], mask: Bool[np.ndarray, "*B"]
) -> Float[np.ndarray, "*B"]:
    """Scale advantages to mean 0 and standard deviation 1; 0 outside the mask."""
    if mask.sum() < 2:
        return np.zeros_like(advantages)
    inside = advantages[mask].astype(np.float64)
    out = (advantages - inside.mean()) / (inside.std() + 1e-8)
    return np.where(mask, out, 0.0).astype(np.float32)


def unit_rms(
    advantages: Float[np.ndarray, "*B"], mask: Bool[np.ndarray, "*B"]
) -> tuple[Float[np.ndarray, "*B"], float]:
    """Return (advantages divided by their root mean square, the root mean square).

    The mean is over the mask. Where all of it is 0 nothing is divided, and the second
    value is 1.
    """
    inside = advantages[mask].astype(np.float64)
    scale = float(np.sqrt((inside**2).mean())) if len(inside) else 0.0
    if not scale:
        return advantages, 1.0
    return (advantages / scale).astype(np.float32), scale


def has_signal(
    mask: Bool[np.ndarray, "N G T"], advantages: Float[np.ndarray, "N G T"]
) -> Bool[np.ndarray, "N G T"]:
    """Return the turns in the mask at which not all advantages of the group are 0."""
    size = np.abs(np.where(mask, advantages, 0.0))
    differs = (size > 1e-6 * size.max(initial=0.0)).any(1, keepdims=True)
    return mask & differs
