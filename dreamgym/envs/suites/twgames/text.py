"""What an agent knows of a house: what the game's texts show -> lines of state.

exits kitchen: east by closed plain door, south to yard
furniture in kitchen: counter, stove, table     what has no lid
fridge in kitchen open                          what has one
oven in kitchen closed, not looked into         nobody knows what is in it
cookbook on table                               a line for each thing that was seen:
knife on floor of kitchen                       where it was last
pork chop carried, chopped raw                  and its condition
red onion in fridge, diced
recipe pork chop: chop, fry                     a line for each ingredient, once read
score 3                                         the game's points so far
at kitchen
said You take the knife from the table          the first sentence of the last answer

In a house of one room the lines leave out which room it is. A line for each thing makes
what an action changes one short line, which is easier to learn than lists.

The package tracks what is true in the game as facts. Those alone are read that a text
of the game shows: about things in sight, and about what was in sight before.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

DIRECTIONS = ("east", "north", "south", "west")
OPPOSITES = {"east": "west", "north": "south", "south": "north", "west": "east"}
_PORTABLE = frozenset({"f", "k", "meal", "o"})
"""The package's types of things that can be carried."""
_LIDS = ("closed", "locked", "open")
_CUTS = ("chopped", "diced", "sliced")
_COOKINGS = ("fried", "grilled", "roasted")
_SCORE = re.compile(r"\s*Your score has just gone (?:up|down) by [^.]*\.")
_HEADING = re.compile(r"-= (.*?) =-")
_SENTENCE = re.compile(r"(.*?)[.!?:]?(?:(?<=[.!?])\s.*)?")
_CONTENTS = ", revealing "
"""What follows is in other lines."""

_INGREDIENTS = re.compile(r"Ingredients:(.*?)Directions:(.*)", re.DOTALL)


class Thing(NamedTuple):
    """A thing that can be carried, and what the texts say of its condition."""

    name: str
    condition: tuple[str, ...] = ()

    def line(self, where: str) -> str:
        """Return the line of state of a thing that is somewhere."""
        condition = " ".join(self.condition)
        return f"{self.name} {where}{', ' if condition else ''}{condition}"


class Place(NamedTuple):
    """Where things may lie: furniture, an appliance or a floor.

    `lid` is one of open, closed and locked, or empty where it has none. `things` are
    those that were last seen there, None where they were never seen.
    """

    room: str
    lid: str
    things: tuple[Thing, ...] | None


class Ingredient(NamedTuple):
    """An ingredient of the recipe, and the verbs of its preparation."""

    name: str
    verbs: tuple[str, ...]


class House:
    """What was seen so far, from the first moment on."""

    def __init__(self) -> None:
        self.at = ""
        self.exits: dict[str, dict[str, str]] = {}  # room -> direction -> door or ""
        self.doors: dict[str, str] = {}  # door -> lid
        self.leads: dict[tuple[str, str], str] = {}  # room, direction -> room
        self.places: dict[str, Place] = {}
        self.carried: tuple[Thing, ...] = ()
        self.recipe: tuple[Ingredient, ...] | None = None
        self._score, self._message = 0, "welcome"

    def read(self, facts: Iterable[Any], text: str, score: int = 0) -> bool:
        """Read what is in sight; return whether it shows what was never seen before.

        Args:
          facts: the package's propositions that are true now.
          text: the game's answer, "" at the start.
          score: the points so far.
        """
        before = self._extent()
        sight = _Sight(facts)
        if self.at and self.at != sight.room:
            self._connect(self.at, sight)
        self.at = sight.room
        self.exits[self.at] = sight.exits()
        self.doors |= {d: sight.lid(d) for d in self.exits[self.at].values() if d}
        for name in sight.furniture():
            lid = sight.lid(name)
            past = self.places.get(name, Place(self.at, lid, None)).things
            visible = lid in ("", "open")
            things = sight.things_at(name) if visible else past
            self.places[name] = Place(self.at, lid, things)
        self.places[floor_of(self.at)] = Place(self.at, "", sight.things_at(self.at))
        self.carried = sight.things_at("I")
        self._score = score
        self._message = first_sentence(text) or self._message
        if match := _INGREDIENTS.search(text):
            self.recipe = _read_recipe(match[1], match[2])
        return self._extent() != before

    def _extent(self) -> tuple[object, ...]:
        """How much is known; a number that grows by what is seen for the first time."""
        contents = sum(place.things is not None for place in self.places.values())
        return len(self.exits), len(self.leads), contents, self.recipe

    def _connect(self, previous: str, sight: "_Sight") -> None:
        for direction in DIRECTIONS:
            if sight.neighbor(previous, direction) == sight.room:
                self.leads[previous, direction] = sight.room
                self.leads[sight.room, OPPOSITES[direction]] = previous

    def lines(self) -> list[str]:
        """Return the state as lines."""
        one_room = not any(self.exits.values())
        rooms = sorted(self.exits)
        things = [(thing, "carried") for thing in self.carried]
        for name, place in self.places.items():
            where = f"{'in' if place.lid else 'on'} {name}"
            where = "on floor" if one_room and name == floor_of(place.room) else where
            things += [(thing, where) for thing in place.things or ()]
        return [
            *(self._exits_line(room) for room in rooms if not one_room),
            *(x for r in rooms for x in self._furniture_lines(r, one_room)),
            *(thing.line(where) for thing, where in sorted(things)),
            *(
                f"recipe {name}: {', '.join(verbs) or 'as it is'}"
                for name, verbs in self.recipe or ()
            ),
            f"score {self._score}",
            f"at {self.at}",
            f"said {self._message}",
        ]

    def _furniture_lines(self, room: str, one_room: bool) -> list[str]:
        places = {
            name: place
            for name, place in sorted(self.places.items())
            if place.room == room and name != floor_of(room)
        }
        plain = [name for name, place in places.items() if not place.lid]
        label = "" if one_room else f" in {room}"
        lines = [f"furniture{label}: {', '.join(plain)}"] if plain else []
        return lines + [
            f"{name}{label} {place.lid}"
            + (", not looked into" if place.things is None else "")
            for name, place in places.items()
            if place.lid
        ]

    def _exits_line(self, room: str) -> str:
        parts = []
        for direction, door in sorted(self.exits[room].items()):
            by = f" by {self.doors[door]} {door}" if door else ""
            target = self.leads.get((room, direction), "")
            parts.append(f"{direction}{by}{f' to {target}' if target else ''}")
        return f"exits {room}: {', '.join(parts)}"


def floor_of(room: str) -> str:
    """Return the name of a room's floor, as a place."""
    return f"floor of {room}"


def first_sentence(text: str) -> str:
    """Return the first sentence of the game's answer, or the heading of a room."""
    text = _SCORE.sub("", text.partition("\n>")[0]).strip()
    if match := _HEADING.match(text):
        return match[1]
    lines = [line.strip() for line in text.splitlines()]
    # In parentheses the game says which thing it takes to be meant.
    lines = [line for line in lines if line and not line.startswith("(")]
    match = _SENTENCE.fullmatch(lines[0]) if lines else None
    return match[1].partition(_CONTENTS)[0].strip() if match else ""


def _read_recipe(ingredients: str, directions: str) -> tuple[Ingredient, ...]:
    """Return the ingredients of the cookbook's page, in its order."""
    verbs: dict[str, list[str]] = {
        line.strip(): [] for line in ingredients.splitlines() if line.strip()
    }
    for line in directions.splitlines():
        verb, _, name = line.strip().partition(" the ")
        if name in verbs:
            verbs[name].append(verb)
    return tuple(Ingredient(name, tuple(v)) for name, v in verbs.items())


class _Sight:
    """The facts of a moment, by what is asked of them."""

    def __init__(self, facts: Iterable[Any]):
        self._facts: dict[str, list[Any]] = {}
        for fact in facts:
            self._facts.setdefault(fact.name, []).append(fact)
        self.room = next(r for x, r in self._names("at") if x == "P")

    def _names(self, predicate: str) -> list[tuple[str, ...]]:
        return [tuple(fact.names) for fact in self._facts.get(predicate, ())]

    def _first(self, predicates: Iterable[str], name: str) -> str:
        """Return the first of some predicates that is true of a thing, or ""."""
        return next((p for p in predicates if (name,) in self._names(p)), "")

    def lid(self, name: str) -> str:
        """Return the state of a lid or a door, or "" where there is none."""
        return self._first(_LIDS, name)

    def furniture(self) -> list[str]:
        """Return what stands in this room, sorted."""
        return sorted(
            fact.names[0]
            for fact in self._facts.get("at", ())
            if fact.names[1] == self.room and fact.types[0] not in (*_PORTABLE, "P")
        )

    def things_at(self, holder: str) -> tuple[Thing, ...]:
        """Return the things in, on or at something, sorted by name."""
        return tuple(
            Thing(name, self._condition(name))
            for name in sorted(
                fact.names[0]
                for predicate in ("in", "on", "at")
                for fact in self._facts.get(predicate, ())
                if fact.names[1] == holder and fact.types[0] in _PORTABLE
            )
        )

    def _condition(self, name: str) -> tuple[str, ...]:
        """Return the words that the game prints before the name of a food."""
        if self._first(["needs_cooking"], name):
            cooking = "raw"
        else:
            cooking = self._first(("burned", *_COOKINGS), name)
        return tuple(word for word in (self._first(_CUTS, name), cooking) if word)

    def neighbor(self, room: str, direction: str) -> str:
        """Return the room in a direction of a room, or "" where there is none."""
        pairs = self._names(f"{direction}_of")
        return next((other for other, this in pairs if this == room), "")

    def exits(self) -> dict[str, str]:
        """Return the directions in which one can leave this room, with their doors."""
        doors = {(a, b): door for a, door, b in self._names("link")}
        free = self._names("free")
        out = {}
        for direction in DIRECTIONS:
            pair = self.room, self.neighbor(self.room, direction)
            if pair in doors or pair in free:
                out[direction] = doors.get(pair, "")
        return out
