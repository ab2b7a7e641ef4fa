"""The grammar of sampled text: which tokens are allowed, phase by phase."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Grammar(NamedTuple):
    """Constrained decoding, phase by phase: P phases over V tokens.

    A phase samples from `allowed` (its first token from `first`) until it samples one
    of its `closing_tokens`; after `max_tokens` tokens its `forced_token` is written.
    The stream ends with the last phase. With a table `next_phase` a token leads to the
    phase that the table says, and ends the stream where that is negative; the tokens of
    a phase are then counted from the last closing token on. Temperature 0 is greedy;
    `min_p`, `top_k` and `top_p` cut the distribution (sampling.py).
    """

    allowed: Bool[Array, "P V"] | Bool[np.ndarray, "P V"]
    first: Bool[Array, "P V"] | Bool[np.ndarray, "P V"]
    closing_tokens: Bool[Array, "P V"] | Bool[np.ndarray, "P V"]
    forced_token: Int[Array, " P"] | Int[np.ndarray, " P"]
    max_tokens: Int[Array, " P"] | Int[np.ndarray, " P"]
    temperature: Float[Array, " P"] | Float[np.ndarray, " P"]
    min_p: Float[Array, " P"] | Float[np.ndarray, " P"]
    top_k: Int[Array, " P"] | Int[np.ndarray, " P"] | None = None
    top_p: Float[Array, " P"] | Float[np.ndarray, " P"] | None = None
    next_phase: Int[Array, "P V"] | Int[np.ndarray, "P V"] | None = None

    def parse(
        self, ids: Sequence[int]
    ) -> tuple[list[bool], list[int], list[bool]] | None:
        """Return, for each id of a whole stream, what it would be if it were sampled.

        These are (sampled: whether it would be a choice and not forced; its phase;
        whether it is the first of its phase), as the streams of generate.py have them.
        None where the grammar writes no such stream.
        """
        phase = count = 0
        sampled, phases, first = list[bool](), list[int](), list[bool]()
        ended = False
        for token in ids:
            forced = count >= int(self.max_tokens[phase])
            masks = self.allowed if count else self.first
            fits = self.forced_token[phase] == token if forced else masks[phase, token]
            if ended or not fits:
                return None
            sampled.append(not forced)
            phases.append(phase)
            first.append(count == 0)
            closed = bool(self.closing_tokens[phase, token])
            count = 0 if closed else count + 1
            if self.next_phase is not None:
                following = int(self.next_phase[phase, token])
            else:
                last = len(self.max_tokens) - 1
                following = -1 if closed and phase == last else phase + closed
            ended, phase = following < 0, max(following, 0)
        return (sampled, phases, first) if ended else None


class Quotable(NamedTuple):
    """Texts that a stream may quote in its first phase: Q tokens, one behind the other.

    A text can be quoted behind the `opening`, which can stand anywhere, and behind
    another quote. Where a quote has reached a token that `binds`, only the next token
    of its text is allowed. Rows are padded with -1.
    """

    tokens: Int[Array, "*B Q"] | Int[np.ndarray, "*B Q"]
    opening: Bool[Array, "*B Q"] | Bool[np.ndarray, "*B Q"]
    starts: Bool[Array, "*B Q"] | Bool[np.ndarray, "*B Q"]
    ends: Bool[Array, "*B Q"] | Bool[np.ndarray, "*B Q"]
    binds: Bool[Array, "*B Q"] | Bool[np.ndarray, "*B Q"]

    @classmethod
    def of(
        cls,
        opening: Sequence[int],
        texts: Sequence[Sequence[int]],
        free: Sequence[int],
    ) -> "Quotable":
        """Return the row of an opening and of texts.

        Text i binds a quote of it that holds its first `free[i]` tokens.
        """
        parts = [opening, *texts] if opening else []
        tokens = np.array([t for part in parts for t in part], np.int32)
        marks = np.zeros((4, len(tokens)), bool)
        at = 0
        for number, part in enumerate(parts):
            marks[1 if number else 0, at] = True
            marks[2, at + len(part) - 1] = True
            if number:
                marks[3, at + free[number - 1] - 1 : at + len(part) - 1] = True
            at += len(part)
        return cls(tokens, *marks)

    @classmethod
    def stack(cls, rows: Sequence["Quotable"], width: int) -> "Quotable":
        """Return the rows as one batch of so many columns."""
        return cls(
            *(
                np.stack(
                    [
                        np.pad(x, (0, width - len(x)), constant_values=padding)
                        for x in column
                    ]
                )
                for column, padding in zip(
                    zip(*rows, strict=True),
                    (-1, False, False, False, False),
                    strict=True,
                )
            )
        )

    def advance(
        self, places: Bool[Array, "B Q"], token: Int[Array, " B"]
    ) -> Bool[Array, "B Q"]:
        """Return the places that quotes have reached after one more token.

        Places are the tokens at which what was written so far ends a part of a text
        from its beginning.
        """
        ended = (places & self.ends).any(-1, keepdims=True)
        before = jnp.pad(places[:, :-1], ((0, 0), (1, 0)))
        begins = self.opening | (self.starts & ended)
        reached = jnp.where(self.opening | self.starts, begins, before)
        return reached & (self.tokens == token[:, None])

    def allowed_tokens(
        self, places: Bool[Array, "B Q"], vocab_size: int
    ) -> Bool[Array, "B V"]:
        """Return the tokens that quotes at these places allow."""
        going = places & self.binds
        following = jnp.pad(self.tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
        rows = jnp.arange(len(going))[:, None]
        mask = jnp.zeros((len(going), vocab_size), bool)
        mask = mask.at[rows, jnp.maximum(following, 0)].max(going)
        must = going.any(-1) & ~(places & self.ends).any(-1)
        return mask | ~must[:, None]


def free_grammar(
    vocab_size: int,
    *,
    stop: Sequence[int] = (),
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Grammar:
    """Return a grammar that allows everything until a token of `stop`.

    Raises:
      ValueError: a setting is out of range, or a stop id outside the vocabulary.
    """
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1 or not 0 <= min_p <= 1:
        raise ValueError(
            "temperature and top_k must be >= 0, top_p in (0, 1], min_p in [0, 1], got "
            f"{temperature}, {top_k}, {top_p} and {min_p}"
        )
    if any(not 0 <= i < vocab_size for i in stop):
        raise ValueError(f"stop ids must be below {vocab_size}, got {list(stop)}")
    free, close = np.ones((1, vocab_size), bool), np.zeros((1, vocab_size), bool)
    close[0, list(stop)] = True
    never = np.iinfo(np.int32).max
    return Grammar(
        free,
        free,
        close,
        np.zeros(1, np.int32),
        np.full(1, never, np.int32),
        np.full(1, temperature, np.float32),
        np.full(1, min_p, np.float32),
        np.full(1, top_k, np.int32) if top_k else None,
        np.full(1, top_p, np.float32) if top_p < 1 else None,
    )
