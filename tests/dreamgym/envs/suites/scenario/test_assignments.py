"""Assignments by hand: what makes no task, and what counts as solved."""

import random
import re
from typing import Literal

import pytest

from dreamgym.envs.suites.scenario.assignments import (
    Assignment,
    changed_cells,
    draw_assignment,
    is_solved,
    problem,
)
from dreamgym.envs.suites.scenario.entities import (
    EntityType,
    Field,
    Scenario,
    copy_store,
    draw_names,
    draw_scenario,
)
from dreamgym.envs.suites.scenario.functions import (
    VERBS,
    functions_of,
    read_functions,
    run_calls,
    write_functions,
)
from worldmodel.text.tools.tool_calls import Call

CRATE = EntityType(
    "crate",
    "crates",
    (
        Field("weight", int),
        Field("colour", Literal["red", "blue"]),
        Field("depot", str, is_relation=True),
    ),
)
DEPOT = EntityType("depot", "depots", (Field("fuel", int), Field("locked", bool)))
SCENARIO = Scenario(0, (CRATE, DEPOT))
PLAIN = {operation: operation for operation in VERBS}
FUNCTIONS = {
    f.name: f
    for f in (*read_functions(SCENARIO, PLAIN), *write_functions(SCENARIO, PLAIN))
}
STORE = {
    "crate": {
        "Tavo": {"weight": 7, "colour": "red", "depot": "Kire"},
        "Sipo": {"weight": 9, "colour": "blue", "depot": "Kire"},
        "Lamu": {"weight": 11, "colour": "red", "depot": "Molu"},
    },
    "depot": {
        "Kire": {"fuel": 20, "locked": False},
        "Molu": {"fuel": 5, "locked": True},
        "Zaga": {"fuel": 0, "locked": False},
    },
}
GET = Call("get_crate", {"name": "Tavo"})
MOVE = Call("move_crate", {"name": "Tavo", "depot": "Molu"})
FUEL = Call("transfer_fuel", {"source": "Kire", "target": "Molu", "amount": 3})


def assignment(instruction, *calls, answer=None) -> Assignment:
    return Assignment(STORE, instruction, calls, answer)


def test_functions_and_their_schemas():
    texts = {name: str(f.signature) for name, f in FUNCTIONS.items()}
    assert (
        texts["get_depot"] == "get_depot(name: str) Return fuel and locked of a depot"
    )
    assert texts["create_crate"] == (
        'create_crate(name: str, weight: int, colour: "red" | "blue", depot: str) '
        "Create a crate"
    )
    assert {name.split("_")[0] for name in FUNCTIONS} == set(VERBS)
    assert "transfer_weight" not in FUNCTIONS  # nothing refers to crates
    schema = FUNCTIONS["transfer_fuel"].signature.schema()["function"]
    assert schema["parameters"]["properties"] == {
        "source": {"type": "string"},
        "target": {"type": "string"},
        "amount": {"type": "integer"},
    }


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (GET, "weight 7, colour red, depot Kire"),
        (Call("get_depot", {"name": "Molu"}), "fuel 5, locked true"),
        (Call("list_crates", {"depot": "Kire"}), "Tavo, Sipo"),
        (Call("list_crates", {"depot": "Zaga"}), "none"),
    ],
)
def test_what_functions_read(call, text):
    store = copy_store(STORE)
    assert FUNCTIONS[call.tool].run(store, call.arguments) == text
    assert store == STORE


@pytest.mark.parametrize(
    ("call", "cells"),
    [
        (MOVE, {("crate", "Tavo", "depot")}),
        (FUEL, {("depot", "Kire", "fuel"), ("depot", "Molu", "fuel")}),
        (
            Call("set_depot_locked", {"name": "Zaga", "locked": True}),
            {("depot", "Zaga", "locked")},
        ),
        (
            Call("delete_depot", {"name": "Zaga"}),
            {("depot", "Zaga", "fuel"), ("depot", "Zaga", "locked")},
        ),
        (
            Call("create_depot", {"name": "Nuvo", "locked": True, "fuel": 1}),
            {("depot", "Nuvo", "fuel"), ("depot", "Nuvo", "locked")},
        ),
    ],
)
def test_what_functions_change(call, cells):
    after = run_calls(FUNCTIONS, STORE, [call])
    assert changed_cells(STORE, after) == cells
    if call is FUEL:
        assert [after["depot"][n]["fuel"] for n in ("Kire", "Molu")] == [17, 8]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call("get_crate", {"name": "Kire"}), "no crate is named 'Kire'"),
        (Call("move_crate", {"name": "Tavo", "depot": "Lamu"}), "no depot is named"),
        (Call("delete_depot", {"name": "Kire"}), "depot Kire has a crate"),
        (Call("create_depot", {"name": "Tavo", "fuel": 1, "locked": True}), "is taken"),
        (Call("transfer_fuel", FUEL.arguments | {"amount": 21}), "has less fuel"),
        (Call("transfer_fuel", FUEL.arguments | {"amount": 0}), "at least 1"),
        (Call("transfer_fuel", FUEL.arguments | {"target": "Kire"}), "one to another"),
    ],
)
def test_calls_that_cannot_be_made_change_nothing(call, message):
    store = copy_store(STORE)
    with pytest.raises((ValueError, LookupError), match=message):
        FUNCTIONS[call.tool].run(store, call.arguments)
    assert store == STORE


ASK = "answer the fuel of the depot of crate Tavo"
GET_DEPOT = Call("get_depot", {"name": "Kire"})


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (assignment("move crate Tavo to depot Molu", MOVE), None),
        (assignment(ASK, GET, GET_DEPOT, answer=20), None),
        # It names a depot that neither the instruction nor a result says.
        (assignment(ASK, GET_DEPOT, answer=20), "unsolvable"),
        (assignment("fetch", Call("get_crate", {"name": "Nobo"})), "unsolvable"),
        # The look-up is told already what it is for.
        (assignment("move crate Tavo to depot Molu", GET, MOVE), "needless"),
        (assignment("answer 7, the weight of crate Tavo", GET, answer=7), "needless"),
        # It changes nothing; and two changes of one value, of which one is enough.
        (
            assignment(
                "set the weight of crate Tavo to 7",
                Call("set_crate_weight", {"name": "Tavo", "weight": 7}),
            ),
            "needless",
        ),
        (
            assignment(
                "transfer 3 fuel from depot Kire to depot Molu, then 3 to depot Zaga",
                FUEL,
                Call(
                    "transfer_fuel", {"source": "Molu", "target": "Zaga", "amount": 3}
                ),
            ),
            "needless",
        ),
        # Read before the first change, the only crate of Molu is another one.
        (
            assignment(
                "move crate Lamu to depot Zaga, delete the only crate of depot Zaga",
                Call("move_crate", {"name": "Lamu", "depot": "Zaga"}),
                Call("list_crates", {"depot": "Zaga"}),
                Call("delete_crate", {"name": "Lamu"}),
            ),
            "ambiguous",
        ),
        (assignment("look at crate Tavo", GET), "silent"),
        (assignment("answer done"), "silent"),
    ],
)
def test_what_makes_no_task(task, reason):
    assert problem(task, FUNCTIONS) == reason


def test_the_verifier_compares_the_store_and_the_answer():
    task = assignment("move crate Tavo, answer the weight", MOVE, GET, answer=7)
    right = run_calls(FUNCTIONS, STORE, [MOVE])
    assert is_solved(task, FUNCTIONS, right, "7")
    # A detour that ends there counts as well.
    away = Call("move_crate", {"name": "Tavo", "depot": "Zaga"})
    assert is_solved(task, FUNCTIONS, run_calls(FUNCTIONS, STORE, [away, MOVE]), "7")
    for store, answer in (
        (right, "8"),
        (right, "seven"),
        (right, ""),
        (STORE, "7"),
        (run_calls(FUNCTIONS, STORE, [away]), "7"),
        # More was changed than was wanted.
        (run_calls(FUNCTIONS, STORE, [MOVE, FUEL]), "7"),
    ):
        assert not is_solved(task, FUNCTIONS, store, answer)
    without = task._replace(answer=None)
    assert is_solved(without, FUNCTIONS, right, "whatever")
    assert not is_solved(without, FUNCTIONS, STORE, "whatever")


@pytest.mark.parametrize("depth", range(7))
def test_every_depth_can_be_drawn_of_every_scenario(depth):
    for seed in range(25):
        scenario = draw_scenario(seed)
        functions = functions_of(scenario)
        draws = [
            draw_assignment(scenario, functions, depth, random.Random(seed))
            for _ in range(2)
        ]
        assert draws[0] == draws[1]
        task = draws[0]
        assert len(task.calls) == depth
        assert problem(task, functions) is None
        assert run_calls(functions, task.store, task.calls) != task.store or (
            task.answer is not None
        )
        # "the only crate of depot Kire" is the only one.
        lists = [c for c in task.calls if functions[c.tool].operation == "list"]
        assert task.instruction.count("the only ") >= len(lists)
        for call in lists:
            text = functions[call.tool].run(copy_store(task.store), call.arguments)
            assert re.fullmatch(r"[A-Z][a-z]+", text), task.instruction


def test_scenarios_differ_by_seed_and_fit_together():
    scenarios = [draw_scenario(seed) for seed in range(40)]
    assert len({s.types for s in scenarios}) > 30
    for scenario in scenarios:
        functions = functions_of(scenario)
        assert len(functions) == 2 * len(scenario.types) + 3
        for lower, upper in zip(scenario.types, scenario.types[1:], strict=False):
            assert lower.relation == Field(upper.name, str, is_relation=True)
        assert scenario.types[-1].relation is None
    names = draw_names(random.Random(0), 500)
    assert len(set(names)) == 500


def test_a_task_that_cannot_be_composed_is_an_error():
    functions = {f.name: f for f in read_functions(SCENARIO, PLAIN)}
    functions["delete_depot"] = FUNCTIONS["delete_depot"]
    with pytest.raises(RuntimeError, match=r"scenario 0: none of .* of 40 calls"):
        draw_assignment(SCENARIO, functions, 40, random.Random(0))
