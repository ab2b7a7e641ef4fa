"""Functions over a store: read, list, create, set, move, delete and transfer.

a scenario -> functions with signatures; a function, a store and checked arguments ->
the store changed in place, and what the caller is told. A call that cannot be made
raises ValueError or LookupError and changes nothing.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.envs.suites.scenario.entities import (
    NOTHING,
    EntityType,
    Field,
    Row,
    Scenario,
    Store,
    copy_store,
)
from dreamgym.envs.tools.signatures import Argument, Signature
from worldmodel.data.hashing import content_seed
from worldmodel.text.tools.tool_calls import Call

VERBS = {
    "get": ("get", "show", "read"),
    "list": ("list", "search"),
    "create": ("create", "add", "register"),
    "set": ("set", "change", "update"),
    "move": ("move", "send", "bring"),
    "delete": ("delete", "remove", "drop"),
    "transfer": ("transfer", "shift", "hand_over"),
}
"""Verbs of each operation; a scenario has one of them."""

READS = ("get", "list")
WRITES = 4
"""Functions of a scenario that change something; the others read."""

NAME = "name"
NAME_FORM = re.compile(r"[A-Z][a-z]+")
MAX_NAME_LETTERS = 40
MAX_NUMBER = 10**9
"""Bounds of what an agent may write into a store."""

SOURCE, TARGET, AMOUNT = "source", "target", "amount"
"""Arguments of a transfer."""


class Function(NamedTuple):
    """An operation on entities of a type, and on one of its fields where it has one."""

    operation: str
    entity: EntityType
    signature: Signature
    row_types: Mapping[str, str]
    """The entity types of the arguments that name an entity which is there."""
    field: Field | None = None

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.signature.name

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return self.operation in READS

    def run(self, store: Store, arguments: Mapping[str, Any]) -> str:
        """Change the store, and return what the function says.

        Raises:
          LookupError: there is no such entity.
          ValueError: the call cannot be made.
        """
        for name, row_type in self.row_types.items():
            if arguments[name] not in store[row_type]:
                raise LookupError(f"no {row_type} is named {arguments[name]!r:.80}")
        for value in arguments.values():
            if type(value) is int and abs(value) > MAX_NUMBER:
                raise ValueError(f"a number must be at most {MAX_NUMBER}")
        return _OPERATIONS[self.operation](self, store, arguments)


def run_calls(
    functions: Mapping[str, Function], store: Store, calls: Sequence[Call]
) -> Store:
    """Return a copy of the store after some calls.

    Raises:
      LookupError, ValueError: one of them cannot be made.
    """
    result = copy_store(store)
    for call in calls:
        functions[call.tool].run(result, call.arguments)
    return result


def describe(row: Row) -> str:
    """Return the values of an entity: "weight 7, colour red, depot Kire"."""
    return ", ".join(f"{name} {write_value(value)}" for name, value in row.items())


def write_value(value: Any) -> str:
    """Return a value as texts show it: as JSON, and a text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _get(function: Function, store: Store, arguments: Mapping[str, Any]) -> str:
    return describe(store[function.entity.name][arguments[NAME]])


def _list(function: Function, store: Store, arguments: Mapping[str, Any]) -> str:
    assert function.field is not None
    relation, rows = function.field.name, store[function.entity.name]
    names = [name for name in rows if rows[name][relation] == arguments[relation]]
    return ", ".join(names) if names else NOTHING


def _create(function: Function, store: Store, arguments: Mapping[str, Any]) -> str:
    row = dict(arguments)
    name = row.pop(NAME)
    if not NAME_FORM.fullmatch(name) or len(name) > MAX_NAME_LETTERS:
        raise ValueError("a name is a capital letter with small ones, such as Ruzu")
    if any(name in rows for rows in store.values()):
        raise ValueError(f"the name {name} is taken")
    order = [field.name for field in function.entity.fields]
    store[function.entity.name][name] = {key: row[key] for key in order}
    return ""


def _set(function: Function, store: Store, arguments: Mapping[str, Any]) -> str:
    assert function.field is not None
    row = store[function.entity.name][arguments[NAME]]
    row[function.field.name] = arguments[function.field.name]
    return ""


def _delete(function: Function, store: Store, arguments: Mapping[str, Any]) -> str:
    entity, name = function.entity.name, arguments[NAME]
    for other, rows in store.items():
        if any(row.get(entity) == name for row in rows.values()):
            raise ValueError(f"{entity} {name} has a {other}")
    del store[entity][name]
    return ""


def _transfer(function: Function, store: Store, arguments: Mapping[str, Any]) -> str:
    assert function.field is not None
    rows, amount = store[function.entity.name], arguments[AMOUNT]
    source, target = rows[arguments[SOURCE]], rows[arguments[TARGET]]
    if amount < 1 or source is target:
        raise ValueError("transfer at least 1, from one to another")
    if source[function.field.name] < amount:
        raise ValueError(f"{arguments[SOURCE]} has less {function.field.name}")
    source[function.field.name] -= amount
    target[function.field.name] += amount
    return ""


_OPERATIONS: Mapping[str, Callable[[Function, Store, Mapping[str, Any]], str]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "set": _set,
    "move": _set,
    "delete": _delete,
    "transfer": _transfer,
}


# --- the functions of a scenario ---------------------------------------------


def functions_of(scenario: Scenario) -> dict[str, Function]:
    """Return the functions of a scenario by name: all that read, and WRITES others."""
    rng = random.Random(content_seed("functions", scenario.seed))
    verbs = {operation: rng.choice(words) for operation, words in VERBS.items()}
    writes = write_functions(scenario, verbs)
    numbers = sorted(rng.sample(range(len(writes)), WRITES))
    functions = [*read_functions(scenario, verbs), *(writes[i] for i in numbers)]
    return {function.name: function for function in functions}


def read_functions(scenario: Scenario, verbs: Mapping[str, str]) -> list[Function]:
    """Return what reads an entity, or lists those that refer to another one."""
    related = [entity for entity in scenario.types if entity.relation is not None]
    return [
        *(_function("get", entity, verbs) for entity in scenario.types),
        *(_function("list", entity, verbs, entity.relation) for entity in related),
    ]


def write_functions(scenario: Scenario, verbs: Mapping[str, str]) -> list[Function]:
    """Return all functions that change something."""
    out: list[Function] = []
    for entity in scenario.types:
        number, choice = entity.fields[:2]
        out += [
            _function("create", entity, verbs),
            _function("delete", entity, verbs),
            _function("set", entity, verbs, number),
            _function("set", entity, verbs, choice),
        ]
        if scenario.referring(entity) is not None:  # fuel of depots, no age of crates
            out.append(_function("transfer", entity, verbs, number))
        if entity.relation is not None:
            out.append(_function("move", entity, verbs, entity.relation))
    return out


def _function(
    operation: str,
    entity: EntityType,
    verbs: Mapping[str, str],
    field: Field | None = None,
) -> Function:
    verb, key = verbs[operation], "" if field is None else field.name
    *others, last = (x.name for x in entity.fields)
    fields = f"{', '.join(others)} and {last}"
    name, description = {
        "get": (entity.name, f"Return {fields} of a {entity.name}"),
        "list": (entity.plural, f"Return the {entity.plural} of a {key}"),
        "create": (entity.name, f"Create a {entity.name}"),
        "set": (f"{entity.name}_{key}", f"Set the {key} of a {entity.name}"),
        "move": (entity.name, f"Move a {entity.name} to another {key}"),
        "delete": (entity.name, f"Delete a {entity.name} to which nothing belongs"),
        "transfer": (key, f"Transfer {key} from one {entity.name} to another"),
    }[operation]
    hints, row_types = _arguments(operation, entity, field)
    signature = Signature(
        f"{verb}_{name}", description, {name: Argument() for name in hints}, hints
    )
    return Function(operation, entity, signature, row_types, field)


def _arguments(
    operation: str, entity: EntityType, field: Field | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the type hints of the arguments, and which of them name an entity."""
    if operation == "transfer":
        rows = {SOURCE: entity.name, TARGET: entity.name}
        return {SOURCE: str, TARGET: str, AMOUNT: int}, rows
    fields = () if field is None else (field,)
    if operation == "create":
        fields = entity.fields
    hints: dict[str, Any] = {} if operation == "list" else {NAME: str}
    hints |= {x.name: x.hint for x in fields}
    row_types = {x.name: x.name for x in fields if x.is_relation}
    if operation not in ("create", "list"):
        row_types[NAME] = entity.name
    return hints, row_types
