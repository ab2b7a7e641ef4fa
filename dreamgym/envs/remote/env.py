"""An OpenEnv server as a real environment: `--env http://127.0.0.1:8000`.

/schema, /metadata -> how actions and observations are written -> one WebSocket for each
episode. Nothing that the server says is trusted to be of the right kind or size.

Behind a # stand options: `http://host:8000#action=command&token_env=MY_TOKEN`:
  action          the field of an action that takes the agent's text
  observation     the field of an observation that the agent sees
  token_env       the environment variable that holds the token of the server
  reset_seconds, step_seconds   deadlines
"""

import json
import math
import os
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import httpx

from dreamgym.envs.base import SPLITS, TextEnv
from dreamgym.envs.importing import named_settings
from dreamgym.envs.remote.connection import (
    MAX_MESSAGE_BYTES,
    Connection,
    ProtocolError,
    Server,
)
from dreamgym.envs.remote.texts import (
    ActionFormat,
    action_format,
    action_help,
    observation_text,
    result_of,
)
from dreamgym.envs.spaces import AnyText
from worldmodel.data.records import Task

OPTIONS = ("action", "observation", "token_env", "reset_seconds", "step_seconds")
PAGE_SECONDS = 20.0
"""Seconds that a page such as /schema may take."""

SPARE_SECONDS = 15.0
"""By how much a caller's deadline exceeds our own, which says more."""

MAX_LISTED = 5_000
"""Tasks of a split, at most, where the server counts them."""


class Unscored(RuntimeError):
    """The server ended an episode without saying what it was worth."""


class RemoteEnv(TextEnv):
    """One session at a time on an OpenEnv server."""

    server: ClassVar[Server]
    action_field: ClassVar[str] = ""
    observation_field: ClassVar[str] = ""

    def __init__(self) -> None:
        """Read the server's pages.

        Raises:
          ConnectionError: the server does not answer, or refuses the token.
          ValueError: its pages are not those of an OpenEnv server that takes text.
        """
        super().__init__()
        self.action_space = AnyText(2_000)
        self._connection = Connection(self.server)
        with self._pages() as pages:
            schema = _page(pages, "GET", "/schema").get("action")
            facts = _page(pages, "GET", "/metadata")
            self._name = str(facts.get("name", ""))[:200]
            self._counts = _task_counts(pages, self._name)
        self._format: ActionFormat = action_format(schema, self.action_field)
        self._help = action_help(schema, self._format)
        self._text = ""
        if self._counts:  # an environment has tasks if it has the method (envs/base.py)
            self.tasks = self._tasks
        self.max_episode_steps = _positive(facts.get("max_episode_steps"))
        self.max_copies = _positive(facts.get("max_sessions")) or 64
        # The server decides; ours are shorter and say what they waited for.
        self.reset_seconds = self.server.reset_seconds + SPARE_SECONDS
        self.step_seconds = self.server.step_seconds + SPARE_SECONDS

    def _pages(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.server.url,
            headers=self.server.headers,
            timeout=PAGE_SECONDS,
            trust_env=not self.server.is_local,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode on a connection of its own.

        Raises:
          ConnectionError: the server cannot be reached, or is full.
          EnvironmentTimeout: it does not answer in time.
          ServerRefusal, ProtocolError: it refuses, or answers nonsense.
        """
        super().reset(seed=seed)
        self.close()
        task = (options or {}).get("task")
        data = {} if seed is None else {"seed": seed}
        if task is not None:
            wanted = {
                k: task.options[k] for k in ("seed", "index") if k in task.options
            }
            data |= {"split": task.split, **wanted}
        answer = self._connection.reset(data)
        try:
            facts = result_of(answer).facts
            text = observation_text(answer.get("observation"), self.observation_field)
        except ProtocolError:
            self.close()
            raise
        self._text = text
        info = {"instruction": facts.get("instruction", "")}
        return text, info | ({"tools": self._help} if self._help else {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step. A step without a reward counts 0, unless it is the last one.

        An action that cannot be written as the server wants it is invalid, and changes
        nothing.

        Raises:
          RuntimeError: no episode runs.
          Unscored: the episode ended without a reward.
          ConnectionError, EnvironmentTimeout, ServerRefusal, ProtocolError: as `reset`;
            the episode is over.
        """
        if not self._connection.is_open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        try:
            wanted = self._format.action(action)
        except ValueError as error:
            text = f"{self._text}\n{error}" if self._text else str(error)
            return text, 0.0, False, False, {"success": False, "invalid": True}
        answer = self._connection.step(wanted)
        try:
            result = result_of(answer)
            text = observation_text(answer.get("observation"), self.observation_field)
        except ProtocolError:
            self.close()
            raise
        self._text = text
        if result.done:
            self.close()
            if result.reward is None:
                reason = result.facts.get("error", "the server gave no reward")
                raise Unscored(f"the episode ended unscored: {reason:.300}")
        terminated = result.done and not result.truncated
        flags = ("success", "invalid", "reveals")
        info = {k: result.facts[k] for k in flags if k in result.facts}
        return text, result.reward or 0.0, terminated, result.truncated, info

    def _tasks(self, split: str) -> list[Task]:
        """Return the tasks that the server counts in a split."""
        return [
            Task(
                id=f"{self._name}-{split}-{index}",
                instruction="",
                env=self.server.url,
                family=self._name,
                split=split,
                options={"index": index},
            )
            for index in range(min(self._counts.get(split, 0), MAX_LISTED))
        ]

    def close(self) -> None:
        """Close the connection of the episode."""
        self._connection.close()


def _positive(value: Any) -> int | None:
    """Return a positive number that a server told, or None."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None


def _page(pages: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    """Return what a page of the server holds, a JSON object.

    Raises:
      ConnectionError: the server does not answer, or with an error.
      ProtocolError: the page is too long, or no JSON object.
    """
    value = _json(pages, method, path, body)
    if not isinstance(value, dict):
        raise ProtocolError(f"{path}: expected a JSON object, got {value!r:.60}")
    return value


def _json(pages: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    content = b""
    try:
        with pages.stream(method, path, json=body) as answer:
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > MAX_MESSAGE_BYTES:
                    raise ProtocolError(f"{path}: more than {MAX_MESSAGE_BYTES} bytes")
            status = answer.status_code
    except httpx.HTTPError as error:
        raise ConnectionError(
            f"{pages.base_url}{path}: {type(error).__name__}: {error}"
        ) from error
    if status != 200:
        raise ConnectionError(f"{pages.base_url}{path}: status {status}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{path}: expected JSON, got {content[:60]!r}") from None


def _task_counts(pages: httpx.Client, name: str) -> dict[str, int]:
    """Return how many tasks the server has in each of our splits.

    It is empty where the server has no Task API, which is optional: tasks are seeds
    then.
    """
    place = quote(name, safe="")
    try:
        splits = _json(pages, "GET", f"/{place}/splits")
        names = [s for s in SPLITS if isinstance(splits, list) and s in splits]
        pages_of = {
            s: _page(pages, "POST", f"/{place}/num_tasks", {"split": s}) for s in names
        }
    except (ConnectionError, ProtocolError):
        return {}
    counts = {s: _positive(page.get("num_tasks")) for s, page in pages_of.items()}
    return {s: n for s, n in counts.items() if n is not None}


def remote_class(spec: str) -> type[RemoteEnv]:
    """Return the environment class of a URL; see the module for its options.

    Raises:
      ValueError: the URL or an option is malformed, or the token's variable is not set.
    """
    parts = urlsplit(spec)
    options = named_settings(spec, parts.fragment)
    if unknown := options.keys() - set(OPTIONS):
        raise ValueError(
            f"environment {spec!r}: no option {min(unknown)!r}; have {OPTIONS}"
        )
    if not parts.hostname or parts.query or parts.username is not None:
        raise ValueError(
            f"environment {spec!r}: expected http://HOST:PORT, with options behind #"
        )
    variable = options.get("token_env", "")
    token = os.environ.get(variable, "")
    if variable and not token:
        raise ValueError(f"environment {spec!r}: the variable {variable!r} is not set")
    scheme = parts.scheme.replace("ws", "http", 1)
    server = Server(
        url=f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}",
        token=token,
        **{
            name: _seconds(spec, name, options[name])
            for name in ("reset_seconds", "step_seconds")
            if name in options
        },
    )
    members = {
        "server": server,
        "action_field": options.get("action", ""),
        "observation_field": options.get("observation", ""),
        "__doc__": f"The OpenEnv server {server.url}.",
    }
    remote: Any = type("RemoteEnv", (RemoteEnv,), members)
    return remote


def _seconds(spec: str, name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"environment {spec!r}: {name} must be > 0, got {text!r}")
    return seconds
