"""Rule-based rewards: they follow from the record of a step alone, at no cost.

transitions -> the environment's rewards, milestones, right and wrong tool calls -> one
dict of named components a step. Each function adds one kind of component.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dreamgym.rewards.config import (
    ComponentWeightConfig,
    CostConfig,
    MilestoneConfig,
    RewardConfig,
)
from dreamgym.rewards.tool_config import ToolConfig
from worldmodel.data.records import Episode, State, Task, Transition
from worldmodel.text.tools.argument_score import argument_score
from worldmodel.text.tools.call_matching import Matching, match_calls
from worldmodel.text.tools.call_results import failed_calls
from worldmodel.text.tools.tool_calls import (
    Action,
    Call,
    expected_calls,
    read_action,
)
from worldmodel.text.tools.tool_schemas import call_error, tool_schemas

Components = dict[str, float]
"""The named components of a step's reward, which is their sum."""


class CallLabels(NamedTuple):
    """What is right about a call: the chances that it was due, and that its tool and
    its arguments are right, given the ones before. None where nobody knows.
    """

    due: float
    tool: float | None
    arguments: float | None


class StepLabels(NamedTuple):
    """Labels of a step by a classifier or a judge; None, or no entry, for "rule".

    `due` is the chance that a call is due in its state, `tools` and `arguments` those
    of each of its calls.
    """

    due: float | None = None
    tools: tuple[float | None, ...] = ()
    arguments: tuple[float | None, ...] = ()


def rule_labels(call: Call, expected: Call | None) -> CallLabels:
    """Return the labels of a call by the call that was expected, None if none was."""
    if expected is None:
        return CallLabels(0.0, None, None)
    if call.tool != expected.tool:
        return CallLabels(1.0, 0.0, None)
    score = argument_score(call.arguments, expected.arguments)
    return CallLabels(1.0, 1.0, score)


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


def rewards_tool_use(task: Task, config: ToolConfig) -> bool:
    """Return whether tool use is rewarded in a task: it is known when a call is due.

    The task says which calls are expected, or a classifier or a judge labels it.

    Raises:
      ValueError: the task's expected calls are malformed.
    """
    return config.enabled and (
        config.labels.when != "rule" or expected_calls(task) is not None
    )


def process_rewards(
    episode: Episode,
    config: RewardConfig,
    past: Sequence[str] = (),
    labels: Mapping[int, StepLabels] = MappingProxyType({}),
    past_states: Sequence[State] = (),
) -> list[Components]:
    """Return the components of all rules for each step of an episode.

    Args:
      past: the actions before the first step, if it does not start its task.
      labels: those of the steps whose tool use is not labelled by rule alone.
      past_states: the states in which the past actions were taken, if they are known.

    Raises:
      ValueError: the task's expected calls or its tools are malformed.
    """
    steps = episode.transitions
    return [
        add_components(parts)
        for parts in zip(
            environment_rewards(
                steps, config.environment_weight, config.unscaled_components
            ),
            milestone_rewards(steps, config.milestones, past, past_states),
            tool_rewards(episode, config.tools, past, labels),
            strict=True,
        )
    ]


def weigh_components(
    part: Mapping[str, float], weights: Sequence[ComponentWeightConfig]
) -> Components:
    """Return each component times the first of the weights that fits its name."""
    return {
        name: value
        * next((w.weight for w in weights if fnmatch.fnmatchcase(name, w.name)), 1.0)
        for name, value in part.items()
    }


def step_costs(action: str, config: CostConfig) -> Components:
    """Return what a step and its tool calls cost, as negative components."""
    out: Components = {}
    if config.step:
        out["cost/step"] = -float(config.step)
    if config.call and (calls := read_action(action).calls):
        out["cost/call"] = -float(config.call) * len(calls)
    return out


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
    past_states: Sequence[State] = (),
) -> list[Components]:
    """Return the weight of each milestone, at the first step that reaches it.

    A milestone that the first state, or an action or a state of the past, has reached
    already is not rewarded, even if it is lost and reached again.
    """
    out: list[Components] = [{} for _ in steps]
    for m in milestones:
        if m.search_in == "action":
            texts_before, texts = past, [t.action for t in steps]
        else:
            states_before = [*past_states, *(t.state for t in steps[:1])]
            texts_before = ["\n".join(state) for state in states_before]
            texts = ["\n".join(t.next_state) for t in steps]
        pattern = re.compile(m.pattern, re.MULTILINE)
        if any(pattern.search(text) for text in texts_before):
            continue
        step = next((i for i, text in enumerate(texts) if pattern.search(text)), None)
        if step is not None:
            out[step][f"milestone/{m.name}"] = float(m.weight)
    return out


def tool_rewards(
    episode: Episode,
    config: ToolConfig,
    past: Sequence[str] = (),
    labels: Mapping[int, StepLabels] = MappingProxyType({}),
) -> list[Components]:
    """Return the rewards of tool use: when to call, which tool, with which arguments.

    There are none where nobody knows when a call is due: the task does not say which
    calls are expected, and it is labelled by rule. Which of them a call is decides
    `config.match`, over the actions of the `past`, too, which are not rewarded.
    `labels` are those by a classifier or a judge, by step.

    Raises:
      ValueError: the task's expected calls or its tools are malformed.
    """
    steps, first = episode.transitions, len(past)
    parts: list[list[Components]] = [[] for _ in (*past, *steps)]
    if not rewards_tool_use(episode.task, config):
        return [{} for _ in steps]
    by_rule, expected = config.labels.when == "rule", expected_calls(episode.task)
    actions = [read_action(a) for a in (*past, *(t.action for t in steps))]
    schemas = tool_schemas(episode.task)
    matching = match_calls([a.calls for a in actions], expected or (), config.match)
    numbers, earlier = Counter[int](), set[str]()
    failed = {
        first + i: failed_calls(t, len(actions[first + i].calls))
        for i, t in enumerate(steps)
    }
    for step, call, wanted in matching.made:
        number, is_repeated = numbers[step], repr(call) in earlier
        numbers[step] += 1
        earlier.add(repr(call))
        if step < first:
            continue
        label = labels.get(step - first, StepLabels())
        if is_repeated and not by_rule:  # or a policy would make it again and again
            label = label._replace(due=0.0)
        error = None if schemas is None else call_error(call, schemas)
        parts[step].append(
            call_rewards(
                call,
                _labels_of(rule_labels(call, wanted), label, number, config),
                failed[step][number],
                config,
                fits=call.valid_json and error is None,
            )
        )
    if config.repeat_penalty and expected is not None:
        for step in repeated_wrong_tools(matching):
            parts[step].append({"repeat": -float(config.repeat_penalty)})
    if not by_rule:
        for step, pay in _labelled_abstentions(actions, first, labels, config).items():
            parts[step].append({"when": config.weights.when * pay})
    elif expected is not None:
        _add_misses(parts, actions, expected, matching, config)
    return [
        {f"tool/{name}": value for name, value in add_components(rows).items()}
        for rows in parts[len(past) :]
    ]


def _labels_of(
    by_rule: CallLabels, label: StepLabels, number: int, config: ToolConfig
) -> CallLabels:
    """Return the labels of the call of a number in its step, by who labels them."""
    named, out = config.labels, by_rule
    if named.when != "rule":
        out = out._replace(due=label.due or 0.0)
    if named.which != "rule":
        out = out._replace(tool=_entry(label.tools, number))
    if named.arguments != "rule":
        out = out._replace(arguments=_entry(label.arguments, number))
    return out


def _entry(labels: Sequence[float | None], number: int) -> float | None:
    """Return the label of a number, None where there is none."""
    return labels[number] if number < len(labels) else None


def _labelled_abstentions(
    actions: Sequence[Action],
    first: int,
    labels: Mapping[int, StepLabels],
    config: ToolConfig,
) -> dict[int, float]:
    """Return what the steps without a call are paid, by the chance that one was due.

    Not calling is paid once an episode, or a policy would idle for it; each call that
    is due and not made is punished.
    """
    out: dict[int, float] = {}
    without = [i for i, action in enumerate(actions) if not action.calls]
    for i in without:
        due = labels.get(i - first, StepLabels()).due
        if i >= first and due is not None:
            right = (1 - due) * config.abstain[0] * (i == without[0])
            out[i] = due * config.call[1] + right
    return out


def _add_misses(
    parts: Sequence[list[Components]],
    actions: Sequence[Action],
    expected: Sequence[Sequence[Call]],
    matching: Matching,
    config: ToolConfig,
) -> None:
    """Add what missed calls and right abstentions pay, by the expected calls."""
    when = config.weights.when
    for listed_step, _ in matching.missed:
        # Without a step of its own a call is missed once the episode is over.
        step = listed_step if config.match == "step" else len(parts) - 1
        if step < len(parts):
            parts[step].append({"when": when * config.call[1]})
    for step in _right_abstentions(actions, expected, matching, config.match):
        parts[step].append({"when": when * config.abstain[0]})


def repeated_wrong_tools(matching: Matching) -> list[int]:
    """Return the step of each call that repeats a wrong tool of the episode.

    A call is of a wrong tool where another one was expected, or where none was and the
    task expects no call of its tool at all.
    """
    wanted = {x.expected.tool for x in matching.made if x.expected is not None}
    wanted |= {call.tool for _, call in matching.missed}
    wrong = [
        x
        for x in matching.made
        if x.call.tool and x.call.tool != (x.expected.tool if x.expected else None)
        if x.expected is not None or x.call.tool not in wanted
    ]
    tools = [x.call.tool for x in wrong]
    return [x.step for i, x in enumerate(wrong) if x.call.tool in tools[:i]]


def _right_abstentions(
    actions: Sequence[Action],
    expected: Sequence[Sequence[Call]],
    matching: Matching,
    match: str,
) -> list[int]:
    """Return the steps at which no call was made, and rightly.

    There are at most as many as the task lists, or a policy would idle for them. Where
    calls have no steps of their own, they come after all expected calls.
    """
    without = [i for i, action in enumerate(actions) if not action.calls]
    if match == "step":
        return [i for i in without if i < len(expected) and not expected[i]]
    if matching.missed:
        return []
    last = max((x.step for x in matching.made if x.expected is not None), default=-1)
    listed = sum(not calls for calls in expected)
    return [i for i in without if i > last][:listed]


def call_rewards(
    call: Call,
    labels: CallLabels,
    invalid: bool | None,
    config: ToolConfig,
    *,
    fits: bool = True,
) -> Components:
    """Return the rewards of one call: the entries of the table, weighted.

    They are the expected ones where labels are chances: a component counts as far as
    the ones before it are right.

    Args:
      call: the call of the agent.
      labels: what is right about it. A component without a label is not paid.
      invalid: whether the execution failed; None if the environment does not say.
      fits: whether it is JSON for a known tool, with the arguments of its schema.

    A call that is not due gets its punishment only, however well-formed it is. The
    execution of a wrong tool is no success.
    """
    w, out, (due, tool, arguments) = config.weights, {}, labels
    fits = fits and call.valid_json
    out["when"] = w.when * _mean((config.call[0], config.abstain[1]), due)
    if not fits:
        out["syntax"] = w.syntax * config.syntax[1]
    elif invalid:
        out["execution"] = w.execution * config.execution[1]
    if not due:
        return out
    if call.tool and tool is not None:  # of a malformed call it may be missing
        out["which"] = w.which * due * _mean(config.tool, tool)
    if not call.valid_json:
        return out
    if fits:
        out["syntax"] = w.syntax * due * config.syntax[0]
    if not tool:
        return out
    if fits and invalid is False:
        out["execution"] = w.execution * due * tool * config.execution[0]
    if arguments is not None:
        quality = _mean(config.arguments, arguments)
        out["arguments"] = w.arguments * due * tool * quality
    return out


def _mean(pair: Sequence[float | int], chance: float) -> float:
    """Return the mean of (right, wrong), with the chance of the first one."""
    return chance * pair[0] + (1 - chance) * pair[1]


def task_rewards(episode: Episode, config: ToolConfig) -> Components:
    """Return the table's entry for the final answer; none where it is not scored."""
    if episode.success is None or not rewards_tool_use(episode.task, config):
        return {}
    row = config.task[0 if episode.success else 1]
    return {"tool/task": config.weights.task * row}
