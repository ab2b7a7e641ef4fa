"""Behavior policies: scripted players that collect real episodes.

environment, tasks -> an expert, a noisy expert or a random player plays each episode ->
records. No model is involved.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base
from worldmodel.data.records import Episode, Task, Transition

SOURCES = ("expert", "noisy", "random")
"""Behavior policies by name: the expert, an expert with noise, random actions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """How many real episodes, from whom. Shares need not sum to one: they are weights.

    Few are an expert's: demonstrations are dear, and an expert knows what the state
    does not say, so a model fitted to its ways expects luck wherever a policy goes.
    `noise` is the chance that the noisy expert acts at random instead; a random actor
    takes an action seen elsewhere with chance `foreign`, a mangled one with `mangled`,
    and with `tempting` one that earned a reward elsewhere: here a condition of it is
    mostly missing, which is what an experience model gets wrong first.
    """

    games: int = 600
    episodes: int = 1300
    dev_games: int = 100
    expert: float = 0.035
    noisy: float = 0.1
    random: float = 0.865
    noise: float = 0.35
    foreign: float = 0.3
    tempting: float = 0.2
    mangled: float = 0.05

    def __post_init__(self):
        if min(self.games, self.episodes, self.dev_games) < 1:
            raise ValueError("games, episodes and dev_games must be >= 1")
        if self.expert + self.noisy + self.random <= 0:
            raise ValueError("expert, noisy and random must not all be 0")


def collect(
    env: gymnasium.Env,
    tasks: Sequence[Task],
    episodes: int,
    config: CollectConfig,
    *,
    seed: int,
    max_steps: int,
    show: Callable[[int], Any] = lambda _: None,
) -> list[Episode]:
    """Episodes over the tasks in turn, sources drawn by their weights.

    An environment without an expert is played at random only.
    """
    rng = np.random.default_rng(seed)
    weights = np.array([config.expert, config.noisy, config.random], float)
    if base.as_expert(env) is None:
        weights = np.array([0.0, 0.0, 1.0])
    seen, earned = list[str](), list[str]()
    out = []
    for number in range(episodes):
        task = tasks[number % len(tasks)]
        source = SOURCES[int(rng.choice(3, p=weights / weights.sum()))]
        name = f"{source}-{number}-{task.id}"
        actor = BehaviorPolicy(env, source, config, rng, seen, earned)
        episode = play(env, task, actor, max_steps=max_steps, name=name)
        show(number + 1)
        if not episode.transitions:
            continue
        out.append(dataclasses.replace(episode, source=source))
        for t in episode.transitions:
            # What was refused is no action of another place: mangled words, once
            # known, would soon be most of what is known.
            taken = not base.counts_as_invalid(t)
            for known, counts in ((seen, taken), (earned, t.reward > 0)):
                if counts and t.action not in known and len(known) < 2000:
                    known.append(t.action)
    return out


class BehaviorPolicy:
    """Expert, noisy expert or random player of one episode."""

    def __init__(
        self,
        env: gymnasium.Env,
        source: str,
        config: CollectConfig,
        rng: np.random.Generator,
        seen: list[str],
        earned: list[str],
    ):
        self._env = env
        self._expert, self._lister = base.as_expert(env), base.as_valid_actions(env)
        self._config, self._rng = config, rng
        self._seen, self._earned = seen, earned
        self._noise = {"expert": 0.0, "noisy": config.noise, "random": 1.0}[source]
        self._plan: list[str] | None = None

    def __call__(self) -> str:
        """The next action: of the expert's plan, or a random one."""
        if self._plan is None:
            known = self._expert if self._noise < 1.0 else None
            self._plan = [] if known is None else list(known.expert())
        if self._rng.random() >= self._noise and self._plan:
            return self._plan.pop(0)
        return self._random()

    def _random(self) -> str:
        draw = self._rng.random()
        c, lister = self._config, self._lister
        valid = [] if lister is None else list(lister.valid_actions())
        foreign = c.mangled + c.foreign
        if self._earned and foreign <= draw < foreign + c.tempting:
            return self._one(self._earned)
        if valid and draw >= foreign:
            return self._one(valid)
        if self._seen and draw >= c.mangled:
            return self._one(self._seen)
        if not self._seen:
            return self._one(valid) if valid else self._sample()
        two = self._rng.integers(len(self._seen), size=2)
        words = " ".join(self._seen[i] for i in two).split()
        return " ".join(self._rng.permutation(words)[:3])

    def _one(self, actions: Sequence[str]) -> str:
        # Not `choice`: an array of texts is as wide as its longest one.
        return str(actions[int(self._rng.integers(len(actions)))])

    def _sample(self) -> str:
        return self._env.action_space.sample()


def play(
    env: gymnasium.Env,
    task: Task,
    actor: Callable[[], str],
    *,
    max_steps: int,
    name: str,
) -> Episode:
    """Return one real episode, whose id is `name`.

    Where the environment raises, the episode ends there without a score, and the reason
    is printed on stderr.
    """
    transitions: list[Transition] = []
    return_so_far = 0.0
    success: bool | None = None

    def act() -> tuple[str, base.Step]:
        action = actor()
        return action, base.take(env, action, return_so_far)

    result = base.guarded(env, lambda: base.begin(env, task))
    if not isinstance(result, base.EnvironmentFailure):
        task, state = result
        for number in range(max_steps):
            result = base.guarded(env, act)
            if isinstance(result, base.EnvironmentFailure):
                break
            action, step = result
            if number + 1 == max_steps and not step.terminated:
                step = step._replace(truncated=True)
            transitions.append(step.transition(state, action))
            success, state = step.success, step.state
            return_so_far += sum(step.rewards.values())
            if step.terminated or step.truncated:
                break
    if isinstance(result, base.EnvironmentFailure):
        print(f"collect: {name}: {result.reason}", file=sys.stderr)
        success = None
    return Episode(
        id=name,
        task=task,
        transitions=tuple(transitions),
        source="real",
        success=success,
    )
