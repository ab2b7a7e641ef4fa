"""Baselines of a results table: random valid actions as floor, the expert as ceiling.

environments, tasks -> scripted actors -> trajectories, like those of a policy. A policy
below the floor has learned nothing useful.
"""

from collections.abc import Callable, Sequence

import gymnasium

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.actions import as_list
from dreamgym.envs.base import EnvironmentFailure, as_expert, as_valid_actions, guarded
from dreamgym.envs.vector import RealVectorEnv, episode_seed
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode, State, Task, Transition

Actor = Callable[[int], str]
"""The action at a step, of an environment that was reset to the actor's task."""


def random_actor(
    env: gymnasium.Env, task: Task, known_actions: Sequence[str], *, seed: int
) -> Actor:
    """Return an actor that draws among valid actions.

    Among `known_actions` where the environment lists none.

    Raises:
      ValueError: there is no action to draw.
    """
    lister = as_valid_actions(env)

    def act(step: int) -> str:
        valid = (
            known_actions if lister is None else as_list(lister.valid_actions()) or []
        )
        valid = valid if len(valid) else known_actions
        if not valid:
            raise ValueError("no valid action is known")
        return str(valid[content_seed(seed, task.id, step) % len(valid)])

    return act


def expert_actor(env: gymnasium.Env) -> Actor:
    """Return an actor that follows the expert's plan, and repeats its last action.

    Raises:
      ValueError: the environment has no expert, or the expert no plan.
    """
    expert = as_expert(env)
    if expert is None:
        raise ValueError("the environment has no expert")
    plan = as_list(expert.expert())
    if not plan:
        raise ValueError("the expert has no plan")
    return lambda step: plan[min(step, len(plan) - 1)]


def play_scripted(
    env: gymnasium.Env,
    tasks: Sequence[Task],
    actor_for: Callable[[gymnasium.Env, Task], Actor],
    *,
    max_steps: int,
    source: str,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Return one episode of a scripted actor for each task, in their order.

    `seed` seeds what the environment draws, as the `reset_seed` of `rollout` does.

    An episode in which the environment or the actor raises is not scored.
    """
    batch = RealVectorEnv([env], max_steps=max_steps)
    out = []
    for index, task in enumerate(tasks):
        transitions, error = _play(batch, task, actor_for, episode_seed(seed, index))
        episode = Episode(
            id=f"{source}-{index}-{task.id}",
            task=task,
            transitions=tuple(transitions),
            source=source,
            success=None if error else bool(transitions[-1].success),
            error=error,
        )
        out.append(Trajectory(episode, (), error))
        if progress is not None:
            progress(index + 1, len(tasks))
    return out


def _play(
    batch: RealVectorEnv,
    task: Task,
    actor_for: Callable[[gymnasium.Env, Task], Actor],
    seed: int,
) -> tuple[list[Transition], str | None]:
    """The transitions of an episode, and why it broke, if it did."""
    env, transitions = batch.envs[0], list[Transition]()
    (start,) = batch.reset(options={"tasks": [task], "seeds": [seed]})
    state: State = () if start is None else start
    actor = guarded(env, lambda: actor_for(env, task))
    if isinstance(actor, EnvironmentFailure):
        return [_broken(state)], actor.reason
    while True:
        action = guarded(env, lambda: actor(len(transitions)))
        if isinstance(action, EnvironmentFailure):
            transitions.append(_broken(state))
            return transitions, action.reason
        (step,) = batch.step([action])
        assert step is not None, "the only slot is stepped until its episode ends"
        if step.error is not None:
            step = step._replace(state=state)
        transitions.append(step.transition(state, action))
        state = step.state
        if step.terminated or step.truncated:
            return transitions, step.error


def _broken(state: State) -> Transition:
    """The record of a step that was not taken, because no action was to be had."""
    return Transition(
        state=state, action="", next_state=state, rewards={}, truncated=True
    )
