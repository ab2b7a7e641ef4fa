"""Tasks of a scenario: calls that are composed, their description, and the verifier.

a scenario, its functions, a random generator -> a store; phrases that name its entities
and values, each with the calls by which they are looked up; a few changes and at most
one question about them -> the instruction, the calls of the reference, the answer.

`problem` says why a composition makes no task: its calls cannot be made, it can be read
in two ways, or it has calls that nobody needs. `is_solved` compares what an agent left
behind with the result of the reference, so that another way there counts as well.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.envs.suites.scenario.entities import (
    EntityType,
    Field,
    Scenario,
    Store,
    all_names,
    copy_store,
    draw_names,
    draw_store,
)
from dreamgym.envs.suites.scenario.functions import (
    AMOUNT,
    NAME,
    SOURCE,
    TARGET,
    Function,
    run_calls,
    write_value,
)
from worldmodel.text.tools.tool_calls import Call

DONE = "done"
"""The answer that ends a task without a question. Its wording is not judged."""

MAX_ATTEMPTS = 2000
"""Compositions that are tried for a task. A few are enough where any is possible."""

_WORD = re.compile(r"\w+")


class Assignment(NamedTuple):
    """A store, what is to be done in it, and the reference solution.

    `answer` is the value that is asked for, or None where nothing is asked.
    """

    store: Store
    instruction: str
    calls: tuple[Call, ...]
    answer: str | int | None


class _Phrase(NamedTuple):
    """A value as the instruction names it, and the calls by which it is looked up."""

    value: Any
    text: str
    calls: tuple[Call, ...] = ()


class _Goal(NamedTuple):
    """A change or a question: its text, its calls, and what is asked, if anything."""

    text: str
    calls: tuple[Call, ...]
    answer: str | int | None = None


def draw_assignment(
    scenario: Scenario,
    functions: Mapping[str, Function],
    depth: int,
    rng: random.Random,
) -> Assignment:
    """Return a task whose reference solution has `depth` calls.

    With a depth of 0 the instruction itself says what it asks for.

    Raises:
      RuntimeError: no composition of MAX_ATTEMPTS makes such a task.
    """
    for _ in range(MAX_ATTEMPTS):
        store = draw_store(scenario, rng)
        composer = _Composer(scenario, functions, store, rng)
        assignment = composer.compose(depth)
        if assignment is not None and problem(assignment, functions) is None:
            return assignment
    raise RuntimeError(
        f"scenario {scenario.seed}: none of {MAX_ATTEMPTS} compositions is a task of "
        f"{depth} calls"
    )


def problem(assignment: Assignment, functions: Mapping[str, Function]) -> str | None:
    """Return why an assignment is no task, or None.

    unsolvable: a call of the reference cannot be made, or names what nothing has said.
    ambiguous: a look-up says something else at its turn than at the start. needless: a
    change that leaves everything as it is, or changes what another one changes; or a
    look-up without which all values are known. silent: nothing is to be done or asked.
    """
    store, start = copy_store(assignment.store), assignment.store
    results: list[str | None] = []
    cells = set[tuple[str, ...]]()
    for call in assignment.calls:
        function, before = functions[call.tool], copy_store(store)
        try:
            text = function.run(store, call.arguments)
            if not function.is_read:
                results.append(None)
            elif text == function.run(copy_store(start), call.arguments):
                results.append(text)
            else:
                return "ambiguous"
        except (LookupError, ValueError):
            return "unsolvable"
        changes = changed_cells(before, store)
        if not function.is_read and (not changes or changes & cells):
            return "needless"
        cells |= changes
    if not cells and assignment.answer is None:
        return "silent"
    if not _is_informed(assignment, results):
        return "unsolvable"
    for number, text in enumerate(results):
        others = [*results[:number], None, *results[number + 1 :]]
        if text is not None and _is_informed(assignment, others, without=number):
            return "needless"
    return None


def _is_informed(
    assignment: Assignment, results: Sequence[str | None], without: int | None = None
) -> bool:
    """Return whether the instruction or an earlier result says all values.

    These are the arguments of the calls, of which one may be left out, and the answer.
    """
    words = set(_WORD.findall(assignment.instruction))
    for number, (call, text) in enumerate(zip(assignment.calls, results, strict=True)):
        if number != without:
            if not {write_value(x) for x in call.arguments.values()} <= words:
                return False
            words |= set(_WORD.findall(text or ""))
    return assignment.answer is None or write_value(assignment.answer) in words


def changed_cells(before: Store, after: Store) -> set[tuple[str, ...]]:
    """Return (type, name, field) of each value that two stores do not share."""
    old, new = _cells(before), _cells(after)
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def _cells(store: Store) -> dict[tuple[str, ...], Any]:
    return {
        (kind, name, field): value
        for kind, rows in store.items()
        for name, row in rows.items()
        for field, value in row.items()
    }


def is_solved(
    assignment: Assignment,
    functions: Mapping[str, Function],
    store: Store,
    answer: str,
) -> bool:
    """Return whether a store and an answer are those of the reference solution."""
    if store != run_calls(functions, assignment.store, assignment.calls):
        return False
    wanted = assignment.answer
    if isinstance(wanted, int):
        return answer.isdecimal() and int(answer) == wanted
    return wanted is None or answer == wanted


class _Composer:
    """Composes calls in a store: what one returns is an argument of the next.

    Every method that draws takes a `budget`, the calls that it may need at most.
    """

    def __init__(
        self,
        scenario: Scenario,
        functions: Mapping[str, Function],
        store: Store,
        rng: random.Random,
    ):
        self._scenario, self._store, self._rng = scenario, store, rng
        self._functions = functions
        self._writes = [f for f in functions.values() if not f.is_read]
        self._names = iter(draw_names(rng, 20))

    def compose(self, depth: int) -> Assignment | None:
        """Return an assignment of `depth` calls, or None where the draw has others."""
        goals, calls = list[_Goal](), dict[str, Call]()
        if depth == 0:
            goals = [self._statement()]
        has_question = depth > 0 and self._rng.random() < 0.5
        while len(calls) < depth:
            is_last = has_question and (
                self._rng.random() < 0.5 or depth - len(calls) == 1
            )
            budget = depth - len(calls)
            goal = self._question(budget) if is_last else self._change(budget)
            if goal is None:
                return None
            # A look-up is made once for a goal. For another goal it might say something
            # else by then.
            new = {repr(call): call for call in goal.calls}
            if new.keys() & calls.keys():
                return None
            goals.append(goal)
            calls |= new
            if is_last:
                break
        if len(calls) != depth:
            return None
        answer = goals[-1].answer
        end = "" if answer is not None else f", then answer {DONE}"
        text = ", then ".join(goal.text for goal in goals) + end
        return Assignment(self._store, text, tuple(calls.values()), answer)

    # --- phrases ---

    def _row(self, entity: EntityType, budget: int) -> _Phrase:
        """Return a phrase that names an entity, by its name or by a look-up."""
        ways: list[Callable[[], _Phrase | None]] = []
        if budget > 0 and self._scenario.referring(entity) is not None:
            ways.append(lambda: self._row_of_relation(entity, budget))
        if budget > 0 and entity.relation is not None:
            ways.append(lambda: self._only_row(entity, budget))
        if ways and self._rng.random() < 0.7:
            phrase = self._rng.choice(ways)()
            if phrase is not None:
                return phrase
        name = self._rng.choice(list(self._store[entity.name]))
        return _Phrase(name, f"{entity.name} {name}")

    def _row_of_relation(self, entity: EntityType, budget: int) -> _Phrase:
        """Return "the depot of crate Tavo"."""
        other = self._scenario.referring(entity)
        assert other is not None
        inner = self._row(other, budget - 1)
        return self._value_of(other, other.field(entity.name), inner)

    def _only_row(self, entity: EntityType, budget: int) -> _Phrase | None:
        """Return "the only crate of depot Kire", or None where it has several."""
        relation = entity.relation
        assert relation is not None
        inner = self._row(self._scenario.type(relation.name), budget - 1)
        rows = self._store[entity.name]
        names = [n for n in rows if rows[n][relation.name] == inner.value]
        if len(names) != 1:
            return None
        call = self._call("list", entity, {relation.name: inner.value})
        text = f"the only {entity.name} of {inner.text}"
        return _Phrase(names[0], text, (*inner.calls, call))

    def _value_of(self, entity: EntityType, field: Field, row: _Phrase) -> _Phrase:
        """Return "the weight of crate Tavo"."""
        value = self._store[entity.name][row.value][field.name]
        call = self._call("get", entity, {NAME: row.value})
        text = f"the {field.name} of {row.text}"
        return _Phrase(value, text, (*row.calls, call))

    def _value(self, field: Field, budget: int) -> _Phrase:
        """Return a value for a field, or where it stands: that of another entity."""
        if field.is_relation:
            return self._row(self._scenario.type(field.name), budget)
        if field.hint is int and budget > 0 and self._rng.random() < 0.5:
            other = self._rng.choice(self._scenario.types)
            row = self._row(other, budget - 1)
            return self._value_of(other, other.number, row)
        value = field.draw(self._rng)
        return _Phrase(value, write_value(value))

    def _call(
        self, operation: str, entity: EntityType, arguments: Mapping[str, Any]
    ) -> Call:
        for function in self._functions.values():
            if (function.operation, function.entity.name) == (operation, entity.name):
                return Call(function.name, dict(arguments))
        raise LookupError(f"no function can {operation} a {entity.name}")

    # --- goals ---

    def _statement(self) -> _Goal:
        """Return a question that answers itself, for which no call is needed."""
        entity = self._rng.choice(self._scenario.types)
        name = self._rng.choice(list(self._store[entity.name]))
        value = self._store[entity.name][name][entity.number.name]
        what = f"{entity.number.name} of {entity.name} {name}"
        return _Goal(f"the {what} is {value}: answer the {what}", (), value)

    def _question(self, budget: int) -> _Goal:
        """Return the question for a number, or for the name of an entity.

        Values of which there are few could be guessed: they are not asked for.
        """
        entity = self._rng.choice(self._scenario.types)
        row = self._row(entity, budget - 1)
        if row.calls and self._rng.random() < 0.3:
            return _Goal(f"answer the name of {row.text}", row.calls, row.value)
        field = self._rng.choice(
            [f for f in (entity.number, entity.relation) if f is not None]
        )
        value = self._value_of(entity, field, row)
        return _Goal(f"answer {value.text}", value.calls, value.value)

    def _change(self, budget: int) -> _Goal | None:
        """Return a call of a function that changes something, or None."""
        function = self._rng.choice(self._writes)
        entity, field, left = function.entity, function.field, budget - 1
        if function.operation == "transfer":
            return self._transfer(function, left)
        if function.operation == "create":
            return self._creation(function, left)
        row = self._row(entity, left)
        if function.operation == "delete":
            call = Call(function.name, {NAME: row.value})
            return _Goal(f"delete {row.text}", (*row.calls, call))
        assert field is not None
        value = self._value(field, left - len(row.calls))
        call = Call(function.name, {NAME: row.value, field.name: value.value})
        text = (
            f"move {row.text} to {value.text}"
            if field.is_relation
            else f"set the {field.name} of {row.text} to {value.text}"
        )
        return _Goal(text, (*row.calls, *value.calls, call))

    def _transfer(self, function: Function, budget: int) -> _Goal | None:
        assert function.field is not None
        entity, key = function.entity, function.field.name
        source = self._row(entity, budget)
        target = self._row(entity, budget - len(source.calls))
        available = self._store[entity.name][source.value][key]
        if available < 1:
            return None
        amount = self._rng.randint(1, available)
        arguments = {SOURCE: source.value, TARGET: target.value, AMOUNT: amount}
        return _Goal(
            f"transfer {amount} {key} from {source.text} to {target.text}",
            (*source.calls, *target.calls, Call(function.name, arguments)),
        )

    def _creation(self, function: Function, budget: int) -> _Goal:
        entity, parts, calls = function.entity, list[str](), list[Call]()
        name = next(n for n in self._names if n not in all_names(self._store))
        arguments: dict[str, Any] = {NAME: name}
        for field in entity.fields:
            value = self._value(field, budget - len(calls))
            arguments[field.name] = value.value
            calls += value.calls
            text = value.text if value.calls else write_value(value.value)
            parts.append(f"{field.name} = {text}")
        text = f"create {entity.name} {name} with {', '.join(parts)}"
        return _Goal(text, (*calls, Call(function.name, arguments)))
