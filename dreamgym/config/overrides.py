"""Settings replaced by name, read back from JSON, and hashed."""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def digest_of(settings: dict[str, Any], episodes: str) -> str:
    """The hash of settings as plain data, of this version or of one before."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    if episodes:
        digest.update(Path(episodes).read_bytes())
    return digest.hexdigest()[:16]


def changed(part: Any, name: str, value: Any) -> Any:
    """A configuration with one setting, named by dots, replaced.

    Raises:
      ValueError: no such setting, or a value of another kind; the message lists the
        settings that are there, or says what was expected.
    """
    first, _, rest = name.partition(".")
    known = [f.name for f in dataclasses.fields(part)]
    if first not in known:
        raise ValueError(f"no setting {first!r} in {type(part).__name__}; have {known}")
    now = getattr(part, first)
    if rest:
        if not dataclasses.is_dataclass(now):
            raise ValueError(f"{first!r} is {now!r} and has no settings, got {name!r}")
        value = changed(now, rest, value)
    elif dataclasses.is_dataclass(now):
        raise ValueError(f"{name!r} is a group of settings: name one of them")
    elif isinstance(value, list):
        value = restored(typing.get_type_hints(type(part))[first], value)
    if now is None:
        raise ValueError(f"{first}: there is none here that could be changed")
    if not rest:
        kinds = (float, int) if type(now) is float else (type(now),)
        if type(value) not in kinds:
            raise ValueError(
                f"{first}: expected {kinds[0].__name__}, like {now!r}, got {value!r}"
            )
        value = float(value) if type(now) is float else value
        if type(now) is float and not math.isfinite(value):
            raise ValueError(f"{first}: expected a finite number, got {value}")
    return dataclasses.replace(part, **{first: value})


def changed_by(part: Any, settings: Mapping[str, Any]) -> Any:
    """A configuration with settings replaced, in whatever order they stand together.

    Some values are only good beside others: what is refused is tried again after the
    rest.

    Raises:
      ValueError: as `changed`, of the first that cannot be made to stand, by its whole
        name.
    """
    left = dict(settings)
    while left:
        refused: dict[str, Exception] = {}
        for name, value in left.items():
            try:
                part = changed(part, name, value)
            except (ValueError, TypeError) as error:
                refused[name] = error
        if len(refused) == len(left):
            name, error = next(iter(refused.items()))
            if name in str(error):
                raise error
            raise ValueError(f"{name} = {left[name]!r}: {error}") from None
        left = {name: left[name] for name in refused}
    return part


def restored(kind: Any, value: Any) -> Any:
    """A value of `asdict` as the dataclass, tuple or plain value of its type again.

    Raises:
      ValueError: a field that the dataclass does not have, or lacks; the message names
        it.
    """
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]  # all of one kind
        return tuple(restored(item, x) for x in value)
    if typing.get_origin(kind) is types.UnionType:  # a part or None
        parts = [k for k in typing.get_args(kind) if dataclasses.is_dataclass(k)]
        return restored(parts[0], value) if parts and value is not None else value
    if kind is float and type(value) is int:  # as JSON may write it
        return float(value)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"expected the settings of a {kind.__name__}, got {value!r}")
    hints = typing.get_type_hints(kind)
    if unknown := set(value) - set(hints):
        raise ValueError(f"{kind.__name__} has no {sorted(unknown)}")
    known = {k: restored(hints[k], v) for k, v in value.items()}
    try:
        return kind(**known)
    except TypeError as error:  # one without a default
        raise ValueError(f"{kind.__name__}: {error}") from None
