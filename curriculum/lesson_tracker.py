"""The lessons of a run: episodes in; task mixture, rewards and limits out.

episodes -> skills since the last check -> advance -> mixture, reward weights, step
limit. The whole state can be saved as JSON next to the pool's.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curriculum import lesson_presets, lessons, skill_collapse
from curriculum.config import CurriculumConfig, LessonConfig
from curriculum.lessons import Lesson, LessonState
from curriculum.pool import TaskPool, TaskQuota
from curriculum.step_limit import step_limit_schedule
from worldmodel.data.records import Episode
from worldmodel.text.tools import skills
from worldmodel.text.tools.skills import Skills

SCHEMA = "dreamgym.stages/1"


class LessonTracker:
    """The state of a run's lessons; `skills` sums those since the last check."""

    def __init__(
        self,
        lessons: Sequence[Lesson],
        config: LessonConfig,
        match: str = "assignment",
    ):
        """Build the tracker; `match` says which call is which (call_matching.py).

        Raises:
          ValueError: there are no lessons, or two with the same name.
        """
        names = [s.name for s in lessons]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"lessons must have distinct names, at least one, got {names}"
            )
        self.lessons, self._config = tuple(lessons), config
        self._match = match
        self.state, self.skills = LessonState(), Skills()

    @property
    def lesson(self) -> Lesson:
        """The current lesson."""
        return self.lessons[self.state.index]

    @property
    def _measures(self) -> Mapping[str, float]:
        return self.state.history[-1] if self.state.history else {}

    def observe(self, episodes: Iterable[Episode]) -> None:
        """Add the skills that the episodes show."""
        parts = (skills.of_episode(e, self._match) for e in episodes)
        self.skills = skills.total([self.skills, *parts])

    def check(self, epochs: float | int) -> dict[str, str]:
        """Advance by the skills since the last check; return the red flags.

        `epochs` is the number of passes over the tasks of the lesson's mixture since
        then (see `tasks`).
        """
        budget_used = 1.0 if self.lesson.unit == "updates" else epochs
        measures, checks = self.skills.measures(), self.state.lesson_checks + 1
        self.state = lessons.advance(
            self.state,
            self.lessons,
            measures,
            self._config,
            budget_used=budget_used,
            counts=self.skills.counts(),
        )
        self.skills = Skills()
        # The check was of the lesson before, also where it leads to another one.
        return skill_collapse.flags(self.state, self._config, checks=checks)

    def task_mixture(
        self, pool: TaskPool, steps: Mapping[str, float | int] | None = None
    ) -> list[TaskQuota]:
        """Return the current mixture for sampler.sample.

        `steps` holds the lengths of known plans by task id.
        """
        return lessons.task_quotas(
            self.lesson, pool, self._config, measures=self._measures, steps=steps
        )

    def tasks(self, pool: TaskPool, steps: Mapping[str, float | int]) -> int:
        """Return how many seed tasks the current mixture has; all if none fits."""
        seeds = [e for e in pool.entries.values() if not e.generated]
        task_mixture = self.task_mixture(pool, steps)
        candidates = [e for e in seeds if any(fits(e) for _, fits in task_mixture)]
        return len(candidates or seeds)

    def rewards(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return reward components times the lesson's factors."""
        return {k: w * self.lesson.factor(k, w) for k, w in weights.items()}

    def max_steps(self, last: int) -> int:
        """Return the step limit of the current lesson, never above the run's."""
        return min(self.lesson.max_steps, last) if self.lesson.max_steps else last

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "schema": SCHEMA,
            "stages": [s.name for s in self.lessons],
            "state": self.state.json(),
            "seen": self.skills.state(),
        }

    def load(self, row: Mapping[str, Any]) -> None:
        """Restore the state that `to_json` returned.

        Raises:
          ValueError: it has another schema or other lessons.
        """
        expected = {"schema": SCHEMA, "stages": [s.name for s in self.lessons]}
        stored = {k: row.get(k) for k in expected}
        if stored != expected:
            raise ValueError(f"expected lessons {expected}, got {stored}")
        self.state = LessonState.of_json(row["state"])
        self.skills = Skills.of_state(row["seen"])


def step_limit(
    update: int,
    last: int,
    config: CurriculumConfig,
    tracker: LessonTracker | None = None,
) -> int:
    """Return the step limit of an update: the schedule's, capped by the lesson's.

    `last` is the run's own limit; a schedule that begins above it begins at it.
    """
    first = min(config.step_limit.initial, last)
    schedule = dataclasses.replace(config.step_limit, initial=first)
    limit = step_limit_schedule(update, last, schedule)
    return limit if tracker is None else tracker.max_steps(limit)


def lesson_tracker_for(
    config: CurriculumConfig, match: str = "assignment"
) -> LessonTracker | None:
    """Return the lessons of the settings for reinforcement learning, or None.

    A lesson that is counted in examples is supervised and left out: the warm start has
    taken its place.
    """
    if config.lessons == "none":
        return None
    presets = {
        "tools": lesson_presets.tool_lessons,
        "games": lesson_presets.game_lessons,
    }
    plan = [s for s in presets[config.lessons]() if s.unit != "examples"]
    return LessonTracker(plan, config.lesson, match)
