"""Controls of planning: other worlds in place of the dream.

Planning must gain nothing where answers say nothing of the actions (PermutedOutcomes),
and cannot gain more than where they are the real ones (RealOutcomes).
"""

from collections.abc import Sequence

import gymnasium
import jax

from dreamgym.envs.base import Step, begin, guarded, take, with_own_options
from dreamgym.envs.failures import EnvironmentFailure
from worldmodel.data.hashing import content_seed
from worldmodel.data.outcomes import outcome_of
from worldmodel.data.records import State, Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import (
    ExperienceModel,
    Prediction,
    Query,
    failed_prediction,
)


class PermutedOutcomes:
    """A dream that answers with what another action would lead to.

    For each query another one of the recorded actions is drawn, by the query and the
    seed alone, and the model is asked about that in the same state.
    """

    def __init__(self, model: ExperienceModel, actions: Sequence[str], seed: int = 0):
        """See the class.

        Raises:
          ValueError: there are fewer than two actions, none of which is another one.
        """
        self.actions = sorted(set(actions))
        if len(self.actions) < 2:
            raise ValueError(
                "plans in a permuted dream need two recorded actions or more, got "
                f"{self.actions}"
            )
        self.model, self._seed = model, seed

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """See ExperienceModel."""
        others = [q._replace(action=self._other_action(q)) for q in queries]
        return list(self.model.predict(others))

    def _other_action(self, query: Query) -> str:
        others = [a for a in self.actions if a != query.action]
        number = content_seed(self._seed, query.task.id, *query.past, query.action)
        return others[number % len(others)]

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        """See ExperienceModel."""
        return self.model.vary(groups, key=key)


class RealOutcomes:
    """The real environment as an experience model: it replays each query's episode.

    The environment must be deterministic. An answer is remembered. A query whose replay
    does not come to its state gets a prediction with an error. `real_steps` counts what
    all of this took.
    """

    def __init__(self, env: gymnasium.Env):
        """See the class; the environment is closed by `close`."""
        self._env, self.real_steps = env, 0
        self._answers: dict[tuple[str, tuple[str, ...], str], Prediction] = {}
        self._position: tuple[str, tuple[str, ...]] | None = None
        self._state: State = ()
        self._return = 0.0

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """See ExperienceModel."""
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> Prediction:
        key = query.task.id, tuple(query.past), query.action
        if key not in self._answers:
            self._answers[key] = self._replay(query)
        return self._answers[key]

    def _replay(self, query: Query) -> Prediction:
        step = guarded(self._env, lambda: self._step_after(query))
        if isinstance(step, EnvironmentFailure):
            self._position = None
            return failed_prediction(query, step.reason)
        transition = step.transition(query.state, query.action)
        return Prediction(
            step.state, transition.reward, outcome_of(transition), "", 1.0, None
        )

    def _step_after(self, query: Query) -> Step:
        """Take the query's action, after its past in a new episode where necessary."""
        task, past = query.task, tuple(query.past)
        if self._position != (task.id, past):
            self._state = begin(self._env, with_own_options(task))[1]
            self._position, self._return = (task.id, ()), 0.0
            for action in past:
                self._take(action)
        if self._position is not None and self._state != query.state:
            raise ValueError(
                f"after {len(past)} actions of task {task.id!r} a replay is in another "
                "state: the environment is not deterministic"
            )
        return self._take(query.action)

    def _take(self, action: str) -> Step:
        if self._position is None:
            raise ValueError(f"the episode ended before action {action!r}")
        step = take(self._env, action, self._return)
        self.real_steps += 1
        task, past = self._position
        # Nothing follows an end.
        ended = step.terminated or step.truncated
        self._position = None if ended else (task, (*past, action))
        self._state = step.state
        self._return += sum(step.rewards.values())
        return step

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        """Return None for each group: the environment invents no task."""
        del key
        return [None] * len(groups)

    def close(self) -> None:
        """Close the environment."""
        guarded(self._env, self._env.close)
