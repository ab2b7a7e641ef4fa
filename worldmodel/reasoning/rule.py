"""Reasoning traces by rule: why an action in a state leads to the next state.

The rule reads only the two states, the action and the outcome, so that it works for any
environment whose states are lines.
"""

import dataclasses
from collections.abc import Sequence

from worldmodel.data.records import Episode, State, Transition
from worldmodel.text import edits
from worldmodel.text.prompts import number_text, outcome_of


def annotate(episode: Episode, traces: Sequence[str] | None = None) -> Episode:
    """Return the episode with these traces where it has none (None: by rule)."""
    new_traces = [explain(t) for t in episode.transitions] if traces is None else traces
    steps = tuple(
        t if t.reasoning is not None else dataclasses.replace(t, reasoning=trace)
        for t, trace in zip(episode.transitions, new_traces, strict=True)
    )
    return dataclasses.replace(episode, transitions=steps)


def without_reasoning(episode: Episode) -> Episode:
    """Return the episode with empty reasoning traces, as an ablation."""
    steps = tuple(dataclasses.replace(t, reasoning="") for t in episode.transitions)
    return dataclasses.replace(episode, transitions=steps)


def explain(transition: Transition) -> str:
    """Return a trace: where, what is done, its effect, the changed lines, the reward.

    The last words of the state and the first of the action are repeated next to each
    other, then the lines that the action names, and then the new words of the last
    changed line, the last one first. Looking these up is hard for a small model, and
    repeating them in one place is meant to make it easier.
    """
    t = transition
    script = edits.diff(t.state, t.next_state)
    if not script:
        what = "nothing changes"
    else:
        touched = [_first_word(t.state, x) for e in script for x in _lines_of(e)]
        what = " ".join([*_new_words(t, script[-1]), "as", *dict.fromkeys(touched)])
        what += " change"
    where = t.state[-1].split()[-4:] if t.state else []
    what = " ".join([*where, *t.action.split()[:6], *_lines_in_action(t), what])
    if t.reward:
        what += f" earns {number_text(t.reward)}"
    if t.terminated and t.success is None:
        return f"{what} and ends"
    end = {"go": "", "win": " and wins", "lose": " and loses"}[outcome_of(t)]
    return what + end


def _lines_of(edit: edits.Edit) -> list[int | None]:
    """Return the line that is edited, and those that move there."""
    return [edit.index, *(x for x in edit.lines if isinstance(x, int))]


def _first_word(state: State, index: int | None) -> str:
    return "new" if index is None else state[index].split()[0]


def _lines_in_action(t: Transition) -> list[str]:
    """Return lines such as `bamboo 4` whose words but the last occur in the action.

    Whether the action is possible often depends on these alone.
    """
    action = f" {' '.join(t.action.split())} "
    return [
        line
        for line in t.state
        if (key := line.rpartition(" ")[0]) and f" {key} " in action
        if f" {line} " not in action
    ]


def _new_words(t: Transition, edit: edits.Edit, max_words: int = 2) -> list[str]:
    old = set() if edit.index is None else set(t.state[edit.index].split())
    lines = [line for line in edit.lines if isinstance(line, str)]
    new = [w for line in lines for w in line.split() if w not in old]
    return new[::-1][:max_words] or ["nothing"]
