"""Recognise invalid actions: those that an environment could not take."""

import re

from worldmodel.data.records import State, Transition

_ERROR = re.compile(
    r"\b(error|invalid|unknown|illegal|cannot|can't|could not|couldn't|not possible|"
    r"don't understand|do not understand|nothing happens|no such|not recogni[sz]ed)\b",
    re.IGNORECASE,
)


def is_invalid(t: Transition) -> bool:
    """Return whether the environment could not take the action.

    `Transition.invalid` decides where the environment sets it; otherwise an action
    without reward or end that changes nothing counts as invalid (`error_only_change`).
    """
    if t.invalid is not None:
        return t.invalid
    # An invalid action may be penalised; a rewarded action was valid.
    no_effect = not t.terminated and t.reward <= 0
    return no_effect and error_only_change(t.state, t.next_state)


def error_only_change(state: State, next_state: State) -> bool:
    """Return whether the state is unchanged, except for lines that report an error."""
    added = [line for line in next_state if line not in state]
    removed = [line for line in state if line not in next_state]
    if not added:
        return not removed
    return len(removed) <= 1 and all(_ERROR.search(line) for line in added)
