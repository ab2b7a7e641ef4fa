"""The stages of a run: episodes in, the next batch's mix, rewards and limits out.

episodes -> skills since the last check -> advance -> mix, reward weights, step limit.
All the state there is goes through JSON, beside the pool's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from curriculum import lesson_presets, lessons, skill_collapse, skills
from curriculum.lessons import Lesson, LessonConfig, LessonState
from curriculum.pool import TaskPool, TaskQuota
from curriculum.sampler import CurriculumConfig
from curriculum.skills import Skills
from curriculum.step_limit import step_limit_schedule
from worldmodel.data.records import Episode

SCHEMA = "dreamgym.stages/1"


class LessonTracker:
    """Where a run stands in its stages; `seen` is of the turns since the last check."""

    def __init__(self, lessons: Sequence[Lesson], config: LessonConfig):
        """Raises ValueError where there are no stages, or two of one name."""
        names = [s.name for s in lessons]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"stages must have names of their own, got {names}")
        self.lessons, self._config = tuple(lessons), config
        self.state, self.seen = LessonState(), Skills()

    @property
    def lesson(self) -> Lesson:
        """The present stage."""
        return self.lessons[self.state.index]

    @property
    def _measures(self) -> Mapping[str, float]:
        return self.state.history[-1] if self.state.history else {}

    def observe(self, episodes: Iterable[Episode]) -> None:
        """Count what the episodes show."""
        self.seen = skills.total([self.seen, *map(skills.of_episode, episodes)])

    def check(self, epochs: float | int) -> dict[str, str]:
        """Decide on what an update showed, the last since then; returns the red flags.

        `epochs` over the tasks of the stage's mix that it took (see `tasks`).
        """
        spent = 1.0 if self.lesson.unit == "updates" else epochs
        measures = self.seen.measures()
        self.state = lessons.advance(
            self.state, self.lessons, measures, self._config, spent=spent
        )
        self.seen = Skills()
        return skill_collapse.flags(self.state, self._config)

    def task_mixture(
        self, pool: TaskPool, steps: Mapping[str, float | int] | None = None
    ) -> list[TaskQuota]:
        """The present mix for sampler.sample; `steps` of known plans by task id."""
        return lessons.task_quotas(
            self.lesson, pool, self._config, measures=self._measures, steps=steps
        )

    def tasks(self, pool: TaskPool, steps: Mapping[str, float | int]) -> int:
        """How many seed tasks there are of the present mix, of all where none is."""
        seeds = [e for e in pool.entries.values() if not e.generated]
        task_mixture = self.task_mixture(pool, steps)
        wanted = [e for e in seeds if any(fits(e) for _, fits in task_mixture)]
        return len(wanted or seeds)

    def rewards(self, weights: Mapping[str, float]) -> dict[str, float]:
        """A reward's parts (or their weights), times the present stage's factors."""
        return {k: w * self.lesson.rewards.get(k, 1.0) for k, w in weights.items()}

    def max_steps(self, last: int) -> int:
        """The step limit of the present stage, never above the run's."""
        return min(self.lesson.max_steps, last) if self.lesson.max_steps else last

    def to_json(self) -> dict[str, Any]:
        """The state as JSON."""
        return {
            "schema": SCHEMA,
            "stages": [s.name for s in self.lessons],
            "state": self.state.json(),
            "seen": self.seen.state(),
        }

    def load(self, row: Mapping[str, Any]) -> None:
        """Go on from what `to_json` told.

        Raises:
          ValueError: it is of another schema or of other stages.
        """
        expected = {"schema": SCHEMA, "stages": [s.name for s in self.lessons]}
        stored = {k: row.get(k) for k in expected}
        if stored != expected:
            raise ValueError(f"expected stages {expected}, got {stored}")
        self.state = LessonState.of_json(row["state"])
        self.seen = Skills.of_state(row["seen"])


def step_limit(
    update: int,
    last: int,
    config: CurriculumConfig,
    tracker: LessonTracker | None = None,
) -> int:
    """The step limit of an update: the schedule's, and no more than the stage's.

    `last` is the run's own limit.
    """
    limit = step_limit_schedule(update, last, config.horizon)
    return limit if tracker is None else tracker.max_steps(limit)


def lesson_tracker_for(config: CurriculumConfig) -> LessonTracker | None:
    """The stages of reinforcement that the settings name, None where they name none.

    A stage that is counted in examples is supervised: the warm start was that.
    """
    if config.stages == "none":
        return None
    presets = {
        "tools": lesson_presets.tool_lessons,
        "games": lesson_presets.game_lessons,
    }
    plan = [s for s in presets[config.stages]() if s.unit != "examples"]
    return LessonTracker(plan, config.stage)
