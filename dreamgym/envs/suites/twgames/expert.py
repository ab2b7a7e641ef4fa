"""An expert that searches: what is known of a house -> the next command.

It does not know where things are: it opens the fridge, and goes through the nearest
exit that nobody went through, until it has seen what it needs. So its plans can be
imitated from states alone. A plan is what it does from the start of a game, which is
played without its texts: on the facts of the package's description.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from textworld import Game as Description
from textworld.generator.game import GameProgression
from textworld.generator.inform7 import Inform7Game

from dreamgym.envs.suites.twgames.text import House, Thing, floor_of

MAX_PLAN = 300
"""Actions after which a plan is given up."""

KITCHEN, COOKBOOK, KNIFE = "kitchen", "cookbook", "knife"
READ = f"examine {COOKBOOK}"
FRIDGE = "fridge"
"""The only furniture with a lid in which there is food."""

CUTS = {"chop": "chopped", "dice": "diced", "slice": "sliced"}
COOKINGS = {"fry": "fried", "grill": "grilled", "roast": "roasted"}
APPLIANCES = {"fry": "stove", "grill": "BBQ", "roast": "oven"}


def plan_of(description: bytes, kind: str, hands: int = MAX_PLAN) -> tuple[str, ...]:
    """Return the actions that win a game from its start; none where the search fails.

    Args:
      description: the package's description of the game.
      kind: "cooking" or "coin".
      hands: the number of things that can be carried.
    """
    game = Description.deserialize(json.loads(description))
    progress, names = GameProgression(game), Inform7Game(game)
    house, plan, page = House(), list[str](), ""
    while len(plan) < MAX_PLAN and not progress.done:
        facts = [names.get_human_readable_fact(f) for f in progress.state.facts]
        house.read(facts, page)
        command = next_command(house, hands) if kind == "cooking" else seek_coin(house)
        commands = names.gen_commands_from_actions(progress.valid_actions)
        if command not in commands:
            return ()
        page = game.metadata["recipe"] if command == READ else ""
        progress.update(progress.valid_actions[commands.index(command)])
        plan.append(command)
    return tuple(plan) if progress.completed else ()


def seek_coin(house: House) -> str:
    """Return the next command in a game of Coin Collector; "" where there is none."""
    return _take(house, "coin")


def next_command(house: House, hands: int = MAX_PLAN) -> str:
    """Return the next command in a game of cooking; "" where the search fails.

    What needs cutting is cut as soon as it is carried, and the rest is cooked when all
    ingredients are there. Where hands are full, something is put down for a while.
    """
    if house.recipe is None:
        in_sight = _room_of(house, COOKBOOK) == house.at
        return READ if in_sight else _take(house, COOKBOOK)
    carried = {thing.name: thing for thing in house.carried}
    full = len(carried) >= hands
    if "meal" in carried:
        return "eat meal"
    for name, verbs in house.recipe:
        for verb in _pending(carried.get(name), verbs, CUTS):
            if KNIFE in carried:
                return f"{verb} {name} with {KNIFE}"
            return _drop_other(carried, name) if full else _take(house, KNIFE)
    missing = [name for name, _ in house.recipe if name not in carried]
    if missing:
        ingredients = {name for name, _ in house.recipe}
        others = [name for name in carried if name not in ingredients]
        if full:
            return f"drop {others[0]}" if others else ""
        return _take_first(house, missing)
    for name, verbs in house.recipe:
        for verb in _pending(carried[name], verbs, COOKINGS):
            return _cook(house, name, APPLIANCES[verb])
    return _toward(house, KITCHEN) or "prepare meal"


def _pending(
    thing: Thing | None, verbs: Sequence[str], results: Mapping[str, str]
) -> list[str]:
    """Return the verbs of a kind that a thing that is carried still needs."""
    if thing is None:
        return []
    return [v for v in verbs if v in results and results[v] not in thing.condition]


def _drop_other(carried: Mapping[str, Thing], name: str) -> str:
    return next((f"drop {other}" for other in carried if other != name), "")


def _place_of(house: House, name: str) -> str | None:
    """Return the place where a thing was last seen."""
    for place, (_, _, things) in house.places.items():
        if any(thing.name == name for thing in things or ()):
            return place
    return None


def _room_of(house: House, name: str) -> str | None:
    place = _place_of(house, name)
    return None if place is None else house.places[place].room


def _take(house: House, name: str, *, search_fridge: bool = False) -> str:
    """Return the next command on the way to take a thing."""
    place = _place_of(house, name)
    if place is None:
        return _explore(house, search_fridge)
    room = house.places[place].room
    if room != house.at:
        return _toward(house, room)
    return f"take {name}" if place == floor_of(room) else f"take {name} from {place}"


def _take_first(house: House, names: Sequence[str]) -> str:
    """Take what is in this room, else what was seen elsewhere, else search."""
    rooms = {name: _room_of(house, name) for name in names}
    ranked = sorted(names, key=lambda n: (rooms[n] != house.at, rooms[n] is None))
    return _take(house, ranked[0], search_fridge=True)


def _cook(house: House, name: str, appliance: str) -> str:
    if appliance not in house.places:
        return _explore(house)
    on_the_way = _toward(house, house.places[appliance].room)
    return on_the_way or f"cook {name} with {appliance}"


# --- finding one's way ---


def _routes(house: House) -> Iterator[tuple[str, str]]:
    """Yield the rooms that were seen, the nearest first, and where to go first."""
    queue, seen = [(house.at, "")], {house.at}
    for room, first in queue:
        yield room, first
        for direction in sorted(house.exits.get(room, ())):
            target = house.leads.get((room, direction))
            if target is not None and target not in seen:
                seen.add(target)
                queue.append((target, first or direction))


def _toward(house: House, room: str) -> str:
    """Return the next command on the way to a room that was seen; "" in it."""
    first = next((first for name, first in _routes(house) if name == room), "")
    return _leave(house, first) if first else ""


def _explore(house: House, search_fridge: bool = False) -> str:
    """Return the next command on the way to the nearest that was never looked at."""
    for room, first in _routes(house):
        fridge = house.places.get(FRIDGE)
        if search_fridge and fridge is not None and fridge.room == room:
            if fridge.things is None:
                return _leave(house, first) if first else f"open {FRIDGE}"
        for direction in sorted(house.exits.get(room, ())):
            if (room, direction) not in house.leads:
                return _leave(house, first or direction)
    return ""


def _leave(house: House, direction: str) -> str:
    door = house.exits[house.at][direction]
    closed = door and house.doors[door] != "open"
    return f"open {door}" if closed else f"go {direction}"
