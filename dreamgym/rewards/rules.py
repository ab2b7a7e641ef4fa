"""The rules: rewards that a step's record decides by itself, for no cost.

transitions -> milestones reached, right and wrong tool calls, what the environment
paid -> one dict of named components a step. Each function adds one kind.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from dreamgym.rewards.config import MilestoneConfig, RewardConfig, ToolConfig
from worldmodel.data.records import Episode, Transition
from worldmodel.text.tool_calls import (
    Call,
    argument_score,
    expected_call,
    gold_calls,
    read_call,
)

Components = dict[str, float]
"""Named parts of a step's reward, which is their sum."""


def added(parts: Iterable[Mapping[str, float]]) -> Components:
    """The sum of components, name by name."""
    out: Components = {}
    for part in parts:
        for name, value in part.items():
            out[name] = out.get(name, 0.0) + value
    return out


def scaled(part: Mapping[str, float], by: float | int) -> Components:
    """Each component times a number."""
    return {name: by * value for name, value in part.items()}


def process_rewards(
    episode: Episode, config: RewardConfig, past: Sequence[str] = ()
) -> list[Components]:
    """All that rules say of the steps of an episode.

    Args:
      past: the actions before its first step, where it goes on from another's.

    Raises:
      ValueError: the task's calls are of no sense (gold_calls).
    """
    steps = episode.transitions
    return [
        added(parts)
        for parts in zip(
            environment_rewards(steps, config.environment, config.kept),
            milestone_rewards(steps, config.milestones, past),
            tool_rewards(episode, config.tools, past),
            strict=True,
        )
    ]


def environment_rewards(
    steps: Sequence[Transition], weight: float | int, kept: Sequence[str]
) -> list[Components]:
    """What the environment paid, times a weight; without the components `kept`."""
    if weight == 0:
        return [{} for _ in steps]
    return [
        {k: weight * float(v) for k, v in t.rewards.items() if k not in kept}
        for t in steps
    ]


def kept_rewards(steps: Sequence[Transition], kept: Sequence[str]) -> list[Components]:
    """The components of these names, as they are."""
    return [{k: float(v) for k, v in t.rewards.items() if k in kept} for t in steps]


def milestone_rewards(
    steps: Sequence[Transition],
    milestones: Sequence[MilestoneConfig],
    past: Sequence[str] = (),
) -> list[Components]:
    """The weight of each milestone, at the first step that reaches it.

    What the first state has already is no progress, even where it is lost and comes
    again, nor is an action like one of the `past`.
    """
    out: list[Components] = [{} for _ in steps]
    for m in milestones:
        if m.over == "action":
            before, texts = past, [t.action for t in steps]
        else:
            before = ["\n".join(t.state) for t in steps[:1]]
            texts = ["\n".join(t.next_state) for t in steps]
        pattern = re.compile(m.pattern, re.MULTILINE)
        if any(pattern.search(text) for text in before):
            continue
        at = next((i for i, text in enumerate(texts) if pattern.search(text)), None)
        if at is not None:
            out[at][f"milestone/{m.name}"] = float(m.weight)
    return out


def tool_rewards(
    episode: Episode, config: ToolConfig, past: Sequence[str] = ()
) -> list[Components]:
    """When, which and how of tool use; nothing where nobody says which calls are due.

    The calls due at the steps of the `past` are gone.

    Raises:
      ValueError: the task's calls are of no sense (gold_calls).
    """
    out: list[Components] = [{} for _ in episode.transitions]
    gold = gold_calls(episode.task) if config.enabled else None
    if gold is None:
        return out
    for i, t in enumerate(episode.transitions):
        step = len(past) + i
        told = call_rewards(
            read_call(t.action), expected_call(gold, step), t.invalid, config,
            named=step < len(gold),
        )  # fmt: skip
        out[i] = {f"tool/{name}": value for name, value in told.items()}
    return out


def call_rewards(
    got: Call | None,
    gold: Call | None,
    invalid: bool | None,
    config: ToolConfig,
    *,
    named: bool = True,
) -> Components:
    """What one decision is paid, by part of the table times the part's weight.

    Args:
      got: the call that was made, None for none.
      gold: the call that was due, None for none.
      invalid: whether its execution failed; None where nobody said.
      named: the task says what was due here; past the end of what it says no call is
        due and none is no merit, else a policy would idle for it.

    A call that was not due is paid nothing but its punishment, however well-formed, and
    the execution of a wrong tool is no success: it ran, but for nothing.
    """
    w, out = config.weights, {}
    if gold is None:
        if got is not None:
            out["when"] = w.when * config.abstain[1]
        elif named:
            out["when"] = w.when * config.abstain[0]
    elif got is None:
        out["when"] = w.when * config.call[1]
    else:
        out["when"] = w.when * config.call[0]
    if got is not None and not got.valid_json:
        out["syntax"] = w.syntax * config.syntax[1]
    elif got is not None and invalid:
        out["execution"] = w.execution * config.execution[1]
    if got is None or gold is None:
        return out
    right = got.tool == gold.tool
    if got.tool:  # of a malformed call it may not be known
        out["which"] = w.which * config.tool[0 if right else 1]
    if not got.valid_json:
        return out
    out["syntax"] = w.syntax * config.syntax[0]
    if not right:
        return out
    if invalid is False:
        out["execution"] = w.execution * config.execution[0]
    best, worst = config.arguments
    good = argument_score(got.arguments, gold.arguments)
    out["arguments"] = w.arguments * (worst + (best - worst) * good)
    return out


def task_rewards(episode: Episode, config: ToolConfig) -> Components:
    """The table's row for the final answer; nothing where it was not scored."""
    if not config.enabled or episode.success is None:
        return {}
    if gold_calls(episode.task) is None:
        return {}
    row = config.task[0 if episode.success else 1]
    return {"tool/task": config.weights.task * row}
