"""Text to token ids and back, where text from outside can never become control.

texts -> byte-level BPE (trained here, or a Hugging Face tokenizer's own) -> ids;
the grammar's control tokens have ids that no text encodes to.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

MAX_LINES = 32
CONTROLS = (
    "pad", "end", "task", "past", "demo", "state", "action", "why", "think",
    "next", "add", "same", "reward", "outcome", "go", "lose", "win", "vary", "full",
    *(f"line{i}" for i in range(MAX_LINES)),
)  # fmt: skip


def control_text(name: str) -> str:
    """How a control token is written in a tokenizer file."""
    return f"<|dg_{name}|>"


class TextTokenizer:
    """A byte-level BPE plus the control tokens of our grammar.

    Each piece of text is encoded with one leading space, so that a word has the same
    ids at the start of a line as inside it, and decoded without it: any text that
    UTF-8 can carry round-trips exactly.
    """

    def __init__(self, core: Tokenizer):
        core.add_special_tokens(
            [AddedToken(control_text(c), special=True) for c in CONTROLS]
        )
        core.encode_special_tokens = True  # a control token's name is ordinary text
        core.no_padding()
        core.no_truncation()
        self._core = core
        vocabulary = core.get_vocab(with_added_tokens=True)
        self._control = {c: vocabulary[control_text(c)] for c in CONTROLS}
        self._names = {i: c for c, i in self._control.items()}
        self.vocab_size: int = max(vocabulary.values()) + 1

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "TextTokenizer":
        """A byte-level BPE of at most `vocab_size` ids, control tokens included.

        Merges stay inside words, so that a word has the same ids in every line: merges
        across words would make states shorter and copying harder (not measured).

        Raises:
          ValueError: no room for the 256 bytes and the control tokens.
        """
        least = 256 + len(CONTROLS)
        if vocab_size < least:
            raise ValueError(f"vocab_size must be >= {least}, got {vocab_size}")
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=True
        )
        core.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(CONTROLS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        core.train_from_iterator((" " + text for text in texts), trainer)
        return cls(core)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "TextTokenizer":
        """The tokenizer of a model directory (tokenizer.json).

        Raises:
          FileNotFoundError: the directory has no tokenizer.json.
        """
        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: expected a Hugging Face tokenizer.json")
        return cls(Tokenizer.from_file(str(path)))

    def save(self, directory: str | os.PathLike) -> None:
        """Write tokenizer.json into a model directory."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._core.save(str(Path(directory) / "tokenizer.json"))

    def control(self, name: str) -> int:
        """The id of a control token."""
        return self._control[name]

    def name(self, token: int) -> str | None:
        """The control token's name, or None for a text token."""
        return self._names.get(token)

    def line(self, index: int) -> int:
        """The control token that opens line `index`; the last one is shared."""
        return self._control[f"line{min(index, MAX_LINES - 1)}"]

    def beyond(self, lines: int) -> np.ndarray:
        """bool [V], true for the tokens of lines that a state of `lines` lacks."""
        mask = np.zeros(self.vocab_size, bool)
        mask[[self._control[f"line{i}"] for i in range(lines, MAX_LINES)]] = True
        return mask

    def encode(self, text: str) -> list[int]:
        """Text to ids, none of them a control token."""
        return self._core.encode(" " + text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Ids to text; control tokens are left out, broken UTF-8 is replaced."""
        kept = [int(i) for i in ids if int(i) not in self._names]
        text = self._core.decode(kept, skip_special_tokens=False)
        return text.removeprefix(" ")

    def text_mask(self) -> np.ndarray:
        """bool [V], true for ids that are ordinary text."""
        mask = np.zeros(self.vocab_size, bool)
        mask[list(self._core.get_vocab(with_added_tokens=False).values())] = True
        for token, added in self._core.get_added_tokens_decoder().items():
            mask[token] = not added.special
        return mask

    def number_mask(self) -> np.ndarray:
        """bool [V], true for ids made of digits, a sign, a point or a space."""
        mask = self.text_mask()
        for token in np.flatnonzero(mask):
            text = self._core.decode([int(token)], skip_special_tokens=False)
            mask[token] = set(text) <= set("0123456789-. ")
        return mask
