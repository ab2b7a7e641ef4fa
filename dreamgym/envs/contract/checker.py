"""The contract checker: tests what every environment must do, the dream included.

environment -> a few of its tasks, played with nonsense, with random valid actions and
with the expert's plan, each twice -> all faults and warnings at once, each with what,
where and what to do. Users run it on their own environment with `dreamgym check`.

A fault is what breaks a run or makes it learn something untrue; a warning is what is
allowed and will hurt.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np

from dreamgym.envs import base, limits
from dreamgym.envs.base import SPLITS
from dreamgym.envs.contract.actions import (
    check_nonsense,
    check_random_refused,
    check_refused,
    check_tool_results,
    check_tools,
    check_tools_listed,
    check_valid_actions,
    checked_actions,
    random_chooser,
    taken_actions,
)
from dreamgym.envs.contract.copies import (
    check_copies,
    check_fork,
    check_global_random,
    check_process,
    explain_replays,
)
from dreamgym.envs.contract.ends import (
    add_steps_after_end,
    check_declarations,
    check_declared_limit,
    check_early_limits,
    check_nonsense_ends,
    check_step_after_end,
)
from dreamgym.envs.contract.experts import (
    SECONDS,
    TASKS,
    check_expert_reads,
    check_held_out,
    check_hidden,
    check_later_plans,
    check_lost_plans,
    check_plan_lengths,
    check_plans_listed,
    play_plans,
)
from dreamgym.envs.contract.findings import (
    REPLAYS,
    REPLAYS_CURE,
    Findings,
    Report,
    difference,
    report,
)
from dreamgym.envs.contract.gymnasium_check import check_gymnasium
from dreamgym.envs.contract.memory import check_memory, check_names, check_returns
from dreamgym.envs.contract.player import (
    MAX_TIMEOUTS,
    NONSENSE,
    Player,
    Trace,
    first_difference,
)
from dreamgym.envs.contract.rewards import check_cumulative, check_unearned
from dreamgym.envs.contract.state_numbers import StateNumbers, state_numbers
from dreamgym.envs.contract.tasks import (
    MAX_SEEDS,
    check_listing,
    check_splits,
    check_task_read,
    check_twins,
    check_variations,
    sound_tasks,
)
from dreamgym.envs.contract.texts import (
    check_growth,
    check_lines,
    check_options,
    check_records,
    check_rendering,
    check_speed,
    check_texts,
    check_word_pairs,
)
from dreamgym.envs.contract.wins import check_wins
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task

NONSENSE_PLAY = "nonsense"

POOL = 100
"""Train tasks among which those that are played lie at equal distances."""


def check(
    env: gymnasium.Env,
    *,
    name: str = "env",
    limit: int = 200,
    tasks: int = 3,
    max_steps: int = 0,
    make: Callable[[], gymnasium.Env] | None = None,
    make_elsewhere: Callable[[], gymnasium.Env] | None = None,
) -> Report:
    """Check an environment on some train tasks; return all faults and warnings.

    Args:
      limit: steps of an episode of the check, at most.
      tasks: train tasks that are played, at most.
      max_steps: the step limit of the run that is planned (0: the environment's).
      make: makes another copy; the two are then compared and stepped in turn.
      make_elsewhere: makes a copy in another process, where texts have other hashes.
    """
    findings = Findings()
    player, checks = Player(env, findings), {"reset", "step"}
    check_declarations(player)
    lister = base.as_tasks(env)
    listed = player.call(
        "tasks",
        "tasks('train')",
        lambda: (
            lister.tasks("train")
            if lister is not None
            else base.tasks_of(env, name, "train", POOL)
        ),
    )
    if listed is not None:
        sound = sound_tasks(player, "tasks('train')", listed)
        listed = None if sound is None else sound[:POOL]
    if listed == [] and lister is not None:
        findings.fault("tasks('train') is empty", "tasks", "return at least one task")
    inspector, played = _Inspector(player, checks, limit, max_steps), listed or []
    places = np.linspace(0, len(played) - 1, tasks) if played else ()
    chosen = [played[int(i)] for i in places]
    for task in chosen:
        inspector.inspect(task)
    inspector.conclude(played)
    if lister is not None:
        splits = check_splits(player, lister)
        check_listing(player, lister, played)
        checks.add("splits apart")
    else:
        splits = {s: base.tasks_of(env, name, s, MAX_SEEDS) for s in SPLITS}
        if listed and inspector.deterministic:
            check_twins(player, splits)
    if chosen and (varied := base.as_variations(env)) is not None:
        check_variations(player, varied, chosen, splits)
        checks.add("variations")
    check_held_out(player, splits, inspector.planned)
    check_tools_listed(player)
    if inspector.differing is not None:  # then copies differ as well
        if make is not None:
            explain_replays(player, make, inspector.differing)
    elif (sample := inspector.sample or inspector.broken) is not None:
        if check_fork(player, sample):
            checks.add("fork")
        if make is not None:
            check_copies(player, make, sample, played, splits)
            checks.add("copies")
        if make_elsewhere is not None and check_process(
            player, make_elsewhere, sample, splits
        ):
            checks.add("processes")
    if player.timeouts < MAX_TIMEOUTS:
        check_gymnasium(env, findings, player.deadline)
    check_speed(player)
    return report(
        findings,
        checks,
        player.steps,
        player.resets,
        inspector.won_episodes(),
        inspector.state_numbers(),
    )


def _seeds(task: Task) -> tuple[int, int]:
    """Return the seeds of two plays of a task that should be equal, if it has none."""
    return content_seed(0, "check", task.id), content_seed(1, "check", task.id)


class _Inspector:
    """Plays single tasks, and keeps what several tasks together show."""

    def __init__(self, player: Player, checks: set[str], limit: int, max_steps: int):
        self.player, self.env, self.findings = player, player.env, player.findings
        self.checks, self.limit = checks, limit
        declared = limits.declared_step_limit(player.env)
        self.max_steps = max_steps or declared or 0
        self.deterministic = base.is_deterministic(player.env)
        self.sample: Trace | None = None  # an episode that copies are compared on
        self.broken: Trace | None = None  # the steps before a fault
        self.differing: Trace | None = None  # the first of two that should be equal
        self.last_plan: Trace | None = None
        self.expert_traces: list[Trace] = []  # those that reached their end
        self.nonsense_ends: list[tuple[Trace, list[str]]] = []
        # Where a step after the end raised nothing: after sound play, after nonsense.
        self.late_steps: dict[bool, list[str]] = {False: [], True: []}
        self.broken_expert = False  # there is a fault of the expert
        self.unplanned: list[Task] = []  # tasks for which the expert has no plan
        self.random: list[Trace] = []
        self.nonsense: list[Trace] = []
        self.planned: list[Trace] = []  # one plan of the expert for each of many tasks

    def inspect(self, task: Task) -> None:
        """Play one task in every way."""
        start = self.player.reset(task)
        if start is None:
            return
        check_texts(self.findings, task, *start)
        check_options(self.player, task, *start)
        check_tools(self.player)
        valid = check_valid_actions(self.player, task)
        plan = self._check_expert(task)
        nonsense = self._play_twice(task, [NONSENSE] * self.limit, NONSENSE_PLAY)
        if nonsense is None:
            if self.broken is not None:
                check_rendering(self.player, self.broken)
            return
        self.nonsense.append(nonsense)
        if nonsense.last.truncated:
            self.checks.add("truncated")
        if nonsense.last.terminated and not nonsense.last.truncated:
            self.nonsense_ends.append((nonsense, [*(plan or ())[:1], *valid]))
        random = self._play_random(task)
        if random is not None:
            self.random.append(random)
            check_rendering(self.player, random)
        other = random if plan is None else self.last_plan
        if other is not None and other.task == task:
            check_cumulative(self.player, nonsense, other, self.limit)
        self._offer_sample(random)

    def _offer_sample(self, trace: Trace | None) -> None:
        """Keep the longest episode for the comparison of copies."""
        if trace and (self.sample is None or trace.length > self.sample.length):
            self.sample = trace

    # --- the expert ---

    def _check_expert(self, task: Task) -> list[str] | None:
        """Play the expert's plan twice; return it where it is a list of actions."""
        expert = base.as_expert(self.env)
        if expert is None:
            return None
        self.checks.add("expert")
        where, plans = f"task {task.id!r}", []
        for seed in _seeds(task):
            if self.player.reset(task, seed) is None:
                return None
            plan = self.player.call("expert", where, expert.expert)
            plan = checked_actions(self.findings, "expert()", plan, where)
            if plan is None:
                self.broken_expert = True
                return None
            plans.append(plan)
        if plans[0] != plans[1] and self.deterministic:
            self.findings.fault(
                "the expert's plan differs for the same task",
                f"{where}: {difference(str(plans[0]), str(plans[1]))}",
                "plan from the task alone, or declare `deterministic = False` where "
                "the environment draws lots",
            )
            self.broken_expert = True
            return None
        if not plans[0]:
            self.unplanned.append(task)
            return []
        trace = self._play_twice(task, plans[0], "the expert's plan")
        if trace is not None:
            if self.deterministic and self.differing is None:
                self.broken_expert |= check_expert_reads(self.player, trace)
            self._check_plan(trace, plans[0])
            self.last_plan = trace
            self._offer_sample(trace)
        return plans[0]

    def _check_plan(self, trace: Trace, plan: list[str]) -> None:
        where = f"task {trace.task.id!r}: {len(plan)} actions"
        if self.deterministic:  # else lots may refuse an action
            check_refused(self.findings, trace)
        if trace.last.truncated and trace.length <= len(plan):
            return  # the environment's own limit: said of all plans together
        self.expert_traces.append(trace)
        if trace.won or not self.deterministic:  # lots may lose
            return
        self.broken_expert = True
        total = sum(step.reward for step in trace.steps)
        ended = "ended" if trace.last.terminated else "did not end"
        self.findings.fault(
            "the expert's plan does not win",
            f"{where}; the episode {ended}, its return is {total:g}, and "
            f"info['success'] is {trace.last.success}",
            "mend the plan; or report info['success'] at the step that wins: without "
            "it only an end with a positive return counts as success",
        )

    # --- equal plays ---

    def _play_twice(self, task: Task, actions: list, what: str) -> Trace | None:
        """Play the same actions twice and compare; None where the play is broken.

        The second reset has another seed, as each play of a run has.
        """
        seed, other_seed = _seeds(task)
        first = self.player.play(task, actions, len(actions), seed)
        if first is None or first.broken:
            if first is not None and self.broken is None:
                self.broken = dataclasses.replace(first, broken=False)
            return None
        check_declared_limit(self.player, first, what)
        check_tool_results(self.player, first)
        if not self.deterministic:
            self._check_end(first, what)
            return first
        second = self.player.play(task, first.actions, first.length, other_seed)
        self.checks.add("deterministic")
        if second is None or second.broken:
            return first
        self._check_end(second, what)
        if (differs := first_difference(first, second)) is not None:
            self.differing = self.differing or first
            self.findings.fault(
                REPLAYS,
                f"task {task.id!r}, {what}, {differs}",
                REPLAYS_CURE,
            )
        return first

    def _check_end(self, trace: Trace, what: str) -> None:
        """Check a step after the end, where the last play has ended."""
        if not trace.ended:
            return
        self.checks.add("step after end")
        where = check_step_after_end(self.player, trace, what)
        if where is not None:
            self.late_steps[what == NONSENSE_PLAY].append(where)

    def _play_random(self, task: Task) -> Trace | None:
        chooser = random_chooser(self.player, task, taken_actions(self.random))
        return self._play_twice(task, [chooser] * self.limit, "random actions")

    def _play_more(self, tasks: Sequence[Task]) -> None:
        """Play more tasks at random, until one is won: imitation needs an episode."""
        deadline = time.monotonic() + SECONDS
        tried = {trace.task.id for trace in self.random}
        # As many steps as a run plays where there is no expert.
        limit = min(self.max_steps or limits.DEFAULT, self.limit)
        for task in [t for t in tasks if t.id not in tried][:TASKS]:
            if time.monotonic() > deadline:
                return
            chooser = random_chooser(self.player, task, taken_actions(self.random))
            trace = self.player.play(task, [chooser] * limit, limit)
            if trace is None or trace.broken:
                return
            self.random.append(trace)
            if trace.won:
                return

    # --- all tasks together ---

    def conclude(self, tasks: Sequence[Task]) -> None:
        """Add what only several tasks together show."""
        if not self.broken_expert:
            chosen = np.linspace(0, len(tasks) - 1, min(len(tasks), TASKS))
            subset = [tasks[int(i)] for i in chosen]
            episodes = play_plans(self.player, subset)
            self.planned = [e.trace for e in episodes]
            check_hidden(self.findings, episodes, deterministic=self.deterministic)
            check_names(self.findings, episodes)
            check_later_plans(self.player, subset)
            check_plans_listed(self.player, subset)
            if self.deterministic:
                check_lost_plans(self.findings, episodes)
        if not any(trace.won for trace in (*self.random, *self.planned)):
            self._play_more(tasks)
        played = [*self.random, *self.nonsense, *self.planned]
        # Replays that differ are said already.
        if self.deterministic and self.differing is None:
            check_memory(self.findings, played)
        text_checks = check_lines, check_growth, check_records, check_word_pairs
        for add_findings in (check_returns, *text_checks):
            add_findings(self.findings, played)
        check_early_limits(self.player, played, self.limit)
        others = [*self.random, *self.nonsense]
        check_unearned(self.findings, others, self.expert_traces)
        too_long = not self.broken_expert and check_plan_lengths(
            self.player, tasks, self.max_steps
        )
        check_wins(
            self.findings,
            self.random,
            [t for t in self.planned if not t.last.truncated] or self.expert_traces,
            self.unplanned,
            nonsense=self.nonsense,
            broken_expert=self.broken_expert or too_long,
        )
        add_steps_after_end(
            self.findings, self.late_steps[True], self.late_steps[False]
        )
        listed = base.as_valid_actions(self.env) is not None
        check_random_refused(self.findings, self.random, listed=listed)
        check_nonsense(self.findings, self.nonsense)
        player, limit, ends = self.player, self.limit, self.nonsense_ends
        single = self.max_steps == 1 or bool(self.sample and self.sample.length == 1)
        # Without flags, what was taken is a guess, and may be as bad as nonsense.
        steps = [step for trace in self.random for step in trace.steps[1:]]
        flagged = all(step.invalid is not None for step in steps)
        taken = taken_actions(self.random) if flagged else []
        check_nonsense_ends(player, ends, taken, limit, single_turn=single)
        check_task_read(player, self.expert_traces, tasks)
        if self.sample is not None:
            check_global_random(player, self.sample)

    def won_episodes(self) -> dict[str, tuple[int, int]]:
        """Return the episodes that were won and that were played, by who played."""
        played = {
            "the expert": self.planned or self.expert_traces,
            "random play": self.random,
            "nonsense": self.nonsense,
        }
        return {n: (sum(t.won for t in x), len(x)) for n, x in played.items() if x}

    def state_numbers(self) -> StateNumbers | None:
        """Return what the states of sound play are like, None where there was none."""
        return state_numbers([*self.random, *self.planned], self.nonsense)
