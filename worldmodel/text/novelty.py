"""New words: what a next state says that stood nowhere before."""

from worldmodel.data.records import State


def novel_words(
    state: State, action: str, instruction: str, next_state: State
) -> set[str]:
    """Words of the next state found nowhere in task, state or action."""
    known = {w for text in (*state, action, instruction) for w in text.split()}
    return {w for line in next_state for w in line.split()} - known
