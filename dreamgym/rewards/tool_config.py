"""Settings of the rewards of tool use: the table of right and wrong, its weights."""

import dataclasses
import math

from worldmodel.text.tools.tool_calls import MATCHES

LABELLERS = ("rule", "classifier", "judge")
"""Who can label a component of tool use."""

Pair = tuple[float | int, ...]
"""The reward where it is right, and where it is wrong."""


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
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value):
                raise ValueError(f"{f.name} must be finite, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolLabelsConfig:
    """Who labels a component of tool use: "rule", "classifier" or "judge".

    "rule" compares with the calls that the task expects. "classifier" is a model that
    the run fits to its episodes with expected calls, "judge" a large model behind the
    chat server of `reward.judge`. Labels p in [0, 1] pay p right + (1 - p) wrong.
    """

    when: str = "rule"
    """Who says whether a call is due in a state."""
    which: str = "rule"
    """Who says whether the tool of a call is the right one."""
    arguments: str = "rule"
    """Who says how good the arguments of a call are."""

    def __post_init__(self):
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value not in LABELLERS:
                raise ValueError(f"{f.name} must be one of {LABELLERS}, got {value!r}")

    def asks(self, labeller: str) -> bool:
        """Return whether this labeller labels a component."""
        return labeller in (self.when, self.which, self.arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolConfig:
    """The asymmetric table of tool-use rewards: (right, wrong) for each part.

    Rewards are larger than punishments, or a policy learns never to call a tool. The
    table is used for tasks that say which calls are expected
    (worldmodel.text.tools.tool_calls.expected_calls), and for all tasks where a
    classifier or a judge says when a call is due.
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
    labels: ToolLabelsConfig = ToolLabelsConfig()

    def __post_init__(self):
        if self.match not in MATCHES:
            raise ValueError(f"match must be one of {MATCHES}, got {self.match!r}")
        if not (self.repeat_penalty >= 0 and math.isfinite(self.repeat_penalty)):
            raise ValueError(
                f"repeat_penalty must be >= 0 and finite, got {self.repeat_penalty}"
            )
        for f in dataclasses.fields(self)[3:-2]:
            pair = getattr(self, f.name)
            if len(pair) != 2 or not all(
                isinstance(x, int | float) and math.isfinite(x) for x in pair
            ):
                raise ValueError(
                    f"{f.name} must be two finite numbers (right, wrong), got {pair}"
                )
