"""Questions of reasoning-gym, with one answer: single turn, or with a Python tool.

  reasoning:chain_sum                        one turn: the agent writes its answer
  reasoning:chain_sum?python=true            it may run code first, and reads the output
  reasoning:chain_sum?max_terms=3            settings of the generator

Answers are scored by the package's own scorers, from 0 to 1; the full score is success.
Listed are tasks whose scorers do not evaluate what an agent wrote (TASKS). Code runs in
a process of its own (dreamgym/envs/sandbox).
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

try:
    import reasoning_gym
except ImportError as error:
    raise ImportError(
        "the questions of reasoning-gym need pip install 'dreamgym[reasoning]'"
    ) from error

from dreamgym.envs.base import SPLITS
from dreamgym.envs.importing import named_settings
from dreamgym.envs.sandbox import run_python
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from worldmodel.data.records import Task

TASKS = (
    "aiw",
    "base_conversion",
    "basic_arithmetic",
    "caesar_cipher",
    "calendar_arithmetic",
    "chain_sum",
    "count_bits",
    "count_primes",
    "decimal_arithmetic",
    "decimal_chain_sum",
    "dice",
    "family_relationships",
    "fraction_simplification",
    "gcd",
    "lcm",
    "leg_counting",
    "letter_counting",
    "letter_jumble",
    "number_filtering",
    "palindrome_generation",
    "products",
    "self_reference",
    "sentence_reordering",
    "simple_equations",
    "spell_backward",
    "syllogism",
    "time_intervals",
    "word_sequence_reversal",
    "word_sorting",
)
SIZES = {"train": 1000, "dev": 200, "test": 400}
"""Questions of a split that are looked at; equal ones are listed once."""
_MARGIN = 1e-6
_NUMBERS = re.compile(r"\d+")
Settings = tuple[tuple[str, Any], ...]
Entry = Mapping[str, Any]


class Reasoning(ToolEnv):
    """Questions of one task, each of which takes one answer."""

    task_name: ClassVar[str] = "chain_sum"
    settings: ClassVar[Settings] = ()
    deterministic = True
    max_episode_steps = 1
    valid_actions = None  # type: ignore[assignment]  # answers cannot be listed

    def tasks(self, split: str) -> list[Task]:
        """Return the questions of a split, none of which is in an earlier one."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        return [
            Task(
                id=f"{self.task_name}-{split}-{number}",
                instruction=_one_line(_entry(self, split, number)["question"]),
                env=f"reasoning:{self.task_name}",
                family=self.task_name,
                split=split,
                options={"split": split, "number": number},
            )
            for number in _distinct(self.task_name, self.settings)[split]
        ]

    def start(self, task: Task) -> str:
        """Set up a question.

        Raises:
          ValueError: the task's options name no question.
        """
        split, number = task.options.get("split"), task.options.get("number")
        if split not in SIZES or not isinstance(number, int):
            raise ValueError(
                f"task {task.id!r}: options must name a split of {list(SIZES)} and a "
                f"number, got {dict(task.options)}"
            )
        if not 0 <= number < SIZES[split]:
            raise ValueError(
                f"task {task.id!r}: the number must be in 0..{SIZES[split] - 1}"
            )
        self._entry = _entry(self, split, number)
        return ""

    def answer(self, text: str) -> str:
        """Score an answer, and end the episode."""
        dataset = _dataset(self.task_name, self.settings, self._task_split())
        try:
            score = float(dataset.score_answer(text.strip(), self._entry))
        except ArithmeticError:  # a number that is too large for the scorer
            score = 0.0
        self.finish(score > 1 - _MARGIN, reward=score)
        return "right" if score > 1 - _MARGIN else "wrong"

    def _task_split(self) -> str:
        assert self._task is not None
        return self._task.options["split"]

    def expert(self) -> list[str]:
        """Return the generator's own answer."""
        return [self._entry["answer"]]


class ReasoningWithPython(Reasoning):
    """The same, with a tool that runs Python."""

    max_episode_steps = 4
    deterministic = False  # programs may draw numbers, or take longer than allowed

    @tool
    def python(self, code: str) -> str:
        """Run a program, and return what it prints."""
        result = run_python(code)
        output = " ".join(result.output.split())
        if not result.reason:
            return output or "nothing was printed"
        return f"{output} {result.reason}".strip()

    def expert(self) -> list[str]:
        """Return the answer, after a program that computes it, if there is one."""
        answer = self.write_answer(self._entry["answer"])
        program = PROGRAMS.get(self.task_name)
        if program is None:
            return [answer]
        return [self.call("python", code=program(self._entry)), answer]


def _expression(entry: Entry) -> str:
    return f"print({entry['metadata']['expression']})"


def _of_numbers(text: str) -> Callable[[Entry], str]:
    """Return a program of a function of all numbers of the question."""

    def program(entry: Entry) -> str:
        numbers = ", ".join(_NUMBERS.findall(entry["question"]))
        return text.format(numbers)

    return program


PROGRAMS: Mapping[str, Callable[[Entry], str]] = {
    "chain_sum": _expression,
    "products": _expression,
    "gcd": _of_numbers("import math; print(math.gcd({}))"),
    "lcm": _of_numbers("import math; print(math.lcm({}))"),
}
"""Programs that compute the answer, by task, for the expert."""


def one_task(name: str) -> type[Reasoning]:
    """Return the environment of "TASK" or "TASK?python=true&setting=value".

    Raises:
      ValueError: the task is not listed, or its generator refuses a setting.
    """
    task_name, _, query = name.partition("?")
    if task_name not in TASKS:
        raise ValueError(
            f"unknown task of reasoning-gym {task_name!r}: expected one of "
            f"{', '.join(TASKS)}"
        )
    texts = named_settings(f"reasoning:{name}", query)
    values = {k: _value(v) for k, v in texts.items()}
    python = values.pop("python", False)
    if not isinstance(python, bool):
        raise ValueError(f"reasoning:{name}: expected python=true or false")
    base = ReasoningWithPython if python else Reasoning
    settings = tuple(sorted(values.items()))
    try:
        _dataset(task_name, settings, "train")
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"reasoning:{name}: {error}") from error
    members = {
        "task_name": task_name,
        "settings": settings,
        "__doc__": base.__doc__,
    }
    environment: Any = type(base.__name__, (base,), members)
    return environment


def _value(text: str) -> Any:
    """Return a JSON value, such as false or 4; otherwise the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def _dataset(task_name: str, settings: Settings, split: str) -> Any:
    """Return the generator of a split, whose seeds are its own."""
    seed = 10_000_000 * SPLITS.index(split)
    return reasoning_gym.create_dataset(
        task_name, **dict(settings), size=SIZES[split], seed=seed
    )


def _entry(env: Reasoning, split: str, number: int) -> Entry:
    return _dataset(env.task_name, env.settings, split)[number]


@functools.cache
def _distinct(task_name: str, settings: Settings) -> dict[str, list[int]]:
    """Return the numbers of different questions of each split."""
    questions, out = set[str](), dict[str, list[int]]()
    for split, size in SIZES.items():
        dataset, out[split] = _dataset(task_name, settings, split), []
        for number in range(size):
            question = dataset[number]["question"]
            if question not in questions:
                questions.add(question)
                out[split].append(number)
    return out
