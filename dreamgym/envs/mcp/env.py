"""An MCP server as a real environment: `--env mcp:TASKS.toml`.

the file (task_file.py) -> a server in a workspace of its own (connection.py) -> its
tools as those of a ToolEnv; an action -> calls of them; after each step the task's
conditions of success are checked.

The workspace is a temporary directory, which each episode finds as its task says. The
agent reads and writes it as `/workspace`, so that states do not hold random names.
"""

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dreamgym.envs.mcp.connection import McpSession
from dreamgym.envs.mcp.messages import ToolError
from dreamgym.envs.mcp.task_file import TaskFile, call_of, read_task_file
from dreamgym.envs.tools.signatures import Signature
from dreamgym.envs.tools.tool_env import ToolEnv
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import Call

WORKSPACE = "/workspace"
"""The workspace as the agent and the file of tasks name it."""
_WORKSPACE = re.compile(rf"(?<![\w./-]){WORKSPACE}(?![\w-])")
MAX_COPIES = 8
"""Copies that one process may hold: each has a server process."""


class McpEnv(ToolEnv):
    """The tools of one MCP server, with the tasks of a file."""

    file: ClassVar[TaskFile]
    max_copies = MAX_COPIES
    reset_seconds = step_seconds = 0.0
    """No deadline of the whole step: each call of the server has one."""
    fork: Any = None  # a server cannot be copied

    def __init__(self) -> None:
        """Start the server and read its tools.

        Raises:
          ConnectionError: the server cannot be started.
          ValueError: it lacks a tool that the file names, or has none at all.
        """
        super().__init__()
        server = self.file.server
        self.max_episode_steps = server.max_episode_steps
        self.deterministic = server.deterministic
        self._folder = Path(tempfile.mkdtemp(prefix="dreamgym-mcp-")).resolve()
        self._session: McpSession | None = None
        self._observed: str | None = None  # the result of `observe` at present
        try:
            self.tools = self._signatures()
        except BaseException:
            self.close()
            raise

    def _signatures(self) -> dict[str, Signature]:
        described = {tool.name: tool for tool in self._running().tools()}
        wanted = self.file.server.tools or tuple(described)
        if not wanted:
            raise ValueError(f"{self.file.path}: the server has no tools")
        if missing := [name for name in wanted if name not in described]:
            raise ValueError(
                f"{self.file.path}: the server has no tool {missing[0]!r}; have "
                f"{', '.join(described)}"
            )
        return {name: Signature.of_schema(*described[name]) for name in wanted}

    def _running(self) -> McpSession:
        """Return the session, with a server that is started where there is none."""
        if self._session is None:
            server = self.file.server
            self._session = McpSession(
                [self._inside(part) for part in server.command],
                {name: self._inside(text) for name, text in server.env.items()},
                step_seconds=server.step_seconds,
            )
        return self._session

    def _inside(self, text: str) -> str:
        return text.replace("{workspace}", str(self._folder))

    # --- ToolEnv ---

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split, as the file lists them."""
        return list(self.file.tasks[split])

    def start(self, task: Task) -> str:
        """Fill the workspace, make the calls of the setup; return the files."""
        self._observed = None
        if self.file.server.restart:
            self._stop()  # first: it may write when it ends
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        files: Mapping[str, str] = task.options.get("files", {})
        for name, text in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._running()
        for text in task.options.get("setup", ()):
            self._call_server(call_of(text))
        self._plan = list(task.options.get("expert", ()))
        self._success_rule: Mapping[str, Any] = task.options["success"]
        return f"files {' '.join(sorted(files)) or 'none'}"

    def observation(self) -> str:
        """Return the result of the call `server.observe`, where there is one."""
        observe = self.file.server.observe
        if not observe:
            return ""
        if self._observed is None:
            try:
                self._observed = self._call_server(call_of(observe))
            except ToolError as error:
                self._observed = f"error: {error}"
        return self._observed

    def run_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the server; end the episode where the task is solved."""
        self._observed = None
        text = self._call_server(Call(name, dict(arguments)))
        if "answer" not in self._success_rule and self._is_solved():
            self.finish(True)
        return text

    def answer(self, text: str) -> str:
        """Compare an answer with the right one, where the task asks for one."""
        right = self._success_rule.get("answer")
        if right is None:
            return super().answer(text)
        self.finish(text.strip() == right.strip() and self._is_solved())
        return "answered"

    def expert(self) -> list[str]:
        """Return the plan of the file; an empty list where it has none."""
        return self._plan

    def close(self) -> None:
        """Stop the server and remove the workspace."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stop(self, *, at_once: bool = False) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(at_once=at_once)

    # --- the server ---

    def _call_server(self, call: Call) -> str:
        """Return the text of a call's result, with the workspace under its own name.

        Raises:
          ToolError: the tool says that the call failed.
          ConnectionError, EnvironmentTimeout: the server is gone or hangs; the next
            episode has a new one.
        """
        real = str(self._folder)
        arguments = json.loads(_WORKSPACE.sub(real, json.dumps(call.arguments)))
        try:
            text = self._running().call(call.tool, arguments)
        except ToolError as error:
            raise ToolError(str(error).replace(real, WORKSPACE)) from None
        except OSError:
            self._stop(at_once=True)
            raise
        return text.replace(real, WORKSPACE)

    def _text_of(self, path: Path) -> str:
        """Return the text of a file as the agent wrote it."""
        text = path.read_text(encoding="utf-8", errors="replace")
        return text.replace(str(self._folder), WORKSPACE).strip()

    def _is_solved(self) -> bool:
        """Return whether all conditions but the answer hold."""
        rule = self._success_rule
        for name, text in rule.get("files", {}).items():
            path = self._folder / name
            if not path.is_file() or self._text_of(path) != text.strip():
                return False
        if any((self._folder / name).exists() for name in rule.get("absent", ())):
            return False
        if (result := rule.get("result")) is None:
            return True
        try:
            text = self._call_server(call_of(result["call"]))
        except ToolError:  # what it asks for is not there
            return False
        wanted, unwanted = result.get("contains", ()), result.get("lacks", ())
        return all(x in text for x in wanted) and not any(x in text for x in unwanted)


@functools.lru_cache(maxsize=8)
def mcp_class(spec: str) -> type[McpEnv]:
    """Return the environment class of "mcp:FILE".

    Raises:
      ValueError: the file is missing or malformed.
    """
    file = read_task_file(spec.partition(":")[2])
    doc = f"The MCP server {' '.join(file.server.command)}."
    return type("McpEnv", (McpEnv,), {"file": file, "__doc__": doc})
