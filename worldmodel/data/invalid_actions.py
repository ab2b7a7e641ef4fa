"""Whether an environment could take an action, where it does not say so itself."""

import re

from worldmodel.data.records import State, Transition

_ERROR = re.compile(
    r"\b(error|invalid|unknown|illegal|cannot|can't|could not|couldn't|not possible|"
    r"don't understand|do not understand|nothing happens|no such|not recogni[sz]ed)\b",
    re.IGNORECASE,
)


def is_invalid(t: Transition) -> bool:
    """Whether the environment could not take the action.

    As it says itself; where it says nothing, as `error_only_change` has it.
    """
    if t.invalid is not None:
        return t.invalid
    # What it cannot take may cost something; what pays was taken.
    no_effect = not t.terminated and t.reward <= 0
    return no_effect and error_only_change(t.state, t.next_state)


def error_only_change(state: State, next_state: State) -> bool:
    """Whether a state stayed as it was, one line aside that speaks of an error."""
    added = [line for line in next_state if line not in state]
    removed = [line for line in state if line not in next_state]
    if not added:
        return not removed
    return len(removed) <= 1 and all(_ERROR.search(line) for line in added)
