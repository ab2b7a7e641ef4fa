"""The part of the contract checker that plays the expert's plans of many tasks.

train tasks -> the expert's plan of each, played once -> the tasks that it does not win,
and the moments at which it acts on what the agent does not see.
"""

import dataclasses
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dreamgym.envs import base, limits
from dreamgym.envs.contract.actions import (
    checked_actions,
    proposes_calls,
    random_chooser,
)
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import (
    Player,
    Trace,
    first_difference,
    instruction_of,
)
from worldmodel.data.records import Task

TASKS = 30
"""Tasks whose plans are played, at most."""
SECONDS = 20.0
"""After so many seconds no further plan is played."""
LATER_TASKS = 3
"""Tasks in which an expert is asked for a plan on the way, at most."""
MANY_MISSING = 0.5
"""The share of a plan's actions that no list holds above which a warning is given."""
HELD_OUT_TASKS = 3
"""Dev tasks and test tasks that are played, at most."""
RANDOM_STEPS = 10
"""Random steps of such a task for which there is no plan, at most."""


def check_expert_reads(player: Player, trace: Trace) -> bool:
    """Add a fault where `expert()` changes the episode; return whether it does.

    Playing its plan must give the same states whether or not it is called before the
    first action. `trace` is of an environment that draws no lots.
    """
    expert = base.as_expert(player.env)
    if expert is None:
        return False
    again, earlier = Player(player.env, Findings()), set(player.findings.faults)

    def first_action() -> str:
        again.call("expert", "", expert.expert)
        return trace.actions[0]

    actions = [first_action, *trace.actions[1:]]
    played = again.play(trace.task, actions, trace.length, trace.seed)
    player.add_counts(again)
    differs = None if played is None else first_difference(trace, played)
    raised = [what for what in again.findings.faults if what not in earlier]
    if differs is None and not raised:
        return False
    player.findings.fault(
        "expert() changes the episode",
        f"task {trace.task.id!r}, its plan without and with a call of it before, "
        f"{raised[0] if raised else differs}",
        "let it plan on a copy: copy.deepcopy(self)",
    )
    return True


class PlannedEpisode(NamedTuple):
    """An expert's plan and its episode, with the instruction that the agent reads."""

    instruction: str
    plan: list[str]
    trace: Trace


def play_plans(player: Player, tasks: Sequence[Task]) -> list[PlannedEpisode]:
    """Play the expert's plan of each task once; none is begun after SECONDS.

    It is played after the reset in which it was asked for, because where lots are drawn
    another reset is another start. Tasks without a plan, and those whose play ends with
    a fault, are left out; the first fault of the expert ends it.
    """
    expert, episodes = base.as_expert(player.env), list[PlannedEpisode]()
    deadline = time.monotonic() + SECONDS
    for task in tasks if expert is not None else ():
        where = f"task {task.id!r}"
        start = player.reset(task)
        if start is None or expert is None or time.monotonic() > deadline:
            break
        plan = player.call("expert", where, expert.expert)
        plan = checked_actions(player.findings, "expert()", plan, where)
        if plan is None:
            break
        trace = player.play_on(task, start[0], plan)
        if plan and not trace.broken:
            instruction = instruction_of(task, start[1])
            trace = dataclasses.replace(trace, instruction=instruction)
            episodes.append(PlannedEpisode(instruction, plan, trace))
    return episodes


def check_later_plans(player: Player, tasks: Sequence[Task]) -> None:
    """Add a fault where an expert that plans from any state does not win on the way.

    Of a few tasks half of its plan is played, and then the plan that it makes there.
    Experts that plan from the start alone, and environments that draw lots, are left
    out.
    """
    expert = base.as_expert(player.env)
    if expert is None or not base.plans_from_any_state(player.env):
        return
    for task in tasks[:LATER_TASKS] if base.is_deterministic(player.env) else ():
        where, start = f"task {task.id!r}", player.reset(task)
        if start is None:
            return
        plan = player.call("expert", where, expert.expert)
        plan = checked_actions(player.findings, "expert()", plan, where)
        if not plan:
            continue
        half = player.play_on(task, start[0], plan[: len(plan) // 2])
        if half.broken or half.ended:
            continue
        plan = player.call("expert", where, expert.expert)
        later = checked_actions(player.findings, "expert()", plan, where)
        if later is None:
            return
        trace = player.play_on(task, half.last.observation, later)
        if not trace.broken and not trace.won:
            player.findings.fault(
                "the expert's plan on the way does not win, and "
                "`plans_from_any_state` is declared",
                f"{where}, after {half.length} actions of its first plan",
                "plan from the present state, not from the start of the episode, or "
                "leave the declaration out",
            )
            return


def _is_cut(episode: PlannedEpisode) -> bool:
    """Return whether the environment's limit cuts an episode before its plan ends."""
    trace = episode.trace
    return trace.last.truncated and trace.length <= len(episode.plan)


def check_plans_listed(player: Player, tasks: Sequence[Task]) -> None:
    """Warn where `valid_actions()` lists hardly any action of the expert's plans.

    The plans of a few tasks are played once more, and the list is asked for before
    each action. The list of a ToolEnv proposes calls: those of a plan may be missing.
    """
    expert, lister = base.as_expert(player.env), base.as_valid_actions(player.env)
    if expert is None or lister is None:
        return
    missing: list[str] = []
    count = 0
    for task in tasks[:LATER_TASKS]:
        where, start = f"task {task.id!r}", player.reset(task)
        if start is None:
            return
        plan = player.call("expert", where, expert.expert)
        plan = checked_actions(player.findings, "expert()", plan, where)
        for number, action in enumerate(plan or (), start=1):
            valid = player.call("valid_actions", where, lister.valid_actions)
            valid = checked_actions(player.findings, "valid_actions()", valid, where)
            step = None if valid is None else player.step(task, action, number)
            if valid is None or step is None:
                return
            player.listed.update(valid)
            count += 1
            missing += [action] * (action not in valid)
            if step.terminated or step.truncated:
                break
    if proposes_calls(player.env) or len(missing) <= MANY_MISSING * count:
        return
    player.findings.warn(
        "valid_actions() lacks most actions of the expert's plans",
        f"{len(missing)} of {count} actions, such as {missing[0]!r:.80}",
        "list them, written as the plan has them: random players and branches take "
        "only what is listed, and never win without these",
    )


def check_lost_plans(findings: Findings, episodes: Sequence[PlannedEpisode]) -> None:
    """Warn of plans that do not win, where others do.

    An episode that the environment cuts before the plan is through is left out.
    """
    played = [e for e in episodes if not _is_cut(e)]
    lost = [e for e in played if not e.trace.won]
    if not lost or len(lost) == len(played):
        return
    trace = lost[0].trace
    findings.warn(
        "the expert's plan does not win some tasks",
        f"{len(lost)} of {len(played)} tasks played; first {trace.task.id!r}, after "
        f"{trace.length} actions",
        "mend the plan, or return [] for tasks that it cannot win: a lost episode is "
        "not imitated, and its real steps are spent",
    )


def check_held_out(
    player: Player, splits: Mapping[str, Sequence[Task]], planned: Sequence[Trace]
) -> None:
    """Play some dev and test tasks, so that their faults are named as well.

    Each is played by the expert's plan, else at random for a few steps. Add a warning
    where plans win tasks of train and none of these; lots may lose, and say nothing.

    Args:
      planned: episodes of the expert's plans for train tasks.
    """
    tells = base.is_deterministic(player.env) and any(t.won for t in planned)
    deadline = time.monotonic() + SECONDS
    for split in ("dev", "test"):
        tasks = splits.get(split, ())
        places = np.linspace(0, len(tasks) - 1, min(len(tasks), HELD_OUT_TASKS))
        ends = list[Trace]()
        for task in [tasks[int(i)] for i in places]:
            if time.monotonic() > deadline:
                return
            if (episodes := play_plans(player, [task])) and not _is_cut(episodes[0]):
                ends.append(episodes[0].trace)
            elif not episodes:
                chooser = random_chooser(player, task, ())
                player.play(task, [chooser] * RANDOM_STEPS, RANDOM_STEPS)
        if tells and len(ends) > 1 and not any(trace.won for trace in ends):
            player.findings.warn(
                f"the expert's plan wins tasks of train, and none of {split}",
                f"{len(ends)} tasks of {split} played; first {ends[0].task.id!r}, "
                f"after {ends[0].length} actions",
                "make tasks of all splits winnable in the same way: policies are "
                "measured on dev and test",
            )


def check_hidden(
    findings: Findings, episodes: Sequence[PlannedEpisode], *, deterministic: bool
) -> None:
    """Warn of an expert that acts differently where the agent sees the same.

    Agents see the instruction, the states and the actions up to a moment. Where an
    environment draws lots, only first actions are compared: a plan is made before.
    """
    actions: dict[Hashable, dict[str, str]] = {}
    for instruction, plan, trace in episodes:
        for i in range(len(trace.actions[: None if deterministic else 1])):
            seen = tuple(step.observation for step in trace.steps[: i + 1])
            key = (instruction, seen, *trace.actions[:i])
            actions.setdefault(key, {}).setdefault(plan[i], trace.task.id)
    differing = [choices for choices in actions.values() if len(choices) > 1]
    if not differing:
        return
    (one, task), (other, another) = list(differing[0].items())[:2]
    moments = f"{len(differing)} moment{'s' * (len(differing) > 1)}"
    findings.warn(
        "the expert acts differently where the agent sees the same",
        f"tasks {task!r} and {another!r}: {one!r:.60} and {other!r:.60}, after the "
        f"same instruction, states and actions; {moments} in {len(episodes)} plans",
        "let it plan from what the instruction and the states show: what it knows "
        "besides cannot be imitated; leave it where both actions are equally good, or "
        "lead to where it can be seen",
    )


def check_plan_lengths(player: Player, tasks: Sequence[Task], max_steps: int) -> bool:
    """Say which plans no episode of a run could follow to their end.

    Returns whether that is so for every task, which is a fault.

    Args:
      max_steps: the step limit of the run, 0 where none is declared.
    """
    expert = base.as_expert(player.env)
    if expert is None or not max_steps:
        return False
    lengths = dict[str, int]()
    for task in tasks[: limits.PLANS]:
        where = f"task {task.id!r}"
        if player.reset(task) is not None:
            plan = player.call("expert", where, expert.expert)
            actions = checked_actions(player.findings, "expert()", plan, where)
            lengths[task.id] = len(actions or ())
    long = {t: n for t, n in lengths.items() if n > max_steps}
    if not long:
        return False
    too_long = len(long) == len(lengths)
    name, longest = max(long.items(), key=lambda row: row[1])
    say = player.findings.fault if too_long else player.findings.warn
    say(
        f"every plan of the expert is longer than max_episode_steps = {max_steps}"
        if too_long
        else f"the expert's plan is longer than max_episode_steps = {max_steps}",
        f"{len(long)} of {len(lengths)} tasks; {name!r}: {longest} actions",
        f"allow at least {longest} steps: nobody could win "
        f"{'any task' if too_long else 'these tasks'}",
    )
    return too_long
