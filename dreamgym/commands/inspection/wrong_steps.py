"""What a dream gets wrong: right next states by kind of action, and wrong steps.

dev transitions -> the dream's answers -> a table by the first word of the action, worst
first -> wrong steps next to the real ones. Reveals are left out: nobody can know them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console

from dreamgym.build import chat as run_chat
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience, remedy_folder
from dreamgym.commands.inspection.show import run_readable_states
from dreamgym.evaluation.comparisons.episode_comparison import (
    ComparedStep,
    episode_view,
    recall_from,
)
from dreamgym.evaluation.pages.episode_text import print_episode
from dreamgym.evaluation.printable import printable
from dreamgym.run.directory import Run
from dreamgym.run.display import progress_bar
from worldmodel.data.records import Episode
from worldmodel.experience.base import Prediction, states_read
from worldmodel.fidelity.cases import Case, sample_cases

BATCH = 64
"""Transitions that are asked at a time."""


class ActionRow(NamedTuple):
    """How often the dream is right about the actions with one first word."""

    word: str
    right: int
    count: int


def is_right(case: Case, answer: Prediction) -> bool:
    """Return whether a next state is the real one."""
    return answer.error is None and answer.next_state == case.transition.next_state


def by_first_word(cases: Sequence[Case], right: Sequence[bool]) -> list[ActionRow]:
    """Return a row for each first word of an action, most wrong answers first.

    Steps that change nothing have rows of their own, because they are easier.
    """
    counts: dict[str, list[int]] = {}
    for case, good in zip(cases, right, strict=True):
        word = next(iter(case.transition.action.split()), "(empty)")
        word += ", nothing changes" if case.kind == "unchanged" else ""
        row = counts.setdefault(word, [0, 0])
        row[0] += good
        row[1] += 1
    rows = [ActionRow(word, *row) for word, row in counts.items()]
    return sorted(rows, key=lambda r: (r.right - r.count, r.word))


def show_wrong_steps(run: Run, console: Console, count: int) -> None:
    """Print the table of the run's dream, and `count` of its wrong steps.

    As many dev transitions are asked as for the scorecard. They take no real step.

    Raises:
      RunError: the run has no experience model yet.
    """
    train, dev = read(run)
    limit = run.config.fidelity.transitions
    experience = load_experience(run, scaled=True, folder=remedy_folder(run))
    cases = [
        case
        for case in sample_cases(
            dev, limit, recorded=train, states_read=states_read(experience)
        )
        if case.predictable
    ]
    recall = recall_from(experience.memory, experience.config.demonstrations)
    answers: list[Prediction] = []
    with (
        run_chat.experience_session(experience),
        progress_bar(len(cases), "dream", "transition") as show,
    ):
        for at in range(0, len(cases), BATCH):
            answers += experience.predict([c.query for c in cases[at : at + BATCH]])
            show(len(answers))
    right = [is_right(case, x) for case, x in zip(cases, answers, strict=True)]
    console.print(f"{sum(right)} of {len(right)} predictable next states are right:")
    for row in by_first_word(cases, right):
        word = printable(row.word)
        console.print(f"  {row.right:>5} of {row.count:<5} {word}", markup=False)
    wrong = [i for i, good in enumerate(right) if not good][:count]
    if not wrong:
        return
    with run_readable_states(run) as readable:
        for i in wrong:
            query, t = cases[i].query, cases[i].transition
            record = Episode(
                id=query.task.id,
                task=query.task,
                transitions=(t,),
                source="real",
                success=t.success,
            )
            step = ComparedStep(t, query.state, answers[i], tuple(recall(query)))
            number = len(query.past) + 1
            console.print()
            both_sides = episode_view(record, [step], readable, first=number)
            print_episode(both_sides, console, legend=i == wrong[-1])
