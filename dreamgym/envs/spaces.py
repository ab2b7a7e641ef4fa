"""Spaces of text for Gymnasium."""

from typing import Any

from gymnasium import spaces

MAX_CHARACTERS = 100_000
"""The most characters of one text of an environment: an observation, an instruction."""


def require_text(action: Any) -> str:
    """Return an action that is text.

    Raises:
      TypeError: it is something else.
    """
    if not isinstance(action, str):
        raise TypeError(f"an action is text, got {action!r:.80}")
    return action


class AnyText(spaces.Text):
    """Text of any Unicode; Gymnasium's own `Text` rejects what is not in a charset."""

    def __init__(self, max_length: int = MAX_CHARACTERS, seed: int | None = None):
        super().__init__(max_length, min_length=0, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return 1 to 11 random letters and spaces."""
        del mask, probability  # no set of characters to choose from
        length = int(self.np_random.integers(1, 12))
        return "".join(self.np_random.choice(list("abcdefghij klmno"), length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash(("AnyText", self.max_length))
