"""Whether recorded states have the form of an environment's.

episodes of a file, first states of a few tasks -> a warning, where they have few first
words of lines in common: a policy would be trained on one form and tested on another.
"""

import re
from collections.abc import Iterable, Sequence

import gymnasium

from dreamgym.envs.base import EnvironmentFailure, begin, guarded
from dreamgym.envs.wrappers import first_word
from worldmodel.data.records import Episode, State, Task

MIN_SHARED = 0.2
"""The share of line keys, or of words, below which two forms differ."""

MIN_LINE_KEYS = 3
"""Line keys of a state from which on these are compared, and not its words."""

_WORD = re.compile(r"[^\W\d_]{2,}")


def form_warning(
    episodes: Sequence[Episode], env: gymnasium.Env, tasks: Sequence[Task]
) -> str:
    """Return what is wrong where states of episodes have another form, else "".

    The environment is reset to the tasks, which takes no real step; one to which it
    cannot be reset is left out.
    """
    lines = sorted({line for e in episodes for line in _lines(e)})
    states = list[State]()
    for task in tasks:
        result = guarded(env, lambda task=task: begin(env, task)[1])
        if not isinstance(result, EnvironmentFailure) and any(result):
            states.append(result)
    line_keys, words = _line_keys(lines), _words(lines)
    if not states or not words:
        return ""
    if any(_shared(state, line_keys, words) >= MIN_SHARED for state in states):
        return ""
    return (
        f"hardly a line of the first states of {len(states)} tasks begins as a line of "
        f"the recorded states does: the environment writes {_example(states[0])}, the "
        f"episodes have {_example(lines)}. A policy would be trained on one form of "
        "state and tested on another: give episodes of this environment, or one that "
        "writes states as they are recorded"
    )


def _lines(episode: Episode) -> Iterable[str]:
    yield from episode.task.initial_state
    for t in episode.transitions:
        yield from t.state
        yield from t.next_state


def _line_keys(lines: Iterable[str]) -> set[str]:
    """Return the first words of lines, without those that hold no letter."""
    return {head for line in lines if _WORD.search(head := first_word(line))}


def _words(lines: Iterable[str]) -> set[str]:
    return {word.lower() for line in lines for word in _WORD.findall(line)}


def _shared(state: State, line_keys: set[str], words: set[str]) -> float:
    """Return the share of a state's line keys that are among others.

    Of a state with few of them it is that of its words; 1 for one without words.
    """
    state_keys, state_words = _line_keys(state), _words(state)
    if len(state_keys) >= MIN_LINE_KEYS:
        return len(state_keys & line_keys) / len(state_keys)
    return len(state_words & words) / len(state_words) if state_words else 1.0


def _example(lines: Iterable[str]) -> str:
    return repr(next((x for x in lines if _WORD.search(x)), "")[:60])
