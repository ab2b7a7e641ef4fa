"""Observations of any OpenEnv server as text, and text as its actions.

OpenEnv fixes the envelope, not what is in it: the action's JSON schema says which
fields an action has, and an observation is an object of any kind.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dreamgym.envs.remote.connection import ProtocolError

TEXT_FIELDS = ("text", "message", "observation", "content", "output", "result")
"""Fields in which the text of an observation is looked for, in this order."""

NO_TEXT = ("done", "reward", "metadata")
"""Fields that are no part of what the agent sees."""

TOOL_CALLS = ("CallToolAction", "ListToolsAction")
"""Titles of schemas whose actions are calls of MCP tools."""


class ActionFormat(NamedTuple):
    """How text becomes an action: in one field, or as the object that it is."""

    field: str = ""
    """The field that takes the whole text; "" where the text is a JSON object."""

    def action(self, text: str) -> dict[str, Any]:
        """Return the action that a text stands for.

        Raises:
          ValueError: it should be a JSON object, and is none.
        """
        if self.field:
            return {self.field: text}
        inner = text.strip().removeprefix("```json").removeprefix("```")
        try:
            value = json.loads(inner.removesuffix("```"))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ValueError("invalid action: expected a JSON object")
        return value


def action_format(schema: Any, field: str = "") -> ActionFormat:
    """Return how actions of a server are written, by the schema of its actions.

    Text is the one required field if that takes text, or else the one that may hold
    text. Where there are several, an action is a JSON object.

    Args:
      field: the name of the field, where the user gave it.

    Raises:
      ProtocolError: the schema is none, has no such field, or wants calls of tools.
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ProtocolError(
            "/schema: expected a JSON schema of an object under 'action', got "
            f"{schema!r:.80}"
        )
    properties = {k: v for k, v in schema["properties"].items() if k != "metadata"}
    if field:
        if field not in properties:
            have = sorted(properties)
            raise ProtocolError(f"an action has no field {field!r}; it has {have}")
        return ActionFormat(field)
    if schema.get("title") in TOOL_CALLS:
        raise ProtocolError(
            "the server's actions are calls of MCP tools, which --env URL cannot write"
        )
    required = [k for k in schema.get("required", []) if k in properties]
    texts = [k for k, v in properties.items() if _takes_text(v)]
    if len(required) == 1 and required[0] in texts:
        return ActionFormat(required[0])
    if not required and len(properties) == 1 and texts:
        return ActionFormat(texts[0])
    return ActionFormat()


def _takes_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = [schema, *schema.get("anyOf", [])]
    return any(isinstance(k, dict) and k.get("type") == "string" for k in kinds)


def action_help(schema: Mapping[str, Any], form: ActionFormat) -> str:
    """Return what the agent must know about actions; "" where they are plain text."""
    if form.field:
        return ""
    properties = {k: v for k, v in schema["properties"].items() if k != "metadata"}
    fields = {k: v.get("type", "any") for k, v in properties.items()}
    return f"An action is a JSON object with the fields {json.dumps(fields)}."


def observation_text(observation: Any, field: str = "") -> str:
    """Return the text of an observation.

    It is that of `field`, or of the first of TEXT_FIELDS that holds text; otherwise
    the whole object as lines of JSON, one for each field.

    Raises:
      ProtocolError: the observation is no object, or the field holds no text.
    """
    if not isinstance(observation, dict):
        raise ProtocolError(f"expected an observation object, got {observation!r:.60}")
    if field:
        if not isinstance(observation.get(field), str):
            raise ProtocolError(
                f"observation: expected text under {field!r}, got "
                f"{observation.get(field)!r:.60}"
            )
        return observation[field]
    for name in TEXT_FIELDS:
        if isinstance(observation.get(name), str):
            return observation[name]
    rows = {k: v for k, v in observation.items() if k not in NO_TEXT}
    return "\n".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in rows.items()
    )


class Result(NamedTuple):
    """What a step led to, apart from the text."""

    reward: float | None
    """None where the server did not score the step."""
    done: bool
    truncated: bool
    facts: dict[str, Any]
    """Metadata: flags and instruction, as far as they are of the right type."""


def result_of(data: Mapping[str, Any]) -> Result:
    """Return reward, end and metadata of an answer.

    Raises:
      ProtocolError: reward or end are not what they should be.
    """
    reward, done = data.get("reward"), data.get("done", False)
    if reward is not None:
        if not isinstance(reward, bool | int | float):
            raise ProtocolError(
                f"reward: expected a number or null, got {reward!r:.60}"
            )
        try:
            reward = float(reward)
        except OverflowError:
            reward = math.inf
        if not math.isfinite(reward):
            raise ProtocolError(f"reward: expected a finite number, got {reward}")
    if not isinstance(done, bool):
        raise ProtocolError(f"done: expected true or false, got {done!r:.60}")
    observation = data.get("observation")
    inside = observation if isinstance(observation, dict) else {}
    facts: dict[str, Any] = {}
    # Servers of different versions tell these at different places.
    for place in (inside, inside.get("metadata"), data, data.get("metadata")):
        if isinstance(place, dict):
            facts |= {k: v for k, v in place.items() if _is_fact(k, v)}
    truncated = done and facts.pop("truncated", False)
    facts.pop("truncated", None)
    return Result(reward, done, truncated, facts)


def _is_fact(name: str, value: Any) -> bool:
    if name in ("truncated", "success", "invalid", "reveals"):
        return isinstance(value, bool)
    return name in ("instruction", "error") and isinstance(value, str) and value != ""
