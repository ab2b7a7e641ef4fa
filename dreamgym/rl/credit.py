"""Credit assignment on a batch of episodes: rewards of turns -> their advantages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from dreamgym.rl.advantages import (
    dpo_weights,
    early_call_shaped,
    entropy_modulated,
    gae,
    group_advantages,
    has_signal,
    returns_to_go,
    whiten,
)
from dreamgym.rl.config import ShapingConfig, UpdateConfig

Flat = Float[np.ndarray, " N"]
"""A number for each turn (or token), one episode after the other."""
Mask = Bool[np.ndarray, " N"]


class Fork(NamedTuple):
    """Numbers of the episodes that pass through a state, and of those that begin there.

    The `members` reach it after `depth` turns; the `continuations` begin in it.
    """

    members: tuple[int, ...]
    continuations: tuple[int, ...]
    depth: int


SCALE_JUMP = 4.0
"""How many times as large as those before returns have to be to set another scale."""


class FirstCalls(NamedTuple):
    """When episodes made their first tool call, in tokens that the policy sampled.

    `position` counts those up to the end of the call's turn, `length` all of the
    episode; `has_call` says whether it has one.
    """

    has_call: Bool[np.ndarray, " B"]
    position: Int[np.ndarray, " B"]
    length: Int[np.ndarray, " B"]


class TurnGrid:
    """Turns (or tokens) of B episodes, arranged as [B, T] and returned flat as [N].

    `length` is the number of turns of an episode. `scored` marks episodes whose outcome
    is known. `unknown` is the number of turns at the end of an aborted episode, those
    after its last trusted state; 0 for the others.
    """

    def __init__(
        self,
        length: Int[np.ndarray, " B"],
        scored: Bool[np.ndarray, " B"],
        unknown: Int[np.ndarray, " B"],
    ):
        self._length, self._scored, self._unknown = length, scored, unknown
        self._mask = np.arange(length.max()) < length[:, None]

    def _rows(self, flat: Sequence[float] | np.ndarray) -> Float[np.ndarray, "B T"]:
        out = np.zeros(self._mask.shape)
        out[self._mask] = flat
        return out

    def _per_turn(self, per_episode: Float[np.ndarray, " B"]) -> Flat:
        """The number of an episode at each of its turns."""
        return np.broadcast_to(per_episode[:, None], self._mask.shape)[self._mask]

    def return_scale(
        self,
        rewards: Sequence[float] | Flat,
        discount: float,
        previous: float | None = None,
    ) -> float | None:
        """Return what rewards are divided by; None where no return differs from 0.

        It is the root mean square of the returns of all turns. The `previous` one, of
        earlier updates, is kept, so that values of one update are comparable with those
        of the next, unless these returns are SCALE_JUMP times as large: a first batch
        of step costs alone says nothing of what a win pays.
        """
        # Nothing is subtracted: only units change, not which returns are positive.
        returns = returns_to_go(self._rows(rewards), discount)[self._mask]
        scale = float(np.sqrt(np.mean(returns**2))) if len(returns) else 0.0
        if previous is not None and scale <= SCALE_JUMP * previous:
            return previous
        return scale if scale > 0.0 else None

    def group_advantages(
        self,
        rewards: Sequence[float] | Flat,
        states: Int[np.ndarray, " N"],
        config: UpdateConfig,
        size: int,
        forks: Sequence[Fork] = (),
        *,
        fork_weight: float = 1.0,
        prefix_mean: bool = False,
    ) -> tuple[Flat, Mask]:
        """Return (advantages over other episodes, mask of turns that carry a signal).

        Episodes are consecutive groups of `size`; `states` numbers the state in which
        each turn begins (advantages.group_advantages). The continuations of a fork are
        such a group.

        Args:
          fork_weight: w; the advantage of a turn of a continuation is w times that
            over the other continuations, plus 1 - w times that of its whole trajectory
            over the group that it was forked from (PORTool, arXiv:2510.26020).
          prefix_mean: whether turns before a fork are credited with the mean return of
            all trajectories that share them (ARPO, arXiv:2507.19849).
        """
        groups = (len(self._length) // size, size, -1)
        mask = (self._mask & self._scored[:, None]).reshape(groups)
        reward_rows = self._rows(rewards)
        state_rows = self._rows(states).astype(int)
        shared = reward_rows
        if prefix_mean:
            shared = self._with_prefix_means(shared, forks, config.discount)
        shape = self._mask.shape
        advantages = _compare(
            shared.reshape(groups), mask, state_rows.reshape(groups), config
        ).reshape(shape)
        for fork in forks if fork_weight < 1 else ():
            over_group = self._over_group(fork, reward_rows, state_rows, config, size)
            rows = list(fork.continuations)
            advantages[rows] *= fork_weight
            advantages[rows] += (1 - fork_weight) * over_group
        signal = has_signal(
            mask, advantages.reshape(groups), of_group=config.credit == "episode"
        )
        return advantages[self._mask], signal.reshape(shape)[self._mask]

    def entropy_modulated(
        self, advantages: Flat, entropy: Flat, config: ShapingConfig, size: int
    ) -> Flat:
        """Return advantages over groups of `size`, by how sure the policy was (AEM).

        `entropy` is the mean entropy of the tokens of each turn.
        """
        groups = (len(self._length) // size, size, -1)
        shaped = entropy_modulated(
            self._rows(advantages).reshape(groups),
            self._rows(entropy).reshape(groups),
            (self._mask & self._scored[:, None]).reshape(groups),
            rate=config.entropy_rate,
        )
        return shaped.reshape(self._mask.shape)[self._mask]

    def early_call_shaped(
        self,
        advantages: Flat,
        success: Bool[np.ndarray, " B"],
        calls: FirstCalls,
        config: ShapingConfig,
        size: int,
    ) -> Flat:
        """Return advantages over groups of `size` that prefer early calls (ASPO)."""
        groups = (len(self._length) // size, size)
        shaped = early_call_shaped(
            self._rows(advantages).reshape(*groups, -1),
            (success & self._scored & calls.has_call).reshape(groups),
            calls.position.reshape(groups),
            calls.length.reshape(groups),
            weight=config.early_call,
            bound=config.early_call_bound,
        )
        return shaped.reshape(self._mask.shape)[self._mask]

    def _with_prefix_means(
        self, rewards: Float[np.ndarray, "B T"], forks: Sequence[Fork], discount: float
    ) -> Float[np.ndarray, "B T"]:
        """Return rewards whose returns before each fork are means over its branches."""
        rewards = rewards.copy()
        # The deepest fork first: what is before it is part of a branch of the others.
        for fork in sorted(forks, key=lambda f: -f.depth):
            returns = returns_to_go(rewards, discount)
            members = [i for i in fork.members if self._scored[i]]
            branches = [returns[i, fork.depth] for i in members]
            branches += [returns[i, 0] for i in fork.continuations if self._scored[i]]
            for i in members:
                # A change of the last reward before the fork changes the returns of
                # all turns before it, and of no turn after it.
                change = np.mean(branches) - returns[i, fork.depth]
                rewards[i, fork.depth - 1] += discount * change
        return rewards

    def _over_group(
        self,
        fork: Fork,
        rewards: Float[np.ndarray, "B T"],
        states: Int[np.ndarray, "B T"],
        config: UpdateConfig,
        size: int,
    ) -> Float[np.ndarray, "K T"]:
        """Return advantages of a fork's K continuations over the group they left.

        Each of them joins the group by itself, with the turns before the fork: all of
        them at once would count these turns once for each of them.
        """
        first, depth = fork.members[0] // size * size, fork.depth
        scored = self._mask & self._scored[:, None]

        def joined(rows: np.ndarray) -> np.ndarray:
            """Return [K, size + 1, T + depth]: the group, and a whole trajectory."""
            group = np.pad(rows[first : first + size], [(0, 0), (0, depth)])
            prefix = rows[fork.members[0], :depth]
            return np.stack(
                [
                    np.concatenate([group, np.concatenate([prefix, rows[row]])[None]])
                    for row in fork.continuations
                ]
            )

        advantages = _compare(joined(rewards), joined(scored), joined(states), config)
        return advantages[:, -1, depth:]

    def success_filter(self, success: Bool[np.ndarray, " B"]) -> tuple[Flat, Mask]:
        """Return (1, mask of the turns of successful episodes): filtered SFT."""
        weights = self._per_turn((success & self._scored).astype(np.float32))
        return weights, weights > 0

    def dpo_weights(
        self,
        log_ratios: Sequence[float] | Flat,
        success: Bool[np.ndarray, " B"],
        tokens: Int[np.ndarray, " B"],
        config: UpdateConfig,
        size: int,
        *,
        compared: Mask | None = None,
        choices: Int[np.ndarray, " B"] | None = None,
    ) -> tuple[Flat, Mask]:
        """Return (DPO's weights, mask of turns of episodes in a pair).

        `log_ratios` are those of policy to reference, one for each turn
        (advantages.dpo_weights). Weights are multiplied by the number of sampled
        `tokens` of the episode, which a mean over episodes divides by. Only the
        `compared` turns count, all by default, and their `tokens`; episodes of a group
        with the same number in `choices` are in no pair.
        """
        if compared is not None:
            log_ratios = np.where(compared, log_ratios, 0.0)
        groups = (len(self._length) // size, size)
        # The log ratio of an episode is the sum over its turns: DPO compares whole
        # responses, here the actions of a trajectory.
        per_episode = dpo_weights(
            self._rows(log_ratios).sum(1).reshape(groups),
            success.reshape(groups),
            self._scored.reshape(groups),
            beta=config.dpo_beta,
            choices=None if choices is None else choices.reshape(groups),
        ).reshape(-1)
        weights = self._per_turn((per_episode * tokens).astype(np.float32))
        mask = weights != 0
        return weights, mask if compared is None else mask & compared

    def gae_advantages(
        self,
        rewards: Sequence[float] | Flat,
        values: Flat,
        discount: float | Flat,
        config: UpdateConfig,
        edge_values: Flat | None = None,
    ) -> tuple[Flat, Mask, Flat]:
        """Return (GAE, mask of turns that count, returns), from the values of a critic.

        An aborted episode ends at its last trusted state, in which its unknown turns
        begin: all that follows has the critic's value of that state, which is read from
        `edge_values`, by default from `values`. `discount` applies between a turn (or
        token) and the next.
        """
        value_rows = self._rows(values)
        ends = self._length - self._unknown
        aborted = self._unknown > 0
        mask = np.arange(value_rows.shape[1]) < ends[:, None]
        mask &= (self._scored | aborted)[:, None]
        # The value of the last trusted state is read at the first unknown turn; the
        # minimum only keeps the index of other episodes in range.
        at = np.minimum(ends, value_rows.shape[1] - 1)
        edges = value_rows if edge_values is None else self._rows(edge_values)
        bootstrap = np.where(aborted, edges[np.arange(len(at)), at], 0.0)
        advantages, returns = gae(
            self._rows(rewards),
            value_rows,
            bootstrap,
            mask,
            discount=self._rows(np.broadcast_to(discount, values.shape)),
            gae_lambda=config.critic.gae_lambda,
        )
        if config.normalize_advantages != "none":
            advantages = whiten(advantages, mask)
        return advantages[self._mask], mask[self._mask], returns[self._mask]


def _compare(
    rewards: Float[np.ndarray, "N G T"],
    mask: Bool[np.ndarray, "N G T"],
    states: Int[np.ndarray, "N G T"],
    config: UpdateConfig,
) -> Float[np.ndarray, "N G T"]:
    """Return the advantages of groups as the settings say."""
    return group_advantages(
        rewards,
        mask,
        states,
        discount=config.discount,
        divide_by_std=config.normalize_advantages in ("group", "component"),
        baseline=config.advantage_estimator,
        credit=config.credit,
    )
