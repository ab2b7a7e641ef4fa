"""A finite automaton of strict actions: calls of known tools as JSON, or an answer.

schemas of tools -> a non-deterministic automaton over bytes -> a deterministic one.

It accepts, behind one blank,
  NAME {"argument": value, ...}       one such call a line, of tools that are known
  answer {"content": "text"}
as `json.dumps` writes them: arguments in the order of the schema, required ones
present, values of the types and enumerations that the schema names. What a schema does
not say is any JSON value, nested at most MAX_DEPTH deep, because a finite automaton
cannot count brackets. Numbers have no exponent, which could overflow.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from worldmodel.text.identifiers import words
from worldmodel.text.tools.json_schemas import TYPES, both, value_fits
from worldmodel.text.tools.tool_calls import ANSWER, CONTENT, NAME
from worldmodel.text.tools.tool_schemas import ToolSchema

WORD = 256
"""The symbol, besides the 256 bytes, of a reference: a word inside a text."""
SYMBOLS = 257

MAX_DEPTH = 2
"""The most lists and objects inside each other in a value that no schema describes."""

SCALARS = ("string", "number", "boolean", "null")
_DIGITS = b"0123456789"
_ESCAPED = b'"\\/bfnrt'
_IN_TEXT = bytes(b for b in range(0x20, 256) if b not in b'"\\')


class ByteAutomaton(NamedTuple):
    """A deterministic automaton: `next_state[s, symbol]` is -1 where none follows.

    State 0 is the first one. `final` states may end the text. `literals` are the words
    of names and enumerations, which are written letter by letter.
    """

    next_state: Int[np.ndarray, "S 257"]
    final: Bool[np.ndarray, " S"]
    literals: frozenset[str]


def action_automaton(tools: Mapping[str, ToolSchema]) -> ByteAutomaton:
    """Return the automaton of the actions that these tools allow.

    Raises:
      ValueError: a tool has the name of the answer, or one that `read_action` does not
        read.
    """
    nfa = _Nfa()
    first, line, done, answered = (nfa.state() for _ in range(4))
    nfa.literal(first, " ", line)
    nfa.literal(done, "\n", line)
    for tool in tools.values():
        if tool.name == ANSWER or not _readable(tool.name):
            raise ValueError(
                f"tool {tool.name!r}: expected a name of letters, digits, '_', '.', "
                f"'/' and '-' that begins with a letter or '_', and is not {ANSWER!r}"
            )
        unlisted = sorted(tool.required - set(tool.parameters))
        if unlisted and tool.others is False:
            raise ValueError(
                f"tool {tool.name!r} requires the argument {unlisted[0]!r}, which its "
                "schema does not list: no call of it would be valid"
            )
        parameters = {"type": "object", "properties": tool.parameters}
        parameters |= {"required": sorted(tool.required)}
        parameters |= {"additionalProperties": tool.others}
        arguments = nfa.literal(line, f"{tool.name} ")
        nfa.value(arguments, parameters, done, MAX_DEPTH + 1)
    content = nfa.literal(nfa.literal(first, " "), f'{ANSWER} {{"{CONTENT}": ')
    closing = nfa.state()
    nfa.value(content, {"type": "string"}, closing)
    nfa.literal(closing, "}", answered)
    return nfa.determinized(first, {done, answered}, _literals(tools.values()))


def _readable(name: str) -> bool:
    return re.fullmatch(NAME, name, re.ASCII) is not None


def _literals(tools: Iterable[ToolSchema]) -> frozenset[str]:
    """Return the words of names, arguments and enumerations."""
    out = {ANSWER, CONTENT}

    def add(schema: Any) -> None:
        if not isinstance(schema, Mapping):
            return
        properties = schema.get("properties", {})
        out.update(w for name in properties for w in words(name))
        values = [*schema.get("enum", ()), schema.get("const", "")]
        out.update(w for value in values for w in words(str(value)))
        options = [x for key in ("anyOf", "oneOf") for x in schema.get(key, ())]
        parts = [schema.get(key) for key in ("items", "additionalProperties")]
        for part in (*properties.values(), *options, *parts):
            add(part)

    for tool in tools:
        out.update(words(tool.name))
        add({"properties": tool.parameters})
    return frozenset(out)


class _Nfa:
    """A non-deterministic automaton; its methods add paths between two states."""

    def __init__(self):
        self.edges: list[dict[int, set[int]]] = []
        self.silent: list[set[int]] = []

    def state(self) -> int:
        """Add a state."""
        self.edges.append({})
        self.silent.append(set())
        return len(self.edges) - 1

    def edge(self, start: int, symbols: Iterable[int], end: int) -> None:
        """Let each of the symbols lead from one state to another."""
        for symbol in symbols:
            self.edges[start].setdefault(symbol, set()).add(end)

    def literal(self, start: int, text: str, end: int | None = None) -> int:
        """Let a text lead to `end`, or to a new state; return it."""
        *before, last = text.encode()
        for byte in before:
            following = self.state()
            self.edge(start, [byte], following)
            start = following
        end = self.state() if end is None else end
        self.edge(start, [last], end)
        return end

    def value(self, start: int, schema: Any, end: int, depth: int = MAX_DEPTH) -> None:
        """Let every value of a JSON schema lead from one state to another."""
        if schema is False:
            return
        schema = schema if isinstance(schema, Mapping) else {}
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                rest = {k: v for k, v in schema.items() if k != key}
                for option in schema[key]:
                    self.value(start, both(rest, option), end, depth)
                return
        if "enum" in schema or "const" in schema:
            for literal in schema.get("enum", [schema.get("const")]):
                if value_fits(literal, schema):
                    self.literal(start, json.dumps(literal, ensure_ascii=False), end)
            return
        kinds = schema.get("type")
        if kinds is None:
            kinds = TYPES if depth else SCALARS
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            self._kind(start, kind, schema, end, depth)

    def _kind(
        self, start: int, kind: str, schema: Mapping[str, Any], end: int, depth: int
    ) -> None:
        if kind in ("boolean", "null"):
            for word in ("true", "false") if kind == "boolean" else ("null",):
                self.literal(start, word, end)
        elif kind in ("integer", "number"):
            self._number(start, end, fraction=kind == "number")
        elif kind == "array":
            self._array(start, schema.get("items", {}), end, max(depth - 1, 0))
        elif kind == "object":
            self._object(start, schema, end, max(depth - 1, 0))
        else:
            self._text(start, end)

    def _text(self, start: int, end: int) -> None:
        inside, escaped = self.literal(start, '"'), self.state()
        self.edge(inside, [*_IN_TEXT, WORD], inside)
        self.edge(inside, b"\\", escaped)
        self.edge(escaped, _ESCAPED, inside)
        self.edge(inside, b'"', end)

    def _number(self, start: int, end: int, *, fraction: bool) -> None:
        sign, zero, digits = self.state(), self.state(), self.state()
        self.edge(start, b"-", sign)
        for before in (start, sign):
            self.edge(before, b"0", zero)
            self.edge(before, _DIGITS[1:], digits)
        self.edge(digits, _DIGITS, digits)
        ends = [zero, digits]
        if fraction:
            point, decimals = self.state(), self.state()
            for before in (zero, digits):
                self.edge(before, b".", point)
            self.edge(point, _DIGITS, decimals)
            self.edge(decimals, _DIGITS, decimals)
            ends.append(decimals)
        for state in ends:  # a number ends where something else follows
            self.silent[state].add(end)

    def _array(self, start: int, items: Any, end: int, depth: int) -> None:
        opened, item = self.literal(start, "["), self.state()
        self.literal(opened, "]", end)
        self.value(opened, items, item, depth)
        self.literal(item, "]", end)
        self.value(self.literal(item, ", "), items, item, depth)

    def _object(
        self, start: int, schema: Mapping[str, Any], end: int, depth: int
    ) -> None:
        properties = dict(schema.get("properties", {}))
        required = set(schema.get("required", ()))
        others = schema.get("additionalProperties", True)
        for name in sorted(required - properties.keys()):
            properties[name] = others
        names = [name for name, x in properties.items() if x is not False]
        if not required <= set(names):
            return
        opened = self.literal(start, "{")
        # After argument i come all arguments up to the next required one, or the end.
        after = [opened, *(self.state() for _ in names)]
        for i, before in enumerate(after):
            comma = ", " if i else ""
            for j, name in enumerate(names[i:], i):
                key = json.dumps(name, ensure_ascii=False)
                value = self.literal(before, f"{comma}{key}: ")
                self.value(value, properties[name], after[j + 1], depth)
                if name in required:
                    break
            else:
                self.literal(before, "}", end)
        rest = schema.get("additionalProperties", not properties)
        if rest is not False:
            self._further(opened, after[-1], rest, end, depth, empty=not names)

    def _further(
        self, opened: int, last: int, rest: Any, end: int, depth: int, *, empty: bool
    ) -> None:
        """Let arguments of any name follow those that are listed."""
        entry = self.state()
        key = opened if empty else self.literal(last, ", ")
        for before in (key, self.literal(entry, ", ")):
            named = self.state()
            self._text(before, named)
            self.value(self.literal(named, ": "), rest, entry, depth)
        self.literal(entry, "}", end)

    def determinized(
        self, first: int, final: set[int], literals: frozenset[str]
    ) -> ByteAutomaton:
        """Return the deterministic automaton (subset construction)."""
        live = self._live(final)
        start = self._closure({first}) & live
        numbers, rows, queue = {start: 0}, [], [start]
        for states in queue:
            row = np.full(SYMBOLS, -1, np.int32)
            for symbol in {s for state in states for s in self.edges[state]}:
                targets = (self.edges[state].get(symbol, set()) for state in states)
                following = self._closure(set().union(*targets)) & live
                if not following:
                    continue
                if following not in numbers:
                    numbers[following] = len(numbers)
                    queue.append(following)
                row[symbol] = numbers[following]
            rows.append(row)
        return ByteAutomaton(
            np.stack(rows),
            np.array([bool(states & final) for states in queue]),
            literals,
        )

    def _live(self, final: set[int]) -> frozenset[int]:
        """Return the states from which a final one can be reached."""
        before: list[set[int]] = [set() for _ in self.edges]
        for state, edges in enumerate(self.edges):
            for target in set().union(self.silent[state], *edges.values()):
                before[target].add(state)
        out, waiting = set(final), list(final)
        while waiting:
            for state in before[waiting.pop()] - out:
                out.add(state)
                waiting.append(state)
        return frozenset(out)

    def _closure(self, states: set[int]) -> frozenset[int]:
        out, waiting = set(states), list(states)
        while waiting:
            for state in self.silent[waiting.pop()] - out:
                out.add(state)
                waiting.append(state)
        return frozenset(out)
