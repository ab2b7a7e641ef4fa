"""What an agent knows of a household: the game's sentences -> lines of state.

unseen cabinet 2, drawer 1     places whose contents were never seen, in their order
fridge 1 closed                a place that was opened and closed again
fridge 1 open egg 1, mug 2     what was seen there last; `nothing`
shelf 1 has book 1             a place that cannot be opened
mug 2 is clean                 what was done to a thing
carry mug 2                    or `nothing`
at shelf 1                     or `middle of the room`
said You arrive at shelf 1     the first sentence of the last answer
"""

import re

_ITEM = re.compile(r"\ban? ([a-z]+ \d+)")
_ARRIVE = re.compile(r"You arrive at ([a-z]+ \d+)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_OPENED = re.compile(r"The ([a-z]+ \d+) is open\. In it, you see ([^.]*)\.")
_ON = re.compile(r"On the ([a-z]+ \d+), you see ([^.]*)\.")
_CLOSE = re.compile(r"You close the ([a-z]+ \d+)\.")
_TAKE = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_PUT = re.compile(r"You move the ([a-z]+ \d+) to the ([a-z]+ \d+)\.")
_TREAT = re.compile(r"You (heat|clean|cool) the ([a-z]+ \d+) using")
_SWITCH = re.compile(r"You turn (on|off) the ([a-z]+ \d+)\.")
_SLICE = re.compile(r"You sliced the ([a-z]+ \d+) with")
_ADJECTIVES = {"heat": "hot", "clean": "clean", "cool": "cool"}
_OPPOSITES = {"hot": "cool", "cool": "hot", "on": "off", "off": "on"}
_SENTENCE = re.compile(r"[^.\n]*")
REFUSAL = "Nothing happens"


class Household:
    """What was seen so far, from the game's first text on."""

    def __init__(self, introduction: str):
        """Read the places of a room from the game's first text."""
        places, _, request = introduction.partition("Your task is to:")
        self.request = request.strip().rstrip(".")
        self._unseen = sorted(_ITEM.findall(places), key=_order)
        self._contents: dict[str, list[str]] = {}
        self._lids: dict[str, bool] = {}  # whether it is open, where that is known
        self._attributes: dict[str, set[str]] = {}
        self._carried = self._at = ""
        self._message = "welcome"

    def read(self, text: str) -> bool:
        """Read an answer; return whether it shows what could not be known before."""
        self._message = _SENTENCE.match(text)[0]  # type: ignore[index]  # maybe empty
        before = len(self._unseen), set(self._lids)
        if match := _ARRIVE.search(text):
            self._at = match[1]
        for match in _CLOSED.finditer(text):
            self._lids[match[1]] = False
        for match in _OPENED.finditer(text):
            self._lids[match[1]] = True
            self._see(match[1], match[2])
        for match in _ON.finditer(text):
            self._see(match[1], match[2])
        if match := _CLOSE.search(text):
            self._lids[match[1]] = False
        if match := _TAKE.search(text):
            self._carried = match[1]
            self._contents[match[2]].remove(match[1])
        if match := _PUT.search(text):
            self._carried = ""
            self._contents.setdefault(match[2], []).append(match[1])
        if match := _TREAT.search(text):
            self._add_attribute(match[2], _ADJECTIVES[match[1]])
        if match := _SWITCH.search(text):
            self._add_attribute(match[2], match[1])
        if match := _SLICE.search(text):
            self._add_attribute(match[1], "sliced")
        return (len(self._unseen), set(self._lids)) != before

    def _see(self, place: str, listing: str) -> None:
        if place in self._unseen:
            self._unseen.remove(place)
        self._contents[place] = _ITEM.findall(listing)

    def _add_attribute(self, thing: str, attribute: str) -> None:
        attributes = self._attributes.setdefault(thing, set())
        attributes.discard(_OPPOSITES.get(attribute, ""))
        attributes.add(attribute)

    def lines(self) -> list[str]:
        """Return the state as lines."""
        places = sorted({*self._contents, *self._lids}, key=_order)
        return [
            f"unseen {', '.join(self._unseen) or 'nothing'}",
            *(self._place_line(place) for place in places),
            *(
                f"{thing} is {' '.join(sorted(attributes))}"
                for thing, attributes in sorted(self._attributes.items())
            ),
            f"carry {self._carried or 'nothing'}",
            f"at {self._at or 'middle of the room'}",
            f"said {self._message}",
        ]

    def _place_line(self, place: str) -> str:
        things = ", ".join(sorted(self._contents.get(place, []), key=_order))
        if place not in self._lids:
            return f"{place} has {things or 'nothing'}"
        if place not in self._contents:
            return f"{place} closed"
        lid = "open" if self._lids[place] else "closed"
        return f"{place} {lid} {things or 'nothing'}"


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(" ")
    return kind, int(number)
