"""Questions about the components of tool use, and who answers them.

episodes -> for each step: is a call due (when); for each of its calls: is this the tool
(which), are these the arguments -> labels in [0, 1] by a classifier or a judge
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from dreamgym.rewards.rules import StepLabels
from dreamgym.rewards.tool_config import ToolLabelsConfig
from worldmodel.data.records import Episode, State, Task
from worldmodel.text.tools.tool_calls import Call, read_action

COMPONENTS = ("when", "which", "arguments")
"""The components that a classifier or a judge can label."""


class Question(NamedTuple):
    """Whether a component is right in a state.

    `text` is empty for "when", the name of the tool for "which", and the call for
    "arguments".
    """

    component: str
    task: Task
    past: tuple[str, ...]
    state: State
    text: str = ""

    @property
    def key(self) -> tuple:
        """What tells it apart from other questions."""
        return self.component, self.task.id, self.past, self.state, self.text


@runtime_checkable
class ComponentLabeller(Protocol):
    """A classifier or a judge of components of tool use."""

    def labels(self, questions: Sequence[Question]) -> list[float | str]:
        """Return a label in [0, 1] for each question, or why it has none."""
        ...


def call_text(call: Call) -> str:
    """Return a call in one form, however it was written."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, sort_keys=True)
    return f"{call.tool} {arguments}"


class _Step(NamedTuple):
    """The questions of a step; of a call without a question there is None."""

    due: Question | None
    tools: tuple[Question | None, ...]
    arguments: tuple[Question | None, ...]


def label_steps(
    episodes: Sequence[Episode],
    step_numbers: Sequence[Sequence[int]],
    pasts: Sequence[Sequence[str]],
    config: ToolLabelsConfig,
    labellers: Mapping[str, ComponentLabeller],
) -> list[dict[int, StepLabels] | str]:
    """Return the labels of these steps of each episode, or why an episode has none.

    Equal questions are asked once. What is labelled by rule has no label here.

    Args:
      labellers: the "classifier" and the "judge", as far as the settings name them.
    """
    steps = [
        {n: _questions(e, n, past, config) for n in numbers}
        for e, numbers, past in zip(episodes, step_numbers, pasts, strict=True)
    ]
    unique: dict[tuple, Question] = {}
    for of_episode in steps:
        for step in of_episode.values():
            for question in (step.due, *step.tools, *step.arguments):
                if question is not None:
                    unique.setdefault(question.key, question)
    answers: dict[tuple, float | str] = {}
    for name, labeller in labellers.items():
        selection = [q for q in unique.values() if getattr(config, q.component) == name]
        answers |= zip(
            (q.key for q in selection), labeller.labels(selection), strict=True
        )
    return [_labels(of_episode, answers) for of_episode in steps]


def _labels(
    steps: Mapping[int, _Step], answers: Mapping[tuple, float | str]
) -> dict[int, StepLabels] | str:
    problems: list[str] = []

    def answer(question: Question | None) -> float | None:
        label = None if question is None else answers[question.key]
        if isinstance(label, str):
            problems.append(label)
            return None
        return label

    out = {
        n: StepLabels(
            answer(step.due),
            tuple(map(answer, step.tools)),
            tuple(map(answer, step.arguments)),
        )
        for n, step in steps.items()
    }
    return problems[0] if problems else out


def _questions(
    episode: Episode, number: int, past: Sequence[str], config: ToolLabelsConfig
) -> _Step:
    """Return the questions of a step, of the components that no rule labels."""
    before = (*past, *(t.action for t in episode.transitions[:number]))
    step = episode.transitions[number]
    calls = read_action(step.action).calls

    def question(component: str, text: str = "") -> Question | None:
        if getattr(config, component) == "rule":
            return None
        return Question(component, episode.task, before, step.state, text)

    return _Step(
        question("when"),
        tuple(question("which", c.tool) if c.tool else None for c in calls),
        tuple(
            question("arguments", call_text(c)) if c.valid_json else None for c in calls
        ),
    )
