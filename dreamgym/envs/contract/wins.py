"""The part of the contract checker that asks what is won, and by whom."""

from collections.abc import Sequence

from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Trace
from worldmodel.data.records import Task
from worldmodel.data.summary import NO_REWARD


def check_wins(
    findings: Findings,
    random: Sequence[Trace],
    planned: Sequence[Trace],
    unplanned: Sequence[Task],
    *,
    nonsense: Sequence[Trace] = (),
    broken_expert: bool = False,
) -> None:
    """Warn where there may be nothing to imitate, or where success says little.

    Args:
      random: episodes of random play.
      planned: episodes of the expert's plans that reached their end.
      unplanned: tasks for which the expert gave no plan.
      nonsense: episodes of actions that cannot be taken.
      broken_expert: there are faults of the expert, which say already why none won.
    """
    if not broken_expert and planned and not any(trace.won for trace in planned):
        findings.warn(
            "no plan of the expert won",
            f"{len(planned)} tasks",
            "imitation needs won episodes: mend the expert, or make more tasks "
            "winnable",
        )
    goes_on = [t for t in planned if t.won and not t.ended]
    if goes_on:
        findings.warn(
            "an episode goes on after its success",
            f"task {goes_on[0].task.id!r}: {goes_on[0].length} actions of the expert",
            "return terminated=True at the step that solves the task: an episode is "
            "played on until it ends, and counts as its last step says",
        )
    if unplanned:
        findings.warn(
            "the expert has no plan for "
            + ("some tasks" if planned else "any of the tasks that were played"),
            f"task {unplanned[0].id!r}, {len(unplanned)} of the tasks played",
            "leave it where it cannot plan: other tasks, and random play that won, "
            "are imitated",
        )
    lost = bool(random) and not any(trace.won for trace in random)
    ends_without_success = [
        t for t in random if t.last.terminated and t.last.success is None and not t.won
    ]
    addition = (
        "; or report info['success'] at the last step: "
        f"{len(ends_without_success)} of these tasks terminated without it, and then "
        "only a positive return counts as won"
    )
    if not broken_expert and not planned and lost:
        findings.warn(
            "no plan of an expert was played to its end, and no random play won",
            f"random play won 0 of {len(random)} tasks, in up to "
            f"{max(trace.length for trace in random)} steps each",
            "imitation needs won episodes: give expert(), for some tasks at least, or "
            "make tasks that random play wins now and then (shorter ones, or a larger "
            f"max_episode_steps){addition * bool(ends_without_success)}",
        )
    if won := [trace for trace in nonsense if trace.won]:
        findings.warn(
            "an episode of nonsense counts as won",
            f"task {won[0].task.id!r}: {won[0].length} actions, {len(won)} of the "
            f"{len(nonsense)} tasks played",
            "report info['success'] as True only at the step that solves the task",
        )
    played = [*random, *planned, *nonsense]
    won = [trace for trace in played if trace.won]
    if won and not any(step.reward for trace in played for step in trace.steps):
        findings.warn(
            NO_REWARD,
            f"{len(won)} of {len(played)} episodes were won, as task "
            f"{won[0].task.id!r} was, and no step paid",
            "return a reward at the step that wins, 1.0 for example",
        )
    _check_partial_credit(findings, [*random, *planned])


def _check_partial_credit(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn of ends that pay differently and all count as won."""
    ends = {t.last.reward: t for t in traces if t.won and t.last.success is None}
    if len(ends) < 2:
        return
    low, high = min(ends), max(ends)
    findings.warn(
        "ends with different rewards all count as won",
        f"task {ends[low].task.id!r} ended with {low:g}, task "
        f"{ends[high].task.id!r} with {high:g}",
        "report info['success'] where the task is solved: without it every end with a "
        "positive return is a success",
    )
