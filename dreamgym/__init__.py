"""Train language agents in imagination and prove them in the real environment."""

import importlib
from typing import TYPE_CHECKING, Any

from dreamgym.gymnasium_ids import register_on_import

if TYPE_CHECKING:
    from dreamgym.build.models import load_policy
    from dreamgym.commands.quickstart import quickstart
    from dreamgym.config.presets import PRESETS, preset
    from dreamgym.config.settings import RunConfig
    from dreamgym.envs.base import TextEnv
    from dreamgym.envs.registry import make
    from dreamgym.envs.tools.tool_env import ToolEnv, tool
    from dreamgym.serving.dream import load_dream
    from worldmodel.data.records import Task

__version__ = "0.2.0"
__all__ = [
    "PRESETS",
    "RunConfig",
    "Task",
    "TextEnv",
    "ToolEnv",
    "load_dream",
    "load_policy",
    "make",
    "preset",
    "quickstart",
    "tool",
]
_PUBLIC = {
    "PRESETS": "dreamgym.config.presets",
    "RunConfig": "dreamgym.config.settings",
    "Task": "worldmodel.data.records",
    "TextEnv": "dreamgym.envs.base",
    "ToolEnv": "dreamgym.envs.tools.tool_env",
    "load_dream": "dreamgym.serving.dream",
    "load_policy": "dreamgym.build.models",
    "make": "dreamgym.envs.registry",
    "preset": "dreamgym.config.presets",
    "quickstart": "dreamgym.commands.quickstart",
    "tool": "dreamgym.envs.tools.tool_env",
}

register_on_import()


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: an environment alone needs no JAX."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dreamgym' has no {name!r}; have {__all__}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
