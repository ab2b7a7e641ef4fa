"""Rule-based rewards: they follow from the record of a step alone, at no cost.

transitions -> the environment's rewards, milestones, right and wrong tool calls -> one
dict of named components a step. Each function adds one kind of component.
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
"""The named components of a step's reward, which is their sum."""


def add_components(parts: Iterable[Mapping[str, float]]) -> Components:
    """Return the sum of components, name by name."""
    out: Components = {}
    for part in parts:
        for name, value in part.items():
            out[name] = out.get(name, 0.0) + value
    return out


def scale_components(part: Mapping[str, float], factor: float | int) -> Components:
    """Return each component times a factor."""
    return {name: factor * value for name, value in part.items()}


def process_rewards(
    episode: Episode, config: RewardConfig, past: Sequence[str] = ()
) -> list[Components]:
    """Return the components of all rules for each step of an episode.

    Args:
      past: the actions before the first step, if it does not start its task.

    Raises:
      ValueError: the task's expected calls are malformed (gold_calls).
    """
    steps = episode.transitions
    return [
        add_components(parts)
        for parts in zip(
            environment_rewards(
                steps, config.environment_weight, config.unscaled_components
            ),
            milestone_rewards(steps, config.milestones, past),
            tool_rewards(episode, config.tools, past),
            strict=True,
        )
    ]


def environment_rewards(
    steps: Sequence[Transition], weight: float | int, unscaled: Sequence[str]
) -> list[Components]:
    """Return the environment's rewards times a weight, without those `unscaled`."""
    if weight == 0:
        return [{} for _ in steps]
    return [
        {k: weight * float(v) for k, v in t.rewards.items() if k not in unscaled}
        for t in steps
    ]


def unscaled_rewards(
    steps: Sequence[Transition], names: Sequence[str]
) -> list[Components]:
    """Return the environment's components of these names, as they are."""
    return [{k: float(v) for k, v in t.rewards.items() if k in names} for t in steps]


def milestone_rewards(
    steps: Sequence[Transition],
    milestones: Sequence[MilestoneConfig],
    past: Sequence[str] = (),
) -> list[Components]:
    """Return the weight of each milestone, at the first step that reaches it.

    A milestone that the first state or an action of the `past` has reached already is
    not rewarded, even if it is lost and reached again.
    """
    out: list[Components] = [{} for _ in steps]
    for m in milestones:
        if m.search_in == "action":
            texts_before, texts = past, [t.action for t in steps]
        else:
            texts_before = ["\n".join(t.state) for t in steps[:1]]
            texts = ["\n".join(t.next_state) for t in steps]
        pattern = re.compile(m.pattern, re.MULTILINE)
        if any(pattern.search(text) for text in texts_before):
            continue
        step = next((i for i, text in enumerate(texts) if pattern.search(text)), None)
        if step is not None:
            out[step][f"milestone/{m.name}"] = float(m.weight)
    return out


def tool_rewards(
    episode: Episode, config: ToolConfig, past: Sequence[str] = ()
) -> list[Components]:
    """Return the rewards of tool use: when to call, which tool, with which arguments.

    There are none where the task does not say which calls are expected. The calls that
    were expected at the steps of the `past` are over.

    Raises:
      ValueError: the task's expected calls are malformed (gold_calls).
    """
    out: list[Components] = [{} for _ in episode.transitions]
    gold = gold_calls(episode.task) if config.enabled else None
    if gold is None:
        return out
    for i, t in enumerate(episode.transitions):
        step = len(past) + i
        rewards = call_rewards(
            read_call(t.action),
            expected_call(gold, step),
            t.invalid,
            config,
            named=step < len(gold),
        )
        out[i] = {f"tool/{name}": value for name, value in rewards.items()}
    return out


def call_rewards(
    call: Call | None,
    gold: Call | None,
    invalid: bool | None,
    config: ToolConfig,
    *,
    named: bool = True,
) -> Components:
    """Return the rewards of one decision: the entries of the table, weighted.

    Args:
      call: the call of the agent, None if it made none.
      gold: the expected call, None if none is expected.
      invalid: whether the execution failed; None if the environment does not say.
      named: whether the task says what is expected at this step. After the last such
        step no call is expected and none is rewarded, or a policy would idle for it.

    A call that is not expected gets its punishment only, however well-formed it is. The
    execution of a wrong tool is no success.
    """
    w, out = config.weights, {}
    if gold is None:
        if call is not None:
            out["when"] = w.when * config.abstain[1]
        elif named:
            out["when"] = w.when * config.abstain[0]
    elif call is None:
        out["when"] = w.when * config.call[1]
    else:
        out["when"] = w.when * config.call[0]
    if call is not None and not call.valid_json:
        out["syntax"] = w.syntax * config.syntax[1]
    elif call is not None and invalid:
        out["execution"] = w.execution * config.execution[1]
    if call is None or gold is None:
        return out
    right = call.tool == gold.tool
    if call.tool:  # of a malformed call it may not be known
        out["which"] = w.which * config.tool[0 if right else 1]
    if not call.valid_json:
        return out
    out["syntax"] = w.syntax * config.syntax[0]
    if not right:
        return out
    if invalid is False:
        out["execution"] = w.execution * config.execution[0]
    best, worst = config.arguments
    score = argument_score(call.arguments, gold.arguments)
    out["arguments"] = w.arguments * (worst + (best - worst) * score)
    return out


def task_rewards(episode: Episode, config: ToolConfig) -> Components:
    """Return the table's entry for the final answer; none where it is not scored."""
    if not config.enabled or episode.success is None:
        return {}
    if gold_calls(episode.task) is None:
        return {}
    row = config.task[0 if episode.success else 1]
    return {"tool/task": config.weights.task * row}
