"""Environments by name: a registered id, "module:Class", "gymnasium:ID", or a URL.

Some ids have tasks that are environments by themselves: "miniwob:login-user".

A module is imported when its environment is made: environments of an optional extra
cost nothing where they are not used.
"""

import importlib
import inspect
from typing import Any

import gymnasium

from dreamgym.envs import gymnasium_text

ENVIRONMENTS = {
    "miniwob": "dreamgym.envs.suites.miniwob:MiniWoB",
    "textcraft": "dreamgym.envs.suites.textcraft:TextCraft",
    "textworld": "dreamgym.envs.suites.textworld_express:TextWorldExpress",
}

FAMILIES = {"miniwob": "dreamgym.envs.suites.miniwob:one_page"}
"""Functions that return the environment of one task of an id: "ID:TASK"."""

SCHEMES = ("http://", "https://", "ws://", "wss://")
"""How the name of an environment begins that is an OpenEnv server."""


def parse_spec(spec: str) -> type[gymnasium.Env]:
    """Return the class of an id, "module:Class", "gymnasium:ID" or "http://HOST:PORT".

    "miniwob:TASK" is the class of one task of the id "miniwob".

    Raises:
      ValueError: the name is neither; the message lists the registered ids.
    """
    if spec.startswith(gymnasium_text.PREFIX):
        return gymnasium_text.adapter(spec)
    if spec.startswith(SCHEMES):
        from dreamgym.envs.remote.env import remote_class

        return remote_class(spec)
    suite, _, task = spec.partition(":")
    if task and suite in FAMILIES:
        return _imported(spec, FAMILIES[suite])(task)
    target = ENVIRONMENTS.get(spec, spec)
    if not target.partition(":")[2]:
        raise ValueError(
            f"unknown environment {spec!r}: expected one of {sorted(ENVIRONMENTS)} "
            'or "module:Class" or "gymnasium:ID" or the URL of an OpenEnv server'
        )
    return _imported(spec, target)


def _imported(spec: str, target: str) -> Any:
    """Return what "module:name" is.

    Raises:
      ValueError: it cannot be imported; the message names the environment.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"environment {spec!r} cannot be imported: {error}") from error
    except (SyntaxError, NameError, TypeError) as error:  # a mistake in the module
        kind = type(error).__name__
        raise ValueError(
            f"environment {spec!r} cannot be imported: {kind}: {error}"
        ) from error


def make(spec: str, **kwargs: Any) -> gymnasium.Env:
    """Return a new environment of a registered id, "module:Class", "gymnasium:ID".

    Raises:
      ValueError: the name is neither, or its class wants other arguments.
    """
    maker = parse_spec(spec)
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        raise ValueError(
            f"environment {spec!r} cannot be made: {error}; it must be a class that is "
            "made without arguments: give them defaults, or derive a class that does"
        ) from None
    return maker(**kwargs)
