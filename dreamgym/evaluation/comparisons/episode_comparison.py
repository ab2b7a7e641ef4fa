"""Compares dreamed steps with the real ones, for the terminal and for pages.

episode, experience model -> compared steps -> views (plain data, as JSON holds it) ->
the terminal (`dreamgym show`) and pages (templates/episodes.html).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dreamgym.evaluation.printable import printable
from dreamgym.evaluation.state_text import ReadableState
from worldmodel.data.outcomes import outcome_of
from worldmodel.data.records import Episode, State, Transition
from worldmodel.experience.base import ExperienceModel, Prediction, Query, query_after
from worldmodel.memory import ReplayMemory

OUTCOMES = {
    "go": "the episode goes on",
    "win": "the episode is won",
    "lose": "the episode ends without success",
}
LEGEND = (
    ("Action", "What the agent did. Both sides answer the same action."),
    (
        "Reality",
        "What really happened, as the environment answered when the episode was "
        "recorded.",
    ),
    (
        "Dream",
        "What the experience model predicts. It was not fitted to this task.",
    ),
    (
        "Marked lines",
        "− is only in reality, + only in the dream; all other lines agree.",  # noqa: RUF001
    ),
    (
        "Reward and end",
        "What the step pays, and whether the episode goes on, is won or ends without "
        "success.",
    ),
    (
        "Reasoning",
        "What the experience model writes before it answers.",
    ),
    (
        "Confidence",
        "The probability that the model gives to its answer, after calibration on "
        "held-out episodes where that was done.",
    ),
    (
        "Recalled",
        "Similar real steps from other tasks, which the model reads before it answers, "
        "with their similarity (1 is the same text).",
    ),
)
"""What each part of a compared step is."""


Recall = Callable[[Query], Sequence[tuple[float, Transition]]]
"""A query to what is retrieved for it with its similarity, the most similar first."""


def recall_from(memory: ReplayMemory, count: int) -> Recall:
    """Return how `count` demonstrations are recalled, the most similar first."""

    def recall(query: Query) -> list[tuple[float, Transition]]:
        row = (query.task.id, query.state, query.action)
        (neighbors,) = memory.nearest([row], count)
        return neighbors[::-1]

    return recall


class ComparedStep(NamedTuple):
    """One step: the real transition, and the prediction from a state of the dream.

    `dreamed` is None after the end of the dream. `recalled` holds the transitions that
    were retrieved for the prediction with their similarity, the most similar first.
    """

    real: Transition
    state: State
    dreamed: Prediction | None
    recalled: tuple[tuple[float, Transition], ...]


def compare_step(
    model: ExperienceModel,
    recall: Recall,
    episode: Episode,
    number: int,
    state: State | None = None,
    past_states: tuple[State, ...] | None = None,
) -> ComparedStep:
    """Return a step of an episode with the prediction from a state, or the real one.

    `past_states` are those in which the actions before were taken, the real ones unless
    given.
    """
    real = episode.transitions[number]
    state = real.state if state is None else state
    steps = episode.transitions[:number]
    query = query_after(episode.task, steps, state, real.action)
    if past_states is not None:
        query = query._replace(past_states=past_states)
    (answer,) = model.predict([query])
    return ComparedStep(real, state, answer, tuple(recall(query)))


def compare_episode(
    model: ExperienceModel,
    recall: Recall,
    episode: Episode,
) -> list[ComparedStep]:
    """Return every step of an episode, the dream going on from its own states."""
    state, out, over = episode.transitions[0].state, list[ComparedStep](), False
    past_states: tuple[State, ...] = ()
    for number, real in enumerate(episode.transitions):
        if over:
            out.append(ComparedStep(real, state, None, ()))
            continue
        step = compare_step(model, recall, episode, number, state, past_states)
        past_states = (*past_states, state)
        out.append(step)
        assert step.dreamed is not None
        over = step.dreamed.error is not None or step.dreamed.outcome != "go"
        state = step.dreamed.next_state
    return out


# --- views -------------------------------------------------------------------


def episode_view(
    episode: Episode,
    steps: Sequence[ComparedStep],
    read: ReadableState,
    *,
    first: int = 1,
    title: str = "",
) -> dict[str, Any]:
    """Return an episode, or its steps from number `first` on, as plain data."""
    return {
        "id": printable(episode.id),
        "title": printable(title or episode.task.instruction or episode.task.id),
        "family": printable(episode.task.family),
        "source": printable(episode.source),
        "real_outcome": _REAL_OUTCOMES[episode.success],
        "dreamed_outcome": _dreamed_outcome(steps),
        "steps": [
            _step_view(step, number, read) for number, step in enumerate(steps, first)
        ],
    }


_REAL_OUTCOMES = {
    True: "really won",
    False: "not won in reality",
    None: "not scored in reality",
}


def _dreamed_outcome(steps: Sequence[ComparedStep]) -> str:
    answers = [s.dreamed for s in steps if s.dreamed is not None]
    if not answers:
        return ""
    if answers[-1].error is not None:
        return f"the dream breaks off at step {len(answers)}"
    return (
        "won in the dream" if answers[-1].outcome == "win" else "not won in the dream"
    )


def _step_view(step: ComparedStep, number: int, read: ReadableState) -> dict[str, Any]:
    real, answer = step.real, step.dreamed
    view: dict[str, Any] = {
        "number": number,
        "action": printable(real.action),
        "before": read(step.state),
        "before_raw": [printable(x) for x in step.state],
        "same_before": step.state == real.state,
        "real_end": _end_text(real.reward, outcome_of(real), real.truncated),
        "real_raw": [printable(x) for x in real.next_state],
        "dream": None,
    }
    real_lines = read(real.next_state)
    if answer is None:
        return view | {"real": _marked(real_lines, real_lines)}
    dream_lines = read(answer.next_state)
    dream_end = _end_text(answer.reward, answer.outcome)
    same_end = (
        _end_text(real.reward, outcome_of(real)) == dream_end and answer.error is None
    )
    view["real"] = _marked(real_lines, dream_lines)
    view["hidden_difference"] = (
        answer.next_state != real.next_state and real_lines == dream_lines
    )
    view["dream"] = {
        "lines": _marked(dream_lines, real_lines),
        "raw": [printable(x) for x in answer.next_state],
        "end": dream_end,
        "same_state": answer.next_state == real.next_state and answer.error is None,
        "same_end": same_end,
        "reasoning": printable(answer.reasoning),
        "confidence": None if math.isnan(answer.confidence) else answer.confidence,
        "error": None if answer.error is None else printable(answer.error),
        "recalled": [recalled_view(score, t, read) for score, t in step.recalled],
    }
    return view


def _marked(lines: Sequence[str], others: Sequence[str]) -> list[list[Any]]:
    """Return (line, whether the other side has it too), each match counted once."""
    unmatched, out = list(others), []
    for line in lines:
        if line in unmatched:
            unmatched.remove(line)
            out.append([line, True])
        else:
            out.append([line, False])
    return out


def recalled_view(score: float, t: Transition, read: ReadableState) -> dict[str, Any]:
    """Return a recalled transition: similarity, action, new lines, reward and end."""
    before = read(t.state)
    new = [line for line in read(t.next_state) if line not in before]
    return {
        "similarity": float(score),
        "action": printable(t.action),
        "effect": new or ["nothing changes"],
        "end": _end_text(t.reward, outcome_of(t)),
    }


def _end_text(reward: float, outcome: str, truncated: bool = False) -> str:
    end = "the step limit ends the episode" if truncated else OUTCOMES[outcome]
    return f"reward {reward:g}, {end}"
