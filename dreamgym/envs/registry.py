"""Environments by name: an id, "module:Class", "gym:ID", "mix:A,B", "mcp:FILE", a URL.

Some ids have tasks that are environments by themselves: "miniwob:login-user".

A module is imported when its environment is made: environments of an optional extra
cost nothing where they are not used.
"""

import inspect
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs.adapters import gymnasium_text
from dreamgym.envs.failures import NOT_CAUGHT, Deadline, not_started
from dreamgym.envs.importing import imported, user_place

ENVIRONMENTS = {
    "alfworld": "dreamgym.envs.suites.alfworld.env:AlfWorld",
    "bfcl": "dreamgym.envs.suites.bfcl:Bfcl",
    "miniwob": "dreamgym.envs.suites.miniwob.env:MiniWoB",
    "reasoning": "dreamgym.envs.suites.reasoning:Reasoning",
    "scenario": "dreamgym.envs.suites.scenario.env:ScenarioEnv",
    "scienceworld": "dreamgym.envs.suites.scienceworld:ScienceWorld",
    "tau2": "dreamgym.envs.suites.tau2.env:Tau2",
    "textcraft": "dreamgym.envs.suites.textcraft:TextCraft",
    "textworld": "dreamgym.envs.suites.textworld.express:TextWorldExpress",
    "twcoin": "dreamgym.envs.suites.twgames.env:TextWorldCoin",
    "twcooking": "dreamgym.envs.suites.twgames.env:TextWorldCooking",
}

FAMILIES = {
    "alfworld": "dreamgym.envs.suites.alfworld.env:one_task_type",
    "bfcl": "dreamgym.envs.suites.bfcl:one_category",
    "miniwob": "dreamgym.envs.suites.miniwob.env:one_page",
    "reasoning": "dreamgym.envs.suites.reasoning:one_task",
    "scenario": "dreamgym.envs.suites.scenario.env:one_scenario",
    "scienceworld": "dreamgym.envs.suites.scienceworld:one_task_type",
    "tau2": "dreamgym.envs.suites.tau2.env:one_domain",
    "textworld": "dreamgym.envs.suites.textworld.games:one_game",
    "twcoin": "dreamgym.envs.suites.twgames.env:one_level",
    "twcooking": "dreamgym.envs.suites.twgames.env:one_recipe",
}
"""Functions that return the environment of one task of an id: "ID:TASK"."""

MIX = "mix:"
"""How the name of a mixture of environments begins."""

MCP = "mcp:"
"""How the name of an environment begins that is an MCP server with a file of tasks."""

SCHEMES = ("http://", "https://", "ws://", "wss://")
"""How the name of an environment begins that is an OpenEnv server."""


def parse_spec(spec: str) -> type[gymnasium.Env]:
    """Return the class of a name, as the module lists them.

    "miniwob:TASK" is the class of one task of the id "miniwob", and so on.

    Raises:
      ValueError: the name is neither; the message lists the registered ids. Or its
        class is no environment.
    """
    if spec.startswith(gymnasium_text.PREFIXES):
        return gymnasium_text.adapter(spec)
    if spec.startswith(SCHEMES):
        from dreamgym.envs.remote.env import remote_class

        return remote_class(spec)
    if spec.startswith(MIX):
        return imported(spec, "dreamgym.envs.adapters.mixture:mixture_class")(spec)
    if spec.startswith(MCP):
        return imported(spec, "dreamgym.envs.mcp.env:mcp_class")(spec)
    suite, colon, task = spec.partition(":")
    if colon and suite in FAMILIES:  # also without a task: it says what it expects
        return imported(spec, FAMILIES[suite])(task)
    target = ENVIRONMENTS.get(spec, spec)
    if not target.partition(":")[2]:
        raise ValueError(
            f"unknown environment {spec!r}: expected one of {sorted(ENVIRONMENTS)} "
            'or "module:Class" or "gym:ID" or "mix:A,B" or "mcp:FILE" or the URL of an '
            "OpenEnv server"
        )
    factory = imported(spec, target)
    if isinstance(factory, type) and not issubclass(factory, gymnasium.Env):
        raise _no_environment(spec)
    return factory


def make(spec: str, **kwargs: Any) -> gymnasium.Env:
    """Return a new environment of a registered id, "module:Class", "gym:ID".

    Raises:
      ValueError: the name is neither, its class wants other arguments or raises, or
        what it makes is no environment.
    """
    with np.errstate():  # its module may turn errors on, which would end our fits
        maker = parse_spec(spec)
    try:
        inspect.signature(maker).bind(**kwargs)
    except TypeError as error:
        raise ValueError(
            f"environment {spec!r} cannot be made: {error}; it must be a class that is "
            "made without arguments: give them defaults, or derive a class that does"
        ) from None
    try:
        with np.errstate():
            env = maker(**kwargs)
    except (
        OSError,
        MemoryError,
        *NOT_CAUGHT,
    ):  # whoever restarts environments knows these
        raise
    except SystemExit as error:  # it would end a command without a word
        raise ValueError(
            f"environment {spec!r} cannot be made: it called sys.exit({error.code!r})"
        ) from error
    except BaseException as error:
        if isinstance(error, Exception) and not _is_users(spec):
            raise
        raise ValueError(
            f"environment {spec!r} cannot be made: {type(error).__name__}: {error} "
            f"({user_place(error)})"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise _no_environment(spec)  # a function made it
    return env


def start(spec: str, *, seconds: float) -> gymnasium.Env:
    """Return a new environment, as `make` does, within a deadline (failures.Deadline).

    Raises:
      EnvironmentTimeout: it took more than `seconds`; 0 sets no deadline.
      Exception: whatever `make` raises.
    """
    limit = Deadline(seconds)
    try:
        with limit:
            return make(spec)
    except Exception as error:
        if not limit.expired:
            raise
        raise not_started(spec, seconds, limit.place) from error


def _no_environment(spec: str) -> ValueError:
    return ValueError(
        f"{spec} is no gymnasium.Env; derive it from dreamgym.TextEnv or "
        "dreamgym.ToolEnv"
    )


def _is_users(spec: str) -> bool:
    """Whether a name is that of a class of the user, "module:Class"."""
    prefixes = (*gymnasium_text.PREFIXES, MIX, MCP, *SCHEMES)
    if spec in ENVIRONMENTS or spec.startswith(prefixes):
        return False
    return spec.partition(":")[0] not in FAMILIES
