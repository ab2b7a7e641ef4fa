"""The scenarios of BFCL's multi-turn data, and the APIs that they call.

data files -> Scenario: requests, tools, right calls; a scenario -> Apis: instances of
the package's API classes; a call -> Result: its text, and whether it failed

The package executes calls with `eval`. Here an answer key is parsed as Python literals,
and only methods that the scenario describes are called.
"""

import ast
import copy
import functools
import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

try:
    import bfcl_eval
    from bfcl_eval.constants import executable_backend_config as backends
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker
except ImportError as error:
    raise ImportError(
        "the conversations of BFCL need pip install --no-deps bfcl-eval mpmath (its "
        "other requirements, such as an old NumPy, are for running the leaderboard)"
    ) from error

from dreamgym.envs.tools.signatures import Signature

LIMITS = {"precision": 1000, "exponent": 10_000}
"""The largest values of arguments that the mathematics of the package has no bound for:
a precision of a million digits takes minutes, in which nothing can interrupt it."""

_DATA = Path(bfcl_eval.__file__).parent / "data"
_PREFACE = "Tool description: "
"""What every description has before what the tool does."""

ToolCall = tuple[str, Mapping[str, Any]]


class Scenario(NamedTuple):
    """A conversation: what is asked in each turn, with which tools, and the answer."""

    id: str
    requests: tuple[str, ...]  # empty where a turn only brings tools
    apis: tuple[str, ...]
    initial_state: Mapping[str, Any]
    tools: Mapping[str, Signature]
    late_tools: Mapping[int, tuple[str, ...]]  # by the turn in which they come
    right_calls: tuple[tuple[ToolCall, ...], ...]

    def missing_tools(self, turn: int) -> set[str]:
        """Return the tools that come after a turn."""
        late = self.late_tools.items()
        return {name for comes, names in late if comes > turn for name in names}

    @property
    def has_long_context(self) -> bool:
        """Whether its APIs hold hundreds of further files, messages, and so on."""
        return "long_context" in self.id


class Result(NamedTuple):
    """The text of what a call returned, and whether it is an error."""

    text: str
    failed: bool


class Apis:
    """The APIs of one conversation, in their present state."""

    def __init__(self, scenario: Scenario):
        self._instances: dict[str, Any] = {}
        self._results: list[str] = []
        for name in scenario.apis:
            instance = self._instances[name] = _api_class(name)()
            if name not in backends.STATELESS_CLASSES:
                state = copy.deepcopy(scenario.initial_state.get(name, {}))
                instance._load_scenario(state, long_context=scenario.has_long_context)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a method by its name; every exception is an error of the call.

        Raises:
          ValueError: an argument is beyond its limit; nothing was called.
        """
        for name, limit in LIMITS.items():
            value = arguments.get(name, 0)
            if isinstance(value, int | float) and not abs(value) <= limit:
                raise ValueError(f"{name} must be at most {limit}, got {value:.60g}")
        instance = next(x for x in self._instances.values() if hasattr(x, tool))
        try:
            value = getattr(instance, tool)(**copy.deepcopy(dict(arguments)))
        except Exception as error:
            result = Result(f"Error during execution: {error}", failed=True)
        else:
            failed = isinstance(value, dict) and "error" in value
            result = Result(_result_text(value), failed)
        self._results.append(result.text)
        return result

    def agree_with(self, right: "Apis", right_results: Sequence[str]) -> bool:
        """Whether these are as right ones, and have returned a turn's right results."""
        if not checker.state_checker(self._instances, right._instances)["valid"]:
            return False
        check = checker.response_checker(self._results, list(right_results), 0)
        return check["valid"]


def _result_text(value: Any) -> str:
    """Return what a method returned as the package's own checker writes it."""
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return str(value)


@functools.cache
def _api_class(name: str) -> type:
    module = importlib.import_module(backends.CLASS_FILE_PATH_MAPPING[name])
    return getattr(module, name)


@functools.cache
def read_scenarios(category: str) -> Mapping[int, Scenario]:
    """Return the scenarios of a category by their number, those that can be won.

    Raises:
      OSError: the package's files are not there.
    """
    file = f"BFCL_v4_multi_turn_{category}.json"
    answers = {
        row["id"]: row["ground_truth"] for row in _rows(f"possible_answer/{file}")
    }
    scenarios = [_scenario(row, answers[row["id"]]) for row in _rows(file)]
    winnable = [scenario for scenario in scenarios if _is_winnable(scenario)]
    return {int(s.id.rpartition("_")[2]): s for s in winnable}


def _is_winnable(scenario: Scenario) -> bool:
    """Whether the right calls fit the tools that are there when they are due.

    Of the 800 conversations of release 2026.3.23 five are not: the four versions of
    scenario 173 close a ticket by a text where the tool wants a number, and scenario 49
    without a tool (`miss_func`) needs it before it comes.
    """
    for turn, calls in enumerate(scenario.right_calls):
        missing = scenario.missing_tools(turn)
        for name, arguments in calls:
            try:
                scenario.tools[name].check(arguments)
            except (ValueError, LookupError):
                return False
            if name in missing:
                return False
    return True


def _rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a data file, which has a JSON object in each line."""
    lines = (_DATA / path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def _scenario(row: Mapping[str, Any], answer: Sequence[Sequence[str]]) -> Scenario:
    apis = tuple(row["involved_classes"])
    excluded = set(row.get("excluded_function", ()))
    tools = {
        name: signature
        for api in apis
        for name, signature in _signatures(api).items()
        if name not in excluded
    }
    late = row.get("missed_function", {}).items()
    return Scenario(
        id=row["id"],
        requests=tuple(turn[0]["content"] if turn else "" for turn in row["question"]),
        apis=apis,
        initial_state=row["initial_config"],
        tools=tools,
        late_tools={
            int(turn): tuple(name for name in names if name in tools)
            for turn, names in late
        },
        right_calls=tuple(
            tuple(_parse_call(text, apis) for text in calls) for calls in answer
        ),
    )


@functools.cache
def _signatures(api: str) -> Mapping[str, Signature]:
    file = backends.MULTI_TURN_FUNC_DOC_FILE_MAPPING[api]
    return {
        row["name"]: Signature.of_schema(
            row["name"],
            row["description"].rpartition(_PREFACE)[2],
            row["parameters"],
        )
        for row in _rows(f"multi_turn_func_doc/{file}")
    }


def _parse_call(text: str, apis: Sequence[str]) -> ToolCall:
    """Return a call of the answer key, its arguments by their names.

    Raises:
      ValueError: it is no call of literals.
    """
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"expected a call, got {text!r}")
    name = node.func.id
    method = next(m for api in apis if (m := getattr(_api_class(api), name, None)))
    names = list(inspect.signature(method).parameters)[1:]
    arguments = dict(zip(names, map(ast.literal_eval, node.args), strict=False))
    for keyword in node.keywords:
        arguments[str(keyword.arg)] = ast.literal_eval(keyword.value)
    return name, arguments
