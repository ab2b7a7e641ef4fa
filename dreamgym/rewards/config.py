"""Settings of the rewards: tables, patterns and weights.

The defaults leave the environment's rewards as they are. The formulae are in
docs/concepts/rewards.md.
"""

import dataclasses
import math
import re

from dreamgym.rewards.tool_config import ToolConfig
from worldmodel.chat.config import ChatConfig

SOURCES = ("rule", "reward_model", "judge")
"""What can score a step, the cheapest and most reliable first."""
POTENTIALS = ("plan", "goal")
"""What the potential of a state is computed from."""
PLACES = ("next_state", "action")
"""Where the pattern of a milestone, or of a limit, is searched."""


def check_pattern(what: str, pattern: str, search_in: str) -> None:
    """Check the pattern of a named part of the settings, and where it is searched.

    Raises:
      ValueError: it is no regular expression, or there is no such place.
    """
    if search_in not in PLACES:
        raise ValueError(f"search_in must be one of {PLACES}, got {search_in!r}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"pattern of {what} must be a regular expression, got {pattern!r} ({error})"
        ) from None


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
        check_pattern(f"milestone {self.name!r}", self.pattern, self.search_in)
        _finite(self, "weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardModelRefitConfig:
    """Refits of the reward model inside a loop (Cooper, arXiv:2508.05613).

    The policy changes, and finds what a frozen reward model pays for by mistake. A
    refit continues from the present weights, on pairs of the update's won and lost
    rollouts and on pairs that the model was first fitted to. A model of the objective
    "progress" is refitted to single rollouts and their outcomes, and to some that it
    was first fitted to.
    """

    every: int = 0
    """Updates of the loop between two refits; 0 keeps the reward model as it is."""
    steps: int = 20
    """Optimiser steps of a refit; 0 only measures the model on the new pairs."""
    batch_pairs: int = 8
    """Pairs of a batch, or half of its attempts where these are fitted to outcomes."""
    learning_rate: float = 3e-4
    """Learning rate, which falls over the steps of a refit."""
    original_share: float = 0.5
    """Share of the pairs or attempts of a refit that are drawn from those of the first
    fit, so that the model does not forget them, in [0, 1)."""
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
        count = self.refit.max_pairs_per_task
        if count != RewardModelRefitConfig.max_pairs_per_task:
            return (
                f"reward_model.refit.max_pairs_per_task = {count} is about pairs, and "
                'a reward model of the objective "progress" is refitted to single '
                "rollouts: leave it out"
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
    python_runs: int = 0
    """Python programs that the judge of steps may run before it scores an episode, each
    one more request; 0 gives it no tool."""

    def __post_init__(self):
        if self.state_chars < 1 or min(self.retries, self.python_runs) < 0:
            raise ValueError(
                "state_chars must be >= 1, retries and python_runs >= 0, got "
                f"{self.state_chars}, {self.retries} and {self.python_runs}"
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
class PotentialConfig:
    """Rewards of steps towards the goal by a potential phi, as the component potential.

    A step from s to s' is worth weight (g phi(s') - phi(s)), g = `update.discount`.
    With a critic ("gae") this is added to the rewards, and phi is 0 after the end: the
    best policy stays the best. Where returns are compared a turn is credited with its
    own part alone, and phi is 1 after success: then the potential must be right.
    """

    weight: float = 0.0
    """The weight; 0 pays nothing."""
    kind: str = "plan"
    """What phi is computed from. "plan" is decay^n, where n is the length of the plan
    that the expert of a real environment makes from the state, and 0 without a plan.
    "goal" is how many of the lines that a won episode of the task has changed are, in
    this state, as they are in its last state; 0 where none was collected."""
    decay: float = 0.8
    """What each action that is left of a "plan" multiplies phi by, in (0, 1). Below the
    discount, a step along a shortest plan pays."""

    def __post_init__(self):
        if not (self.weight >= 0 and math.isfinite(self.weight)):
            raise ValueError(f"weight must be >= 0 and finite, got {self.weight}")
        if self.kind not in POTENTIALS:
            raise ValueError(f"kind must be one of {POTENTIALS}, got {self.kind!r}")
        if not 0 < self.decay < 1:
            raise ValueError(f"decay must be in (0, 1), got {self.decay}")
        default, others = type(self), (self.kind, self.decay)
        if not self.weight and others != (default.kind, default.decay):
            raise ValueError(
                "kind and decay describe a potential, and weight is 0: set it above 0, "
                "or leave them out"
            )
        if self.kind == "goal" and self.decay != default.decay:
            raise ValueError(
                'decay is about the lengths of plans, and kind is "goal": leave it '
                f"out, got {self.decay}"
            )

    @property
    def asks_plans(self) -> bool:
        """Whether the expert of the environment is asked for a plan at each step."""
        return self.weight > 0 and self.kind == "plan"


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
    potential: PotentialConfig = PotentialConfig()
    subgoal_weight: float = 0.0
    """Reward of a step that reaches the policy's own subgoal (`policy.subgoal_steps`),
    as the component subgoal; of a line that stood there before it was written, none. A
    policy may learn to write what is easy to reach: small against an outcome."""
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
        if not (self.subgoal_weight >= 0 and math.isfinite(self.subgoal_weight)):
            raise ValueError(
                f"subgoal_weight must be >= 0 and finite, got {self.subgoal_weight}"
            )
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
    def fits_classifier(self) -> bool:
        """Whether a classifier of components of tool use is fitted in the run."""
        return self.tools.enabled and self.tools.labels.asks("classifier")

    @property
    def asks_judge(self) -> bool:
        """Whether a judge is asked: about steps, or about components of tool use."""
        labels = self.tools.enabled and self.tools.labels.asks("judge")
        return labels or "judge" in self.sources

    @property
    def dense(self) -> bool:
        """Whether steps have process rewards other than those of the environment."""
        models = {"reward_model", "judge"} & set(self.sources)
        shaping = self.novelty.weight or self.potential.weight or self.subgoal_weight
        return bool(models or self.milestones or self.tools.enabled or shaping)

    def dream_problem(self) -> str | None:
        """Return what cannot be paid in a dream, None if all can."""
        if self.novelty.weight:
            return (
                "novelty.weight pays for states that the dream may only have invented; "
                f"it must be 0 but for rollouts in a real environment, got "
                f"{self.novelty.weight}"
            )
        if self.potential.asks_plans:
            return (
                'potential.kind = "plan" asks the expert of a real environment, and a '
                'dream has none: take "goal"'
            )
        return None

    def dead(self) -> str | None:
        """Return why a setting would have no effect, None where every setting has one.

        Such settings are refused for new runs only: an existing run may continue.
        """
        if not self.tools.enabled and self.tools.repeat_penalty:
            return "tools.repeat_penalty is about the use of tools, and tools is off"
        if not self.tools.enabled and self.tools.labels != type(self.tools.labels)():
            return "tools.labels says who labels the use of tools, and tools is off"
        if reason := self._unused("rule"):
            if self.tools.labels != type(self.tools.labels)():
                return f'tools.labels is about the source "rule", and {reason}'
            if self.tools.repeat_penalty:
                return f'tools.repeat_penalty is of the source "rule", and {reason}'
        if self.judge.python_runs and "judge" not in self.sources:
            return "judge.python_runs is of the judge of steps, and sources name none"
        refit = self.reward_model.refit
        if not refit.every:
            if refit == type(refit)():
                return None
            return "reward_model.refit says how the model is refitted, and every is 0"
        if not refit.steps and refit.learning_rate != type(refit).learning_rate:
            return "reward_model.refit.learning_rate has no effect with steps = 0"
        if reason := self._unused("reward_model"):
            name = "reward_model.refit.every refits what scores the process"
            return f"{name}, and {reason}"
        return None

    def _unused(self, source: str) -> str | None:
        """Return why a source scores no step, None where it scores the process."""
        weights = dict(zip(self.sources, self.source_weights, strict=False))
        if source not in self.sources or not weights.get(source, 1.0):
            return f"sources without weight for {source} do not use it"
        if self.outcome_weight == 1:
            return "outcome_weight = 1 leaves the process out"
        return None
