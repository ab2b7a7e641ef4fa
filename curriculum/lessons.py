"""Lessons of a curriculum: which tasks, which rewards, and what must be reached.

measured skills -> promotion or regression after several checks in a row -> the lesson
-> its task mixture, reward weights and limits. `advance` is a pure function of state
and measures; the presets are data (lesson_presets.py).
"""

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from curriculum.config import LessonConfig
from curriculum.pool import Entry, TaskPool, TaskQuota
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import expected_calls

Range = tuple[float | int, float | int]
ANY: Range = (0.0, math.inf)
UNITS = ("epochs", "updates", "examples")
HISTORY = 64
"""The number of checks whose measures the state holds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """A share of a lesson's tasks and the conditions they meet, as inclusive ranges.

    `families` are patterns such as "coin*"; none accepts any family. `calls` is the
    number of expected calls and `arguments` the number of arguments of the largest
    (tool_calls.expected_calls; tasks without expected calls fit where both are ANY).
    `typos` is the number of misspelt words that the task's options declare, 0 if none.
    `steps` is the length of a known plan, `success` the pool's estimate; a task without
    a known plan fits where there is no upper limit. The share grows with what is
    missing in the measure `skill`: see `mixture_shares`.
    """

    share: float
    families: tuple[str, ...] = ()
    calls: Range = ANY
    arguments: Range = ANY
    typos: Range = ANY
    steps: Range = ANY
    success: Range = (0.0, 1.0)
    skill: str = ""

    def __post_init__(self):
        if not 0 < self.share < math.inf:
            raise ValueError(f"share must be > 0 and finite, got {self.share}")
        for name in ("calls", "arguments", "typos", "steps", "success"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ValueError(f"{name} must be (low, high), got {(low, high)}")

    def matches_calls(self, task: Task) -> bool:
        """Return whether the expected calls have the wanted number and size."""
        if self.calls == ANY and self.arguments == ANY:
            return True
        expected = expected_calls(task)
        if expected is None:
            return False
        calls = [call for step in expected for call in step]
        num_arguments = max((len(c.arguments) for c in calls), default=0)
        return _in(len(calls), self.calls) and _in(num_arguments, self.arguments)

    def fits(self, task: Task, *, steps: float | int | None, success: float) -> bool:
        """Return whether a task meets the conditions; an unknown plan is None."""
        family_fits = not self.families or any(
            fnmatch.fnmatchcase(task.family, p) for p in self.families
        )
        plan_fits = _in(math.inf if steps is None else steps, self.steps)
        typos = task.options.get("typos", 0)
        return (
            family_fits
            and plan_fits
            and _in(typos if isinstance(typos, int) else 0, self.typos)
            and _in(success, self.success)
            and self.matches_calls(task)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson: its task mixture, its rewards, its budget and its goals.

    `rewards` are factors of the reward's components by name, and `penalties` those of
    components below 0 where they differ; the others stay as they are. `budget` is the
    minimum and maximum length of it, in `unit`s: epochs over the tasks of its mixture,
    updates, or examples. It is passed when every measure of `promote` is reached in
    several checks in a row. With `can_regress`, a later loss of these measures leads
    back to it; it is False where later lessons measure them on other tasks. `max_steps`
    limits its episodes (0: the run's limit).
    """

    name: str
    task_mixture: tuple[TaskFilter, ...]
    rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
    penalties: Mapping[str, float] = dataclasses.field(default_factory=dict)
    budget: Range = (1.0, math.inf)
    unit: str = "epochs"
    promote: Mapping[str, float] = dataclasses.field(default_factory=dict)
    can_regress: bool = True
    max_steps: int = 0

    def __post_init__(self):
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {UNITS}, got {self.unit!r}")
        if not self.name or not self.task_mixture:
            raise ValueError(
                f"a lesson needs a name and a task mixture, got {self.name!r}"
            )
        low, high = self.budget
        if not 0 <= low <= high or not high:
            raise ValueError(f"budget must be (minimum, maximum), got {self.budget}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be >= 0, got {self.max_steps}")
        factors = [*self.rewards.items(), *self.penalties.items()]
        bad = {k: v for k, v in factors if not 0 <= v < math.inf}
        if bad:
            raise ValueError(
                f"rewards and penalties must be >= 0 and finite, got {bad}"
            )

    def factor(self, component: str, value: float) -> float:
        """Return the factor of a component of the reward that has this value."""
        factor = self.rewards.get(component, 1.0)
        return self.penalties.get(component, factor) if value < 0 else factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class LessonState:
    """The state of the lessons as plain data.

    `passed` and `failed` count checks in a row; `floors` holds, by lesson, the measures
    it was passed with; `why` is the reason of the last transition; `history` holds the
    measures of the last HISTORY checks, oldest first, `counts` how many cases each was
    measured on, and `lesson_checks` is how many of the checks were of this lesson.
    """

    index: int = 0
    budget_used: float = 0.0
    passed: int = 0
    failed: int = 0
    floors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    why: str = "start"
    history: tuple[Mapping[str, float], ...] = ()
    counts: tuple[Mapping[str, float], ...] = ()
    lesson_checks: int = 0

    def json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def of_json(row: Mapping[str, Any]) -> "LessonState":
        """Return the state that `json` wrote."""
        tuples = {name: tuple(row.get(name, ())) for name in ("history", "counts")}
        fields: dict[str, Any] = {**row, **tuples}
        return LessonState(**fields)


def advance(
    state: LessonState,
    lessons: Sequence[Lesson],
    measures: Mapping[str, float],
    config: LessonConfig,
    *,
    budget_used: float | int,
    counts: Mapping[str, float] = MappingProxyType({}),
) -> LessonState:
    """Return the state after a check of the skills.

    `counts` has how many cases each measure is a mean of. `budget_used` is the training
    since the last check, in the lesson's unit. The state goes back to the earliest
    lesson whose measures are lost. It advances where all of `promote` is reached and
    the minimal budget is spent, or the maximal budget is. The last lesson is never
    passed. An unknown measure neither promotes nor sets back.

    Raises:
      ValueError: there are no lessons, the state is beyond them, or `budget_used` is
        negative.
    """
    if not 0 <= state.index < len(lessons) or budget_used < 0:
        raise ValueError(
            f"expected a lesson of {len(lessons)} and budget_used >= 0, got number "
            f"{state.index} and {budget_used}"
        )
    lesson = lessons[state.index]
    state = dataclasses.replace(
        state,
        budget_used=state.budget_used + budget_used,
        history=(*state.history, dict(measures))[-HISTORY:],
        counts=(*state.counts, dict(counts))[-HISTORY:],
        lesson_checks=state.lesson_checks + 1,
    )
    lost_lesson = _lost_lesson(state, lessons, measures, config.regression_margin)
    failed = state.failed + 1 if lost_lesson is not None else 0
    reached = all(_reaches(measures, k, v) for k, v in lesson.promote.items())
    passed = state.passed + 1 if lesson.promote and reached else 0
    state = dataclasses.replace(state, failed=failed, passed=passed)
    if lost_lesson is not None and failed >= config.consecutive_checks:
        floors = {
            s.name: state.floors[s.name]
            for s in lessons[:lost_lesson]
            if s.name in state.floors
        }
        return dataclasses.replace(
            state,
            index=lost_lesson,
            budget_used=0.0,
            passed=0,
            failed=0,
            lesson_checks=0,
            floors=floors,
            why="regression",
        )
    min_budget, max_budget = lesson.budget
    skilled = passed >= config.consecutive_checks and state.budget_used >= min_budget
    out_of_budget = config.advance_on_budget and state.budget_used >= max_budget
    if state.index + 1 == len(lessons) or not (skilled or out_of_budget):
        return state
    # The floor is the threshold, or less where the budget ran out first: what was never
    # reached cannot be lost.
    guarded = lesson.promote if lesson.can_regress else {}
    floor = {k: min(v, measures[k]) for k, v in guarded.items() if k in measures}
    return dataclasses.replace(
        state,
        index=state.index + 1,
        budget_used=0.0,
        passed=0,
        failed=0,
        lesson_checks=0,
        floors={**state.floors, lesson.name: floor},
        why="promotion" if skilled else "budget",
    )


def _reaches(measures: Mapping[str, float], name: str, threshold: float) -> bool:
    return name in measures and measures[name] >= threshold


def _lost_lesson(
    state: LessonState,
    lessons: Sequence[Lesson],
    measures: Mapping[str, float],
    margin: float,
) -> int | None:
    """Return the earliest passed lesson whose measures are lost, or None."""
    for i, lesson in enumerate(lessons[: state.index]):
        for name, floor in state.floors.get(lesson.name, {}).items():
            if name in measures and measures[name] < floor - margin:
                return i
    return None


def mixture_shares(
    lesson: Lesson, measures: Mapping[str, float], boost: float | int
) -> list[float]:
    """Return the mixture's shares, grown where a skill lacks something to 1.

    A share grows by `boost` times what its skill lacks. "Dynamic curriculum: shift task
    sampling probabilities based on evaluation metrics" (the primer). The shares sum to
    1; an unknown skill lacks nothing.
    """
    raw = [
        task_filter.share
        * (1.0 + boost * (1.0 - min(measures.get(task_filter.skill, 1.0), 1.0)))
        for task_filter in lesson.task_mixture
    ]
    return [x / sum(raw) for x in raw]


def task_quotas(
    lesson: Lesson,
    pool: TaskPool,
    config: LessonConfig,
    *,
    measures: Mapping[str, float],
    steps: Mapping[str, float | int] | None = None,
) -> list[TaskQuota]:
    """Return the lesson's task mixture for sampler.sample.

    `steps` holds lengths of known plans by task id; a generated task has that of its
    first seed, or of the next one whose plan is known.
    """
    plan_lengths = {} if steps is None else steps
    entries = list(pool.entries.values())
    success_rates = pool.success(entries).tolist()
    success = {e.task.id: p for e, p in zip(entries, success_rates, strict=True)}

    def predicate(task_filter: TaskFilter):
        def fits(entry: Entry) -> bool:
            ids = (entry.task.id, *entry.task.lineage)
            plan = next((plan_lengths[i] for i in ids if i in plan_lengths), None)
            return task_filter.fits(
                entry.task, steps=plan, success=success[entry.task.id]
            )

        return fits

    weights = mixture_shares(lesson, measures, config.weakness_boost)
    return [
        (x, predicate(task_filter))
        for x, task_filter in zip(weights, lesson.task_mixture, strict=True)
    ]


def _in(value: float | int, limits: Range) -> bool:
    return limits[0] <= value <= limits[1]
