"""Texts of ScienceWorld as lines of a state.

a room's description -> `door NAME open` and `see THING` lines, one thing each
an inventory -> `carry THING` lines; a question of the game -> `choice NUMBER ACTION`
What is in or on a thing stands in brackets behind it: `see bowl (red apple, banana)`.
A phrase of another form than those below is kept as it is.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

UNKNOWN = ("No known action matches that input", "Unknown action.")
"""How answers to an action begin that the game does not understand."""

_REFUSED = re.compile(
    r"can't|cannot|does not contain|is already|is empty|is not|it'?s not clear"
    r"|must be disconnected|not sure how",
    re.IGNORECASE,
)
"""What stands in answers after which nothing has changed."""

_REDUNDANT = (  # these repeat what the state shows anyway
    "This room is called",
    "This outside location is called",
    "In your inventory, you see:",
    "Task description:",
)
_ROOM = re.compile(r"(?:This room|This outside location) is called the ([^.]+)\.")
_DOOR = re.compile(r"[Aa] door to the (.+) \(that is (\w+)\)")
_READ = re.compile(r"The [^.:]* reads:")
_CHOICE = re.compile(r"^(\d+):\t(.*)$", re.MULTILINE)
_INSIDE = re.compile(r"(.*?)\. (?:In|On) the [^.]*? is: (.*)")
_EVERYWHERE = ("the agent", "a substance called air")
"""Things of every room, which no line shows."""

_SHORTER = (
    (re.compile(r"\. The [^.]* door is (open|closed)(?=\. In the)"), r" \1"),
    (re.compile(r"\. The [^.]* door is (open|closed)\. ?"), r" \1"),
    (re.compile(r"\. On the [^.:]* you see: ([^.()]*)\. ?"), r" with \1"),
    (re.compile(r", which is (?:turned )?(\w+)"), r" \1"),
    (re.compile(r", currently reading a temperature of "), " reads "),
    (re.compile(r"\ba substance called "), ""),
    (re.compile(r"\(containing "), "("),
    (re.compile(r"(?<![\w-])[Aa]n? (?=\w)|^the "), ""),
    (re.compile(r"\(nothing\)"), "(empty)"),
    (re.compile(r"\. (?=[),])"), ""),
)


class Room(NamedTuple):
    """A room: its name, the names of its doors, and what can be seen in it."""

    name: str
    doors: tuple[str, ...]
    things: tuple[str, ...]


def short_name(phrase: str) -> str:
    """Return a thing without articles, with what it holds in brackets."""
    phrase = phrase.strip()
    for pattern, replacement in _SHORTER:
        phrase = pattern.sub(replacement, phrase)
    phrase = phrase.strip().rstrip(". ")
    if match := _INSIDE.fullmatch(phrase):
        content = short_name(match[2])
        phrase = f"{match[1]} ({'empty' if content == 'nothing' else content})"
    return " ".join(phrase.split())


def parse_room(text: str) -> Room:
    """Return what the description of a room says.

    Raises:
      ValueError: the text describes no room.
    """
    match = _ROOM.match(text)
    if match is None:
        raise ValueError(f"expected the description of a room, got {text!r:.80}")
    doors, things = [], []
    for line in text.split("\n")[1:]:
        phrase = line.strip()
        if door := _DOOR.fullmatch(phrase):
            doors.append(f"{door[1]} {door[2]}")
        elif line.startswith("\t") and phrase not in _EVERYWHERE:
            things.append(short_name(phrase))
    return Room(match[1], tuple(doors), tuple(things))


def parse_inventory(text: str) -> tuple[str, ...]:
    """Return the things that are carried."""
    names = (short_name(x) for x in text.split("\n") if x.startswith("\t"))
    return tuple(name for name in names if name != "nothing")


def choices(message: str) -> tuple[str, ...]:
    """Return the actions among which the game asks to choose; their places count."""
    if not message.startswith("Ambiguous request"):
        return ()
    return tuple(action.strip() for _, action in _CHOICE.findall(message))


def short_message(message: str) -> str:
    """Return the answer to an action as one line, without what the state shows."""
    if message.startswith(_REDUNDANT):
        return "ok"
    if message.startswith(UNKNOWN):
        return "unknown action"
    if choices(message):
        return "which number"
    return " ".join(message.split()).rstrip(".") or "ok"


def is_refused(message: str) -> bool:
    """Return whether an answer says that the action could not be taken."""
    if choices(message):
        return False
    return message.startswith(UNKNOWN) or _REFUSED.search(message) is not None


def is_revealing(message: str) -> bool:
    """Return whether an action looked into something, or measured it."""
    return "is now open" in message or "measures a temperature" in message


def note(message: str) -> str:
    """Return what the action has read, as one line, or an empty text."""
    return " ".join(message.split()) if _READ.match(message) else ""


def state_lines(
    room: Room,
    inventory: Iterable[str],
    message: str,
    *,
    visited: Iterable[str],
    focus: str = "",
    notes: Iterable[str] = (),
) -> list[str]:
    """Return a state: what is remembered, what is here, then the last answer."""
    return [
        f"visited {', '.join(visited)}",
        f"focus {focus or 'nothing'}",
        *(f"note {note}" for note in notes),
        *(f"door {door}" for door in room.doors),
        *(f"see {thing}" for thing in room.things),
        *([f"carry {thing}" for thing in inventory] or ["carry nothing"]),
        f"at {room.name}",
        *(f"choice {i} {action}" for i, action in enumerate(choices(message))),
        f"said {short_message(message)}",
    ]


PLACES = (
    "art studio",
    "bathroom",
    "bedroom",
    "foundry",
    "greenhouse",
    "hallway",
    "kitchen",
    "living room",
    "outside",
    "sewer",
    "workshop",
)
"""The rooms of the house, and what its sinks drain into."""

_WITH_ONE = (
    "activate ",
    "connect ",
    "deactivate ",
    "disconnect ",
    "flush ",
    "focus on ",
    "pick up ",
    "put down ",
    "read ",
)
"""How actions begin that are listed for all things but rooms."""

_NO_THING = tuple(f" {name}" for name in (*PLACES, "agent", "air", "inventory"))
_VESSEL = re.compile(
    r"mix (?:(?!in |on )[\w-]+ )*?(?:beaker|bowl|cup|jar|jug|pot)"
    r"(?! containing nothing)\b.*"
    r"|pour (?:(?!in |on )[\w-]+ )*?containing (?!nothing).*"
)
"""Vessels that are mixed, and full ones that are poured; not what is in them."""

_TWICE = re.compile(r"\b(\w+) \1\b")
"""A word that the game writes twice: `focus on baby baby brown bear`."""


class Action(NamedTuple):
    """An action that the game lists, and the numbers of the things in it."""

    text: str
    things: tuple[int, ...]


def useful_actions(actions: Iterable[Action], visible: Iterable[int]) -> list[str]:
    """Return those of a game's thousands of actions that may help, in a fixed order.

    The game lists actions with things in closed containers, too, which it then does not
    take. Left out are further looks at what the state shows, what is done with rooms,
    and of actions with two things those in which the first is not carried. But what the
    room holds may be moved to a box, as the tasks ask, and poured from a full vessel.

    Args:
      actions: every action that the game lists.
      visible: the numbers of the things in the room that can be seen.
    """
    actions = tuple(actions)
    carried = {a.things[0] for a in actions if a.text.startswith("put down ")}
    reachable = carried.union(visible)
    texts = {
        _TWICE.sub(r"\1", action.text).replace(" into ", " in ")
        for action in actions
        if action.text.startswith("teleport to ")
        or (reachable.issuperset(action.things) and _is_useful(action, carried))
    }
    return sorted(texts)


def _is_useful(action: Action, carried: set[int]) -> bool:
    text, things = action
    if text.startswith("go to "):
        return "door" not in text  # "go to door to ROOM" is "go to ROOM"
    if text.startswith(("close ", "open ", "wait")):
        return True
    if text.endswith(_NO_THING) and not text.endswith(" in inventory"):
        return False
    if text.startswith(_WITH_ONE) or (text.startswith("move ") and text[-4:] == " box"):
        return True
    if text.startswith(("move ", "pour ", "dunk ", "use ")) and things[0] in carried:
        return True
    return _VESSEL.fullmatch(text) is not None
