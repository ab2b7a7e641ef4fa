"""Describes settings: name, type, default and meaning, read from the dataclasses.

The meaning of a setting is the docstring under its field. Python does not keep it, so
the source of the class is parsed.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import json
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting of a run by its dotted name; `text` is its meaning."""

    name: str
    type: str
    default: Any
    text: str


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield all settings of a group, with its values as defaults.

    A group that may be None and is None counts as one setting.
    """
    hints = typing.get_type_hints(type(config))
    texts = field_docstrings(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{name}.")
        else:
            text = texts.get(field.name) or _group_text(hints[field.name])
            yield Setting(name, type_text(hints[field.name]), value, text)


def group_text(group: Any) -> str:
    """Return the first line of the docstring of a group of settings."""
    cls = group if isinstance(group, type) else type(group)
    return (cls.__doc__ or "").partition("\n")[0]


def _group_text(hint: Any) -> str:
    """The text of the group in `Group | None`."""
    parts = [k for k in typing.get_args(hint) if dataclasses.is_dataclass(k)]
    return group_text(parts[0]) if parts else ""


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, its bases included."""
    out: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            path = inspect.getsourcefile(base)
            out |= (
                _documented(Path(path).read_text(encoding="utf-8"))[base.__name__]
                if path
                else {}
            )
    return out


@functools.cache
def _documented(source: str) -> dict[str, dict[str, str]]:
    """Field docstrings of the classes of a module."""
    out: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            out[node.name] = dict(_fields(node.body))
    return out


def _fields(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(
            statement.target, ast.Name
        ):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            yield statement.target.id, text


def type_text(hint: Any) -> str:
    """Return a type as it is written, such as `tuple[str, ...]`."""
    if typing.get_origin(hint) is types.UnionType:
        return " | ".join(type_text(k) for k in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"tuple[{type_text(typing.get_args(hint)[0])}, ...]"
    return "None" if hint is types.NoneType else getattr(hint, "__name__", str(hint))


def value_text(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, float):
        return repr(value)
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def near_names(name: str, names: Sequence[str], limit: int = 3) -> list[str]:
    """Return the names that are most like one that does not exist."""
    near = difflib.get_close_matches(name, names, limit, 0.8)
    last = {n: n.rpartition(".")[2] for n in names}
    ending = difflib.get_close_matches(
        name.rpartition(".")[2], set(last.values()), 2, 0.8
    )
    near += sorted(
        (n for n in names if last[n] in ending),
        key=lambda n: -difflib.SequenceMatcher(None, name, n).ratio(),
    )
    return list(dict.fromkeys(near))[:limit]


def unknown_setting(name: str, config: Any) -> str:
    """Return the message for a name that is no setting of a configuration."""
    names = [s.name for s in settings_of(config)]
    parts = (s.split(".") for s in names)
    groups = {".".join(p[:end]) for p in parts for end in range(1, len(p))}
    near = near_names(name, [*sorted(groups), *names])
    if near:
        return (
            f"no setting {name!r}: did you mean {' or '.join(near)}? "
            "`dreamgym settings` lists all"
        )
    return f"no setting {name!r}; `dreamgym settings` lists them"
