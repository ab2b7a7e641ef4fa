"""States as people read them: as the environment renders them, or line by line."""

from collections.abc import Callable

import gymnasium

from dreamgym.envs.base import EnvironmentFailure, as_render, guarded
from dreamgym.envs.failures import EnvironmentDown
from dreamgym.evaluation.printable import printable, printable_lines
from worldmodel.data.records import State

ReadableState = Callable[[State], list[str]]
"""A state to the lines that a person reads."""


def as_lines(state: State) -> list[str]:
    """Return the lines of a state as they are."""
    return [printable(line) for line in state]


def readable_states(env: gymnasium.Env | None) -> ReadableState:
    """Return how the states of an environment are shown to people.

    An environment with `render_state` decides itself; where it has none, or fails on a
    state that a dream made up, the lines are shown as they are.
    """
    renderer = None if env is None else as_render(env)
    if env is None or renderer is None:
        return as_lines

    def read(state: State) -> list[str]:
        try:
            text = guarded(env, lambda: renderer.render_state(state))
        except EnvironmentDown:  # its process ended on the state, each time
            return as_lines(state)
        if isinstance(text, EnvironmentFailure) or not isinstance(text, str):
            return as_lines(state)
        return printable_lines(text)

    return read
