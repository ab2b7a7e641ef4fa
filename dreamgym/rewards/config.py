"""Settings of the rewards: tables, patterns and weights.

The defaults leave the environment's rewards as they are. docs/REWARDS.md has the
formulae.
"""

import dataclasses
import math
import re

from worldmodel.chat.protocol import ChatConfig

SOURCES = ("rule", "learned", "judge")
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

    `pattern` is a regular expression, searched in the action or in the lines of the
    next state (`^` and `$` match at each line). `weight` is the reward; it is given
    once an episode, and not if the first state has the pattern already.
    """

    name: str
    pattern: str
    weight: float
    over: str = "next_state"

    def __post_init__(self):
        if not self.name:
            raise ValueError("name of a milestone must not be empty")
        if self.over not in PLACES:
            raise ValueError(f"over must be one of {PLACES}, got {self.over!r}")
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
    """The weight of each part of tool use: w in the formula of docs/REWARDS.md."""

    when: float = 1.0
    which: float = 1.0
    syntax: float = 1.0
    execution: float = 1.0
    arguments: float = 1.0
    task: float = 1.0

    def __post_init__(self):
        _finite(self, *(f.name for f in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolConfig:
    """The asymmetric table of tool-use rewards: (right, wrong) for each part.

    Rewards are larger than punishments, or a policy learns never to call a tool.
    `call` applies where a call is expected, `abstain` where none is; the other rows
    where a call is expected and made. The table is used for tasks that say which calls
    are expected (worldmodel.text.tool_calls.gold_calls).
    """

    enabled: bool = False
    call: Pair = (1.0, -0.2)
    abstain: Pair = (0.5, -0.2)
    tool: Pair = (1.5, -0.5)
    syntax: Pair = (0.5, -1.0)
    execution: Pair = (1.0, -1.0)
    arguments: Pair = (0.5, -0.5)
    task: Pair = (10.0, -0.5)
    weights: ToolWeightsConfig = ToolWeightsConfig()

    def __post_init__(self):
        for f in dataclasses.fields(self)[1:-1]:
            pair = getattr(self, f.name)
            if len(pair) != 2 or not all(
                isinstance(x, int | float) and math.isfinite(x) for x in pair
            ):
                raise ValueError(
                    f"{f.name} must be two finite numbers (right, wrong), got {pair}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedConfig:
    """The reward model as a source: its directory, confidence and scale.

    `model` is the directory of a fitted reward model; "" is the model of the run. A
    step of score R has the reward `scale` (2 sigmoid(R) - 1). The model is unsure of a
    step where |sigmoid(R) - 0.5| is below `confidence`.
    """

    model: str = ""
    confidence: float = 0.05
    scale: float = 1.0

    def __post_init__(self):
        if not 0 <= self.confidence < 0.5:
            raise ValueError(f"confidence must be in [0, 0.5), got {self.confidence}")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be > 0 and finite, got {self.scale}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """The judge as a source: its chat server, its requests, its rewards.

    `api_key_env` names the environment variable of the key ("" for none). Scores from 0
    to 10 become rewards from `bad` to `good`. A state is shown up to `state_chars`
    characters. A request with a malformed answer is repeated up to `retries` times with
    another seed, which has no effect at a temperature of 0.
    """

    base_url: str = ""
    model: str = "default"
    api_key_env: str = ""
    max_tokens: int = 1024
    temperature: float = 0.2
    price_in: float = 0.0
    price_out: float = 0.0
    state_chars: int = 4000
    retries: int = 2
    good: float = 1.0
    bad: float = 0.0

    def __post_init__(self):
        if self.state_chars < 1 or self.retries < 0:
            raise ValueError(
                "state_chars must be >= 1 and retries >= 0, got "
                f"{self.state_chars} and {self.retries}"
            )
        _finite(self, "good", "bad")

    def chat(self) -> ChatConfig:
        """Return the settings of the chat client.

        Raises:
          ValueError: `base_url` is empty, or the client rejects a setting.
        """
        if not self.base_url:
            raise ValueError("judge.base_url must be set where a judge scores, got ''")
        return ChatConfig(
            base_url=self.base_url, model=self.model,
            api_key_env=self.api_key_env if self.api_key_env else None,
            max_tokens=self.max_tokens, temperature=self.temperature,
            price_in=self.price_in, price_out=self.price_out,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """The reward of a step: alpha outcome + (1 - alpha) process, by named component.

    The outcome is `success` or `failure`, at the last step. The process reward comes
    from the sources in `tiers`: the first one that is sure of the step or, with
    `blend`, all of them with these weights, which sum to 1. The rules are the rewards
    of the environment times `environment`, the `milestones` and the `tools`. With
    `gated` only successful episodes have process rewards. An invalid action costs
    `invalid`. Components named in `kept` are neither scaled nor gated.
    """

    alpha: float = 0.0
    success: float = 1.0
    failure: float = 0.0
    gated: bool = False
    environment: float = 1.0
    invalid: float = 0.0
    kept: tuple[str, ...] = ("doubt",)
    milestones: tuple[MilestoneConfig, ...] = ()
    tools: ToolConfig = ToolConfig()
    tiers: tuple[str, ...] = ("rule",)
    blend: tuple[float, ...] = ()
    learned: LearnedConfig = LearnedConfig()
    judge: JudgeConfig = JudgeConfig()

    def __post_init__(self):
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")
        _finite(self, "success", "failure", "environment")
        if not (self.invalid >= 0 and math.isfinite(self.invalid)):
            raise ValueError(f"invalid must be >= 0 and finite, got {self.invalid}")
        if not self.tiers or set(self.tiers) - set(SOURCES):
            raise ValueError(f"tiers must be some of {SOURCES}, got {self.tiers}")
        if len(set(self.tiers)) < len(self.tiers):
            raise ValueError(f"tiers must name each tier once, got {self.tiers}")
        names = [m.name for m in self.milestones]
        if len(set(names)) < len(names):
            raise ValueError(f"milestones must have different names, got {names}")
        if self.blend and (
            len(self.blend) != len(self.tiers)
            or min(self.blend) < 0
            or not math.isclose(sum(self.blend), 1.0, abs_tol=1e-9)
        ):
            raise ValueError(
                "blend must be a weight >= 0 for each of tiers "
                f"{self.tiers}, and sum to 1, got {self.blend}"
            )

    @property
    def dense(self) -> bool:
        """Whether steps have process rewards other than those of the environment."""
        models = {"learned", "judge"} & set(self.tiers)
        return bool(models or self.milestones) or self.tools.enabled
