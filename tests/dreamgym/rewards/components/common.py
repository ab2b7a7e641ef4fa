"""A small task of tool use with a known rule, and questions about it.

What was said last decides: behind `wall` the tool `go` is due, behind `no coin` the
tool `take`, and behind `ok` none; the room of a call is the room of the goal.
"""

import itertools

from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tools.tool_calls import write_call

TOOLS = {"wall": "go", "no coin": "take", "ok": None}


def expected(said, goal):
    tool = TOOLS[said]
    return None if tool is None else {"tool": tool, "arguments": {"room": goal}}


def episode(at, goal, order, *, split="train", calls=True):
    """An episode in which the expected calls are made, step by step."""
    rows = [expected(said, goal) for said in order]
    task = Task(
        id=f"{split}-{at}-{goal}-{'-'.join(order)}",
        instruction="take the coin",
        split=split,
        options={"calls": rows} if calls else {},
    )
    states = [(f"at {at}", f"goal {goal}", f"said {said}") for said in (*order, "ok")]
    actions = [
        "dance" if row is None else write_call(row["tool"], row["arguments"])
        for row in rows
    ]
    steps = tuple(
        Transition(state=a, action=action, next_state=b, invalid=False)
        for action, (a, b) in zip(actions, itertools.pairwise(states), strict=True)
    )
    return Episode(
        id=task.id, task=task, transitions=steps, source="expert", success=True
    )


def episodes(rooms, *, split="train"):
    return [
        episode(at, goal, order, split=split)
        for at in rooms
        for goal in (1, 5)
        for order in itertools.permutations(TOOLS)
    ]
