"""Replaces settings by name, reads them from JSON, and hashes them."""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamgym.config.describe import unknown_setting


def digest_of(settings: dict[str, Any], episodes: str) -> str:
    """Return the hash of settings as plain data, of this or an earlier version."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    if episodes:
        digest.update(Path(episodes).read_bytes())
    return digest.hexdigest()[:16]


def changed(config: Any, name: str, value: Any) -> Any:
    """Return a configuration with one setting, named by dots, replaced.

    Raises:
      ValueError: the setting does not exist or its value has another type; the message
        has the whole name, and similar names or what was expected.
    """
    return _changed(config, config, name, name, value)


def _changed(root: Any, part: Any, name: str, rest: str, value: Any) -> Any:
    """Replace `rest` in a part of the root; `name` is what the root calls it."""
    first, _, rest = rest.partition(".")
    if first not in {f.name for f in dataclasses.fields(part)}:
        raise ValueError(unknown_setting(name, root))
    current = getattr(part, first)
    path = name.removesuffix(f".{rest}") if rest else name
    if rest:
        if not dataclasses.is_dataclass(current):
            raise ValueError(
                f"{path!r} is {current!r} and has no settings, got {name!r}"
            )
        value = _changed(root, current, name, rest, value)
    elif dataclasses.is_dataclass(current):
        raise ValueError(f"{name!r} is a group of settings: name one of them")
    else:
        hint = typing.get_type_hints(type(part))[first]
        value = _converted(name, hint, current, value)
    return dataclasses.replace(part, **{first: value})


def _converted(name: str, hint: Any, current: Any, value: Any) -> Any:
    """Return a value as a setting of this type takes it."""
    if current is None:
        raise ValueError(f"{name}: there is none here that could be changed")
    if isinstance(value, list):
        value = restored(hint, value)
    kinds = (float, int) if type(current) is float else (type(current),)
    if type(value) not in kinds:
        raise ValueError(
            f"{name}: expected {kinds[0].__name__}, like {current!r}, got {value!r}"
        )
    if type(current) is float:
        try:
            value = restored(float, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if type(current) is float and not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return value


def changed_by(part: Any, settings: Mapping[str, Any]) -> Any:
    """Return a configuration with settings replaced, in any order.

    Some values are valid only together with others: what is refused is tried again
    after the rest.

    Raises:
      ValueError: as `changed`, of the first that cannot be made to stand, by its whole
        name.
    """
    remaining = dict(settings)
    while remaining:
        refused: dict[str, Exception] = {}
        for name, value in remaining.items():
            try:
                part = changed(part, name, value)
            except (ValueError, TypeError) as error:
                refused[name] = error
        if len(refused) == len(remaining):
            name, error = next(iter(refused.items()))
            if name in str(error):
                raise error
            raise ValueError(f"{name} = {remaining[name]!r}: {error}") from None
        remaining = {name: remaining[name] for name in refused}
    return part


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables, as TOML has them, as settings by dotted names."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out


def restored(kind: Any, value: Any) -> Any:
    """Return the dataclass, tuple or plain value of which `asdict` gave this value.

    Raises:
      ValueError: a field is unknown or missing, a list is none, or a number is too
        large; the message names it.
    """
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, got {value!r:.60}")
        item = typing.get_args(kind)[0]  # all of one kind
        return tuple(restored(item, x) for x in value)
    if typing.get_origin(kind) is types.UnionType:  # a part or None
        parts = [k for k in typing.get_args(kind) if dataclasses.is_dataclass(k)]
        return restored(parts[0], value) if parts and value is not None else value
    if kind is float and type(value) is int:  # as JSON may write it
        try:
            return float(value)
        except OverflowError:
            raise ValueError("expected a number, got one that is too large") from None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"expected the settings of a {kind.__name__}, got {value!r}")
    hints = typing.get_type_hints(kind)
    if unknown := set(value) - set(hints):
        raise ValueError(f"{kind.__name__} has no {sorted(unknown)}")
    fields = {k: restored(hints[k], v) for k, v in value.items()}
    try:
        return kind(**fields)
    except TypeError as error:  # one without a default
        raise ValueError(f"{kind.__name__}: {error}") from None


def setting_changes(old: Any, new: Any, at: str = "") -> list[str]:
    """Return what differs between the settings of two runs, as `NAME: x there, y here`.

    They have the same settings but different digests where a file has changed.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        out = []
        for key in sorted(old.keys() | new.keys()):
            path = f"{at}.{key}".lstrip(".")
            out += setting_changes(old.get(key), new.get(key), path)
        return out or ([] if at else ["the episodes file has changed"])
    old, new = (list(x) if isinstance(x, tuple) else x for x in (old, new))
    return [] if old == new else [f"{at}: {old!r} there, {new!r} here"]
