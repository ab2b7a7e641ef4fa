"""Settings of the rewards: tables, patterns and weights.

The defaults leave the environment's rewards as they are. The formulae are in
docs/concepts/rewards.md.
"""

import dataclasses
import math
import re

from worldmodel.chat.config import ChatConfig
from worldmodel.text.tools.tool_calls import MATCHES

SOURCES = ("rule", "reward_model", "judge")
"""What can score a step, the cheapest and most reliable first."""
PLACES = ("next_state", "action")
"""Where the pattern of a milestone is searched."""

Pair = tuple[float | int, ...]
"""The reward where it is right, and where it is wrong."""


def _finite(part: object, *names: str) -> None:
    for name in names:
        value = getattr(part, name)
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MilestoneConfig:
    """An intermediate goal: the first step at which a pattern occurs.

    It is rewarded once an episode, and not if the first state has the pattern already.
    """

    name: str
    """Name of the reward component: milestone/NAME."""
    pattern: str
    """Regular expression; `^` and `$` match at each line."""
    weight: float
    """The reward."""
    search_in: str = "next_state"
    """Where the pattern is searched: in the "action" or in the lines of the
    "next_state"."""

    def __post_init__(self):
        if not self.name:
            raise ValueError("name of a milestone must not be empty")
        if self.search_in not in PLACES:
            raise ValueError(
                f"search_in must be one of {PLACES}, got {self.search_in!r}"
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"pattern of milestone {self.name!r} must be a regular expression, "
                f"got {self.pattern!r} ({error})"
            ) from None
        _finite(self, "weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolWeightsConfig:
    """The weight of each part of tool use (docs/concepts/rewards.md)."""

    when: float = 1.0
    """Weight of calling where a call is expected, and only there."""
    which: float = 1.0
    """Weight of calling the expected tool."""
    syntax: float = 1.0
    """Weight of a call that parses and fits its tool's schema."""
    execution: float = 1.0
    """Weight of a call that the environment takes."""
    arguments: float = 1.0
    """Weight of the expected arguments."""
    task: float = 1.0
    """Weight of the success of the task."""

    def __post_init__(self):
        _finite(self, *(f.name for f in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolConfig:
    """The asymmetric table of tool-use rewards: (right, wrong) for each part.

    Rewards are larger than punishments, or a policy learns never to call a tool. The
    table is used for tasks that say which calls are expected
    (worldmodel.text.tools.tool_calls.expected_calls).
    """

    enabled: bool = False
    """Whether tool use is rewarded."""
    match: str = "assignment"
    """How calls are matched with the expected ones: by "step" number, in the same
    "order", or as an "assignment" of each to the one that it resembles most."""
    repeat_penalty: float = 0.0
    """Penalty for calling a wrong tool that the episode has wrongly called before
    (component tool/repeat)."""
    call: Pair = (1.0, -0.2)
    """Rewards of calling, and of not calling, where a call is expected."""
    abstain: Pair = (0.5, -0.2)
    """Rewards of not calling, and of calling, where none is expected."""
    tool: Pair = (1.5, -0.5)
    """Rewards of the expected tool, and of another one."""
    syntax: Pair = (0.5, -1.0)
    """Rewards of a call that parses and fits its tool's schema, and of another one."""
    execution: Pair = (1.0, -1.0)
    """Rewards of a call that the environment takes, and of one that it does not."""
    arguments: Pair = (0.5, -0.5)
    """Rewards of the expected arguments, and of other ones."""
    task: Pair = (10.0, -0.5)
    """Rewards of a task that succeeds, and of one that does not."""
    weights: ToolWeightsConfig = ToolWeightsConfig()

    def __post_init__(self):
        if self.match not in MATCHES:
            raise ValueError(f"match must be one of {MATCHES}, got {self.match!r}")
        if not (self.repeat_penalty >= 0 and math.isfinite(self.repeat_penalty)):
            raise ValueError(
                f"repeat_penalty must be >= 0 and finite, got {self.repeat_penalty}"
            )
        for f in dataclasses.fields(self)[3:-1]:
            pair = getattr(self, f.name)
            if len(pair) != 2 or not all(
                isinstance(x, int | float) and math.isfinite(x) for x in pair
            ):
                raise ValueError(
                    f"{f.name} must be two finite numbers (right, wrong), got {pair}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardModelRefitConfig:
    """Refits of the reward model inside a loop (Cooper, arXiv:2508.05613).

    The policy changes, and finds what a frozen reward model pays for by mistake. A
    refit continues from the present weights, on pairs of the update's won and lost
    rollouts and on pairs that the model was first fitted to.
    """

    every: int = 0
    """Updates of the loop between two refits; 0 keeps the reward model as it is."""
    steps: int = 20
    """Optimiser steps of a refit; 0 only measures the model on the new pairs."""
    batch_pairs: int = 8
    """Pairs of a batch."""
    learning_rate: float = 3e-4
    """Learning rate, which falls over the steps of a refit."""
    original_share: float = 0.5
    """Share of the pairs of a refit that are drawn from those of the first fit, so that
    the model does not forget them, in [0, 1)."""
    max_pairs_per_task: int = 8
    """Pairs that are made from the rollouts of a task, at most."""

    def __post_init__(self):
        counts = (self.batch_pairs, self.max_pairs_per_task)
        if min(self.every, self.steps) < 0 or min(counts) < 1:
            raise ValueError(
                "every and steps must be >= 0, batch_pairs and max_pairs_per_task "
                f">= 1, got {self.every}, {self.steps} and {counts}"
            )
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(
                f"learning_rate must be > 0 and finite, got {self.learning_rate}"
            )
        if not 0 <= self.original_share < 1:
            raise ValueError(
                f"original_share must be in [0, 1), got {self.original_share}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardModelSourceConfig:
    """The reward model as a source: its directory, confidence and scale.

    A step of score R has the reward `scale` (2 sigmoid(R) - 1). If the model was fitted
    with the objective "progress", R is the step's share of the outcome, and its reward
    is `scale` R.
    """

    model: str = ""
    """The directory of a fitted reward model; "" is the model of the run, which is then
    fitted (`reward_model`)."""
    confidence: float = 0.05
    """The model is unsure of a step where |sigmoid(R) - 0.5| is below this, in
    [0, 0.5). It is sure of every share of the outcome."""
    scale: float = 1.0
    """The largest reward of a step, or the factor of its share of the outcome."""
    refit: RewardModelRefitConfig = RewardModelRefitConfig()

    def __post_init__(self):
        if not 0 <= self.confidence < 0.5:
            raise ValueError(f"confidence must be in [0, 0.5), got {self.confidence}")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be > 0 and finite, got {self.scale}")

    def progress_problem(self) -> str | None:
        """Return what does not go with the objective "progress", None if all does."""
        if self.refit.every:
            return (
                f"reward_model.refit.every = {self.refit.every} refits a reward model "
                'to pairs, and one of the objective "progress" is fitted to outcomes: '
                "leave it out"
            )
        if self.confidence != RewardModelSourceConfig.confidence:
            return (
                f"reward_model.confidence = {self.confidence} has no effect on a "
                'reward model of the objective "progress", which is sure of every '
                "step: leave it out"
            )
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """The judge as a source: its chat server, its requests, its rewards."""

    chat: ChatConfig = ChatConfig(temperature=0.2)
    """The server that is asked."""
    state_chars: int = 4000
    """Characters of a state that the judge is shown, at most."""
    retries: int = 2
    """Times that a request with a malformed answer is repeated with another seed, which
    has no effect at a temperature of 0."""
    max_reward: float = 1.0
    """The reward of a step with score 10."""
    min_reward: float = 0.0
    """The reward of a step with score 0."""

    def __post_init__(self):
        if self.state_chars < 1 or self.retries < 0:
            raise ValueError(
                "state_chars must be >= 1 and retries >= 0, got "
                f"{self.state_chars} and {self.retries}"
            )
        _finite(self, "max_reward", "min_reward")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComponentWeightConfig:
    """A weight of reward components by name."""

    name: str
    """Name of a component, such as "tool/when", or a pattern, such as "tool/*"."""
    weight: float
    """Its factor, on top of all others."""

    def __post_init__(self):
        if not self.name:
            raise ValueError("name of a component must not be empty")
        _finite(self, "weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostConfig:
    """What is taken from the reward for what an agent uses up."""

    step: float = 0.0
    """Cost of each step (component cost/step)."""
    call: float = 0.0
    """Cost of each tool call (component cost/call)."""
    token: float = 0.0
    """Cost of each token that the policy sampled (component cost/token)."""

    def __post_init__(self):
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{f.name} must be >= 0 and finite, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoveltyConfig:
    """The reward of states that were seldom seen in the run, in the real environment.

    The first visit of a state in an episode is paid weight / sqrt(count), as the
    component novelty. The count is of the episodes that reached the state, of the
    collected ones and of all rollouts so far.
    """

    weight: float = 0.0
    """The reward of a state that no other episode reached; 0 pays none. Only real
    rollouts are paid: a dream would be paid for the states that it invents."""
    numbers: bool = False
    """Whether numbers tell states apart, as coordinates do. Without them a screen that
    shows ever new numbers is no novelty; words that no two of the collected episodes
    hold never tell states apart."""

    def __post_init__(self):
        if not (self.weight >= 0 and math.isfinite(self.weight)):
            raise ValueError(f"weight must be >= 0 and finite, got {self.weight}")
        if self.numbers and not self.weight:
            raise ValueError(
                "numbers says which states are novel, and weight is 0: set it above 0, "
                "or leave numbers out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """The reward of a step: w outcome + (1 - w) process, by named component."""

    outcome_weight: float = 0.0
    """w, the weight of the outcome, in [0, 1]; 1 - w is that of the process reward."""
    success_reward: float = 1.0
    """The outcome at the last step of a successful episode."""
    failure_reward: float = 0.0
    """The outcome at the last step of another episode."""
    process_requires_success: bool = False
    """Whether only successful episodes have process rewards."""
    environment_weight: float = 1.0
    """Factor of the environment's own rewards."""
    invalid_penalty: float = 0.0
    """Penalty for an invalid action."""
    unscaled_components: tuple[str, ...] = ("uncertainty_penalty",)
    """Components that are neither scaled by 1 - w nor subject to
    `process_requires_success`."""
    component_weights: tuple[ComponentWeightConfig, ...] = ()
    """Weights of single components, each as a table: name, weight. The first that fits
    a component counts."""
    cost: CostConfig = CostConfig()
    novelty: NoveltyConfig = NoveltyConfig()
    milestones: tuple[MilestoneConfig, ...] = ()
    """Intermediate goals, each as a table: name, pattern, weight, search_in."""
    tools: ToolConfig = ToolConfig()
    sources: tuple[str, ...] = ("rule",)
    """What scores the process: the first one that is sure of the step, of "rule" (the
    environment's rewards, milestones and tools), "reward_model" and "judge"."""
    source_weights: tuple[float, ...] = ()
    """Weights of the sources: all of them score every step, and their weighted scores
    are added. Weights that sum to 1 are a mean; [1, w] adds a second source with weight
    w to the whole of the first. Empty takes the first source that is sure."""
    reward_model: RewardModelSourceConfig = RewardModelSourceConfig()
    judge: JudgeConfig = JudgeConfig()

    def __post_init__(self):
        if not 0 <= self.outcome_weight <= 1:
            raise ValueError(
                f"outcome_weight must be in [0, 1], got {self.outcome_weight}"
            )
        _finite(self, "success_reward", "failure_reward", "environment_weight")
        if not (self.invalid_penalty >= 0 and math.isfinite(self.invalid_penalty)):
            raise ValueError(
                f"invalid_penalty must be >= 0 and finite, got {self.invalid_penalty}"
            )
        if not self.sources or set(self.sources) - set(SOURCES):
            raise ValueError(f"sources must be some of {SOURCES}, got {self.sources}")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError(f"sources must name each source once, got {self.sources}")
        names = [m.name for m in self.milestones]
        if len(set(names)) < len(names):
            raise ValueError(f"milestones must have different names, got {names}")
        if self.source_weights and (
            len(self.source_weights) != len(self.sources)
            or not all(w >= 0 and math.isfinite(w) for w in self.source_weights)
            or not any(self.source_weights)
        ):
            raise ValueError(
                "source_weights must be a finite weight >= 0 for each of sources "
                f"{self.sources}, and not all 0, got {self.source_weights}"
            )

    @property
    def fits_reward_model(self) -> bool:
        """Whether these rewards need a reward model that is fitted in the run."""
        return "reward_model" in self.sources and not self.reward_model.model

    @property
    def dense(self) -> bool:
        """Whether steps have process rewards other than those of the environment."""
        models = {"reward_model", "judge"} & set(self.sources)
        others = self.tools.enabled or self.novelty.weight > 0
        return bool(models or self.milestones) or others

    def dead(self) -> str | None:
        """Return why a setting would have no effect, None where every setting has one.

        Such settings are refused for new runs only: an existing run may continue.
        """
        refit = self.reward_model.refit
        if not refit.every:
            if refit == type(refit)():
                return None
            return "reward_model.refit says how the model is refitted, and every is 0"
        if not refit.steps and refit.learning_rate != type(refit).learning_rate:
            return "reward_model.refit.learning_rate has no effect with steps = 0"
        name = "reward_model.refit.every refits what scores the process, and"
        weights = dict(zip(self.sources, self.source_weights, strict=False))
        if "reward_model" not in self.sources or not weights.get("reward_model", 1.0):
            return f"{name} sources without weight for reward_model do not use it"
        if self.outcome_weight == 1:
            return f"{name} outcome_weight = 1 leaves the process out"
        return None
