"""The contract checker: tests what every environment must do, the dream included.

environment -> a few of its tasks, played with nonsense, with random valid actions and
with the expert's plan, each twice -> all faults and warnings at once, each with what,
where and what to do. Users run it on their own environment with `dreamgym check`.

A fault is what breaks a run or makes it learn something untrue; a warning is what is
allowed and will hurt.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error

from dreamgym.envs import base, limits
from dreamgym.envs.base import SPLITS, EnvironmentFailure, guarded
from dreamgym.envs.contract_copies import check_copies
from dreamgym.envs.contract_findings import Findings, Report, difference, report
from dreamgym.envs.contract_gymnasium import check_gymnasium
from dreamgym.envs.contract_player import Player, Trace
from dreamgym.envs.contract_tasks import (
    COMPARED,
    check_splits,
    check_twins,
    check_variations,
    sound_tasks,
)
from dreamgym.envs.contract_texts import check_options, check_speed, check_texts
from dreamgym.envs.contract_wins import check_wins
from worldmodel.data.records import Task

NONSENSE = "frobnicate the <|dg_end|> moon\u2603"
STEP_AFTER_END_ERRORS = (RuntimeError, ValueError, AssertionError, error.Error)
"""What a step after the end may raise; another error is a mistake in the code."""

REPLAYS = "two plays of the same actions differ"
"""The fault of an environment that draws lots and does not say so."""

POOL = 100
"""Train tasks among which those that are played lie at equal distances."""

MAX_VALID_ACTIONS = 500
"""Valid actions above which a warning is given."""


def check(
    env: gymnasium.Env,
    *,
    name: str = "env",
    limit: int = 200,
    tasks: int = 3,
    max_steps: int = 0,
    make: Callable[[], gymnasium.Env] | None = None,
) -> Report:
    """Check an environment on some train tasks; return all faults and warnings.

    Args:
      limit: steps of an episode of the check, at most.
      tasks: train tasks that are played, at most.
      max_steps: the step limit of the run that is planned (0: the environment's).
      make: makes another copy; the two are then stepped in turn.
    """
    findings = Findings()
    player, checks = Player(env, findings), {"reset", "step"}
    lister = base.as_tasks(env)
    listed = player.call(
        "tasks", "tasks('train')", lambda: base.tasks_of(env, name, "train", POOL)
    )
    if listed is not None:
        listed = sound_tasks(player, "tasks('train')", listed)
    if listed == [] and lister is not None:
        findings.fault("tasks('train') is empty", "tasks", "return at least one task")
    inspector = _Inspector(player, checks, limit, max_steps)
    played = listed or []
    for i in np.linspace(0, len(played) - 1, tasks) if played else ():
        inspector.inspect(played[int(i)])
    inspector.conclude(played)
    if lister is not None:
        check_splits(player, lister)
        checks.add("splits apart")
    elif listed and inspector.deterministic:
        check_twins(player, {s: base.tasks_of(env, name, s, COMPARED) for s in SPLITS})
    # Where replays differ, copies differ as well.
    if (
        make is not None
        and inspector.sample is not None
        and REPLAYS not in (findings.faults)
    ):
        check_copies(player, make, inspector.sample)
        checks.add("copies")
    check_gymnasium(env, findings)
    check_speed(player)
    return report(findings, checks, player.steps, player.resets)


class _Inspector:
    """Plays single tasks, and keeps what several tasks together show."""

    def __init__(self, player: Player, checks: set[str], limit: int, max_steps: int):
        self.player, self.env, self.findings = player, player.env, player.findings
        self.checks, self.limit = checks, limit
        declared = limits.declared_step_limit(player.env)
        self.max_steps = max_steps or declared or 0
        self.deterministic = base.is_deterministic(player.env)
        self.sample: Trace | None = None  # an episode that copies are compared on
        self.last_plan: Trace | None = None
        self.expert_traces: list[Trace] = []  # those that reached their end
        self.nonsense_ends: list[tuple[Trace, list[str]]] = []
        self.unplanned: list[Task] = []  # tasks for which the expert has no plan
        self.random: list[Trace] = []

    def inspect(self, task: Task) -> None:
        """Play one task in every way."""
        start = self.player.reset(task)
        if start is None:
            return
        check_texts(self.findings, task, *start)
        check_options(self.player, task, start[0])
        valid = self._check_valid_actions(task)
        plan = self._check_expert(task)
        if (varied := base.as_variations(self.env)) is not None:
            check_variations(self.player, varied, task)
            self.checks.add("variations")
        nonsense = self._play_twice(task, [NONSENSE] * self.limit, "nonsense")
        if nonsense is None:
            return
        if nonsense.last.truncated:
            self.checks.add("truncated")
        if nonsense.last.terminated and not nonsense.last.truncated:
            self.nonsense_ends.append((nonsense, [*(plan or ())[:1], *valid]))
        if nonsense.last.terminated or nonsense.last.truncated:
            self._check_step_after_end(nonsense)
        random = self._play_random(task)
        if random is not None:
            self.random.append(random)
        self._check_cumulative(task, random if plan is None else self.last_plan)
        self._offer_sample(random)

    def _offer_sample(self, trace: Trace | None) -> None:
        """Keep the longest episode for the comparison of copies."""
        if trace and (self.sample is None or trace.length > self.sample.length):
            self.sample = trace

    # --- actions ---

    def _check_valid_actions(self, task: Task) -> list[str]:
        """Fault valid actions that are no texts; return them where they are."""
        lister, where = base.as_valid_actions(self.env), f"task {task.id!r}"
        if lister is None:
            self.findings.warn(
                "there is no valid_actions()",
                type(self.env.unwrapped).__name__,
                "list actions that would be taken now, some where there are thousands: "
                "without it random players and branches mostly try what cannot work",
            )
            return []
        actions = self.player.call("valid_actions", where, lister.valid_actions)
        actions = self._texts("valid_actions()", actions, where)
        if actions == []:
            self.findings.warn(
                "valid_actions() lists nothing at the start",
                where,
                "list actions that would be taken now: random players have nothing to "
                "choose from",
            )
        return actions or []

    def _texts(self, name: str, value: Any, where: str) -> list[str] | None:
        """Return a list of non-empty texts, or None with a fault."""
        if value is None:
            return None
        if isinstance(value, str | bytes):
            self.findings.fault(
                f"{name} must return a list of actions, got a string",
                where,
                f"return [{value!r:.60}]: a string would be read letter by letter",
            )
            return None
        try:
            actions = list(value)
        except TypeError:
            actions = [value]
        wrong = [a for a in actions if not (isinstance(a, str) and a.strip())]
        if wrong:
            self.findings.fault(
                f"{name} must return texts, none empty, got {wrong[0]!r:.60}",
                where,
                "write every action as the text that step() takes",
            )
            return None
        if len(actions) > MAX_VALID_ACTIONS:
            self.findings.warn(
                f"{name} returns {len(actions)} actions",
                where,
                "return some tens of different kinds: every one may be tried",
            )
        return actions

    # --- the expert ---

    def _check_expert(self, task: Task) -> list[str] | None:
        """Play the expert's plan twice; return it where it is a list of actions."""
        expert = base.as_expert(self.env)
        if expert is None:
            return None
        self.checks.add("expert")
        where, plans = f"task {task.id!r}", []
        for _ in range(2):
            if self.player.reset(task) is None:
                return None
            plan = self.player.call("expert", where, expert.expert)
            plan = self._texts("expert()", plan, where)
            if plan is None:
                return None
            plans.append(plan)
        if plans[0] != plans[1] and self.deterministic:
            self.findings.fault(
                "the expert's plan differs for the same task",
                f"{where}: {difference(str(plans[0]), str(plans[1]))}",
                "plan from the task alone, or declare `deterministic = False` where "
                "the environment draws lots",
            )
            return None
        if not plans[0]:
            self.unplanned.append(task)
            return []
        trace = self._play_twice(task, plans[0], "the expert's plan")
        if trace is not None:
            self._check_plan(trace, plans[0])
            self.last_plan = trace
            self._offer_sample(trace)
        return plans[0]

    def _check_plan(self, trace: Trace, plan: list[str]) -> None:
        where = f"task {trace.task.id!r}: {len(plan)} actions"
        if trace.last.truncated and trace.length <= len(plan):
            return  # the environment's own limit: said of all plans together
        self.expert_traces.append(trace)
        if trace.won or not self.deterministic:
            return
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
        """Play the same actions twice and compare; None where the play is broken."""
        first = self.player.play(task, actions, self.limit)
        if first is None or first.broken:
            return None
        if not self.deterministic:
            return first
        second = self.player.play(task, first.actions, self.limit)
        self.checks.add("deterministic")
        if second is not None and not second.broken:
            self._compare(first, second, what)
        return first

    def _compare(self, first: Trace, second: Trace, what: str) -> None:
        pairs = zip(first.steps, second.steps, strict=False)
        differ = [(i, a, b) for i, (a, b) in enumerate(pairs) if a != b]
        if not differ and first.length == second.length:
            return
        number, a, b = differ[0] if differ else (first.length, first.last, second.last)
        texts = difference(a.observation, b.observation)
        if a.observation == b.observation:
            names = "reward, terminated, truncated, success, invalid"
            texts = f"{a[2:]} and then {b[2:]} ({names})"
        moment = f"step {number}, action {a.action!r:.60}" if number else "reset"
        self.findings.fault(
            REPLAYS,
            f"task {first.task.id!r}, {what}, {moment}: {texts}",
            "if the environment draws lots, declare `deterministic = False` in the "
            "class; else draw from a generator that is seeded by the task at reset",
        )

    def _play_random(self, task: Task) -> Trace | None:
        rng, lister = np.random.default_rng(0), base.as_valid_actions(self.env)

        def choose() -> str | None:
            where = f"task {task.id!r}"
            if lister is None:
                return self.player.call(
                    "action_space.sample", where, self.env.action_space.sample
                )
            valid = self.player.call("valid_actions", where, lister.valid_actions)
            valid = self._texts("valid_actions()", valid, where)
            if valid is None:
                return None
            return valid[int(rng.integers(len(valid)))] if valid else NONSENSE

        return self._play_twice(task, [choose] * self.limit, "random actions")

    # --- ends and rewards ---

    def _check_step_after_end(self, trace: Trace) -> None:
        """A step after the end of an episode raises one of STEP_AFTER_END_ERRORS."""
        if self.player.play(trace.task, trace.actions, self.limit) is None:
            return
        self.checks.add("step after end raises")
        result = guarded(self.env, lambda: self.env.step("look"))
        names = ", ".join(kind.__name__ for kind in STEP_AFTER_END_ERRORS)
        where = f"task {trace.task.id!r}, after step {trace.length}"
        cure = "keep a flag that reset sets, and raise RuntimeError where it is not set"
        if not isinstance(result, EnvironmentFailure):
            self.findings.fault("a step after the end must raise", where, cure)
        elif not isinstance(result.error, STEP_AFTER_END_ERRORS):
            what = f"a step after the end must raise one of {names}"
            reason = f"got {result.reason} ({result.place})"
            self.findings.fault(f"{what}, {reason}", where, cure)

    def _check_cumulative(self, task: Task, trace: Trace | None) -> None:
        """Warn of a reward that is paid again for an action that does nothing."""
        if trace is None or trace.task != task:
            return
        for number, step in enumerate(trace.steps[1:-1], start=1):
            if step.reward > 0:
                probe = [*trace.actions[:number], NONSENSE]
                again = self.player.play(task, probe, self.limit)
                last = None if again is None or again.broken else again.last
                if last and last.action == NONSENSE and last.reward == step.reward:
                    self.findings.warn(
                        "rewards look like a cumulative score",
                        f"task {task.id!r}, step {number} paid {step.reward:g}, and an "
                        "action that does nothing pays it again",
                        "return what the step earned: score - score before",
                    )
                return

    def conclude(self, tasks: Sequence[Task]) -> None:
        """Add what only several tasks together show."""
        check_wins(self.findings, self.random, self.expert_traces, self.unplanned)
        self._check_lengths(tasks)
        if not any(self._is_limit(*end) for end in self.nonsense_ends):
            for trace, _ in self.nonsense_ends:
                self._warn_of_end(trace)

    def _check_lengths(self, tasks: Sequence[Task]) -> None:
        """Warn of plans that no episode of a run could follow to their end."""
        if not self.expert_traces or not self.max_steps:
            return
        lengths = limits.plan_lengths(self.env, tasks[: limits.PLANS])
        self.player.resets += len(lengths)
        long = {t: n for t, n in lengths.items() if n > self.max_steps}
        if long:
            task, longest = max(long.items(), key=lambda row: row[1])
            self.findings.warn(
                f"the expert's plan is longer than max_episode_steps = "
                f"{self.max_steps}",
                f"{len(long)} of {len(lengths)} tasks; {task!r}: {longest} actions",
                f"allow at least {longest} steps: nobody could win",
            )

    def _is_limit(self, trace: Trace, others: Sequence[str]) -> bool:
        """Fault a limit that terminates, which comes whatever the actions are.

        Rules that end on bad moves come later where one sound action is among them.
        """
        for action in others[:5] if trace.length > 1 else ():
            mixed = [action, *[NONSENSE] * self.limit]
            other = self.player.play(trace.task, mixed, self.limit)
            if other is None or other.broken or not other.last.terminated:
                continue
            first, start = other.steps[1], other.steps[0]
            same = first.observation == start.observation
            if same if first.invalid is None else first.invalid:
                continue  # no sound action
            if other.length == trace.length and not other.won:
                self.findings.fault(
                    "a step limit must be truncated, not terminated",
                    f"task {trace.task.id!r}: {trace.length} nonsense actions",
                    "return terminated=False, truncated=True where only the number of "
                    "steps ends the episode",
                )
                return True
        return False

    def _warn_of_end(self, trace: Trace) -> None:
        where = f"task {trace.task.id!r}: {trace.length} nonsense actions"
        single_turn = self.max_steps == 1 or (self.sample and self.sample.length == 1)
        if trace.length > 1:
            self.findings.warn(
                "actions that cannot be taken end the episode",
                where,
                "leave it where the rules of the game say so; where it is a step "
                "limit, return truncated=True instead",
            )
        elif not single_turn:
            self.findings.warn(
                "an action that cannot be taken ends the episode",
                where,
                "tell the agent in the next state, and set info['invalid']; leave it "
                "where the rules of the game say so",
            )
