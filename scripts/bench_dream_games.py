"""Games for ALFWorld's engine, out of what its wheel ships: its own are no package.

floor plan of AI2-THOR, rules, grammar, a goal -> objects laid somewhere -> a game file.
Only where objects lie is drawn here. A score on these games is none on ALFWorld.
"""

import importlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def game(scene: int, rng: random.Random) -> dict[str, Any]:
    """Return the game file of a floor plan: put an object where none of its kind is."""
    names = importlib.import_module("alfworld.gen.constants")
    info = importlib.import_module("alfworld.info")
    plan = Path(str(names.__file__)).parent / "layouts" / f"FloorPlan{scene}"
    types = json.loads(Path(f"{plan}-objects.json").read_text())
    places = dict(_places(names, json.loads(Path(f"{plan}-openable.json").read_text())))
    fits = {kind: set(names.VAL_RECEPTACLE_OBJECTS[kind]) for kind in places.values()}
    small = sorted(t for t in types if any(t in kinds for kinds in fits.values()))
    pairs = [(o, k) for k in sorted(fits) for o in small if o in fits[k]]
    wanted, target = rng.choice(
        [(o, k) for o, k in pairs if any(o in fits[x] for x in fits if x != k)]
    )
    others = rng.sample([t for t in small if t != wanted], min(10, len(small) - 1))
    lie = []
    for number, kind in enumerate([wanted, wanted, *others]):
        free = [
            p
            for p, k in places.items()
            if kind in fits[k] and (kind, k) != (wanted, target)
        ]
        lie.append((f"{kind}|{number}|0|0", kind, rng.choice(free)))
    where = {place: f"loc|{number}|0|1|30" for number, place in enumerate(places)}
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc|99|99|1|30)"]
    for place, kind in places.items():
        facts.append(f"(receptacleType {place} {kind}Type)")
        facts.append(f"(receptacleAtLocation {place} {where[place]})")
        facts += [f"(openable {place})"] * (kind in names.OPENABLE_CLASS_SET)
    for name, kind, place in lie:
        facts.append(f"(objectType {name} {kind}Type) (pickupable {name})")
        facts.append(f"(inReceptacle {name} {place})")
        facts.append(f"(objectAtLocation {name} {where[place]})")
        for can in ("Cleanable", "Heatable", "Coolable", "Sliceable"):
            if kind in names.VAL_ACTION_OBJECTS[can]:
                facts.append(f"({can.lower()} {name})")
    facts += [f"(canContain {k}Type {o}Type)" for o, k in pairs]
    things = {
        "agent": ["agent1"],
        "receptacle": places,
        "object": [o for o, _, _ in lie],
        "location": [*where.values(), "loc|99|99|1|30"],
        "otype": [f"{o}Type" for o in small],
        "rtype": [f"{k}Type" for k in fits],
    }
    objects = "\n".join(f"{x} # {kind}" for kind, xs in things.items() for x in xs)
    fields = {"obj": wanted, "recep": target, "toggle": "", "mrecep": ""}
    goals = importlib.import_module("alfworld.gen.goal_library").gdict
    task = goals["pick_and_place_simple"]
    problem = "\n".join(
        [
            "(define (problem plan)",
            "(:domain alfred)",
            "(:objects",
            objects,
            ")",
            "(:init",
            *facts,
            ")",
            task["pddl"].format(**fields),
        ]
    )
    goal = task["templates"][0].format(**{k: v.lower() for k, v in fields.items()})
    grammar = Path(info.ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", goal)
    return {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(),
        "grammar": grammar,
        "pddl_problem": _spelled(problem),
        "solvable": None,
        "walkthrough": None,
    }


def _places(names: Any, openable: Any) -> Iterator[tuple[str, str]]:
    """Yield the receptacles of a floor plan that cannot be moved, and their kinds."""
    for name in sorted(openable):
        kind = name.split("|")[0] + "Basin" * name.endswith("Basin")
        if kind in set(names.RECEPTACLES) - set(names.MOVABLE_RECEPTACLES_SET):
            yield name, kind


def _spelled(problem: str) -> str:
    """Spell names as the engine's PDDL reader needs; its own demangler undoes it."""
    for sign, word in (
        ("-", "_minus_"),
        ("#", "-"),
        ("|", "_bar_"),
        ("+", "_plus_"),
        (".", "_dot_"),
    ):
        problem = problem.replace(sign, word)
    return problem.replace("total_minus_cost", "total-cost")
