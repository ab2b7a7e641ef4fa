"""Conversations with tools: the multi-turn part of the Berkeley leaderboard (BFCL).

a scenario: users' requests, one after another, and the APIs that they need
  -> the agent's calls, checked and executed; an answer ends its turn
  -> after each turn BFCL's own checker compares the APIs with those of the right calls
States are lines (`ToolEnv` adds the results of the last action):
  turn 2 of 4                the request that is being worked on
  user TEXT                  the request, in the user's words
  new tool SIGNATURE         a tool that was missing until this turn
  earlier calls 3            so many calls that no longer fit the state
  called CALL -> RESULT      the other calls so far that reached an API
The data and the checker come from the `bfcl-eval` package (bfcl_apis.py).

A turn that was done right pays 1 divided by the number of turns, and a wrong one ends
the episode. It succeeds when all turns are right, which is the leaderboard's score.
"""

import functools
import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from dreamgym.envs.base import SPLITS
from dreamgym.envs.suites.bfcl_apis import Apis, Scenario, read_scenarios
from dreamgym.envs.tools.lines import newest_lines, shorten
from dreamgym.envs.tools.tool_env import ToolEnv
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import Call, write_call

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
"""Parts of the data: as asked, with a tool that comes late, with a request that lacks
an argument, and with results that are hundreds of lines long."""

DEFAULT_CATEGORIES = CATEGORIES[:3]

MAX_STEPS = 40
"""Steps of an episode: the longest right conversation has 37, most have under 18."""

MAX_RESULT = 500
"""Characters of a result that the agent sees; of a long context only its beginning."""

MAX_RESULTS = 16_000
"""Characters of all calls and results that the agent sees; those of right conversations
have 9,485 at most."""

INVALID_PENALTY = -0.02
"""What an action earns that is no call, or a call that fails."""

INSTRUCTION = "do what the user asks with the tools, then answer, turn by turn"

DONE = "done"
"""The expert's answer at the end of each turn. Its wording is not judged."""


class Bfcl(ToolEnv):
    """Conversations of some categories, which are its families.

    The four categories tell the same 200 scenarios in different ways, so the splits go
    by scenario: 120 are train, 40 dev and 40 test scenarios.
    """

    categories: ClassVar[tuple[str, ...]] = DEFAULT_CATEGORIES
    deterministic = True
    max_episode_steps = MAX_STEPS
    invalid_reward = INVALID_PENALTY

    def tasks(self, split: str) -> list[Task]:
        """Return the conversations of a split, the categories in turn."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        families = [
            [
                _task(category, number, split)
                for number in read_scenarios(category)
                if _split_of(number) == split
            ]
            for category in self.categories
        ]
        turns = itertools.zip_longest(*families)
        return [task for turn in turns for task in turn if task is not None]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or the first train task.

        Raises:
          ValueError: the task's options name no conversation.
        """
        self._open = False
        task = (options or {}).get("task") or self._first_task()
        self._scenario = _scenario_of(task)
        self.tools = self._scenario.tools
        return super().reset(seed=seed, options={"task": task})

    def start(self, task: Task) -> str:
        """Set up the APIs of a conversation; the agent's and those to compare with."""
        del task
        self._apis, self._right_apis = Apis(self._scenario), Apis(self._scenario)
        self._turn, self._calls, self._turn_calls = 0, list[str](), 0
        return ""

    def _tools_text(self) -> str:
        """Return the tools that the agent has from the start.

        The task's schemas hold those that come later as well: they are written once, at
        the reset, and a grammar of actions can write no tool that is in no schema.
        """
        late = self._scenario.missing_tools(turn=0)
        present = [s for name, s in self.tools.items() if name not in late]
        return f"tools: {'; '.join(map(str, present))}"

    def observation(self) -> list[str]:
        """Return the request and the calls so far."""
        scenario = self._scenario
        turn = min(self._turn, len(scenario.requests) - 1)
        request = scenario.requests[turn] or "more tools are there now"
        new = [self.tools[name] for name in scenario.late_tools.get(turn, ())]
        return [
            f"turn {turn + 1} of {len(scenario.requests)}",
            f"user {' '.join(request.split())}",
            *(f"new tool {signature}" for signature in new),
            *newest_lines(self._calls, MAX_RESULTS),
        ]

    def _call(self, call: Call) -> str:
        missing = self._scenario.missing_tools(self._turn)
        if call.tool in missing:
            raise ValueError(f"no tool {call.tool!r} yet")
        if call.tool not in self.tools:
            present = ", ".join(name for name in self.tools if name not in missing)
            raise ValueError(f"no tool {call.tool!r}; have {present}")
        return super()._call(call)

    def run_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a method of the APIs.

        Raises:
          ValueError: it failed; the message is the API's own.
        """
        self._turn_calls += 1
        result = self._apis.call(name, arguments)
        call = write_call(name, dict(arguments))
        # A call that fails is there as well: some APIs have changed something before.
        self._calls.append(f"called {call} -> {shorten(result.text, MAX_RESULT)}")
        if result.failed:
            raise ValueError(shorten(result.text, MAX_RESULT))
        return ""

    def answer(self, text: str) -> str:
        """End the turn: compare the APIs with those after the right calls."""
        del text
        right_calls = self._scenario.right_calls[self._turn]
        results = [self._right_apis.call(*call).text for call in right_calls]
        is_right = not right_calls or (
            self._turn_calls > 0 and self._apis.agree_with(self._right_apis, results)
        )
        self._turn, self._turn_calls = self._turn + 1, 0
        number = len(self._scenario.requests)
        if is_right:
            self.add_reward(1 / number)
        if not is_right or self._turn == number:
            self.finish(is_right, reward=0.0)
        return "next turn" if is_right else "wrong"

    def expert(self) -> list[str]:
        """Return the calls of the leaderboard's answer, one at a time.

        Raises:
          RuntimeError: there was no reset.
        """
        self._require_task("expert")
        turns = self._scenario.right_calls
        return [
            action
            for calls in turns
            for action in (
                *(write_call(name, arguments) for name, arguments in calls),
                self.write_answer(DONE),
            )
        ]

    def valid_actions(self) -> list[str]:
        """Return calls of values in sight, and the answer that ends the turn.

        Raises:
          RuntimeError: there was no reset.
        """
        self._require_task("valid_actions")
        missing = self._scenario.missing_tools(self._turn)
        calls = [
            action
            for action in super().valid_actions()
            if action.partition(" ")[0] not in missing
        ]
        return [*calls, self.write_answer(DONE)]


def _split_of(number: int) -> str:
    """Return the split of a scenario; neighbours are of one API, so they alternate."""
    return ("test", "dev", "train", "train", "train")[number % 5]


def _task(category: str, number: int, split: str) -> Task:
    return Task(
        id=f"bfcl-{category}-{number}",
        instruction=INSTRUCTION,
        env="bfcl",
        family=category,
        split=split,
        options={"category": category, "scenario": number},
    )


def _scenario_of(task: Task) -> Scenario:
    category, number = task.options.get("category"), task.options.get("scenario")
    scenarios = read_scenarios(category) if category in CATEGORIES else {}
    if type(number) is not int or number not in scenarios:
        raise ValueError(
            f"task {task.id!r}: options must name a category of {list(CATEGORIES)} and "
            f"the number of a scenario, got {json.dumps(dict(task.options))}"
        )
    return scenarios[number]


@functools.cache
def one_category(category: str) -> type[Bfcl]:
    """Return the environment of one category.

    Raises:
      ValueError: there is no such category; the message lists them.
    """
    if category not in CATEGORIES:
        raise ValueError(
            f"unknown category of BFCL {category!r}: expected one of "
            f"{', '.join(CATEGORIES)}"
        )
    members = {"categories": (category,), "__doc__": Bfcl.__doc__}
    return type("Bfcl", (Bfcl,), members)
