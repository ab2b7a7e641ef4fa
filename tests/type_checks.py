"""Type checks of the tests that cost less than jaxtyping's own.

jaxtyping's import hook decorates every function with `jaxtyping.jaxtyped`, which binds
the arguments of each call for the names of axes, and compiles four functions for each
definition, those of inner functions each time. Names of axes need this only where
an annotation is an array's; every other function is checked by beartype alone.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

_check = beartype.beartype(
    conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError)
)
_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Let the import hook decorate with `checked` what it imports from now on."""

    def decorate(*args, **kwargs):
        if args or kwargs.get("typechecker") is None:
            return _jaxtyped(*args, **kwargs)
        return functools.partial(checked, typechecker=kwargs["typechecker"])

    jaxtyping.jaxtyped = decorate


def checked(part: Any, *, typechecker: Callable) -> Any:
    """Return a function, or a dataclass, whose arguments and results are checked."""
    if inspect.isclass(part):
        # As jaxtyping does: of classes the __init__ that a dataclass has by itself.
        init = vars(part).get("__init__")
        if dataclasses.is_dataclass(part) and init and not hasattr(init, "__wrapped__"):
            part.__init__ = checked(init, typechecker=typechecker)
        return part
    # beartype would check the arguments of a generator only when it is iterated.
    if not inspect.isfunction(part) or inspect.isgeneratorfunction(part):
        return _jaxtyped(part, typechecker=typechecker)
    if _names_arrays(part):
        return _jaxtyped(part, typechecker=typechecker)
    return _check(part)


def _names_arrays(function: types.FunctionType) -> bool:
    """Return whether an annotation is one of jaxtyping's, or cannot be read yet."""
    return any(
        _holds_array(annotation, function.__globals__)
        for annotation in function.__annotations__.values()
    )


def _holds_array(annotation: Any, names: dict[str, Any]) -> bool:
    if isinstance(annotation, str):
        try:
            return _holds_array(eval(annotation, names), names)
        except (AttributeError, NameError, TypeError):
            return True
    if getattr(annotation, "__module__", "").startswith("jaxtyping"):
        return True
    parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
    return any(_holds_array(part, names) for part in parts)
