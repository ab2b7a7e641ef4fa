"""The bytes of the tokens of a byte-level vocabulary."""

import numpy as np

from worldmodel.text.tokenizer import TextTokenizer


def byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Printable characters of Latin-1 stand for themselves, and the letters from 256 on
    for the other bytes in order (GPT-2's table).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def token_bytes(tokenizer: TextTokenizer) -> dict[int, bytes]:
    """Return the bytes of each token of ordinary text.

    Raises:
      ValueError: the vocabulary is not byte-level, so that its tokens have no bytes.
    """
    letters, out = byte_letters(), {}
    for token in map(int, np.flatnonzero(tokenizer.text_mask())):
        piece = tokenizer.piece(token)
        if not all(letter in letters for letter in piece):
            raise ValueError(f"expected a byte-level tokenizer, got {piece!r:.40}")
        out[token] = bytes(letters[letter] for letter in piece)
    return out
