"""What a step is paid for: tables, patterns and weights as plain settings.

The default leaves rewards as they are. docs/REWARDS.md has the formulae.
"""

import dataclasses
import math
import re

from worldmodel.chat.protocol import ChatConfig

TIERS = ("rule", "learned", "judge")
"""Who can score a step, the cheapest and most reliable first."""
PLACES = ("next_state", "action")
"""Where a milestone is looked for."""

Pair = tuple[float | int, ...]
"""What is paid where it is right, and where it is wrong."""


def _finite(part: object, *names: str) -> None:
    for name in names:
        value = getattr(part, name)
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MilestoneConfig:
    """A checkpoint on the way: a pattern that is found for the first time.

    `pattern` is a regular expression, searched for in the action, or in the lines of
    the next state (`^` and `$` mean those of a line). `weight` is paid once an episode,
    and not for what the first state has.
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
    """How much each part of tool use counts: the w of the primer's one formula."""

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
    """The asymmetric table of tool use: (right, wrong) of each part.

    Right is paid much better than wrong is punished, else a policy learns never to call
    a tool. The defaults lie in the primer's ranges and give its worked examples.
    `call` is paid where a call was due, `abstain` where none was; the rest where it was
    due and made. The table is used where tasks say which calls are due
    (worldmodel.text.tool_calls.gold_calls).
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
    """The learned tier: which model, when it is sure, what it pays.

    `model` is a directory of a fitted reward model; "" is that of the run. A step that
    it scores R is paid `scale` (2 sigmoid(R) - 1); where |sigmoid(R) - 0.5| is below
    `confidence` it does not know.
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
    """The judge: which chat server, what it is shown, what its scores pay.

    `api_key_env` names the variable of the key ("" for none). The judge says 0 to 10,
    which pays from `bad` to `good`. An answer that makes no sense is asked for again
    with another seed, `retries` times: at a temperature of 0 a server tells the same.
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
        """The server as a client takes it.

        Raises:
          ValueError: no URL, or another setting that it does not take.
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
    """A step's reward: alpha outcome + (1 - alpha) process, named by component.

    The outcome is `success` or `failure`, at the last step. Process is what `tiers` say
    of a step: asked in turn until one knows or, with `blend`, all of them with these
    weights, which sum to 1. The rules are the environment's own rewards times
    `environment`, the `milestones` and the `tools`. With `gated` process is paid in
    successful episodes only. An action that the environment could not take costs
    `invalid`. Components named in `kept` are no process: nothing scales or gates them.
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
        if not self.tiers or set(self.tiers) - set(TIERS):
            raise ValueError(f"tiers must be some of {TIERS}, got {self.tiers}")
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
        """Whether steps are paid for what is no outcome, beyond the environment's."""
        paid = {"learned", "judge"} & set(self.tiers) or self.milestones
        return bool(paid) or self.tools.enabled
