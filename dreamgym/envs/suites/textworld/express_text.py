"""States of TextWorldExpress as a person reads them.

lines of state (express.py) -> sentences. A line that is not in the form of a
real state (a dreamed one may not be) is shown as it is.
"""

import re

from worldmodel.data.records import State

_STATUS = re.compile(r"said (.+) carry (.+) here (.+) at (\S+)")
_WAY = re.compile(r"(\S+) (north|south|east|west) (\S+)( unseen)?")
_WAYS = re.compile(rf"{_WAY.pattern}(?: {_WAY.pattern})*")
_THINGS = re.compile(r"(\S+) has ((?:(?! \S+ has ).)+)")
_ROAD = re.compile(r"(\S+) near (.+)")


def readable_state(state: State) -> str:
    """Return a state in sentences: the room, what is in it, then the other rooms."""
    status = next((m for m in map(_STATUS.fullmatch, state) if m), None)
    place = status[4] if status else ""
    current, others, rest = list[str](), list[str](), list[str]()
    things = _things_by_room(state)
    for line in state:
        if (room := _room_of(line)) is not None:
            text = _room_text(room, line)
            if room == place:
                current.insert(0, text)
            else:
                contents = f" There: {things[room]}." if room in things else ""
                others.append(f"Seen before: {text}{contents}")
        elif road := _ROAD.fullmatch(line):
            near = _listed(road[2].split())
            others.append(f"From the map: the {road[1]} is near the {near}.")
        elif (
            line != "found nothing"
            and not _is_found(line)
            and line is not _line(status)
        ):
            rest.append(line)
    if status:
        current += [
            f"Here: {_articles(status[3])}. You carry {_articles(status[2])}.",
            f"The game says: {status[1]}.",
        ]
    return "\n".join([*current, *others, *rest])


def _line(match: re.Match[str] | None) -> str | None:
    return None if match is None else match.string


def _is_found(line: str) -> bool:
    return line.startswith("found ") and _THINGS.search(line) is not None


def _things_by_room(state: State) -> dict[str, str]:
    out = {}
    for line in filter(_is_found, state):
        for room, things in _THINGS.findall(line.removeprefix("found ")):
            out[room] = _articles(things)
    return out


def _room_of(line: str) -> str | None:
    """The room whose exits a line lists, or None for another line."""
    if line.endswith(" no exits") and line.count(" ") == 2:
        return line.split()[0]
    rooms = {m[1] for m in _WAY.finditer(line)} if _WAYS.fullmatch(line) else set()
    return rooms.pop() if len(rooms) == 1 else None


def _room_text(room: str, line: str) -> str:
    ways = [
        f"{way.capitalize()}: {other}{', not visited yet' * bool(unseen)}."
        for _, way, other, unseen in _WAY.findall(line)
    ]
    return " ".join([f"{room.capitalize()}.", *(ways or ["No exits."])])


def _articles(things: str) -> str:
    """`coin box with key` as `a coin, a box with a key`; `nothing` stays."""
    if things == "nothing":
        return things
    words = things.replace(" with ", "\0with\0").split()
    return ", ".join(f"a {w}".replace("\0with\0", " with a ") for w in words)


def _listed(words: list[str]) -> str:
    *first, last = words
    return f"{', the '.join(first)} and the {last}" if first else last
