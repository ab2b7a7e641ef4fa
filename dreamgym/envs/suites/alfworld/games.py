"""Games for ALFWorld's engine: households that are drawn, with a plan that wins each.

floor plan of the package (which furniture and appliances a room has)
  -> a goal and where everything lies, drawn by a seed -> the problem in PDDL
  -> the plan of somebody who searches the places that may hold a thing, in their order

The package brings the floor plans of AI2-THOR, ALFRED's rules and goals, and the texts.
ALFWorld's own games, with the places that its annotators saw, are to be downloaded;
these are others, and a score on them is none on ALFWorld.
"""

import functools
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alfworld.gen import constants, goal_library

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Coolable", "Fridge"),
}
"""The verb, the objects that it is for, and the appliance, by task type."""

MAX_STEPS = 50
"""Steps of an episode, as ALFWorld has it."""

MAX_THINGS = 12
"""Things in a household, beside lamps."""

SEEDS_PER_ROOM = 3
"""Games that are drawn for a room and a task type."""

_LAYOUTS = Path(constants.__file__).parent / "layouts"
_LAMPS = ("DeskLamp", "FloorLamp")
_UNDER_LAMPS = ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
_FURNITURE = frozenset(constants.RECEPTACLES) - constants.MOVABLE_RECEPTACLES_SET
_ATTRIBUTES = ("Cleanable", "Heatable", "Coolable", "Sliceable")


class Item(NamedTuple):
    """A piece of furniture, an appliance or a thing: its type and its number."""

    type: str
    number: int
    count: int  # of this type in the household

    @property
    def name(self) -> str:
        """The name in the game's texts, such as `sinkbasin 1`."""
        return f"{self.type.lower()} {self.number}"

    @property
    def id(self) -> str:
        """The name in PDDL.

        The package counts the items of a type from the last id to the first, and adds
        `basin` to the names of ids that have it.
        """
        kind, basin = self.type.lower(), ""
        if kind.endswith("basin"):
            kind, basin = kind.removesuffix("basin"), "_basin"
        return f"{kind}_bar_{self.count - self.number:02d}{basin}"

    @property
    def openable(self) -> bool:
        """Whether it must be opened to see what is in it."""
        return self.type in constants.OPENABLE_CLASS_SET


class Goal(NamedTuple):
    """What is to be done: with a type of thing, a type of place, or a type of lamp."""

    task_type: str
    thing: str
    place: str = ""
    lamp: str = ""


class Game(NamedTuple):
    """A household and a goal; `places` holds where each thing lies at first."""

    room: int
    seed: int
    goal: Goal
    request: str
    furniture: tuple[Item, ...]
    places: Mapping[Item, Item]

    @property
    def data(self) -> dict[str, str]:
        """The game as the engine loads it."""
        rules, grammar = _rules()
        grammar = grammar.replace("UNKNOWN GOAL", self.request)
        return {"pddl_domain": rules, "grammar": grammar, "pddl_problem": problem(self)}


@functools.cache
def _rules() -> tuple[str, str]:
    folder = Path(constants.__file__).parents[1] / "data"
    return (folder / "alfred.pddl").read_text(), (folder / "alfred.twl2").read_text()


# --- drawing a game ---


@functools.cache
def draw_game(room: int, task_type: str, seed: int) -> Game | None:
    """Return a game, or None where the room has nothing for such a task.

    Equal arguments give equal games in every process.
    """
    draw = random.Random(f"{room} {task_type} {seed}")
    furniture, types = _furnish(room), _types_of(room)
    kinds = sorted({item.type for item in furniture})
    small = [t for t in types if t not in _LAMPS and _holders(t, kinds)]
    lamps = [t for t in types if t in _LAMPS]
    goals = list(_goals(task_type, small, lamps, kinds))
    if not goals:
        return None
    goal = draw.choice(goals)
    others = [t for t in small if t != goal.thing]
    draw.shuffle(others)
    number = 2 if task_type == "pick_two_obj_and_place" else draw.randint(1, 2)
    counts = {goal.thing: number}
    counts |= {t: draw.randint(1, 2) for t in others}
    places: dict[Item, Item] = {}
    for item in _items(counts):
        holders = [
            f
            for f in furniture
            if f.type in _holders(item.type, kinds)
            and not (item.type == goal.thing and f.type == goal.place)
        ]
        if holders and len(places) < MAX_THINGS:
            places[item] = draw.choice(holders)
    tables = [f for f in furniture if f.type in _UNDER_LAMPS] or list(furniture)
    for item in _items(dict.fromkeys(lamps, 1)):
        places[item] = draw.choice(tables)
    request = draw.choice(goal_library.gdict[task_type]["templates"]).format(
        obj=goal.thing.lower(), recep=goal.place.lower(), toggle=goal.lamp.lower()
    )
    return Game(room, seed, goal, request, furniture, _renumber(places))


def _items(counts: Mapping[str, int]) -> Iterator[Item]:
    for type_, count in counts.items():
        for number in range(1, count + 1):
            yield Item(type_, number, count)


def _renumber(places: Mapping[Item, Item]) -> dict[Item, Item]:
    """Return the things with the numbers of those that found a place."""
    counts = Counter(item.type for item in places)
    numbers: Counter[str] = Counter()
    out = {}
    for item, place in places.items():
        numbers[item.type] += 1
        out[Item(item.type, numbers[item.type], counts[item.type])] = place
    return out


def _types_of(room: int) -> list[str]:
    """Return the types of all that a floor plan has."""
    text = (_LAYOUTS / f"FloorPlan{room}-objects.json").read_text()
    return sorted(json.loads(text))


@functools.cache
def _furnish(room: int) -> tuple[Item, ...]:
    """Return the furniture and appliances of a floor plan, sorted by name.

    What its file of reachable places leaves out, a sink or a toaster, is there once.
    """
    text = (_LAYOUTS / f"FloorPlan{room}-openable.json").read_text()
    keys = [key.split("|") for key in json.loads(text)]
    types = Counter(
        f"{key[0]}Basin" if key[-1].endswith("Basin") else key[0] for key in keys
    )
    for type_ in _types_of(room):
        types[type_] = max(types[type_], 1)
    present = {t: types[t] for t in sorted(types) if t in _FURNITURE}
    return tuple(_items(present))


def _holders(thing: str, kinds: Sequence[str]) -> list[str]:
    """Return the types of furniture that may hold a type of thing."""
    table: Any = constants.VAL_RECEPTACLE_OBJECTS
    return [kind for kind in kinds if thing in table.get(kind, ())]


def _goals(
    task_type: str, small: Sequence[str], lamps: Sequence[str], kinds: Sequence[str]
) -> Iterator[Goal]:
    """Yield the goals of a type that a room allows."""
    if task_type == "look_at_obj_in_light":
        yield from (Goal(task_type, t, lamp=lamp) for t in small for lamp in lamps)
        return
    _, attribute, appliance = TREATMENTS.get(task_type, ("", "", ""))
    if appliance and appliance not in kinds:
        return
    for thing in small:
        if attribute and thing not in constants.VAL_ACTION_OBJECTS[attribute]:
            continue
        holders = _holders(thing, kinds)
        for place in holders:
            if len(holders) > 1 and place != appliance:
                yield Goal(task_type, thing, place)


# --- the problem in PDDL ---


def problem(game: Game) -> str:
    """Return a game as the planner's language has it."""
    location = {item: f"loc_bar_{i:02d}" for i, item in enumerate(game.furniture)}
    start = "loc_bar_99"
    thing_types = sorted({item.type for item in game.places})
    kinds = sorted({item.type for item in game.furniture})
    objects = [
        "agent1 - agent",
        *(f"{item.id} - receptacle" for item in game.furniture),
        *(f"{item.id} - object" for item in game.places),
        *(f"{place} - location" for place in (*location.values(), start)),
        *(f"{type_}Type - otype" for type_ in thing_types),
        *(f"{type_}Type - rtype" for type_ in kinds),
    ]
    facts = ["(= (total-cost) 0)", f"(atLocation agent1 {start})"]
    for item in game.furniture:
        facts.append(f"(receptacleType {item.id} {item.type}Type)")
        facts.append(f"(receptacleAtLocation {item.id} {location[item]})")
        if item.openable:
            facts.append(f"(openable {item.id})")
    for item, place in game.places.items():
        facts.append(f"(objectType {item.id} {item.type}Type)")
        facts.append(f"(inReceptacle {item.id} {place.id})")
        facts.append(f"(objectAtLocation {item.id} {location[place]})")
        facts += (f"({attribute} {item.id})" for attribute in _attributes(item.type))
    facts += (
        f"(canContain {kind}Type {type_}Type)"
        for type_ in thing_types
        for kind in _holders(type_, kinds)
    )
    goal = goal_library.gdict[game.goal.task_type]["pddl"].format(
        obj=game.goal.thing, recep=game.goal.place, toggle=game.goal.lamp, mrecep=""
    )
    return "\n".join(
        [
            f"(define (problem room_{game.room}_{game.seed}) (:domain alfred)",
            f"(:objects {' '.join(objects)})",
            f"(:init {' '.join(facts)})",
            goal.replace("#", "-"),
        ]
    )


def _attributes(type_: str) -> Iterable[str]:
    if type_ in _LAMPS:
        return ["toggleable"]
    table = constants.VAL_ACTION_OBJECTS
    return ["pickupable", *(a.lower() for a in _ATTRIBUTES if type_ in table[a])]


# --- the expert ---


@functools.cache
def plan_of(room: int, task_type: str, seed: int) -> tuple[str, ...]:
    """Return the actions of somebody who does not know where things lie.

    The places that may hold a thing are searched in the order of their names; what was
    seen on the way is remembered.
    """
    game = draw_game(room, task_type, seed)
    return () if game is None else tuple(_Search(game).actions())


class _Search:
    def __init__(self, game: Game):
        self._game, self._places = game, dict(game.places)
        self._seen: set[Item] = set()
        self._open: set[Item] = set()
        self._at: Item | None = None

    def actions(self) -> Iterator[str]:
        goal = self._game.goal
        for _ in range(2 if goal.task_type == "pick_two_obj_and_place" else 1):
            yield from self._find(goal.thing)
            thing = self._seen_thing(goal.thing)
            place = self._places.pop(thing)
            yield from self._go(place)  # it may have been seen earlier
            yield f"take {thing.name} from {place.name}"
            if goal.task_type in TREATMENTS:
                verb, _, appliance = TREATMENTS[goal.task_type]
                target = self._first(appliance)
                yield from self._go(target)
                yield f"{verb} {thing.name} with {target.name}"
            if goal.lamp:
                yield from self._find(goal.lamp)
                lamp = self._seen_thing(goal.lamp)
                yield from self._go(self._places[lamp])
                yield f"use {lamp.name}"
            else:
                target = self._first(goal.place)
                yield from self._go(target)
                if target.openable and target not in self._open:
                    yield from self._look_into(target)
                yield f"move {thing.name} to {target.name}"

    def _first(self, type_: str) -> Item:
        return next(item for item in self._game.furniture if item.type == type_)

    def _seen_thing(self, type_: str) -> Item:
        return next(
            thing
            for thing, place in self._places.items()
            if thing.type == type_ and place in self._seen
        )

    def _go(self, place: Item) -> Iterator[str]:
        if place != self._at:
            self._at = place
            yield f"go to {place.name}"
        if not place.openable:
            self._seen.add(place)

    def _look_into(self, place: Item) -> Iterator[str]:
        self._open.add(place)
        self._seen.add(place)
        yield f"open {place.name}"

    def _find(self, type_: str) -> Iterator[str]:
        """Search the places that may hold a type of thing until one is seen."""
        kinds = sorted({item.type for item in self._game.furniture})
        likely = set(_holders(type_, kinds))
        if type_ in _LAMPS:
            likely = set(_UNDER_LAMPS) & set(kinds) or set(kinds)
        for place in self._game.furniture:
            if any(
                thing.type == type_ and where in self._seen
                for thing, where in self._places.items()
            ):
                return
            if place.type in likely and place not in self._seen:
                yield from self._go(place)
                if place.openable:
                    yield from self._look_into(place)


# --- the splits ---


def rooms_of(split: str) -> list[int]:
    """Return the floor plans of a split.

    Those of `test` are ALFWorld's unseen ones; every sixth of the others is for `dev`.
    """
    if split == "test":
        return sorted(constants.TEST_SCENE_NUMBERS)
    train = sorted(constants.TRAIN_SCENE_NUMBERS)
    return [n for i, n in enumerate(train) if (i % 6 == 5) == (split == "dev")]


@functools.cache
def list_games(task_type: str, split: str) -> tuple[tuple[int, int], ...]:
    """Return the room and seed of each game whose plan has at most MAX_STEPS steps."""
    kinds = constants.GOALS_VALID[task_type]
    allowed = {n for kind in kinds for n in constants.SCENE_TYPE[kind]}
    games = [
        (room, seed)
        for seed in range(SEEDS_PER_ROOM)
        for room in rooms_of(split)
        if room in allowed
    ]
    return tuple(
        (room, seed)
        for room, seed in games
        if 0 < len(plan_of(room, task_type, seed)) <= MAX_STEPS
    )
