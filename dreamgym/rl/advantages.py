"""Advantages of turns, from comparing episodes or from a critic, on arrays.

rewards [N, G, T] -> discounted returns-to-go -> minus the mean over the members of the
group that act at that turn, or generalised advantage estimates from values. GRPO
(arXiv:2402.03300, 4.1) gives every token of an answer the advantage of the whole answer
(credit "episode"). By default an episode of many turns is credited turn by turn
instead, and with a discount below 1 a turn that wastes time is worse than one that does
not.
"""

import chex
import numpy as np
from jaxtyping import Bool, Float, Int

from dreamgym.rl.config import CREDITS, GROUP_ESTIMATORS


def returns_to_go(
    rewards: Float[np.ndarray, "*B T"], discount: float
) -> Float[np.ndarray, "*B T"]:
    """Return the sum over k >= t of discount^(k - t) r_k, for each turn t."""
    # In float64: differences of nearly equal returns are what is learned from.
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
    baseline: str = "group_mean",
) -> Float[np.ndarray, "N G T"]:
    """Return the return-to-go minus the mean over the members that act at that turn.

    `mask` is true for the turns of scored episodes. "group_mean" is the mean of the
    group (as in GRPO, and in Dr. GRPO without the division by the standard deviation),
    "leave_one_out" that of the others in it (RLOO, arXiv:2402.14740), "batch_mean" that
    of the whole batch (REINFORCE with a baseline; needs no groups). A turn at which
    fewer than two members act has nothing to be compared with: its advantage is 0, and
    `has_signal` leaves it out. With one turn and no discount "group_mean" is GRPO's
    advantage.

    Raises:
      ValueError: an unknown baseline.
      FloatingPointError: a reward in the mask is not finite.
    """
    if baseline not in GROUP_ESTIMATORS:
        raise ValueError(
            f"baseline must be one of {GROUP_ESTIMATORS}, got {baseline!r}"
        )
    chex.assert_rank(rewards, 3)
    chex.assert_equal_shape([rewards, mask])
    chex.assert_type(mask, bool)
    _check_finite("rewards", rewards, mask)
    returns = returns_to_go(np.where(mask, rewards, 0.0), discount)
    axes = (0, 1) if baseline == "batch_mean" else (1,)
    count = mask.sum(axes, keepdims=True)
    total = np.where(mask, returns, 0.0).sum(axes, keepdims=True)
    mean = total / np.maximum(count, 1)
    # A lone member is its own mean, so its 0 would say "average", not "unknown".
    centred = np.where(mask & (count >= 2), returns - mean, 0.0)
    if baseline == "leave_one_out":
        # r minus the mean of the n - 1 others is n / (n - 1) times r minus the mean.
        centred = centred * count / np.maximum(count - 1, 1)
    # Dr. GRPO (arXiv:2503.20783, 3.1) leaves this out: it weights a group more the less
    # its members differ, so that very easy and very hard tasks count most.
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
    baseline: str = "group_mean",
    credit: str = "turn",
) -> Float[np.ndarray, "N G T"]:
    """Return the advantage of each turn over others of its group, by a `credit`.

    "turn" compares the returns-to-go of the members that act at that turn
    (`turn_advantages`). "episode" compares outcomes of episodes, the undiscounted sums
    of their rewards, and gives all turns of an episode its advantage, as GRPO does
    (arXiv:2402.03300, 4.1.2). "turn_and_episode" is the sum of both. "state" adds to
    "episode" the advantage among the turns of the group that begin in the same state,
    from discounted returns (GiGPO, arXiv:2505.10978, eq. 8); `states` numbers them.
    Members that act at the same turn may be in different states; "turn" then also
    credits a turn for the state it is in.

    Raises:
      ValueError: an unknown credit or baseline.
      FloatingPointError: a reward in the mask is not finite.
    """
    if credit not in CREDITS:
        raise ValueError(f"credit must be one of {CREDITS}, got {credit!r}")
    chex.assert_equal_shape([rewards, mask, states])
    how = {"divide_by_std": divide_by_std, "baseline": baseline}
    of_turns = turn_advantages(rewards, mask, discount=discount, **how)
    if credit == "turn":
        return of_turns
    scored_rewards = np.where(mask, rewards, 0.0)
    members = np.asarray(mask.any(-1, keepdims=True))
    # An episode is one action here, so time must not discount its outcome.
    outcomes = scored_rewards.sum(-1, keepdims=True, dtype=np.float64)
    of_episodes = turn_advantages(outcomes, members, discount=1.0, **how)
    advantages = np.where(mask, of_episodes, 0.0)
    if credit == "turn_and_episode":
        advantages = advantages + of_turns
    if credit == "state":
        returns = returns_to_go(scored_rewards, discount)
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

    Raises:
      FloatingPointError: a return in the mask is not finite.
    """
    chex.assert_rank(returns, 3)
    chex.assert_equal_shape([returns, mask, states])
    chex.assert_type(mask, bool)
    _check_finite("returns", returns, mask)
    out = np.zeros(returns.shape, np.float64)
    if not mask.any():
        return out.astype(np.float32)
    # Turns are equal if both group and state are: equal states of two groups belong to
    # different tasks, and are not compared.
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


def _check_finite(name: str, values: np.ndarray, mask: np.ndarray) -> None:
    """Raise a FloatingPointError where a value in the mask is NaN or infinite.

    One NaN would make the advantages of all groups 0 or NaN. The error is the one that
    a loss raises which is not finite, so that an update is reverted for either.
    """
    wrong = np.argwhere(mask & ~np.isfinite(values))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise FloatingPointError(
            f"{name}{list(place)} must be finite, got {values[place]}"
        )


def _divide(centred: np.ndarray, std: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return centred / std, or 0 where std is only rounding error at this scale."""
    # Equal returns leave differences of 1e-16 and a standard deviation like them: their
    # quotient would be a full-sized advantage made of noise.
    tiny = 1e-6 * float(np.abs(scale).max(initial=0.0))
    return np.where(std > tiny, centred / np.maximum(std, tiny or 1.0), 0.0)


MIN_ENTROPY_RANGE = 0.1
"""Nats between the least and the largest entropy of a group's turns, below which they
count as equal (AEM)."""


def entropy_modulated(
    advantages: Float[np.ndarray, "N G T"],
    entropy: Float[np.ndarray, "N G T"],
    mask: Bool[np.ndarray, "N G T"],
    *,
    rate: float,
) -> Float[np.ndarray, "N G T"]:
    """Return advantages multiplied by how sure the policy was of each turn (AEM).

    `entropy` is the mean entropy of a turn's tokens, and h that entropy, scaled to
    [0, 1] over the turns of the group in the mask. The factor is exp(-rate h), divided
    by its mean over these turns (arXiv:2605.00425): while failures prevail, what the
    policy was sure of loses most, which keeps it exploring, and it gains most when
    successes do. In a group with a range below MIN_ENTROPY_RANGE the factor is 1.
    """
    chex.assert_rank(advantages, 3)
    chex.assert_equal_shape([advantages, entropy, mask])
    axes = (1, 2)
    lowest = np.where(mask, entropy, np.inf).min(axes, keepdims=True)
    highest = np.where(mask, entropy, -np.inf).max(axes, keepdims=True)
    # A group without a turn has no range either.
    varies = np.where(mask.any(axes, keepdims=True), highest - lowest, 0.0)
    varies = varies >= MIN_ENTROPY_RANGE
    scaled = np.where(mask & varies, entropy - lowest, 0.0)
    scaled = scaled / np.where(varies, highest - lowest, 1.0)
    factor = np.exp(-rate * scaled)
    total = np.where(mask, factor, 0.0).sum(axes, keepdims=True)
    mean = total / np.maximum(mask.sum(axes, keepdims=True), 1)
    factor = np.where(mask & varies, factor / np.where(varies, mean, 1.0), 1.0)
    return (advantages * factor).astype(np.float32)


def early_call_shaped(
    advantages: Float[np.ndarray, "N G T"],
    compared: Bool[np.ndarray, "N G"],
    position: Int[np.ndarray, "N G"],
    length: Int[np.ndarray, "N G"],
    *,
    weight: float,
    bound: float,
) -> Float[np.ndarray, "N G T"]:
    """Return advantages that prefer an early first call among successes (ASPO).

    The `compared` episodes were won and made a call, at a `position` in their `length`
    of tokens. The advantage A of their turns becomes
    A + clip(weight (mean position - position) / mean length, -bound |A|, bound |A|)
    with means over these episodes of the group (arXiv:2508.19201, eq. 2, where
    `weight` is -delta and `bound` k). With a bound below 1 no advantage changes its
    sign, as it might if the reward were shaped.
    """
    chex.assert_rank(advantages, 3)
    chex.assert_equal_shape([compared, position, length])
    chex.assert_equal_shape_prefix([advantages, compared], 2)
    count = np.maximum(compared.sum(1, keepdims=True), 1)
    mean_position, mean_length = (
        np.where(compared, x, 0).sum(1, keepdims=True) / count
        for x in (position, length)
    )
    lead = np.where(compared, mean_position - position, 0.0)
    bonus = weight * lead / np.maximum(mean_length, 1.0)
    limit = bound * np.abs(advantages)
    shaped = advantages + np.clip(bonus[..., None], -limit, limit)
    return shaped.astype(np.float32)


def gae(
    rewards: Float[np.ndarray, "B T"],
    values: Float[np.ndarray, "B T"],
    bootstrap: Float[np.ndarray, " B"],
    mask: Bool[np.ndarray, "B T"],
    *,
    discount: float | Float[np.ndarray, "B T"],
    gae_lambda: float,
) -> tuple[Float[np.ndarray, "B T"], Float[np.ndarray, "B T"]]:
    """Return (advantages, returns) by generalised advantage estimation.

    The formulae are those of arXiv:1506.02438. T counts turns or tokens. Columns
    outside the mask (after the end, or tokens that the policy did not sample) are
    skipped, however many lie in between. `discount` applies between a step
    and the next one in the mask; inside a turn it is 1 for tokens. `bootstrap` is the
    value after the last step: 0 where the episode ended, the critic's where it was
    aborted. Returns are advantages plus values: the targets of the critic. `gae_lambda`
    0 gives one-step errors (eq. 9), 1 the return minus the value.

    Raises:
      FloatingPointError: a reward or a value in the mask is not finite.
    """
    # NumPy would broadcast a column of values to all turns, without a word.
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, values, mask])
    chex.assert_type(mask, bool)
    _check_finite("rewards", rewards, mask)
    _check_finite("values", values, mask)
    chex.assert_shape(bootstrap, rewards.shape[:1])
    advantages = np.zeros(rewards.shape, np.float64)
    rate = np.broadcast_to(np.asarray(discount, np.float64), rewards.shape)
    value_tp1 = np.asarray(bootstrap, np.float64)
    advantage_tp1 = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        valid = mask[:, t]
        value_t = np.where(valid, values[:, t], 0.0)
        reward_t = np.where(valid, rewards[:, t], 0.0)
        error = reward_t + rate[:, t] * value_tp1 - value_t  # eq. 9, the TD residual
        advantage_t = error + rate[:, t] * gae_lambda * advantage_tp1
        # Outside the mask value and advantage of the next step are carried over.
        advantage_tp1 = np.where(valid, advantage_t, advantage_tp1)
        advantages[:, t] = np.where(valid, advantage_tp1, 0.0)
        value_tp1 = np.where(valid, value_t, value_tp1)
    returns = np.where(mask, advantages + np.where(mask, values, 0.0), 0.0)
    return advantages.astype(np.float32), returns.astype(np.float32)


def dpo_weights(
    log_ratios: Float[np.ndarray, "N G"],
    success: Bool[np.ndarray, "N G"],
    scored: Bool[np.ndarray, "N G"],
    *,
    beta: float,
    choices: Int[np.ndarray, "N G"] | None = None,
) -> Float[np.ndarray, "N G"]:
    """Return the weights of episodes' log-probabilities in the gradient of DPO.

    Each successful episode of a group is preferred to each failed one (DPO,
    arXiv:2305.18290). `log_ratios` are the logarithms of policy over reference of an
    episode's actions. The loss of a pair, -log sigmoid(beta (r_success - r_failure)),
    has the gradient of -w (log p_success - log p_failure) with the constant
    w = beta sigmoid(-beta (r_success - r_failure)) (eq. 7). An episode's weight is the
    sum of w over its pairs, negative where it failed, times the number of episodes in
    pairs over the number of pairs: a mean over those episodes is the mean over pairs.
    With `choices`, which number what was chosen, equal choices are in no pair.
    """
    chex.assert_rank(log_ratios, 2)
    chex.assert_equal_shape([log_ratios, success, scored])
    # Unscored episodes are in no pair: their outcome is unknown, not a failure.
    positive, negative = success & scored, ~success & scored
    pair = positive[:, :, None] & negative[:, None, :]
    if choices is not None:
        pair &= choices[:, :, None] != choices[:, None, :]
    margin = np.where(pair, log_ratios[:, :, None] - log_ratios[:, None, :], 0.0)
    # sigma(-beta * margin), which a large margin does not let overflow.
    weight = np.where(pair, beta * np.exp(-np.logaddexp(0.0, beta * margin)), 0.0)
    # A success has the pairs of its row, a failure those of its column.
    episodes = (pair.any(2) | pair.any(1)).sum()
    out = (weight.sum(2) - weight.sum(1)) * episodes / max(pair.sum(), 1)
    return out.astype(np.float32)


def whiten(
    advantages: Float[np.ndarray, "*B"], mask: Bool[np.ndarray, "*B"]
) -> Float[np.ndarray, "*B"]:
    """Scale advantages to mean 0 and standard deviation 1; 0 outside the mask."""
    chex.assert_equal_shape([advantages, mask])
    chex.assert_type(mask, bool)  # of 0 and 1, `x[mask]` would be rows 0 and 1
    if mask.sum() < 2:
        return np.zeros_like(advantages)
    # Turns outside the mask do not enter the loss, so they must not shift the mean.
    inside = advantages[mask].astype(np.float64)
    out = (advantages - inside.mean()) / (inside.std() + 1e-8)
    return np.where(mask, out, 0.0).astype(np.float32)


def unit_rms(
    advantages: Float[np.ndarray, "*B"], mask: Bool[np.ndarray, "*B"]
) -> tuple[Float[np.ndarray, "*B"], float]:
    """Return (advantages divided by their root mean square, the root mean square).

    The mean is over the mask. Where all of it is 0 nothing is divided, and the second
    value is 1. Nothing is subtracted, unlike in `whiten`: the baseline has centred the
    advantages by group, and a shift would turn agreement into a signal.
    """
    chex.assert_equal_shape([advantages, mask])
    chex.assert_type(mask, bool)
    inside = advantages[mask].astype(np.float64)
    scale = float(np.sqrt((inside**2).mean())) if len(inside) else 0.0
    if not scale:
        return advantages, 1.0
    return (advantages / scale).astype(np.float32), scale


def has_signal(
    mask: Bool[np.ndarray, "N G T"],
    advantages: Float[np.ndarray, "N G T"],
    *,
    of_group: bool = False,
) -> Bool[np.ndarray, "N G T"]:
    """Return the turns in the mask at which not all advantages of the group are 0.

    With `of_group`, where an episode has one advantage, all turns of a group count if
    any does: a turn that only an episode of average return has belongs to the loss.
    """
    # Where a group agrees, its turns would add to the loss's count but not to its
    # gradient: they would make the step smaller (DAPO, arXiv:2503.14476, 3.2).
    size = np.abs(np.where(mask, advantages, 0.0))
    axes = (1, 2) if of_group else 1
    differs = (size > 1e-6 * size.max(initial=0.0)).any(axes, keepdims=True)
    return mask & differs
