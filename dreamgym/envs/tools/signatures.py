"""The signature of a tool, from the type hints of a Python function or a JSON schema.

method or schema -> Signature: its name, its types, and what it does in one line -> the
text that an agent reads, the JSON schema, the check of arguments, and likely arguments
"""

import contextlib
import inspect
import itertools
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym.envs.tools.hints import (
    TYPES,
    fits,
    hint_schema,
    hint_text,
    is_object,
    schema_hint,
)
from dreamgym.envs.tools.values import Sight
from worldmodel.text.tools.json_schemas import plain_schema

MAX_VALUES = 12
"""Values of one argument that `candidates` combines, at most."""

MAX_OPTIONAL = 4
"""Values of an argument with a default that are tried, each with as many others."""
MAX_COMBINATIONS = 2000
"""Combinations of values, at most: with four arguments and more it takes fewer values
of each."""

_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")


def place_of(method: Callable[..., Any]) -> str:
    """Return a method's class, name, file and line, for messages."""
    name = method.__qualname__.rpartition("<locals>.")[2]
    code = inspect.unwrap(method).__code__
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


class Argument(NamedTuple):
    """Whether an argument must be given, and what it is where it is not, if known."""

    required: bool = True
    default: Any = None


class Signature:
    """A tool's name, its arguments' types, and what it does."""

    def __init__(
        self,
        name: str,
        description: str,
        arguments: Mapping[str, Argument],
        hints: Mapping[str, Any],
    ):
        """Describe a tool; every argument has a hint of those that JSON has."""
        self.name, self.description = name, description
        self.arguments, self.hints = dict(arguments), dict(hints)

    @classmethod
    def of_method(cls, method: Callable[..., Any]) -> "Signature":
        """Return the signature of a method, from its type hints and its docstring.

        Raises:
          TypeError: an argument has no type, none that JSON has, or no name in a call;
            or the method is a coroutine, or has letters in its name that no call has.
        """
        if inspect.iscoroutinefunction(method):
            raise TypeError(
                f"{place_of(method)}: a tool cannot be async, since nothing awaits it: "
                "write def, with asyncio.run(...) inside"
            )
        if not method.__name__.isascii():
            raise TypeError(
                f"{place_of(method)}: the name of a tool has ASCII letters, digits and "
                f"underscores, as calls have, got {method.__name__!r}"
            )
        doc = inspect.getdoc(method) or ""
        parameters = dict(list(inspect.signature(method).parameters.items())[1:])
        hints = typing.get_type_hints(method)
        for name, parameter in parameters.items():
            if parameter.kind not in (
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.KEYWORD_ONLY,
            ):
                raise TypeError(
                    f"{place_of(method)}: argument {str(parameter)!r} has no name in a "
                    "call: write every argument of a tool by its name"
                )
            if name not in hints:
                raise TypeError(
                    f"{place_of(method)}: argument {name!r} needs a type: {TYPES}"
                )
            try:
                hint_text(hints[name])
            except TypeError as error:
                raise TypeError(
                    f"{place_of(method)}: argument {name!r} needs a type: {TYPES}, "
                    f"{error}"
                ) from None
        return cls(
            method.__name__,
            doc.split("\n")[0].rstrip("."),
            {
                name: Argument(p.default is p.empty, p.default)
                for name, p in parameters.items()
            },
            {name: hints[name] for name in parameters},
        )

    @classmethod
    def of_schema(
        cls, name: str, description: str, schema: Mapping[str, Any]
    ) -> "Signature":
        """Return the signature of a tool whose arguments a JSON schema describes.

        What the schema says beyond types is left to the tool itself. Of the description
        the first sentence is kept.

        Raises:
          ValueError: the schema is not one of arguments by name, or too deep.
        """
        place = f"tool {name!r:.60}: parameters"
        plain = plain_schema(schema, place)
        if not isinstance(plain, Mapping):
            raise ValueError(f"{place} have parts of which no arguments fit all")
        properties, required = plain.get("properties", {}), plain.get("required", ())
        try:
            hints = {n: schema_hint(value) for n, value in properties.items()}
        except RecursionError:
            raise ValueError(f"{place} are too deep") from None
        names = sorted(properties, key=lambda name: name not in required)
        defaults = {
            name: prop["default"]
            for name, prop in properties.items()
            if isinstance(prop, Mapping) and "default" in prop
        }
        return cls(
            name,
            _SENTENCE_END.split(description.strip().split("\n")[0])[0].rstrip("."),
            {n: Argument(n in required, defaults.get(n)) for n in names},
            {n: hints[n] for n in names},
        )

    def __str__(self) -> str:
        parts = [self._argument_text(name) for name in self.arguments]
        return f"{self.name}({', '.join(parts)}) {self.description}".strip()

    def _argument_text(self, name: str) -> str:
        """Return `limit: int`, `limit: int = 3`, or `limit?: int` without a default."""
        argument, hint = self.arguments[name], self.hints[name]
        if argument.required:
            return f"{name}: {hint_text(hint)}"
        if fits(argument.default, hint):
            with contextlib.suppress(TypeError, ValueError):  # no call can write it
                default = json.dumps(
                    argument.default, ensure_ascii=False, allow_nan=False
                )
                return f"{name}: {hint_text(hint)} = {default}"
        return f"{name}?: {hint_text(hint)}"

    def schema(self) -> dict[str, Any]:
        """Return the tool as OpenAI's API describes it (tool_schemas.py)."""
        required = [name for name, a in self.arguments.items() if a.required]
        parameters = {
            "type": "object",
            "properties": {n: hint_schema(hint) for n, hint in self.hints.items()},
            "required": required,
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": function | {"parameters": parameters}}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise a ValueError that names the first argument which does not fit."""
        for name in arguments:
            if name not in self.hints:
                names = ", ".join(self.hints) or "none"
                raise ValueError(f"{self.name} has no argument {name!r}; have {names}")
        for name, argument in self.arguments.items():
            if name not in arguments:
                if argument.required:
                    raise ValueError(f"{self.name} needs the argument {name!r}")
            elif not fits(arguments[name], self.hints[name]):
                value = json.dumps(arguments[name], ensure_ascii=False)
                want = hint_text(self.hints[name])
                raise ValueError(f"{name} must be {want}, got {value:.80}")

    def candidates(self, sight: Sight) -> list[dict[str, Any]]:
        """Return arguments of values in sight, the likely ones first.

        Behind them stand the likeliest once more, each with one of the arguments that
        have a default.
        """
        names = [name for name, a in self.arguments.items() if a.required]
        required = self._combinations(sight, names)
        optional = [
            {**arguments, name: value}
            for name, argument in self.arguments.items()
            if not argument.required
            for value in itertools.islice(
                sight.values(self.hints[name], name), MAX_OPTIONAL
            )
            if value != argument.default and value is not None
            for arguments in required[:MAX_OPTIONAL]
        ]
        return required + optional

    def never_tried(self) -> list[str]:
        """Return the required arguments of types that have no values in sight."""
        return [
            name
            for name, argument in self.arguments.items()
            if argument.required and is_object(self.hints[name])
        ]

    def _combinations(self, sight: Sight, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return values in sight of the named arguments, the likely ones first."""
        limit = int(MAX_COMBINATIONS ** (1 / max(len(names), 1)))
        values = [
            list(
                itertools.islice(
                    sight.values(self.hints[name], name), min(limit, MAX_VALUES)
                )
            )
            for name in names
        ]
        ranks = sorted(itertools.product(*(range(len(v)) for v in values)), key=sum)
        return [
            {name: v[i] for name, v, i in zip(names, values, rank, strict=True)}
            for rank in ranks
        ]


def refuse_static_tool(cls: type, name: str) -> None:
    """Refuse a tool without `self`: its first argument would be taken for it.

    Raises:
      TypeError: the attribute is a tool, and a static or class method.
    """
    raw = inspect.getattr_static(cls, name, None)
    if not isinstance(raw, staticmethod | classmethod):
        return
    if getattr(raw, "_is_tool", False) or getattr(raw.__func__, "_is_tool", False):
        raise TypeError(
            f"{place_of(raw.__func__)}: the tool {name!r} is a {type(raw).__name__}: "
            "write it as a method, with self as its first argument"
        )
