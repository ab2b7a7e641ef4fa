"""A finite automaton over bytes as a grammar over tokens.

automaton, bytes of tokens -> the tokens that each state allows and where they lead ->
the fewest tokens to an end -> when a text must be finished, and by which token.

A token may hold several bytes, and a byte may stand in many tokens: each token is the
path of its bytes. A text that would not be complete within its token limit is finished
by the shortest way: the state from which one more free token could lead too far writes
a forced token instead, which is no choice of the policy (grammar.py).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

UNREACHABLE = np.iinfo(np.int32).max // 2


class TokenAutomaton(NamedTuple):
    """States over tokens: S states, V tokens.

    `next_state` is -1 where a token is not allowed, and END for the token that ends
    the text. `forced_token` leads on the shortest way to the end, and `reserve` is the
    number of tokens that must be left for a free choice.
    """

    next_state: Int[np.ndarray, "S V"]
    forced_token: Int[np.ndarray, " S"]
    reserve: Int[np.ndarray, " S"]

    @property
    def allowed(self) -> Bool[np.ndarray, "S V"]:
        """Which tokens each state allows."""
        return self.next_state != -1


END = -2


def token_automaton(
    next_state: Int[np.ndarray, "S B"],
    final: Bool[np.ndarray, " S"],
    spelling: Mapping[int, Sequence[int]],
    *,
    end: int,
    vocab_size: int,
) -> TokenAutomaton:
    """Return the automaton over tokens.

    Args:
      next_state: the state that a symbol leads to, -1 where it is not allowed.
      final: the states in which the token `end` may end the text.
      spelling: the symbols of each token; tokens without one are not allowed.

    Raises:
      ValueError: no text can be completed from the first state.
    """
    states, dead = len(next_state), len(next_state)
    # A last row that leads nowhere stands for "not allowed".
    table = np.where(next_state < 0, dead, next_state)
    table = np.concatenate([table, np.full((1, table.shape[1]), dead)])
    tokens = np.array([t for t, symbols in spelling.items() if len(symbols)], int)
    lengths = np.array([len(spelling[t]) for t in tokens])
    symbols = np.zeros((len(tokens), int(lengths.max())), int)
    for row, token in zip(symbols, tokens, strict=True):
        row[: len(spelling[token])] = spelling[token]
    reached = np.repeat(np.arange(states)[:, None], len(tokens), axis=1)
    for column in range(symbols.shape[1]):
        alive = lengths > column  # longer tokens only: the rest has arrived
        reached[:, alive] = table[reached[:, alive], symbols[alive, column]]
    following = np.full((states, vocab_size), -1, np.int32)
    following[:, tokens] = np.where(reached == dead, -1, reached)
    following[final, end] = END
    distance = _distances(following, final)
    if distance[0] >= UNREACHABLE:
        raise ValueError("no text of these tokens leads from the first state to an end")
    # A token that leads where nothing can be completed is not allowed.
    useless = np.append(distance >= UNREACHABLE, [False, False])[following]
    following = np.where(useless & (following >= 0), -1, following).astype(np.int32)
    after = np.append(distance, [0, UNREACHABLE])[following]  # END is -2, no token -1
    return TokenAutomaton(
        following,
        after.argmin(1).astype(np.int32),
        (1 + np.where(following == -1, -1, after).max(1)).astype(np.int32),
    )


def _distances(
    following: Int[np.ndarray, "S V"], final: Bool[np.ndarray, " S"]
) -> Int[np.ndarray, " S"]:
    """Return the fewest tokens from each state to the end, the ending one included."""
    successors = [np.unique(row[row >= 0]) for row in following]
    distance = np.where(final, 1, UNREACHABLE)
    for _ in range(len(following)):
        shorter = np.array(
            [
                min(d, 1 + distance[s].min()) if len(s) else d
                for d, s in zip(distance, successors, strict=True)
            ]
        )
        if (shorter == distance).all():
            break
        distance = shorter
    return distance
