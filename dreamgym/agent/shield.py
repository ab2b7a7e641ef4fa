"""Shields: what an action is replaced by before it is executed.

the settings' name -> a function of the task, the state, the action and the valid
actions -> the action that is executed. A replaced action has the cost SHIELDED, so that
it is counted wherever costs are, and can be limited.
"""

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from worldmodel.data.records import State, Task

SHIELDED = "shielded"
"""The cost of an action that was replaced: 1."""
AUTO = "auto"
"""The setting that leaves the choice to a run; without one nothing is replaced."""

Shield = Callable[[Task, State, str, Sequence[str] | None], str]
"""The valid actions are None where nobody lists them, as in a dream."""


def shield_for(name: str) -> Shield | None:
    """Return the shield of a name: "", AUTO, "valid", or "module:function".

    Raises:
      ValueError: there is no such function.
    """
    if name in ("", AUTO):
        return None
    if name == "valid":
        return valid_shield
    module, _, function = name.partition(":")
    try:
        out: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f'shield must be "valid" or "module:function", got {name!r} ({error})'
        ) from None
    if callable(out):
        return cast("Shield", out)
    raise ValueError(f"shield: {name} is no function")


def keep_action(
    task: Task, state: State, action: str, valid: Sequence[str] | None
) -> str:
    """Return the action as it is; transitions then record the valid actions."""
    del task, state, valid
    return action


def valid_shield(
    task: Task, state: State, action: str, valid: Sequence[str] | None
) -> str:
    """Return the action if it is valid, else the most similar valid one."""
    del task, state
    if not valid or action in valid:
        return action
    return difflib.get_close_matches(action, valid, n=1, cutoff=0.0)[0]
