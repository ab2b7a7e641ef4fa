"""The turns of an update's rollouts as flat arrays, and the inputs of their credit.

trajectories -> turns, episode after episode -> examples, rewards, states, weights.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Float, Int

from curriculum.lesson_tracker import LessonTracker
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import LOW_CONFIDENCE
from dreamgym.rewards.rules import weigh_components
from dreamgym.rl.config import LossWeights
from dreamgym.rl.credit import FirstCalls, Fork, TurnGrid
from dreamgym.rl.update import Updater
from dreamgym.training.config import LoopConfig
from dreamgym.training.limits import multipliers, step_cost
from dreamgym.training.monitor import loss_weights
from dreamgym.training.state import TrainingState
from worldmodel.data.records import State, Transition
from worldmodel.text.tools.tool_calls import read_action

DENSE_REWARDS = (
    *("milestone/", "tool/", "reward_model", "judge"),
    *("novelty", "potential", "subgoal"),
)
"""Prefixes of reward components that are not outcomes; the remedy "rewards" halves
their weight."""
TASK_REWARD = "tool/task"
"""The one component under these prefixes that is an outcome."""


class TurnBatch:
    """The turns of B trajectories, flat as [N], and arrays over episodes [B].

    `length` is an episode's number of turns. `compared` are the turns whose choice
    preferences compare: all, or of a fork the first one alone, as the setting
    `fork.preference` says; `sampled_tokens` is the number of tokens that the policy
    sampled in them. `success` is true for successful episodes, `scored` where the
    outcome is known and the episode enters the update, and `aborted` where the rollout
    was ended for low confidence of the experience model; `reached_limit` where it is
    scored and ended at the step limit. `guided` is true where turns were given to the
    policy. `forks` say which of them begin on the way of others.
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        config: LoopConfig,
        forks: Sequence[Fork] = (),
    ):
        self.trajectories, self.config, self.forks = trajectories, config, forks
        self.length = np.array([len(t.turns) for t in trajectories])
        first_action = config.fork.preference == "first_action"
        continuations = {i for fork in forks for i in fork.continuations}
        self._compares_first_action = [
            first_action and i in continuations for i in range(len(trajectories))
        ]
        limits = np.where(self._compares_first_action, 1, self.length)
        self.compared = np.concatenate(
            [np.arange(n) < m for n, m in zip(self.length, limits, strict=True)]
        )
        tokens = [sum(turn.sampled) for t in trajectories for turn in t.turns]
        episode = np.repeat(np.arange(len(self.length)), self.length)
        self.sampled_tokens = np.bincount(
            episode[self.compared],
            np.array(tokens)[self.compared],
            len(self.length),
        ).astype(int)
        self.success = np.array([bool(t.episode.success) for t in trajectories])
        # SimpleTIR (arXiv:2509.02479): one void turn makes the whole trajectory's
        # gradient unreliable, so all of it is left out.
        has_void_turn = np.array([t.has_void_turn for t in trajectories], bool)
        included = ~(has_void_turn & config.drop_void_turns)
        errors = [t.error for t in trajectories]
        self.scored = np.array([e is None for e in errors]) & included
        self.aborted = np.array([(e or "").startswith(LOW_CONFIDENCE) for e in errors])
        self.aborted &= included
        last = [t.episode.transitions[-1] for t in trajectories]
        at_limit = [t.truncated and not t.terminated for t in last]
        self.reached_limit = self.scored & ~self.success & np.array(at_limit)
        self.guided = np.array([any(x.given for x in t.turns) for t in trajectories])
        self.examples = [
            turn.example(weight)
            for turn, weight in zip(
                (turn for t in trajectories for turn in t.turns),
                self._token_weights(),
                strict=True,
            )
        ]

    def _token_weights(self) -> list[float]:
        """Return the weight of each turn's tokens.

        It makes the units that the setting `surrogate.loss_aggregation` names count
        equally in the loss: tokens, turns or episodes.
        """
        unit, weights = self.config.update.surrogate.loss_aggregation, []
        for t, tokens in zip(self.trajectories, self.sampled_tokens, strict=True):
            for turn in t.turns:
                # A loss is a sum over tokens, so a unit's weight is shared among them.
                size = {"token": 1, "turn": sum(turn.sampled), "episode": int(tokens)}
                weights.append(1.0 / max(size[unit], 1))
        return weights

    def visitation_weights(self, started: int) -> Float[np.ndarray, " N"]:
        """Return the discounted visitation of each turn, as in Theorem 1.

        That is discount**turn in the first `started` episodes, those that begin at
        their task's start, divided by the number of episodes and normalised (Kakade and
        Langford, 2002), and 0 in forks and in guided episodes, which the policy would
        not have visited. Advantages weighted by it add up to (1 - discount) times the
        gain in an episode's return. Without a discount there is no such sum, and all
        turns of these episodes count equally.
        """
        discount = self.config.update.discount
        visited = (np.arange(len(self.length)) < started) & ~self.guided
        if discount == 1.0:
            turns = max(self.length[visited].sum(), 1)
            return np.repeat(visited / turns, self.length)
        episodes = ((self.scored | self.aborted) & visited).sum()
        scale = (1.0 - discount) / max(episodes, 1)
        return np.concatenate(
            [
                v * scale * discount ** np.arange(n)
                for v, n in zip(visited, self.length, strict=True)
            ]
        )

    def grid(self) -> TurnGrid:
        """Return the grid of turns; the last turn of an aborted episode is unknown."""
        return TurnGrid(self.length, self.scored, self.aborted.astype(int))

    def choices(self) -> Int[np.ndarray, " B"]:
        """Number what episodes chose: equal first actions of forks that compare them.

        Episodes that are compared as a whole have numbers of their own.
        """
        numbers: dict[str | int, int] = {}
        pairs = zip(self.trajectories, self._compares_first_action, strict=True)
        return np.array(
            [
                numbers.setdefault(t.turns[0].action if first else i, len(numbers))
                for i, (t, first) in enumerate(pairs)
            ],
            int,
        )

    def first_calls(self) -> FirstCalls:
        """Return when each episode made its first tool call that can be read."""
        has_call, position, length = [], [], []
        for t in self.trajectories:
            tokens = np.cumsum([sum(turn.sampled) for turn in t.turns])
            calls = [
                any(call.valid_json for call in read_action(turn.action).calls)
                for turn in t.turns
            ]
            has_call.append(any(calls))
            position.append(tokens[calls.index(True)] if any(calls) else 0)
            length.append(tokens[-1])
        return FirstCalls(np.array(has_call), np.array(position), np.array(length))

    def state_numbers(self) -> Int[np.ndarray, " N"]:
        """Number the states in which turns begin; equal states have equal numbers."""
        numbers: dict[State, int] = {}
        return np.array(
            [
                numbers.setdefault(step.state, len(numbers))
                for t in self.trajectories
                for step in t.episode.transitions
            ],
            int,
        )

    def rewards(
        self,
        weights: LossWeights,
        updater: Updater,
        lessons: LessonTracker | None,
        limit_weights: Mapping[str, float] = MappingProxyType({}),
        *,
        scaled: bool = False,
        previous_scale: float | None = None,
    ) -> tuple[Float[np.ndarray, " N"], float | None]:
        """Return the reward of each turn, and the scale that rewards are divided by.

        A reward is the weighted sum of its components; the current lesson multiplies
        them by their names, and the `limit_weights`, which are the multipliers of the
        limits, take from it what the step costs. Where the KL penalty is part of the
        reward, the turn's log ratio to the reference is subtracted, from rewards that
        are divided by their scale.

        Args:
          scaled: whether rewards are divided by a scale (`TurnGrid.return_scale`). It
            is None where they are not, or where nothing is known of it yet.
          previous_scale: that of earlier updates.
        """
        out = np.array(
            [
                sum(
                    _turn_rewards(
                        step, self.config, weights, lessons, limit_weights
                    ).values()
                )
                for t in self.trajectories
                for step in t.episode.transitions
            ],
            float,
        )
        scale = None
        if scaled:
            discount = self.config.update.discount
            scale = self.grid().return_scale(out, discount, previous_scale)
        # Scaled first: the KL is in nats whatever the units of the rewards are.
        if scale is not None:
            out /= scale
        if weights.kl and self.config.update.kl_penalty.placement == "reward":
            out -= weights.kl * updater.reference_log_ratio(self.examples)
        return out, scale

    def components(
        self, weights: LossWeights
    ) -> dict[str, tuple[float, Float[np.ndarray, " N"]]]:
        """Return for each reward component its weight and the reward of each turn.

        The weight is that of `reward.component_weights`, times `dense_rewards` of the
        `weights` where the component is no outcome. It is in the rewards as well, which
        a division by their own deviation takes out again. Without a weight a component
        is left out.
        """
        steps = [step for t in self.trajectories for step in t.episode.transitions]
        names = sorted({name for step in steps for name in step.rewards})
        named = weigh_components(
            dict.fromkeys(names, 1.0), self.config.reward.component_weights
        )
        dense = {
            name: weights.dense_rewards if _is_dense(name) else 1.0 for name in names
        }
        return {
            name: (
                abs(named[name]) * dense[name],
                np.array([step.rewards.get(name, 0.0) for step in steps], float),
            )
            for name in names
            if named[name] * dense[name]
        }


def with_update_rewards(
    trajectories: Sequence[Trajectory],
    config: LoopConfig,
    before: TrainingState,
) -> list[Trajectory]:
    """Return trajectories with the rewards and the costs that an update reads.

    Each reward component has the factors of the current lesson and of the remedies,
    what a limit takes is the component `limit/NAME`, and a cost that a limit finds by
    its pattern is among the costs. A KL penalty in the reward, which needs the model,
    and the scale that rewards are divided by are left out. Rewards that the update does
    not read stay as they are.

    Args:
      before: the state before the update, which has the lesson and the factors.
    """
    lessons, last_row = before.lessons, before.curve[-1] if before.curve else {}
    weights = loss_weights(last_row, config.initial_weights)
    limit_weights = multipliers(last_row, config.limits)

    def as_read(step: Transition) -> Transition:
        costs = {x.name: step_cost(step, x) for x in config.limits}
        out = dataclasses.replace(
            step, costs={**step.costs, **{k: v for k, v in costs.items() if v}}
        )
        if not config.update.reads_rewards:
            return out
        rewards = _turn_rewards(step, config, weights, lessons, limit_weights)
        return dataclasses.replace(out, rewards=rewards)

    return [
        t._replace(
            episode=dataclasses.replace(
                t.episode, transitions=tuple(map(as_read, t.episode.transitions))
            )
        )
        for t in trajectories
    ]


def _turn_rewards(
    step: Transition,
    config: LoopConfig,
    weights: LossWeights,
    lessons: LessonTracker | None,
    limit_weights: Mapping[str, float],
) -> dict[str, float]:
    """Return the reward components of a step with their factors, and limits' prices."""
    named = lessons.rewards(step.rewards) if lessons else step.rewards
    out = {
        name: value * (weights.dense_rewards if _is_dense(name) else 1.0)
        for name, value in named.items()
    }
    for limit in config.limits:
        price = limit_weights.get(limit.name, 0.0) * step_cost(step, limit)
        if price:
            component = f"limit/{limit.name}"
            out[component] = out.get(component, 0.0) - price
    return out


def _is_dense(name: str) -> bool:
    return name.startswith(DENSE_REWARDS) and name != TASK_REWARD
