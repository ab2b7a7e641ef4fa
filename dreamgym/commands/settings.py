"""Lists settings with name, type, default and meaning."""

import textwrap
from collections.abc import Sequence

from dreamgym.config.describe import Setting, settings_of, unknown_setting, value_text
from dreamgym.config.presets import preset
from dreamgym.config.stages import ServerConfig
from worldmodel.chat.config import ChatConfig


def matching(name: str = "", preset_name: str = "default") -> list[Setting]:
    """Return the settings of a name or a group, or all, with a preset's defaults.

    Raises:
      ValueError: an unknown preset, or no such setting; the message has names near it.
    """
    chat = ChatConfig(base_url="http://127.0.0.1:8080/v1")
    config = preset(preset_name, server=ServerConfig(chat=chat))
    every = list(settings_of(config))
    group = name.removesuffix("*").removesuffix(".")
    out = [s for s in every if s.name == group or s.name.startswith(f"{group}.")]
    if not name:
        return every
    if not out:  # the beginning of a name, or its last part
        out = [s for s in every if s.name.startswith(name)]
        out = out or [s for s in every if s.name.endswith(f".{name}")]
    if not out:
        raise ValueError(unknown_setting(name, config))
    return out


def text(settings: Sequence[Setting]) -> str:
    """Return settings as text: one line each, with the meaning below it."""
    lines = []
    for s in settings:
        lines.append(f"{s.name}  ({s.type})  {value_text(s.default)}")
        lines += textwrap.wrap(
            s.text, 84, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines)
