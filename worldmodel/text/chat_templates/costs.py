"""What the operations of a template cost: the sizes of what they read and may write.

values -> their sizes -> a cost, which is taken from a budget before the operation

Sizes are those of the written-out value, as if nothing in it were shared: texts of it
and comparisons take as long as that. An operation that can write more than it reads
(`replace`, `join`, `*`, `indent`, formats) costs the product of the sizes.
"""

import re
import string
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

import jinja2
import jinja2.utils

MAX_OPERATION = 10_000_000
"""The most that one operation may cost: nothing can stop it once it has begun."""

MAX_RENDERING = 50_000_000
"""The most that a rendering may cost: seconds. A character that is read or written
costs 1, a part of a list or dict and a node of the syntax tree cost PART."""

PART = 16

# Filters and tests that look at a value without reading it through.
CONSTANT = {
    "filter": frozenset(["count", "d", "default", "first", "last", "length"]),
    "test": frozenset(
        "boolean callable defined escaped false filter float integer iterable mapping "
        "none number sameas sequence string test true undefined".split()
    ),
}
# Filters that read their value through, and write about as much.
LINEAR = frozenset(
    "abs capitalize dictsort e escape float forceescape groupby int items list lower "
    "map max min reject rejectattr reverse round safe select selectattr sort string "
    "title unique upper".split()
)
# Filters that may write the product of what they read.
PRODUCT = frozenset("batch center format indent join replace slice trim".split())


class Budget:
    """What a rendering may still cost."""

    def __init__(self):
        self.left = MAX_RENDERING

    def spend(self, cost: int, what: str) -> None:
        """Take the cost of an operation, before it is done.

        Raises:
          TemplateError: of Jinja: it costs too much.
        """
        if cost > MAX_OPERATION:
            size = f"{cost:,}" if cost < 10**15 else "more than 10^15"
            raise jinja2.TemplateError(
                f"{what} is too large: it costs {size}, and an operation may cost "
                f"{MAX_OPERATION:,}"
            )
        self.left -= cost
        if self.left < 0:
            raise jinja2.TemplateError(
                f"it computes too much: at {what} nothing is left of {MAX_RENDERING:,}"
            )

    def size(self, value: Any, what: str) -> int:
        """Return the size of a value as if nothing in it were shared.

        Raises:
          TemplateError: of Jinja: it is larger than an operation may be.
        """
        if type(value) is str:
            return PART + len(value)
        total, parts = 0, [value]
        while parts:
            part = parts.pop()
            total += PART
            if isinstance(part, str):
                total += len(part)
            elif isinstance(part, int):
                total += part.bit_length()
            elif isinstance(part, range):
                total += PART * len(part)
            else:
                parts += _parts(part)
            if total + PART * len(parts) > MAX_OPERATION:
                raise jinja2.TemplateError(
                    f"{what} is too large: it has more than {MAX_OPERATION:,} "
                    f"characters, or {MAX_OPERATION // PART:,} parts"
                )
        return total

    def watch(self, items: Iterable[Any], what: str) -> Iterator[Any]:
        """Yield items that are computed one by one, and spend their sizes."""
        for item in items:
            self.spend(self.size(item, what), what)
            yield item


def _parts(value: Any) -> list[Any]:
    """Return the parts of a container; none of anything else."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)):
        return [*value]
    if isinstance(value, jinja2.utils.Namespace):
        return [*object.__getattribute__(value, "_Namespace__attrs").values()]
    return []


def depth(value: Any) -> int:
    """Return how deep the containers in a value are nested."""
    level, count = [value], 0
    while level:
        level = [part for outer in level for part in _parts(outer)]
        count += 1
    return count


def weight(value: Any, budget: Budget, what: str) -> int:
    """Return how many times an argument may repeat what an operation reads."""
    if value is None or isinstance(value, int):
        return abs(value or 0)
    return len(value) if isinstance(value, str) else budget.size(value, what)


def check_numbers(name: str, values: list[Any], what: str) -> None:
    """Refuse numbers that make a large result of small values."""
    # Jinja computes `value % number`, which formats where the value is a text.
    if name in ("odd", "even", "divisibleby"):
        if not all(isinstance(x, (int, float)) for x in values):
            raise jinja2.TemplateError(f"{what} takes numbers")
    if name == "round" and any(isinstance(x, int) and abs(x) > 99 for x in values[1:]):
        raise jinja2.TemplateError(f"{what} is too large: at most 99 digits")


def filter_cost(name: str, values: list[Any], budget: Budget, what: str) -> int:
    """Return what a filter or a test costs."""
    cost = budget.size(values[0], what) if values else PART
    if name == "format":  # of the text of anything
        return cost + _percent_cost(str(values[0]), values[1:], budget, what)
    if name not in PRODUCT:
        return cost + sum(budget.size(x, what) for x in values[1:])
    return cost * (1 + sum(weight(x, budget, what) for x in values[1:]))


# Flags, width and precision of "%(name)-5.2f".
_PERCENT = re.compile(r"%(?:\([^()]*\))?([-#0 +.\d*]+)")


def _percent_cost(text: str, values: Iterable[Any], budget: Budget, what: str) -> int:
    """Return the cost of a text with fields as in "%5.2f"."""
    fields = _PERCENT.findall(text)
    if any("*" in field for field in fields):
        raise jinja2.TemplateError(f"{what} is too large: its width is computed")
    return _format_cost(text, fields, values, budget, what)


def _braces_cost(text: str, values: Iterable[Any], budget: Budget, what: str) -> int:
    """Return the cost of a text with fields as in "{:5.2f}"."""
    fields = [spec or "" for _, _, spec, _ in string.Formatter().parse(text)]
    if any("{" in field for field in fields):
        raise jinja2.TemplateError(f"{what} is too large: its width is computed")
    return _format_cost(text, fields, values, budget, what)


def _format_cost(
    text: str, fields: list[str], values: Iterable[Any], budget: Budget, what: str
) -> int:
    # Of a long number the first digits are enough to be too many.
    widths = [int(n[:12]) for field in fields for n in re.findall(r"\d+", field)]
    size = sum(budget.size(x, what) for x in values)
    return budget.size(text, what) * (1 + size + max(widths, default=0))


def operation_cost(
    operator: str, left: Any, right: Any, budget: Budget, what: str
) -> int:
    """Return what an operation costs: its result can be as large."""
    sizes = budget.size(left, what), budget.size(right, what)
    whole = isinstance(left, int), isinstance(right, int)
    if operator == "%" and isinstance(left, str):
        return _percent_cost(left, [right], budget, what)
    if operator == "**" and all(whole):
        bits = (left.bit_length() + 1) * abs(right)
        return PART + bits * bits
    if operator in ("*", "//", "%") and all(whole):
        return PART + left.bit_length() * right.bit_length()
    repeats = ((left, right, sizes[1]), (right, left, sizes[0]))
    for times, value, size in repeats if operator == "*" else ():
        if isinstance(times, int) and not isinstance(value, float):  # a text or a list
            return PART + size * abs(times)
    return sum(sizes)


def method_cost(
    owner: Any, name: str, values: list[Any], budget: Budget, what: str
) -> int:
    """Return what a method costs: of a text the product of the sizes."""
    if isinstance(owner, str):
        if name in ("format", "format_map"):
            return _braces_cost(owner, values, budget, what)
        weights = sum(weight(x, budget, what) for x in values)
        return budget.size(owner, what) * (1 + weights)
    cost = sum(budget.size(x, what) for x in values)
    if name in ("copy", "count", "index"):
        cost += budget.size(owner, what)
    return PART + cost
