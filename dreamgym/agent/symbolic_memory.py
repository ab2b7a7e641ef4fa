"""Symbolic memory of an episode: the facts seen last, and what each tool did.

past actions, their states, the state -> a table of facts and counts -> lines for
people, ids for the policy. It is a function of the episode so far, so that it is the
same in imitation, in the dream and in real play, and begins anew with each episode. It
is the semantic memory of language agents (arXiv:2309.02427) for a single episode.
"""

import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

from dreamgym.envs.wrappers import first_word
from worldmodel.data.invalid_actions import error_only_change
from worldmodel.data.records import State
from worldmodel.text import prompts
from worldmodel.text.references import AnyTokenizer
from worldmodel.text.tools.call_results import RESULT
from worldmodel.text.tools.tool_calls import read_action, write_call

_ERROR = f"{RESULT}error:"


class ToolCount(NamedTuple):
    """How often a tool, or a verb, was used in an episode, and how often refused.

    It was refused where the state did not change, but for lines that report an error.
    """

    name: str
    calls: int
    refused: int


class SymbolicMemory(NamedTuple):
    """The table of an episode so far.

    `facts` are lines of past states that no line of the state stands for, but no errors
    of tools, the one seen last at the end; `tools` come in the order of their last use.
    """

    facts: tuple[str, ...]
    tools: tuple[ToolCount, ...]

    def lines(self) -> tuple[str, ...]:
        """Return the table as lines for people."""
        return (
            *(f"last seen {fact}" for fact in self.facts),
            *(f"{t.name}: calls {t.calls}, refused {t.refused}" for t in self.tools),
        )

    def ids(self, tok: AnyTokenizer, budget: int) -> list[int]:
        """Return what a policy reads of the table, whole rows, in at most `budget` ids.

        The facts seen longest ago are left out first, and the counts last.
        """
        tok = tok.context_view
        # Control tokens that there are: another one would change the vocabulary.
        rows = [[tok.control("same"), *tok.encode(fact)] for fact in self.facts]
        for name, calls, refused in self.tools:
            counts = tok.encode(f"{name} {calls - refused} {refused}")
            rows.append([tok.control("full"), *counts])
        return prompts.newest_fitting(rows, budget)


def action_name(action: str) -> str:
    """Return the first tool that an action calls, or its verb."""
    return action_names(action)[0]


def action_names(action: str) -> list[str]:
    """Return the tools that an action calls, or its verb."""
    tools = [call.tool for call in read_action(action).calls if call.tool]
    return tools or [first_word(action)]


def _failures(action: str, count: int, before: State, after: State) -> list[bool]:
    """Return which of the `count` calls of an action, or its verb, were refused.

    Where the state has as many results of tools as there were calls, they say so.
    """
    results = [line for line in after if line.startswith(RESULT)]
    if len(read_action(action).calls) == len(results) == count:
        return [line.startswith(_ERROR) for line in results]
    return [error_only_change(before, after)] * count


def _facts(state: State, action: str | None) -> dict[str, str]:
    """Return the lines of a state by name; `action` led to it, None at the start.

    The name of a line is its first word. What a tool has answered is named by its call,
    in whatever order its arguments are written: the next answer of another call does
    not stand for it. An error is no fact, and a result before the first action answers
    nothing (`result ready`).
    """
    calls = [] if action is None else list(read_action(action).calls)
    results = [line for line in state if line.startswith(RESULT)]
    named = len(calls) == len(results)
    out = {}
    for line in state:
        name, fact = first_word(line), line
        if line.startswith(RESULT):
            call = calls.pop(0) if calls and named else None
            if action is None or line.startswith(_ERROR):
                continue
            if call is not None:
                name = f"{call.tool} {json.dumps(call.arguments, sort_keys=True)}"
                fact = f"{write_call(call.tool, call.arguments)} {line}"
        out[name] = fact
    return out


def symbolic_memory(
    past: Sequence[str], past_states: Sequence[State], state: State
) -> SymbolicMemory:
    """Return the table of an episode: its past actions, their states, and the state.

    The name of a line is its first word, as in `KeepLines`, and that of a tool's answer
    its call: a later line with the same name stands for it. An action counts for the
    tools that it calls, or for its verb.
    """
    facts: dict[str, str] = {}
    present: dict[str, str] = {}
    for seen, action in zip((*past_states, state), (None, *past), strict=True):
        present = _facts(seen, action)
        for name in present:
            facts.pop(name, None)  # the order is that of the last sight
        facts |= present
    tools: dict[str, ToolCount] = {}
    pairs = itertools.pairwise((*past_states, state))
    for action, (before, after) in zip(past, pairs, strict=True):
        names = action_names(action)
        failures = _failures(action, len(names), before, after)
        for name, failed in zip(names, failures, strict=True):
            _, calls, refused = tools.pop(name, ToolCount(name, 0, 0))
            tools[name] = ToolCount(name, calls + 1, refused + failed)
    return SymbolicMemory(
        tuple(line for name, line in facts.items() if name not in present),
        tuple(tools.values()),
    )
