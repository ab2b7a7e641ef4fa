"""Subgoals: what a policy that acts on two levels wants to see next.

thoughts and states of an episode -> the subgoal of each step, and where it is reached.

As a manager pi_H(g | s) the policy writes a subgoal g as its thought: a line that a
state shall have soon. As a worker pi_L(a | s, g) it reads the subgoal with each
following state and acts, until the line is there or the subgoal is too old. One model
is both. Demonstrations get their subgoals by hindsight (arXiv:1707.01495): what an
expert brought about within a few steps was what it wanted.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, Transition
from worldmodel.text.references import AnyTokenizer

COMPONENT = "subgoal"
"""Name of the reward component."""


class SubgoalStep(NamedTuple):
    """The subgoal that a step is taken for ("" for none), and whether it reached it.

    A line that stood in the state in which it was written cannot be reached.
    """

    subgoal: str
    reached: bool


def follow_subgoals(
    steps: Sequence[Transition], limit: int
) -> tuple[list[SubgoalStep], str]:
    """Return the subgoal of each step of an episode, and the one that is left at last.

    A subgoal holds until its line stands in a state, another one is written, or `limit`
    steps were taken for it, the one with which it was written included.
    """
    out, subgoal, left, is_new = list[SubgoalStep](), "", 0, False
    for t in steps:
        if written := subgoal_text(t.thought):
            subgoal, left, is_new = written, limit, written not in t.state
        is_there = bool(subgoal) and subgoal in t.next_state
        out.append(SubgoalStep(subgoal, is_there and is_new))
        left -= 1
        if is_there or left <= 0:
            subgoal = ""
    return out, subgoal


def present_subgoal(steps: Sequence[Transition], limit: int) -> str:
    """Return the subgoal that the next step finds, "" for none; see follow_subgoals."""
    return follow_subgoals(steps, limit)[1] if limit else ""


def subgoal_text(thought: str | None) -> str:
    """Return a thought as a line of a state could be written."""
    return " ".join((thought or "").split())


def subgoal_ids(tok: AnyTokenizer, subgoal: str) -> list[int]:
    """Return what a policy reads of its present subgoal, nothing of an empty one.

    It stands behind the token with which the policy writes it as a thought.
    """
    tok = tok.context_view
    return [tok.control("why"), *tok.encode(subgoal)] if subgoal else []


def with_subgoals(episode: Episode, limit: int) -> Episode:
    """Return a demonstration whose thoughts are subgoals, by hindsight.

    Where a subgoal begins, the next `limit` states are searched, the last one first,
    for a line that no state before has. Of several lines of a state the one with the
    most words of the instruction counts, the first of them. The next subgoal begins
    where this one is reached. A step has no thought where a subgoal is under way, or
    where no new line follows.
    """
    steps, words = episode.transitions, set(episode.task.instruction.split())
    thoughts: list[str | None] = [None] * len(steps)
    start = 0
    while start < len(steps):
        seen = [set(steps[start].state)]
        for t in steps[start : start + limit]:
            seen.append(seen[-1] | set(t.next_state))
        reached = start
        for i in range(len(seen) - 1, 0, -1):
            state = steps[start + i - 1].next_state
            new = [x for x in state if x not in seen[i - 1] and subgoal_text(x) == x]
            if any(new):
                line = max(filter(None, new), key=lambda x: len(words & set(x.split())))
                thoughts[start], reached = line, start + i - 1
                break
        start = reached + 1
    transitions = tuple(
        dataclasses.replace(t, thought=thought)
        for t, thought in zip(steps, thoughts, strict=True)
    )
    return dataclasses.replace(episode, transitions=transitions)
