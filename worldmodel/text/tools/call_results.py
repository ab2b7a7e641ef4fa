"""What the lines of a state tell about the calls that led to it.

a step with several calls, its lines `result ...` -> whether each call failed
"""

import re

from worldmodel.data.records import Transition

RESULT = "result "
"""How the lines begin in which a ToolEnv shows what a call answered."""
_HIDDEN = re.compile(r"earlier results (\d{1,9})")
"""The line in which a ToolEnv counts the results that are out of sight."""


def failed_calls(step: Transition, count: int) -> list[bool | None]:
    """Return for each of the `count` calls of an action whether it failed.

    None where nobody says. Of calls at once some may fail: then the lines `result ...`
    of a ToolEnv say which, as far as they were made before the episode ended. Where a
    line is of a failure, and there are more or fewer of them than calls (a tool or a
    wrapper writes several for one), nobody knows which call it was.
    """
    if step.invalid is not False or count < 2:
        return [step.invalid] * count
    failures = [
        line.startswith(f"{RESULT}error:")
        for line in step.next_state
        if line.startswith(RESULT)
    ]
    matches = map(_HIDDEN.fullmatch, step.next_state)
    hidden = sum(int(match[1]) for match in matches if match)
    if hidden + len(failures) == count:
        return [*[None] * hidden, *failures]
    if step.terminated and not hidden and 0 < len(failures) < count:
        return [*failures, *[None] * (count - len(failures))]
    if hidden or any(failures) or 0 < len(failures) < count:
        return [None] * count
    return [step.invalid] * count
