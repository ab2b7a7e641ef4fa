"""ScienceWorld: experiments of a school's science lessons in a house of ten rooms.

task and variation -> the game's texts -> lines of state (scienceworld_text.py):
  visited ROOMS, focus THING, note TEXT         what is remembered
  door ROOM open, see THING, carry THING        a line each, of this room
  at ROOM, choice NUMBER ACTION, said MESSAGE   where, and the last answer
The games come from the `scienceworld` package and run in Java (scienceworld_java.py).

The reward is the difference of the game's score, of 100 points, divided by 100. An
episode succeeds with the full score. A score below 0, after a wrong thing was focused
on, ends it at -1, as in the package.
"""

import functools
import itertools
import re
from typing import Any, ClassVar

from dreamgym.envs.base import SPLITS, TextEnv, task_to_start
from dreamgym.envs.suites import scienceworld_text as texts
from dreamgym.envs.suites.scienceworld_java import Answer, Game
from worldmodel.data.records import Task

PLAN_STEPS = {
    "boil": 121,
    "change-the-state-of-matter-of": 99,
    "chemistry-mix": 31,
    "chemistry-mix-paint-secondary-color": 18,
    "chemistry-mix-paint-tertiary-color": 23,
    "find-animal": 9,
    "find-living-thing": 9,
    "find-non-living-thing": 6,
    "find-plant": 9,
    "freeze": 109,
    "grow-fruit": 69,
    "grow-plant": 32,
    "identify-life-stages-1": 40,
    "identify-life-stages-2": 15,
    "inclined-plane-determine-angle": 154,
    "inclined-plane-friction-named-surfaces": 317,
    "inclined-plane-friction-unnamed-surfaces": 199,
    "lifespan-longest-lived": 4,
    "lifespan-longest-lived-then-shortest-lived": 5,
    "lifespan-shortest-lived": 4,
    "measure-melting-point-known-substance": 69,
    "measure-melting-point-unknown-substance": 91,
    "melt": 115,
    "mendelian-genetics-known-plant": 118,
    "mendelian-genetics-unknown-plant": 119,
    "power-component": 9,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 27,
    "test-conductivity-of-unknown-substances": 20,
    "use-thermometer": 13,
}
"""Actions of the expert's longest plan that was seen, for each task type.

Of 3 to 30 variations each (docs/how-to/scienceworld.md), with release 1.2.3.
"""

DEFAULT_TASK_TYPES = (
    "find-non-living-thing",
    "lifespan-longest-lived",
    "find-plant",
    "lifespan-shortest-lived",
    "find-animal",
    "power-component",
    "find-living-thing",
    "lifespan-longest-lived-then-shortest-lived",
)
"""Task types of the mixture: those whose plans have at most 9 actions."""

SIMPLIFICATIONS = "easy"
"""The package's own: doors are open, `teleport to ROOM` goes anywhere, plants need no
water, and no wires can be connected in tasks that need none."""

FULL_SCORE = 100

_FOCUS = re.compile(r"You focus on the (.+?)\.?$")
_REPEATED = re.compile(r"\b(\w+) (?=(?:\w+ ){0,2}\1\b)")
_WITHOUT_EFFECT = ("look around", "open door to ")


class ScienceWorld(TextEnv):
    """Some task types of ScienceWorld as one environment, a family for each.

    It is deterministic: equal tasks and actions give equal texts. An action that the
    game does not understand changes nothing but the message, `said unknown action`.
    """

    deterministic = True
    task_types: ClassVar[tuple[str, ...]] = DEFAULT_TASK_TYPES

    def __init__(
        self, *, max_steps: int | None = None, simplifications: str = SIMPLIFICATIONS
    ):
        super().__init__()
        if max_steps is None:
            max_steps = 2 * max(PLAN_STEPS[t] for t in self.task_types)
        if max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {max_steps}")
        self.max_episode_steps = max_steps
        self._simplifications = simplifications
        self._game: Game | None = None
        self._key: tuple[str, int, str] | None = None
        self._open, self._steps, self._score = False, 0, 0
        self._visited: list[str] = []
        self._notes: list[str] = []
        self._focus = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a train task drawn by `seed`.

        Raises:
          ValueError: the task's options name no task type, or no variation.
          ConnectionError: the Java machine is lost.
        """
        super().reset(seed=seed)
        task = task_to_start(self, options)
        name, number = task.options.get("task_type"), task.options.get("variation")
        if name not in PLAN_STEPS or not isinstance(number, int):
            raise ValueError(
                f"task {task.id!r}: options must name a task_type of "
                f"{list(PLAN_STEPS)} and a variation, got {dict(task.options)}"
            )
        self._open = False
        if self._game is None or not self._game.alive:
            self._game = Game()
        self._key = (name, number, self._simplifications)
        self._game.load(*self._key)
        # As the package does: points for the place where a task begins are not paid.
        answer = self._game.step("look around")
        self._steps, self._score, self._open = 0, answer.score, True
        self._visited, self._notes, self._focus = [], [], ""
        instruction = " ".join(self._game.instruction().split())
        self._read(answer)
        return self._text(), {"instruction": instruction, "success": False}

    def _read(self, answer: Answer) -> bool:
        """Read an answer; return whether it shows what could not be known before."""
        self._answer, self._room = answer, texts.parse_room(answer.room)
        self._inventory = texts.parse_inventory(answer.inventory)
        is_new = self._room.name not in self._visited
        if is_new:
            self._visited.append(self._room.name)
        if match := _FOCUS.match(answer.message.strip()):
            self._focus = texts.short_name(match[1])
        note = texts.note(answer.message)
        if note and note not in self._notes:
            self._notes.append(note)
            is_new = True
        return is_new or texts.is_revealing(answer.message)

    def _text(self) -> str:
        lines = texts.state_lines(
            self._room,
            self._inventory,
            self._answer.message,
            visited=self._visited,
            focus=self._focus,
            notes=self._notes,
        )
        return "\n".join(lines)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, given as free text.

        Raises:
          RuntimeError: there is no running episode.
          ConnectionError: the Java machine is lost.
        """
        if not self._open or self._game is None:
            raise RuntimeError("step() needs a running episode: call reset() first")
        answer = self._game.step(action)
        self._steps += 1
        reward = (answer.score - self._score) / FULL_SCORE
        self._score = answer.score
        terminated = answer.completed or answer.score < 0
        truncated = not terminated and self._steps >= self.max_episode_steps
        self._open = not (terminated or truncated)
        reveals = self._read(answer)
        info = {
            "rewards": {"score": reward},
            "success": answer.completed and answer.score >= FULL_SCORE,
            "invalid": texts.is_refused(answer.message),
            "reveals": reveals,
        }
        return self._text(), reward, terminated, truncated, info

    def tasks(self, split: str) -> list[Task]:
        """Return the package's variations of a split, the task types in turn.

        Raises:
          ConnectionError: the Java machine is lost.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        families = [
            [_task(name, number, split) for number in _variations(name, split)]
            for name in self.task_types
        ]
        turns = itertools.zip_longest(*families)
        return [task for turn in turns for task in turn if task is not None]

    def expert(self) -> list[str]:
        """Return the game's own solution, without what has no effect.

        Raises:
          RuntimeError: there was no reset.
          ConnectionError: the Java machine is lost.
        """
        if self._key is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        return list(_plan(*self._key))

    def valid_actions(self) -> list[str]:
        """Return actions that the game would take now and that may help, sorted.

        Where the game asks to choose they are the numbers of the choices.
        """
        if self._game is None:
            raise RuntimeError("valid_actions() needs a task: call reset() first")
        if choices := texts.choices(self._answer.message):
            return [str(number) for number in range(len(choices))]
        return texts.useful_actions(
            self._game.valid_actions(), self._game.visible_things()
        )

    def close(self) -> None:
        """Release the game; the Java process is shared and ends with Python."""
        self._game, self._open = None, False


def _task(task_type: str, variation: int, split: str) -> Task:
    return Task(
        id=f"scienceworld-{task_type}-{variation}",
        instruction="",
        env="scienceworld",
        family=task_type,
        split=split,
        options={"task_type": task_type, "variation": variation},
    )


_scouts: list[Game] = []
"""The game in which solutions are looked for, or none before the first."""


def _scout() -> Game:
    if not (_scouts and _scouts[0].alive):
        _scouts[:] = [Game()]
    return _scouts[0]


@functools.cache
def _variations(task_type: str, split: str) -> tuple[int, ...]:
    scout = _scout()
    scout.load(task_type, 0, SIMPLIFICATIONS)
    return tuple(scout.variations(split))


@functools.lru_cache(maxsize=10_000)
def _plan(task_type: str, variation: int, simplifications: str) -> tuple[str, ...]:
    """The shortest of some versions of the game's own solution that wins, or none."""
    key = (task_type, variation, simplifications)
    scout = _scout()
    scout.load(*key, gold=True)
    gold = scout.gold_path()
    effective = [a for a in gold if not a.startswith(_WITHOUT_EFFECT)]
    # The game writes some names with a word twice: "focus on baby baby brown bear".
    plain = [_REPEATED.sub("", action) for action in effective]
    for actions in (plain, effective, gold):
        if count := _winning_steps(scout, key, actions):
            return tuple(actions[:count])
    return ()


def _winning_steps(scout: Game, key: tuple[str, int, str], actions: list[str]) -> int:
    """Return after how many of the actions the game is won, or 0 where it is not."""
    scout.load(*key)
    scout.step("look around")
    for number, action in enumerate(actions, start=1):
        answer = scout.step(action)
        if answer.completed or answer.score < 0:
            return number if answer.score >= FULL_SCORE else 0
    return 0


def one_task_type(task_type: str) -> type[ScienceWorld]:
    """Return the environment of one task type, with its own variations alone.

    Raises:
      ValueError: there is no such task type; the message lists them.
    """
    if task_type not in PLAN_STEPS:
        raise ValueError(
            f"unknown task of ScienceWorld {task_type!r}: expected one of "
            f"{sorted(PLAN_STEPS)}"
        )
    members = {"task_types": (task_type,), "__doc__": ScienceWorld.__doc__}
    return type("ScienceWorld", (ScienceWorld,), members)
