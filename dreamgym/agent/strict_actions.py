"""Strict actions: a grammar that can write calls of known tools and answers only.

tools, tokenizer -> an automaton over tokens -> phases of a policy's grammar. The
log-probability of each token is that of its draw among the allowed ones, which the
learner computes again from the same masks; tokens that the limit forces are no choice.

It costs a table of the next state and two masks for each state and token of the
vocabulary. `docs/concepts/tool-actions.md` has the numbers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from worldmodel.backbone.grammar import Grammar
from worldmodel.backbone.token_automaton import TokenAutomaton, token_automaton
from worldmodel.text.token_bytes import token_bytes
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.tools.action_automaton import WORD, action_automaton
from worldmodel.text.tools.tool_schemas import ToolSchema


class StrictActions(NamedTuple):
    """The automaton of a run's tools; `literals` are words without references."""

    automaton: TokenAutomaton
    literals: frozenset[str]

    def tokens(self, limit: int) -> int:
        """Return the token limit of an action, as large as the shortest one needs."""
        return max(limit, int(self.automaton.reserve[0]) - 1)

    def extend(self, grammar: Grammar, limit: int) -> Grammar:
        """Return a grammar with the automaton in place of its last phase."""
        a, before = self.automaton, len(grammar.max_tokens) - 1
        states = len(a.reserve)
        tokens = np.arange(grammar.allowed.shape[1])
        prefix = np.repeat(np.arange(before)[:, None], len(tokens), axis=1)
        closing = np.asarray(grammar.closing_tokens)[:before]
        prefix = prefix + closing
        following = np.where(a.next_state >= 0, a.next_state + before, -1)
        none = np.zeros((states, len(tokens)), bool)
        # With a token of `end` an action has limit + 1 tokens. After so many as leave
        # the reserve no token is free.
        max_tokens = self.tokens(limit) + 1 - a.reserve + 1
        return Grammar(
            np.concatenate([np.asarray(grammar.allowed)[:before], a.allowed]),
            np.concatenate([np.asarray(grammar.first)[:before], a.allowed]),
            np.concatenate([closing, none]),
            np.concatenate([np.asarray(grammar.forced_token)[:before], a.forced_token]),
            np.concatenate(
                [np.asarray(grammar.max_tokens)[:before], max_tokens]
            ).astype(np.int32),
            next_phase=np.concatenate([prefix, following]).astype(np.int32),
            temperature=_repeat_last(grammar.temperature, states),
            min_p=_repeat_last(grammar.min_p, states),
        )


def _repeat_last(values: Any, count: int) -> np.ndarray:
    column = np.asarray(values)
    return np.concatenate([column[:-1], np.repeat(column[-1:], count)])


def strict_actions(
    tokenizer: TextTokenizer, tools: Mapping[str, ToolSchema]
) -> StrictActions:
    """Return the strict actions of these tools.

    References of the context stand in texts alone, where they are words.

    Raises:
      ValueError: a tool's name cannot be written, or the tokenizer is not byte-level.
    """
    automaton = action_automaton(tools)
    spelling: dict[int, list[int]] = {
        token: list(text) for token, text in token_bytes(tokenizer).items()
    }
    words = np.flatnonzero(tokenizer.reference_mask())
    spelling |= {int(token): [WORD] for token in words}
    return StrictActions(
        token_automaton(
            automaton.next_state,
            automaton.final,
            spelling,
            end=tokenizer.control("end"),
            vocab_size=tokenizer.vocab_size,
        ),
        automaton.literals,
    )
