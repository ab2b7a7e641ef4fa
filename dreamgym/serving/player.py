"""Plays episodes of a world for one session.

reset options -> task -> environment -> observation; action -> observation, reward, end.
Everything here is called in the one thread of its session.
"""

import math
import secrets
from typing import Any

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.failures import NOT_CAUGHT, EnvironmentDown
from dreamgym.serving.messages import Refused, ResetOptions, State
from dreamgym.serving.worlds import World
from worldmodel.data.records import Task

MAX_DRAWN_SEED = 2**31
"""Seeds that are drawn for a client that gives none are below this."""


class Player:
    """The environment of one session, and the episode that runs in it."""

    def __init__(self, world: World):
        self._world = world
        self._env: gymnasium.Env | None = None
        self._options = ResetOptions()
        self._task: Task | None = None
        self._return, self._seed = 0.0, 0
        self.state = State()

    def reset(self, options: ResetOptions) -> dict[str, Any]:
        """Begin an episode; return what the client gets to see.

        A task is chosen by `index`, or drawn by `seed`, in a split. A client that gives
        neither gets a seed, and reads in the metadata which one.

        Raises:
          Refused: there is no such task, or the environment could not begin it.
        """
        self.state = State()
        seed = options.seed
        if seed is None:
            seed = secrets.randbelow(MAX_DRAWN_SEED)
        split = options.split or self._world.splits()[0]
        try:
            task = self._world.task(split, seed=seed, index=options.index)
        except ValueError as error:
            raise Refused("VALIDATION_ERROR", "no_such_task", str(error)) from None
        draws = seed % MAX_DRAWN_SEED  # some environments take 31 bits
        task, lines = self._guarded(lambda env: base.begin(env, task, draws))
        self._task = task
        self._options, self._seed, self._return = options, seed, 0.0
        name = options.episode_id or f"{task.id}-{secrets.token_hex(4)}"
        self.state = State(episode_id=name, step_count=0, running=True)
        metadata: dict[str, Any] = {"seed": seed}
        warnings = []
        if options.seed is None and options.index is None:
            warnings.append(
                "no seed was given: episodes of a group need the same one to begin in "
                "the same state"
            )
        if ignored := options.ignored():
            names = sorted(ResetOptions.model_fields)
            warnings.append(f"reset ignores {ignored}; it reads {names}")
        if warnings:
            metadata["warning"] = "; ".join(warnings)
        return self._payload("\n".join(lines), None, False, metadata)

    def step(self, message: str) -> dict[str, Any]:
        """Take a step in the running episode; return what the client gets to see.

        The reward is None where the episode broke off: it has no score.

        Raises:
          Refused: no episode runs, or the environment failed, which ends the episode.
        """
        if not self.state.running:
            if self.state.episode_id is None:
                raise Refused(
                    "EXECUTION_ERROR",
                    "step_before_reset",
                    "no episode is running: send a reset before the first step",
                )
            raise Refused(
                "EXECUTION_ERROR",
                "step_after_end",
                f"the episode {self.state.episode_id} has ended: send a reset",
            )
        try:
            step = self._guarded(lambda env: base.take(env, message, self._return))
        except Refused:
            self.state.running = False
            raise
        self.state.step_count += 1
        assert self._env is not None
        error = self._world.error(self._env)
        truncated = step.truncated
        if self.state.step_count >= self._world.max_steps and not step.terminated:
            truncated = True
        done = step.terminated or truncated
        self.state.running = not done
        reward = float(sum(step.rewards.values()))
        self._return += reward
        metadata = {
            "truncated": truncated,
            "success": step.success,
            "invalid": step.invalid,
            "rewards": step.rewards,
            "error": error,
            **self._world.facts(self._env),
        }
        if self._options.details:
            metadata["recalled"] = self._world.recalled(self._env)
        scored = None if error is not None else reward
        return self._payload("\n".join(step.state), scored, done, metadata)

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            base.guarded(self._env, self._env.close)

    def _guarded(self, call: Any) -> Any:
        """Return what a call into the environment returns.

        Raises:
          Refused: the environment cannot be made, or failed.
        """
        if self._env is None:
            try:
                self._env = self._world.make()
            except NOT_CAUGHT:
                raise
            except BaseException as error:  # foreign code
                message = f"the environment cannot be made: {error}"
                raise Refused("FACTORY_ERROR", "no_environment", message) from error
        env = self._env
        try:
            result = base.guarded(env, lambda: call(env))
        except EnvironmentDown as error:
            # The next reset makes another one.
            self._env = None
            base.guarded(env, env.close)
            message = f"the environment is down and the episode has ended: {error}"
            raise Refused("EXECUTION_ERROR", "environment_down", message) from error
        if isinstance(result, base.EnvironmentFailure):
            raise Refused(
                "EXECUTION_ERROR",
                "environment_failed",
                f"the environment failed and the episode has ended: {result.reason}",
            )
        return result

    def _payload(
        self,
        text: str,
        reward: float | None,
        done: bool,
        metadata: dict[str, Any],
    ) -> dict[str, Any]:
        assert self._task is not None
        metadata |= {
            "task": self._task.id,
            "split": self._task.split,
            "step": self.state.step_count,
            "max_steps": self._world.max_steps,
            "model_version": self._world.version,
        }
        if reward is not None and not math.isfinite(reward):
            raise Refused(
                "EXECUTION_ERROR", "environment_failed", f"the reward is {reward}"
            )
        observation = {
            "text": text,
            "instruction": self._task.instruction,
            "metadata": metadata,
        }
        return {
            "observation": observation,
            "reward": reward,
            "done": done,
            "metadata": metadata,
        }
