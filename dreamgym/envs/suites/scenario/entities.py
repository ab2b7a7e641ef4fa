"""Scenarios: types of entities with typed fields and relations, and stores of them.

a seed -> two or three entity types, each of which refers to the next: a crate lies in a
depot, a depot belongs to a company -> stores: names and values of some entities each
"""

import random
from typing import Any, Literal, NamedTuple

from worldmodel.data.hashing import content_seed

LEVELS: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("crate", "crates"),
        ("robot", "robots"),
        ("lamp", "lamps"),
        ("pump", "pumps"),
        ("camera", "cameras"),
        ("tractor", "tractors"),
        ("statue", "statues"),
    ),
    (
        ("depot", "depots"),
        ("shop", "shops"),
        ("hangar", "hangars"),
        ("studio", "studios"),
        ("garage", "garages"),
        ("library", "libraries"),
    ),
    (
        ("company", "companies"),
        ("guild", "guilds"),
        ("council", "councils"),
        ("club", "clubs"),
        ("society", "societies"),
    ),
)
"""Singular and plural of entity types; a type refers to one of the next level."""

NUMBERS = (
    ("weight", "price", "age", "charge"),
    ("stock", "budget", "fuel", "credit"),
    ("capital", "points", "votes"),
)
"""Names of the field of each level that is a whole number from 1 to MAX_NUMBER."""

CHOICES: tuple[tuple[str, Any], ...] = (
    ("colour", Literal["red", "green", "blue", "white"]),
    ("size", Literal["small", "medium", "large"]),
    ("status", Literal["open", "closed", "broken"]),
    ("grade", Literal["low", "middle", "high"]),
    ("locked", bool),
    ("insured", bool),
)
"""Names and types of fields with few values; each entity type has one of them."""

COUNTS = (7, 4, 3)
"""Entities of each level in a store."""

MAX_NUMBER = 99
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
NOTHING = "none"
"""What a list without entries is shown as, and no entity is named."""

Row = dict[str, Any]
Store = dict[str, dict[str, Row]]
"""The values of fields by entity type and name."""


class Field(NamedTuple):
    """A typed field of an entity; a relation has the name of the type it refers to."""

    name: str
    hint: Any
    is_relation: bool = False

    def draw(self, rng: random.Random) -> Any:
        """Return a value of a field that is no relation."""
        if self.hint is int:
            return rng.randint(1, MAX_NUMBER)
        values = (False, True) if self.hint is bool else self.hint.__args__
        return rng.choice(values)


class EntityType(NamedTuple):
    """A type of entities and its fields: a number, a choice, and perhaps a relation."""

    name: str
    plural: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field:
        """Return the field of a name."""
        return next(field for field in self.fields if field.name == name)

    @property
    def number(self) -> Field:
        """The field that is a whole number."""
        return self.fields[0]

    @property
    def relation(self) -> Field | None:
        """The field that names an entity of another type, or None."""
        last = self.fields[-1]
        return last if last.is_relation else None


class Scenario(NamedTuple):
    """Entity types, each of which refers to the next one."""

    seed: int
    types: tuple[EntityType, ...]

    def type(self, name: str) -> EntityType:
        """Return the entity type of a name."""
        return next(entity for entity in self.types if entity.name == name)

    def referring(self, entity: EntityType) -> EntityType | None:
        """Return the type whose relation names entities of this type, or None."""
        for other in self.types:
            if other.relation is not None and other.relation.name == entity.name:
                return other
        return None


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random(content_seed("scenario", seed))
    levels = LEVELS[: rng.choice((2, 3))]
    names = [rng.choice(level) for level in levels]
    choices = rng.sample(CHOICES, len(levels))
    types = []
    for level, (name, plural) in enumerate(names):
        fields = [Field(rng.choice(NUMBERS[level]), int), Field(*choices[level])]
        if level + 1 < len(names):
            fields.append(Field(names[level + 1][0], str, is_relation=True))
        types.append(EntityType(name, plural, tuple(fields)))
    return Scenario(seed, tuple(types))


def draw_store(scenario: Scenario, rng: random.Random) -> Store:
    """Return a store with random names, values and relations."""
    counts = COUNTS[: len(scenario.types)]
    names = iter(draw_names(rng, sum(counts)))
    store: Store = {
        entity.name: {next(names): {} for _ in range(count)}
        for entity, count in zip(scenario.types, counts, strict=True)
    }
    for entity in scenario.types:
        for row in store[entity.name].values():
            for field in entity.fields:
                row[field.name] = (
                    rng.choice(list(store[field.name]))
                    if field.is_relation
                    else field.draw(rng)
                )
    return store


def draw_names(rng: random.Random, count: int) -> list[str]:
    """Return different names of two syllables, such as Tavo."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    names: dict[str, None] = {}
    while len(names) < count:
        word = rng.choice(syllables) + rng.choice(syllables)
        if word != NOTHING:
            names[word.capitalize()] = None
    return list(names)


def copy_store(store: Store) -> Store:
    """Return a copy that shares no dict with the store."""
    return {
        entity: {name: dict(row) for name, row in rows.items()}
        for entity, rows in store.items()
    }


def all_names(store: Store) -> set[str]:
    """Return the names of all entities of a store."""
    return {name for rows in store.values() for name in rows}
