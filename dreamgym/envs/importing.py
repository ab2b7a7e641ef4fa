"""Reads the names of environments: "module:Class" and the settings behind "?".

The message names the module that was asked for, the type of the error, and the file and
line in the user's code, because the user can mend nothing else.
"""

import difflib
import importlib
import sys
import sysconfig
import traceback
import urllib.parse
from pathlib import Path
from types import ModuleType
from typing import Any

from dreamgym.envs.failures import NOT_CAUGHT

_ROOT = Path(__file__).parents[1]
_STANDARD = Path(sysconfig.get_path("stdlib"))


def named_settings(spec: str, query: str) -> dict[str, str]:
    """Return the settings of an environment's name, "a=1&b=2", as text by name.

    Raises:
      ValueError: a setting stands there twice; the message names the environment.
    """
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    settings = dict(pairs)
    if len(settings) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"environment {spec!r}: expected each setting once, got "
            f"{' and '.join(twice)} more than once"
        )
    return settings


def imported(spec: str, target: str) -> Any:
    """Return what the target "module:name" of an environment `spec` is.

    Raises:
      ValueError: it cannot be imported; the message names the environment.
    """
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or "/" in name or "\\" in name:
        raise ValueError(_written_as_file(spec, name, attribute))
    try:
        module = importlib.import_module(name)
    except NOT_CAUGHT:
        raise
    except BaseException as error:  # of foreign code
        raise ValueError(
            f"environment {spec!r} cannot be imported: {_reason(name, error)}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ValueError(
            f"environment {spec!r} cannot be imported: {_absence(module, attribute)}"
        ) from error


def user_place(error: BaseException) -> str:
    """Return the file and line of the user's code at which an error arose.

    It is the last line that is neither Python's, nor a package's, nor ours; else the
    last line at all.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_relative_path(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if _is_users(frame.filename)]
    frame = (user_frames or frames)[-1]
    return f"{_relative_path(frame.filename)}:{frame.lineno}"


def _is_users(file: str) -> bool:
    path = Path(file)
    roots = (_STANDARD, _ROOT)
    return not (
        file.startswith("<")
        or "site-packages" in path.parts
        or any(path.is_relative_to(root) for root in roots)
    )


def _relative_path(file: str) -> str:
    """A file as it is seen from the present directory, where it lies below it."""
    path = Path(file)
    directory = Path.cwd()
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def _written_as_file(spec: str, name: str, attribute: str) -> str:
    path = Path(name.replace("\\", "/"))
    parts = path.with_suffix("").parts if path.suffix == ".py" else path.parts
    example = f"{'.'.join(parts)}:{attribute or 'MyEnv'}"
    if path.is_absolute() or ".." in parts:
        example = f"{parts[-1]}:{attribute or 'MyEnv'}"
        return f"environment {spec!r} is a file: go to {path.parent}, write {example}"
    return f"environment {spec!r} is a file: write {example}"


def _reason(name: str, error: BaseException) -> str:
    """Return why a module cannot be imported."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (name == missing or name.startswith(f"{missing}.")):
        return f"{error}; run it in the directory that holds it, or set PYTHONPATH"
    if isinstance(error, SystemExit):
        what = f"it called sys.exit({error.code!r})"
    elif isinstance(error, SyntaxError):
        what = f"{type(error).__name__}: {error.msg}"
    else:
        what = f"{type(error).__name__}: {error}"
    if "'function' object is not subscriptable" in what:
        what += (
            "; a method that is called as a built-in type, such as `list`, hides it "
            "from the type hints below: write `from __future__ import annotations` "
            "first, or give it another name"
        )
    return f"{what} (module {name!r}, {user_place(error)})"


def _absence(module: ModuleType, attribute: str) -> str:
    """Return that a module lacks a name, with a name or a module that may be meant."""
    file = getattr(module, "__file__", None)
    where = f" ({_relative_path(file)})" if file else ""
    text = f"module {module.__name__!r}{where} has no {attribute!r}"
    near = difflib.get_close_matches(attribute, vars(module), 1)
    if module.__name__.partition(".")[0] in sys.stdlib_module_names:
        return f"{text}: Python's own module has the name; rename yours"
    return f"{text}: did you mean {near[0]!r}?" if near else text
