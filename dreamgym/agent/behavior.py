"""Behavior policies: scripted players that collect real episodes.

environment, tasks -> an expert, a noisy expert or a random player plays each episode ->
records. No model is involved.
"""

import dataclasses
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from dreamgym.agent.config import CollectConfig
from dreamgym.envs import base
from dreamgym.envs.actions import as_list, has_sampler, make_action
from dreamgym.envs.vector import MAX_BROKEN_IN_A_ROW, episode_seed
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State, Task, Transition

SOURCES = ("expert", "noisy", "random")
"""Behavior policies by name: the expert, an expert with noise, random actions."""

MAX_PRINTED = 3
"""Errors of a type that are printed; all are counted."""

MAX_POOL = 2000
"""Actions of earlier episodes that random players choose from, at most."""


@dataclasses.dataclass(frozen=True)
class PlayedEpisode:
    """An episode of a collection, and what the next attempt needs to go on after it."""

    episode: Episode | None
    """The episode; None if no step of it succeeded."""
    generator: Mapping[str, Any]
    """The state of the collection's random numbers after it."""
    listed: Rate
    """How many of its actions stood in the environment's list (`collect`)."""
    failure: str = ""
    """The type of the error with which the environment broke it."""


def collect(
    env: gymnasium.Env,
    tasks: Sequence[Task],
    episodes: int | None,
    config: CollectConfig,
    *,
    seed: int,
    max_steps: int,
    steps_left: Callable[[], int] | None = None,
    show: Callable[[int], Any] = lambda _: None,
    failures: Counter[str] | None = None,
    valid_actions: bool = False,
    listed: Rate | None = None,
    earlier: Sequence[PlayedEpisode] = (),
    record: Callable[[PlayedEpisode], Any] = lambda _: None,
) -> list[Episode]:
    """Return real episodes: the tasks in turn, the behavior policy drawn by weight.

    An environment without an expert is played at random only, and so are tasks for
    which it has no plan. Where no expert plays at all, some random episodes choose
    among valid actions only (`CollectConfig.valid_only`). Episodes in which no step
    succeeded are left out.

    Args:
      episodes: how many are played; None: as many as `steps_left` pays for.
      max_steps: steps after which an episode is truncated.
      steps_left: returns how many more steps may be taken; the last episode is
        truncated there. None sets no bound.
      show: is called with the number of episodes played.
      failures: to count the episodes that the environment broke, by type of error.
      valid_actions: whether the listed valid actions of each state are recorded.
      listed: to count how many of the expert's accepted actions stand in the
        environment's list; without an expert, of those that were not taken from it.
      earlier: what an interrupted collection of the same arguments has played, which is
        not played again: the result is the same as without the interruption.
      record: is called with each played episode.
    """
    rng = np.random.default_rng(seed)
    failures = Counter() if failures is None else failures
    weights = _weights(config, has_expert=base.as_expert(env) is not None)
    collected = _Collection(listed, unlisted=base.as_valid_actions(env) is None)
    broken_in_a_row = 0
    for played in earlier:
        collected.add(played)
        failures.update(filter(None, [played.failure]))
        rng.bit_generator.state = played.generator
        broken_in_a_row = 0 if played.episode else broken_in_a_row + 1
    for number in itertools.islice(itertools.count(), len(earlier), episodes):
        left = max_steps if steps_left is None else min(steps_left(), max_steps)
        if left < 1 or (episodes is None and broken_in_a_row >= MAX_BROKEN_IN_A_ROW):
            break
        task = tasks[number % len(tasks)]
        source = SOURCES[int(rng.choice(3, p=weights))]
        valid_only = weights[2] == 1.0 and rng.random() < config.valid_only
        player = _valid_only(config) if valid_only else config
        pools = collected.actions, collected.rewarded_actions
        actor = BehaviorPolicy(env, source, player, rng, *pools)
        episode = play(
            env,
            task,
            actor,
            max_steps=left,
            name=f"{source}-{number}-{task.id}",
            seed=episode_seed(seed, number),
            valid_actions=valid_actions,
            failures=failures,
        )
        broken_in_a_row = 0 if episode.transitions else broken_in_a_row + 1
        show(number + 1)
        source = "random" if actor.has_no_plan else source
        episode = dataclasses.replace(episode, source=source)
        played = PlayedEpisode(
            episode if episode.transitions else None,
            rng.bit_generator.state,
            actor.count_listed(episode.transitions),
            (episode.error or "").partition(":")[0],
        )
        record(played)
        collected.add(played)
    return collected.episodes


def _weights(config: CollectConfig, *, has_expert: bool) -> np.ndarray:
    """Return the probability of each of SOURCES, (3,)."""
    if not has_expert:
        return np.array([0.0, 0.0, 1.0])
    weights = np.array(
        [config.expert_weight, config.noisy_weight, config.random_weight], float
    )
    return weights / weights.sum()


class _Collection:
    """The episodes of a collection, and the actions that random players try again."""

    def __init__(self, listed: Rate | None, unlisted: bool):
        """`unlisted`: the environment does not list its valid actions."""
        self.episodes = list[Episode]()
        self.actions, self.rewarded_actions = list[str](), list[str]()
        self._listed, self._unlisted = listed, unlisted

    def add(self, played: PlayedEpisode) -> None:
        """Add an episode, unless no step of it succeeded."""
        if self._listed is not None:
            self._listed.join(played.listed)
        if played.episode is None:
            return
        self.episodes.append(played.episode)
        for t in played.episode.transitions:
            # Invalid actions are not added: scrambled words would soon be most of them.
            invalid = base.counts_as_invalid(t) or (self._unlisted and is_invalid(t))
            for pool, joins in (
                (self.actions, not invalid),
                (self.rewarded_actions, t.reward > 0),
            ):
                if joins and t.action not in pool and len(pool) < MAX_POOL:
                    pool.append(t.action)


def _valid_only(config: CollectConfig) -> CollectConfig:
    """Return the configuration of a random player that tries no other actions."""
    return dataclasses.replace(
        config,
        other_task_action_prob=0.0,
        rewarded_action_prob=0.0,
        scrambled_action_prob=0.0,
    )


class BehaviorPolicy:
    """An expert, a noisy expert or a random player, for one episode.

    `actions` and `rewarded_actions` are the actions of earlier episodes. Where the
    environment lists no valid actions and its action space draws none, random actions
    are made of words of the task and the state (envs/actions.py).
    """

    def __init__(
        self,
        env: gymnasium.Env,
        source: str,
        config: CollectConfig,
        rng: np.random.Generator,
        actions: Sequence[str],
        rewarded_actions: Sequence[str],
    ):
        self._env = env
        self._expert, self._lister = base.as_expert(env), base.as_valid_actions(env)
        self._config, self._rng = config, rng
        self._actions, self._rewarded_actions = actions, rewarded_actions
        self._noise = {"expert": 0.0, "noisy": config.expert_noise, "random": 1.0}[
            source
        ]
        self._plan: list[str] | None = None
        self.has_no_plan = False
        """Whether it asked the expert, which had no plan for the task."""
        self._listed: list[bool | None] = []
        """Whether each action stood in the list; None if that says nothing about what
        a task needs, or there is no list."""
        self._no_expert = self._expert is None or not (
            config.expert_weight or config.noisy_weight
        )

    def __call__(self, task: Task, state: State) -> str:
        """Return the next action: of the expert's plan, or a random one."""
        valid: list[str] = []
        if self._lister is not None:
            valid = as_list(self._lister.valid_actions()) or []
        action, source = self._next(task, state, valid)
        telling = "action" if self._no_expert else "plan"
        self._listed.append(action in valid if valid and source == telling else None)
        return action

    def count_listed(self, transitions: Sequence[Transition]) -> Rate:
        """Return how many of the episode's accepted actions stood in the list.

        Counted are those of the expert's plan: what is accepted may still be of no use.
        Without an expert, those that were not taken from the list.
        """
        listed = Rate()
        for in_list, t in zip(self._listed, transitions, strict=False):
            if in_list is not None and not base.counts_as_invalid(t):
                listed.add(in_list)
        return listed

    def _next(self, task: Task, state: State, valid: list[str]) -> tuple[str, str]:
        """Return the next action, and where it is from: a "plan", "list" or "action".

        The last is an action of another task, or was made of such.
        """
        if self._plan is None:
            expert = self._expert if self._noise < 1.0 else None
            self._plan = [] if expert is None else as_list(expert.expert()) or []
            self.has_no_plan = expert is not None and not self._plan
        if self._rng.random() >= self._noise and self._plan:
            return self._plan.pop(0), "plan"
        return self._random(task, state, valid)

    def _random(self, task: Task, state: State, valid: list[str]) -> tuple[str, str]:
        draw, c = self._rng.random(), self._config
        other_task = c.scrambled_action_prob + c.other_task_action_prob
        if (
            self._rewarded_actions
            and other_task <= draw < other_task + c.rewarded_action_prob
        ):
            return self._choose(self._rewarded_actions), "action"
        if valid and draw >= other_task:
            return self._choose(valid), "list"
        # What an expert does is tried as it is, where there is one.
        inventive = self._no_expert or not self._actions
        if inventive and self._lister is None and not has_sampler(self._env):
            action = make_action(self._rng, task.instruction, state, self._actions)
            return action, "action"
        if self._actions and draw >= c.scrambled_action_prob:
            return self._choose(self._actions), "action"
        if self._actions:
            return self._scramble(), "action"
        if valid:
            return self._choose(valid), "list"
        space = self._env.action_space
        space.seed(int(self._rng.integers(2**31)))  # else each run draws others
        return space.sample(), "action"

    def _choose(self, actions: Sequence[str]) -> str:
        # Not `choice`: an array of texts is as wide as its longest one.
        return str(actions[int(self._rng.integers(len(actions)))])

    def _scramble(self) -> str:
        """Up to three words of two actions, in random order."""
        pair = self._rng.integers(len(self._actions), size=2)
        words = " ".join(self._actions[int(i)] for i in pair).split()
        return " ".join(self._rng.permutation(words)[:3])


def play(
    env: gymnasium.Env,
    task: Task,
    actor: Callable[[Task, State], str],
    *,
    max_steps: int,
    name: str,
    seed: int | None = None,
    valid_actions: bool = False,
    failures: Counter[str] | None = None,
) -> Episode:
    """Return one real episode, whose id is `name`.

    `seed` is that of the reset, unless the task has one. `valid_actions` asks the
    environment for its list in each state. `actor` gets the task, with the instruction
    of its reset, and the state. Where the environment raises, the episode
    ends there without a score, and the reason is printed on stderr, the first times
    that `failures` counts an error of its type.
    """
    transitions: list[Transition] = []
    return_so_far = 0.0
    success: bool | None = None

    lister = base.as_valid_actions(env) if valid_actions else None

    def act() -> tuple[str, base.Step, tuple[str, ...]]:
        listed = () if lister is None else tuple(as_list(lister.valid_actions()) or ())
        action = actor(task, state)
        return action, base.take(env, action, return_so_far), listed

    result = base.guarded(env, lambda: base.begin(env, task, seed))
    if not isinstance(result, base.EnvironmentFailure):
        task, state = result
        for number in range(max_steps):
            result = base.guarded(env, act)
            if isinstance(result, base.EnvironmentFailure):
                break
            action, step, listed = result
            if number + 1 == max_steps and not step.terminated:
                step = step._replace(truncated=True)
            t = step.transition(state, action)
            transitions.append(dataclasses.replace(t, valid_actions=listed))
            success, state = step.success, step.state
            return_so_far += sum(step.rewards.values())
            if step.terminated or step.truncated:
                break
    error = None
    if isinstance(result, base.EnvironmentFailure):
        success, error = None, result.reason
        kind = error.partition(":")[0]
        failures = Counter() if failures is None else failures
        failures[kind] += 1
        if failures[kind] <= MAX_PRINTED:
            print(f"collect: {name}: {error}", file=sys.stderr)
        if failures[kind] == MAX_PRINTED:
            print(f"collect: further errors {kind} are counted only", file=sys.stderr)
    return Episode(
        id=name,
        task=task,
        transitions=tuple(transitions),
        source="real",
        success=success,
        error=error,
    )
