"""The options of a task that was made from another one by changing words.

options, renamed words -> options that say the same of the new task: the expected calls
name its things, and the tools are the same.
"""

import json
from collections.abc import Mapping
from typing import Any

from worldmodel.data.records import Task
from worldmodel.text.identifiers import matches
from worldmodel.text.tools.tool_calls import Call, expected_calls

UNCHANGED = ("tools",)
"""Options that no word of a task stands in."""
LEFT_OUT = ("seed",)
"""Options that would lead an environment to the task that was changed."""


def renamed_words(before: str, after: str) -> dict[str, str] | None:
    """Return which words of a text replace which; None where the texts differ in form.

    They have the same form if their words are as many, and a word that changes always
    changes to the same other one.
    """
    old, new = before.split(), after.split()
    pairs = dict(zip(old, new, strict=False))
    if len(old) != len(new) or [pairs[word] for word in old] != new:
        return None
    return {a: b for a, b in pairs.items() if a != b}


def with_renamed_words(
    options: Mapping[str, Any], renames: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options with words replaced in all texts, numbers and names."""
    plain = {a.strip(".,:;?!"): b.strip(".,:;?!") for a, b in renames.items()}
    return {
        key: _renamed_calls(value, plain)
        if key == "calls"
        else value
        if key in UNCHANGED
        else _renamed(value, plain)
        for key, value in options.items()
        if key not in LEFT_OUT
    }


def _renamed_calls(rows: Any, renames: Mapping[str, str]) -> Any:
    """Return expected calls with words replaced in the values of their arguments.

    The names of tools and arguments are those of the environment. What is no list of
    calls stays as it is.
    """
    try:
        steps = expected_calls(Task(id="task", instruction="", options={"calls": rows}))
    except ValueError:
        return rows
    if steps is None:  # nobody knows which calls are due
        return rows
    renamed = [
        [{"tool": c.tool, "arguments": _with_new_values(c, renames)} for c in step]
        for step in steps
    ]
    return [calls if len(calls) > 1 else next(iter(calls), None) for calls in renamed]


def _with_new_values(call: Call, renames: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: _renamed(value, renames, keys=False)
        for name, value in call.arguments.items()
    }


def _renamed(value: Any, renames: Mapping[str, str], *, keys: bool = True) -> Any:
    """Return a value with words replaced, with `keys` also in the keys of objects."""
    if isinstance(value, str):
        return _renamed_text(value, renames)
    if isinstance(value, Mapping):
        return {
            _renamed_text(str(k), renames) if keys else k: _renamed(
                v, renames, keys=keys
            )
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_renamed(item, renames, keys=keys) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _renamed_number(value, renames)
    return value


def _renamed_text(text: str, renames: Mapping[str, str]) -> str:
    out, at = "", 0
    for match in matches(text):
        out += text[at : match.start()] + renames.get(match[0], match[0])
        at = match.end()
    return out + text[at:]


def _renamed_number(value: float | int, renames: Mapping[str, str]) -> float | int:
    try:
        number = json.loads(renames.get(json.dumps(value), json.dumps(value)))
    except ValueError:
        return value
    return number if isinstance(number, int | float) else value
