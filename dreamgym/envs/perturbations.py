"""Perturbations of what an agent reads, to test how robust it is.

an environment, a kind, a rate -> the same games in other words, or two in a row: what
the agent reads is changed, and what it writes is changed back, so that every plan that
wins still wins:
  identity   nothing is changed: the same games, bit for bit
  rename     names that stand for each other are exchanged, consistently in an episode
  rephrase   the instruction is framed by other words
  order      the lines of a state stand in another order
  lost       with the rate as probability the agent reads the previous state again
  garbled    with the rate as probability a letter of the state is replaced by another
  longer     after a game is won another one follows, and both have to be won
What is drawn depends on the seed, the task and the step, and not on other episodes.
"""

import copy
import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base
from dreamgym.envs.actions import as_list
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task
from worldmodel.text import identifiers
from worldmodel.text.names import Groups
from worldmodel.text.tools.tool_schemas import tool_words

PERTURBATIONS = (
    "identity",
    "rename",
    "rephrase",
    "order",
    "lost",
    "garbled",
    "longer",
)
ACTION_LISTS = ("expert", "valid_actions")
"""Methods of an environment that return actions, which are passed on as perturbed."""
PHRASES = (
    "this is what you have to do: {}",
    "{} and nothing else",
    "please do the following for me now: {}",
)
"""What an instruction is framed by; no instruction of the training data is."""


def games_in_a_row(kind: str) -> int:
    """Return how many games an episode has under a perturbation."""
    return 2 if kind == "longer" else 1


def following(task: Task, tasks: Sequence[Task]) -> Task:
    """Return the task that follows a won one of these: the next with its instruction.

    Where no other one has it, the same task follows, so that an episode has more steps
    and no other words.
    """
    alike = [t for t in tasks if t.instruction == task.instruction]
    ids = [t.id for t in alike]
    return alike[(ids.index(task.id) + 1) % len(alike)]


def names_of(task: Task, names: Mapping[str, Groups]) -> Groups:
    """Return the groups of names that "rename" exchanges in the games of a task.

    These are those of its family, without the words of its tools: a call has to reach
    the tool and the argument that it names.
    """
    of_tools = tool_words(task)
    groups = (
        tuple(word for word in group if word.casefold() not in of_tools)
        for group in names.get(task.family, ())
    )
    return tuple(group for group in groups if len(group) > 1)


class PerturbedEnv(gymnasium.Wrapper):
    """An environment whose texts are perturbed.

    `names` are the groups of words that stand for each other, by family: "rename"
    exchanges the words of a group. Games of other families are as they are.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        kind: str,
        *,
        rate: float = 0.1,
        names: Mapping[str, Groups] | None = None,
        seed: int = 0,
    ):
        """Raise ValueError if there is no such kind, or the rate is no probability."""
        super().__init__(env)
        if kind not in PERTURBATIONS:
            raise ValueError(
                f"perturbation must be one of {PERTURBATIONS}, got {kind!r}"
            )
        if not 0 <= rate <= 1:
            raise ValueError(f"rate must be in [0, 1], got {rate}")
        self._kind, self._rate, self._seed = kind, rate, seed
        self._names = dict(names or {})
        self._swap: dict[str, str] = {}
        self._step, self._task, self._last_observation = 0, "", ""
        self._originals: dict[str, Task] = {}
        # Arguments of the resets of this episode: of its present game, and of a later.
        self._game: dict[str, Any] = {}
        self._next_game: dict[str, Any] | None = None
        self._game_return = 0.0

    def __getattr__(self, name: str) -> Any:
        owner = base.provider(self.env, name) if name in ACTION_LISTS else None
        if owner is None:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        if name == "expert" and self._kind == "longer":
            return lambda: self._whole_plan(owner)
        return lambda: [self._renamed(a) for a in as_list(getattr(owner, name)()) or ()]

    def _whole_plan(self, expert: Any) -> list[str]:
        """Return the expert's plan of the games that are left."""
        plan = as_list(expert.expert()) or []
        if self._next_game is not None and not self._step:
            self.env.reset(**copy.deepcopy(self._next_game))
            plan += as_list(expert.expert()) or []
            self.env.reset(**copy.deepcopy(self._game))
        return plan

    def perturbed(self, task: Task) -> Task:
        """Return the task as the agent reads it; the environment gets the original."""
        self._originals[task.id] = task
        self._task, self._step = task.id, 0
        self._swap = self._pairs(task) if self._kind == "rename" else {}
        return dataclasses.replace(task, instruction=self.instruction(task.instruction))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Reset the environment; return its text and instruction, perturbed."""
        task: Any = (options or {}).get("task")
        if task is not None:
            original: Any = self._originals.get(task.id, task)
            self.perturbed(original)
            options = {**(options or {}), "task": original}
        if self._kind == "longer":
            # A copy: an episode may write to the options of its task.
            self._game = copy.deepcopy({"seed": seed, "options": options})
            self._next_game = self._later_game()
            self._game_return, self._step = 0.0, 0
        observation, info = self.env.reset(seed=seed, options=options)
        self._last_observation = observation
        return self._seen(observation), info

    def step(self, action: Any) -> Any:
        """Step the environment by the action in its own words."""
        self._step += 1
        result = self.env.step(self._renamed(action))
        if self._kind == "longer":
            result = self._in_a_row(*result)
        observation, *rest = result
        seen = self._seen(observation)
        if self._kind == "lost" and self._rng().random() < self._rate:
            seen = self._last_observation
        self._last_observation = seen
        return (seen, *rest)

    def _later_game(self) -> dict[str, Any]:
        """Return with what the environment is reset after the present game is won."""
        options = self._game["options"] or {}
        if (task := options.get("task")) is None:
            return self._game
        task = following(task, list(self._originals.values()))
        arguments = base.reset_arguments(task, self._game["seed"])
        return {**arguments, "options": {**options, **arguments["options"]}}

    def _in_a_row(
        self,
        observation: str,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Any,
    ) -> tuple[Any, ...]:
        """Return a step; where it wins a game before the last, the next one begins."""
        self._game_return += float(reward)
        # As base.take does; there the return would be that of all games.
        won = bool(info.get("success", terminated and self._game_return > 0))
        goes_on = won and (terminated or truncated) and self._next_game is not None
        info = {**info, "success": won and self._next_game is None}
        if not goes_on:
            return observation, reward, terminated, truncated, info
        observation, _ = self.env.reset(**copy.deepcopy(self._next_game or {}))
        self._next_game, self._game_return = None, 0.0
        return observation, reward, False, False, info

    def instruction(self, text: str) -> str:
        """Return how the agent reads an instruction."""
        if self._kind == "rephrase":
            phrase = PHRASES[content_seed(self._seed, text) % len(PHRASES)]
            return phrase.format(text)
        return self._renamed(text)

    def _rng(self) -> np.random.Generator:
        number = content_seed(self._kind, self._seed, self._task, self._step)
        return np.random.default_rng(number)

    def _pairs(self, task: Task) -> dict[str, str]:
        """Return names in pairs that stand for each other in this episode."""
        rng, swap = self._rng(), dict[str, str]()
        for group in names_of(task, self._names):
            order = rng.permutation(group).tolist()
            for one, other in zip(order[::2], order[1::2], strict=False):
                swap |= {one: other, other: one}
        return swap

    def _renamed(self, text: str) -> str:
        if not self._swap:
            return text
        return identifiers.replace_words(text, lambda word: self._swap.get(word, word))

    def _seen(self, observation: str) -> str:
        if self._kind == "rename":
            return self._renamed(observation)
        if self._kind == "order":
            lines = observation.splitlines()
            return "\n".join(lines[i] for i in self._rng().permutation(len(lines)))
        if self._kind == "garbled":
            return self._garbled(observation)
        return observation

    def _garbled(self, text: str) -> str:
        rng = self._rng()
        wrong = rng.random(len(text)) < self._rate
        letters = rng.integers(len(string.ascii_lowercase), size=len(text))
        return "".join(
            string.ascii_lowercase[x] if bad and c.isalpha() else c
            for c, bad, x in zip(text, wrong, letters, strict=True)
        )
