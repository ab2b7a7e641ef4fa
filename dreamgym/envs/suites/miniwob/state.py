"""The text of a web page: its elements as numbered lines, and what can be done there.

tree of visible DOM nodes (page.js) -> elements -> lines of state:
  text WORDS                what can only be read, a line for each block
  3 button Login            what can be used begins with its number and its kind
  4 input Username = ann    the value of a text field stands last
  5 box tVd9 off            a check box or radio button is on or off
  6 select = Cuba           a list, with a line `6 option NAME` for each choice
  said MESSAGE              of the last action: `ok`, `no such element`, ...
A number belongs to an element for the whole episode, in the order in which elements
were first seen. What has a text and is clicked as a whole, such as a row of a list, is
one line. Actions are `click N`, `type N TEXT` (in place of the old text) and
`select N OPTION`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.records import State

Node = Mapping[str, Any]

FIELDS = {"text": "input", "search": "input", "checkbox": "box", "textarea": "area"}
"""The kinds of controls whose type has another name here."""

SWITCHES = ("box", "radio")
NO_TEXT = (*SWITCHES, "button", "submit", "reset", "image", "range", "color")
"""Kinds of controls into which nothing is typed."""

KINDS = {
    "ui-tabs-anchor": "tab",
    "ui-accordion-header": "section",
    "ui-menu-item": "choice",
    "folder": "folder",
    "alink": "link",
}
"""The kinds of elements by a class of theirs."""

DUPLICATES = ("hitarea",)
"""Classes of elements whose neighbour does the same."""

STATES = ("clicked", "active", "selected")
"""Classes that say what became of an icon."""

MAX_LABEL_WORDS = 4
"""Words of a text before a field that has no name, which is then called so."""

MAX_NAME = 200
"""Characters of a line's text; what is longer is cut."""

MAX_TEXTS = 8
"""Texts that `valid_actions` types into a field."""

MAX_ACTIONS = 64
"""Actions that `valid_actions` lists."""

_ACTION = re.compile(r"(click|type|select) (\d{1,4})(?: (.+))?")
_DATE = re.compile(r"(\d\d)/(\d\d)/(\d{4})")
_DATE_TEXT = re.compile(r"\d\d/\d\d/\d{4}")


class Element(NamedTuple):
    """What a line of a page tells of; `ref` is None where nothing can be done."""

    ref: int | None
    kind: str
    name: str
    value: str | None = None
    options: tuple[str, ...] = ()
    disabled: bool = False
    readonly: bool = False
    node: int = -1

    @property
    def takes_text(self) -> bool:
        """Whether a text can be typed into it."""
        field = self.value is not None and self.kind not in (*NO_TEXT, "select")
        return field and not self.readonly and not self.disabled

    def lines(self) -> list[str]:
        """Return the line of the element, and one for each option."""
        words = [] if self.ref is None else [str(self.ref)]
        words += [self.kind, self.name] if self.name else [self.kind]
        if self.kind in SWITCHES:
            words.append(str(self.value))
        elif self.value is not None:
            words += ["=", self.value] if self.value else ["="]
        if self.disabled:
            words.append("disabled")
        options = [f"{self.ref} option {option}" for option in self.options]
        return [" ".join(words), *options]


class Command(NamedTuple):
    """An action that can be done: what, to which element, with which text."""

    verb: str
    element: Element
    text: str


def page_elements(tree: Node, refs: dict[int, int]) -> tuple[Element, ...]:
    """Return the elements of a page in their order.

    Args:
      tree: the body as page.js describes it.
      refs: the number of each node seen in this episode; new ones are added.
    """
    reader = _Reader(refs)
    reader.read(tree)
    reader.end_text()
    return tuple(reader.elements)


def page_state(elements: Sequence[Element], message: str) -> State:
    """Return the lines of a state."""
    return (*(line for e in elements for line in e.lines()), f"said {message}")


class _Reader:
    """Walks through a page; neighbouring words become one text."""

    def __init__(self, refs: dict[int, int]):
        self.elements: list[Element] = []
        self._refs, self._words = refs, list[str]()

    def end_text(self) -> None:
        """Add the words read so far as one element."""
        text = _clean(" ".join(self._words))
        self._words.clear()
        if text:
            self.elements.append(Element(None, "text", text))

    def read(self, node: Node | str) -> None:
        """Add the elements of a node and of what is in it."""
        if isinstance(node, str):
            self._words.append(node)
        elif _is_control(node):
            self._add_control(node)
        elif node.get("click"):
            self._add_item(node)
        elif node["tag"] == "label" and (controls := list(_controls(node))):
            for control in controls:  # its text is the name of its control
                self.read(control)
        else:
            inline = node.get("inline", False)
            if not inline:
                self.end_text()
            for child in node.get("children", ()):
                self.read(child)
            if not inline:
                self.end_text()

    def _add_control(self, node: Node) -> None:
        tag = node["tag"]
        if tag in ("a", "button"):
            self._add(node, _kind(node, "link" if tag == "a" else tag), _text(node))
            return
        kind = node.get("type", tag)
        value = _clean(node.get("value", ""))
        if kind in ("button", "submit", "reset"):
            self._add(node, "button", value)
            return
        name = self._label_before(_clean(node.get("label") or ""))
        name = name or _clean(node.get("placeholder") or "")
        if kind in ("checkbox", "radio"):
            name = name or value
            value = "on" if node.get("checked") else "off"
        name = name or ("" if kind == "select-one" else node.get("id", ""))
        options = tuple(_clean(option) for option in node.get("options", ()))
        self._add(node, FIELDS.get(kind, kind), name, value, options)

    def _label_before(self, label: str) -> str:
        """Return the name of a field: its label, or the short text before it.

        A text that is the name stands in no line of its own.
        """
        self.end_text()
        last = self.elements[-1] if self.elements else None
        if last is None or last.kind != "text":
            return label
        if label in ("", last.name) and len(last.name.split()) <= MAX_LABEL_WORDS:
            return self.elements.pop().name
        return label

    def _add_item(self, node: Node) -> None:
        """Add what listens to clicks, and then what in it does by itself."""
        text = _text(node, outside_controls=True)
        inner = list(_controls(node))
        if text or not inner:
            self._add(node, _kind(node, "item" if text else "icon"), text)
        for child in inner:
            self.read(child)

    def _add(
        self,
        node: Node,
        kind: str,
        name: str,
        value: str | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        classes = node.get("class", "").split()
        if not name and value is None:
            if node.get("small") or set(classes) & set(DUPLICATES):
                return
            states = [c for c in classes if c in STATES]
            styles = [c for c in classes if c not in STATES]
            name = " ".join([*styles[:1], *states]) or node.get("id", "")
        self.end_text()
        number = self._refs.setdefault(node["node"], len(self._refs) + 1)
        self.elements.append(
            Element(
                number,
                kind,
                name,
                value,
                options,
                bool(node.get("disabled")),
                bool(node.get("readonly")),
                node["node"],
            )
        )


def _is_control(node: Node) -> bool:
    return node["tag"] in ("input", "textarea", "select", "button", "a")


def _controls(node: Node) -> Iterator[Node]:
    """The outermost nodes below a node that can be used by themselves."""
    for child in node.get("children", ()):
        if isinstance(child, str):
            continue
        if _is_control(child) or child.get("click"):
            yield child
        else:
            yield from _controls(child)


def _text(node: Node | str, *, outside_controls: bool = False) -> str:
    """The text in a node, on request without that of controls in it."""

    def words(node: Node | str) -> Iterator[str]:
        if isinstance(node, str):
            yield node
            return
        for child in node.get("children", ()):
            usable = not isinstance(child, str) and (
                _is_control(child) or child.get("click")
            )
            if not (usable and outside_controls):
                yield from words(child)

    return _clean(" ".join(words(node)))


def _clean(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_NAME else text[:MAX_NAME].rstrip() + " .."


def _kind(node: Node, usual: str) -> str:
    classes = node.get("class", "").split()
    return next((KINDS[c] for c in classes if c in KINDS), usual)


def command(action: str, elements: Sequence[Element]) -> Command | str:
    """Return what an action does on a page, or the message of its refusal."""
    match = _ACTION.fullmatch(" ".join(action.split()))
    if match is None:
        return "unknown action"
    verb, number, text = match[1], int(match[2]), match[3] or ""
    element = next((e for e in elements if e.ref == number), None)
    if element is None:
        return "no such element"
    if element.disabled:
        return "it is disabled"
    if verb == "click" and text:
        return "unknown action"
    if verb == "type" and not element.takes_text:
        return "no text goes there"
    if verb == "type" and not text:
        return "nothing to type"
    if verb == "select" and text not in element.options:
        return "no such option"
    return Command(verb, element, text)


def valid_actions(instruction: str, elements: Sequence[Element]) -> list[str]:
    """Return actions that a page takes: clicks, options, texts of the instruction."""
    texts = candidate_texts(instruction, elements)
    out = []
    for element in elements:
        if element.ref is None or element.disabled:
            continue
        if element.options:
            others = [o for o in element.options if o != element.value]
            out += [f"select {element.ref} {option}" for option in others]
        elif element.takes_text:
            form = iso_date if element.kind == "date" else str
            typed = [form(text) for text in texts if form(text) != element.value]
            out += [f"type {element.ref} {text}" for text in typed if text]
        else:
            out.append(f"click {element.ref}")
    return out[:MAX_ACTIONS]


def iso_date(text: str) -> str:
    """Return a date such as 12/31/2016 as a date field takes it; "" for other texts."""
    match = _DATE.fullmatch(text)
    return f"{match[3]}-{match[1]}-{match[2]}" if match else ""


def quoted(instruction: str) -> list[str]:
    """Return the texts between double quotes, in their order."""
    return re.findall(r'"([^"]+)"', instruction)


def candidate_texts(instruction: str, elements: Sequence[Element]) -> list[str]:
    """Return texts that a task may want in a field, at most MAX_TEXTS.

    These are what is quoted in the instruction, else its dates, numbers and names, then
    its other words; and words that can only be read on the page, where a task names
    nothing.
    """
    names = quoted(instruction)
    rest = _DATE.sub(" ", re.sub(r'"[^"]+"', " ", instruction))
    names += _DATE_TEXT.findall(instruction)
    names += re.findall(r"(?<=\s)(?:[A-Z]\w*|\d+)(?=[\s.,])", rest)
    if not names:
        lines = [e.name for e in elements if e.kind == "text"]
        names = [word for line in lines for word in reversed(line.split())]
    elif not quoted(instruction):
        names += re.findall(r"[a-z]{4,}", rest)
    return list(dict.fromkeys(names))[:MAX_TEXTS]
