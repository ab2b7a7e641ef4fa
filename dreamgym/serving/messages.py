"""OpenEnv's messages: what a client may send, and what is answered.

JSON text -> reset, step, state, close, mcp, checked -> one JSON object back. The names
of codes are OpenEnv's; `reason` next to them says more exactly what was refused.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

MAX_ACTION_CHARACTERS = 2_000
"""Characters of an action, at most: a longer one is no action of a text game, and each
one stands in the prompt of the experience model."""

MAX_MESSAGE_BYTES = 65_536
"""Bytes of one message or request of a client, at most."""

NO_MCP = "this environment has no MCP tools; episodes are played on /ws"


class Refused(Exception):
    """A message that is answered with an error instead of being carried out."""

    def __init__(self, code: str, reason: str, message: str, **facts: Any):
        super().__init__(message)
        self.code, self.reason, self.facts = code, reason, facts

    def payload(self) -> dict[str, Any]:
        """Return the error as OpenEnv's message of it."""
        data = {"message": str(self), "code": self.code, "reason": self.reason}
        return {"type": "error", "data": data | self.facts}


class Action(BaseModel):
    """What the agent does, in words."""

    model_config = ConfigDict(extra="forbid", title="Action")

    message: str = Field(max_length=MAX_ACTION_CHARACTERS)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    """What the agent sees: the state as lines of text, and facts about the step."""

    text: str
    instruction: str
    metadata: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    """Which episode a session plays."""

    episode_id: str | None = None
    step_count: int = 0
    running: bool = False


class ResetOptions(BaseModel):
    """How an episode begins; unknown keys are ignored, as in OpenEnv.

    The warning in an observation's metadata names the first of them (`ignored`).
    """

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0, lt=2**63)
    split: str | None = Field(default=None, max_length=100)
    index: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)
    details: bool = False

    def ignored(self) -> list[str]:
        """Return the first few unknown keys, cut to a length that can be shown."""
        return [str(name)[:40] for name in self.model_extra or ()][:5]


class StepRequest(BaseModel):
    """The body of POST /step, which holds its action under a name."""

    model_config = ConfigDict(extra="ignore")

    action: Action


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetMessage(_Message):
    """Begin an episode."""

    type: Literal["reset"]
    data: ResetOptions = Field(default_factory=ResetOptions)


class StepMessage(_Message):
    """Take a step in the running episode."""

    type: Literal["step"]
    data: Action


class StateMessage(_Message):
    """Ask which episode runs."""

    type: Literal["state"]
    data: dict[str, Any] = Field(default_factory=dict)


class CloseMessage(_Message):
    """End the session."""

    type: Literal["close"]
    data: dict[str, Any] = Field(default_factory=dict)


class McpMessage(_Message):
    """A call by JSON-RPC."""

    type: Literal["mcp"]
    data: dict[str, Any] = Field(default_factory=dict)


Message = ResetMessage | StepMessage | StateMessage | CloseMessage | McpMessage
_MESSAGES: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="type")]
)
_TYPES = ("reset", "step", "state", "close", "mcp")


def parse_message(text: str) -> Message:
    """Return a client's message.

    Raises:
      Refused: it is no JSON, of no known type, or not what its type expects.
    """
    try:
        value = json.loads(text)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise Refused(
            "INVALID_JSON", "invalid_json", f"Invalid JSON: {error}"
        ) from None
    if not isinstance(value, dict):
        message = "expected a JSON object with the keys type and data"
        raise Refused("VALIDATION_ERROR", "invalid_message", message)
    if value.get("type") not in _TYPES:
        message = f"Unknown message type: {value.get('type')!r:.60}; have {_TYPES}"
        raise Refused("UNKNOWN_TYPE", "unknown_type", message)
    try:
        parsed = _MESSAGES.validate_python(value)
    except ValidationError as error:
        raise invalid(error) from None
    if isinstance(parsed, StepMessage):
        check_action(parsed.data)
    return parsed


def check_action(action: Action) -> None:
    """Refuse an action that UTF-8 cannot hold (an unpaired surrogate)."""
    try:
        action.message.encode()
    except UnicodeEncodeError as error:
        message = f"message cannot be written as UTF-8: {error.reason}"
        raise Refused("VALIDATION_ERROR", "invalid_message", message) from None


def invalid(error: ValidationError) -> Refused:
    """Return the refusal of a message that does not have the form it should."""
    rows = error.errors(include_url=False, include_context=False, include_input=False)
    first = rows[0]
    place = ".".join(str(x) for x in first["loc"][1:])
    message = f"Invalid message: {place or 'message'}: {first['msg']}"
    return Refused("VALIDATION_ERROR", "invalid_message", message, errors=rows[:5])


def answer_json_rpc(body: bytes) -> dict[str, Any]:
    """Return the answer to the body of a request by JSON-RPC, whatever it holds."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return json_rpc_error(-32700, "Parse error")
    return json_rpc(request)


def json_rpc(request: Any) -> dict[str, Any]:
    """Return the answer to a JSON-RPC request: always an error, there are no tools."""
    valid = (
        isinstance(request, dict)
        and request.get("jsonrpc") == "2.0"
        and isinstance(request.get("method"), str)
    )
    if not valid:
        message = "Invalid request: expected jsonrpc '2.0' and a method"
        return json_rpc_error(-32600, message)
    number, name = request.get("id"), request["method"]
    number = number if isinstance(number, int | str) else None
    if name in ("tools/list", "tools/call"):
        message = f"Environment does not support MCP: {NO_MCP}"
        return json_rpc_error(-32603, message, number)
    return json_rpc_error(-32601, f"Method not found: {name:.60}", number)


def json_rpc_error(code: int, message: str, number: Any = None) -> dict[str, Any]:
    """Return a JSON-RPC error; `number` is the id of the request."""
    error = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": number, "error": error}
