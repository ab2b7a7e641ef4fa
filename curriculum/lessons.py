"""Stages of a curriculum: which tasks, which rewards, until what can be done.

skills measured -> promotion or regression, n checks in a row -> the stage -> the mix of
tasks, the weights of the reward's parts, the limits. The machine is a pure function of
(state, measures); the presets are data (curriculum/lesson_presets.py).
"""

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

from curriculum.pool import Entry, TaskPool, TaskQuota
from worldmodel.data.records import Task
from worldmodel.text.tool_calls import gold_calls

Range = tuple[float | int, float | int]
ANY: Range = (0.0, math.inf)
UNITS = ("epochs", "updates", "examples")
HISTORY = 64
"""Checks whose measures are kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """A share of a stage's tasks, and which tasks it may be of; both ends included.

    `families` are patterns ("coin*"), none: any. `calls` is how many calls are due and
    `arguments` how many the richest of them has (of tasks that say: calls.gold_calls;
    others fit where both are ANY). `steps` is the length of a known plan, `success` the
    pool's estimate; a task whose plan is not known fits where there is no upper limit.
    The share grows with what is lacking in `skill`, a measure: see `shares`.
    """

    share: float
    families: tuple[str, ...] = ()
    calls: Range = ANY
    arguments: Range = ANY
    steps: Range = ANY
    success: Range = (0.0, 1.0)
    skill: str = ""

    def __post_init__(self):
        if not 0 < self.share < math.inf:
            raise ValueError(f"share must be > 0 and finite, got {self.share}")
        for name in ("calls", "arguments", "steps", "success"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ValueError(f"{name} must be (low, high), got {(low, high)}")

    def matches_calls(self, task: Task) -> bool:
        """Whether the calls due are as many as wanted, and as rich."""
        if self.calls == ANY and self.arguments == ANY:
            return True
        gold = gold_calls(task)
        if gold is None:
            return False
        calls = [c for c in gold if c is not None]
        num_arguments = max((len(c.arguments) for c in calls), default=0)
        return _in(len(calls), self.calls) and _in(num_arguments, self.arguments)

    def fits(self, task: Task, *, steps: float | int | None, success: float) -> bool:
        """Whether a task is of this kind; `steps` None: its plan is not known."""
        family_fits = not self.families or any(
            fnmatch.fnmatchcase(task.family, p) for p in self.families
        )
        plan_fits = _in(math.inf if steps is None else steps, self.steps)
        return (
            family_fits
            and plan_fits
            and _in(success, self.success)
            and self.matches_calls(task)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """One stage: its mix of tasks, its rewards, how long, and what it must lead to.

    `rewards` multiply the weights of the reward's parts, by name; what is not named
    stays. `budget` is the least and the most that is spent in it, in `unit`s: epochs
    over the tasks of its mix, updates, or examples. It is passed when every measure of
    `promote` is at least as large, in checks in a row; unless `held`, later stages
    measure those on other tasks, and falling below does not lead back here. `max_steps`
    limits its episodes (0: the run's limit).
    """

    name: str
    task_mixture: tuple[TaskFilter, ...]
    rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
    budget: Range = (1.0, math.inf)
    unit: str = "epochs"
    promote: Mapping[str, float] = dataclasses.field(default_factory=dict)
    can_regress: bool = True
    max_steps: int = 0

    def __post_init__(self):
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {UNITS}, got {self.unit!r}")
        if not self.name or not self.task_mixture:
            raise ValueError(f"a stage needs a name and a mix, got {self.name!r}")
        low, high = self.budget
        if not 0 <= low <= high or not high:
            raise ValueError(f"budget must be (least, most), got {self.budget}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be >= 0, got {self.max_steps}")
        bad = {k: v for k, v in self.rewards.items() if not 0 <= v < math.inf}
        if bad:
            raise ValueError(f"rewards must be >= 0 and finite, got {bad}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LessonConfig:
    """How stages follow each other.

    `checks` in a row must say so before a stage is left, either way. A stage is gone
    back to when a measure that it was passed with falls more than `margin` below. At
    the end of its budget a stage is passed if `force`, whatever was reached. `boost`
    shifts the mix towards what is lacking (`shares`). `drop` is how far a skill falls
    from its best before it counts as collapsed (skill_collapse.reasons).
    """

    checks: int = 2
    margin: float = 0.1
    force: bool = True
    boost: float = 0.0
    drop: float = 0.2

    def __post_init__(self):
        if self.checks < 1:
            raise ValueError(f"checks must be >= 1, got {self.checks}")
        if min(self.margin, self.boost) < 0 or not 0 < self.drop <= 1:
            raise ValueError(
                "margin and boost must be >= 0 and drop in (0, 1], got "
                f"{self.margin}, {self.boost} and {self.drop}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LessonState:
    """Where the stages stand, as plain data.

    `passed` and `failed` count checks in a row; `floors` are, by stage, the measures it
    was passed with; `why` says how the present stage was come to; `history` holds the
    measures of the last HISTORY checks, oldest first.
    """

    index: int = 0
    spent: float = 0.0
    passed: int = 0
    failed: int = 0
    floors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    why: str = "start"
    history: tuple[Mapping[str, float], ...] = ()

    def json(self) -> dict[str, Any]:
        """The state as JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def of_json(row: Mapping[str, Any]) -> "LessonState":
        """The state that `json` told."""
        fields: dict[str, Any] = {**row, "history": tuple(row["history"])}
        return LessonState(**fields)


def advance(
    state: LessonState,
    lessons: Sequence[Lesson],
    measures: Mapping[str, float],
    config: LessonConfig,
    *,
    spent: float | int,
) -> LessonState:
    """The state after a check of the skills; `spent` since the last, in stage units.

    Back to the earliest stage that was passed with a measure that has been lost, or on
    where all of `promote` is reached and the least budget spent, or where the most is;
    the last stage is never passed. A measure that nothing is known of neither promotes
    nor sets back.

    Raises:
      ValueError: no stages, a state beyond them, or a negative cost.
    """
    if not 0 <= state.index < len(lessons) or spent < 0:
        raise ValueError(
            f"expected a stage of {len(lessons)} and spent >= 0, got number "
            f"{state.index} and {spent}"
        )
    lesson = lessons[state.index]
    state = dataclasses.replace(
        state, spent=state.spent + spent,
        history=(*state.history, dict(measures))[-HISTORY:],
    )  # fmt: skip
    lost = _lost(state, lessons, measures, config.margin)
    failed = state.failed + 1 if lost is not None else 0
    reached = all(_reached(measures, k, v) for k, v in lesson.promote.items())
    passed = state.passed + 1 if lesson.promote and reached else 0
    state = dataclasses.replace(state, failed=failed, passed=passed)
    if lost is not None and failed >= config.checks:
        floors = {s.name: state.floors[s.name] for s in lessons[:lost] if s.name in
                  state.floors}  # fmt: skip
        return dataclasses.replace(
            state, index=lost, spent=0.0, passed=0, failed=0, floors=floors,
            why="regression",
        )  # fmt: skip
    min_budget, max_budget = lesson.budget
    skilled = passed >= config.checks and state.spent >= min_budget
    out_of_budget = config.force and state.spent >= max_budget
    if state.index + 1 == len(lessons) or not (skilled or out_of_budget):
        return state
    guarded = lesson.promote if lesson.can_regress else {}
    floor = {k: min(v, measures[k]) for k, v in guarded.items() if k in measures}
    return dataclasses.replace(
        state, index=state.index + 1, spent=0.0, passed=0, failed=0,
        floors={**state.floors, lesson.name: floor},
        why="promotion" if skilled else "budget",
    )  # fmt: skip


def _reached(measures: Mapping[str, float], name: str, threshold: float) -> bool:
    return name in measures and measures[name] >= threshold


def _lost(
    state: LessonState,
    lessons: Sequence[Lesson],
    measures: Mapping[str, float],
    margin: float,
) -> int | None:
    """The earliest stage behind whose measures are not held any more."""
    for i, lesson in enumerate(lessons[: state.index]):
        for name, floor in state.floors.get(lesson.name, {}).items():
            if name in measures and measures[name] < floor - margin:
                return i
    return None


def mixture_shares(
    lesson: Lesson, measures: Mapping[str, float], boost: float | int
) -> list[float]:
    """The shares of the mix, each grown by `boost` times what its skill lacks of 1.

    "Dynamic curriculum: shift task sampling probabilities based on evaluation metrics"
    (the primer). They sum to 1; a skill that nothing is known of lacks nothing.
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
    """The stage's mix for sampler.sample.

    `steps`: length of a known plan by task id; a generated task goes by its seed's.
    """
    plan_lengths = {} if steps is None else steps
    entries = list(pool.entries.values())
    success_rates = pool.success(entries).tolist()
    success = {e.task.id: p for e, p in zip(entries, success_rates, strict=True)}

    def predicate(task_filter: TaskFilter):
        def fits(entry: Entry) -> bool:
            ids = (entry.task.id, *reversed(entry.task.lineage))
            plan = next((plan_lengths[i] for i in ids if i in plan_lengths), None)
            return task_filter.fits(
                entry.task, steps=plan, success=success[entry.task.id]
            )

        return fits

    weights = mixture_shares(lesson, measures, config.boost)
    return [
        (x, predicate(task_filter))
        for x, task_filter in zip(weights, lesson.task_mixture, strict=True)
    ]


def _in(value: float | int, limits: Range) -> bool:
    return limits[0] <= value <= limits[1]
