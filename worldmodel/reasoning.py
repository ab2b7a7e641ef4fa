"""Reasoning traces by rule: why this action in this state leads to the next one.

The explainer reads only the two states, the action and the outcome, so it works for
any environment whose states are lines.
"""

from worldmodel.text import edits
from worldmodel.text.prompts import number_text, outcome_of
from worldmodel.text.records import State, Transition


def reveals(state: State, action: str, instruction: str, after: State) -> set[str]:
    """Words of the next state found nowhere in task, state or action."""
    known = {w for text in (*state, action, instruction) for w in text.split()}
    return {w for line in after for w in line.split()} - known


def explain(transition: Transition, instruction: str) -> str:
    """One short clause for what changes, what is new, and what it earns."""
    t = transition
    script = edits.diff(t.state, t.next_state)
    if not script:
        what = "nothing changes"
    else:
        touched = [
            t.state[e.index].split()[0] if e.index is not None else "new"
            for e in script
        ]
        what = " ".join(dict.fromkeys(touched)) + " change"
        if reveals(t.state, t.action, instruction, t.next_state):
            what += " something is revealed"
    if t.reward:
        what += f" earns {number_text(t.reward)}"
    end = {"go": "", "win": " and wins", "lose": " and loses"}[outcome_of(t)]
    return what + end
