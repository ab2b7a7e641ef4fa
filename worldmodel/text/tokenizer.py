"""Text to token ids and back; text from outside can never become a control token.

texts -> byte-level BPE (trained here, or taken from a Hugging Face directory) -> ids.
Control tokens, those of the directory and those of our grammar, have ids that no text
is encoded to.
"""

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.text.identifiers import REFERENCE_FILE, ReferenceRule
from worldmodel.text.writing.states import StateWriting

MAX_LINES = 32
CONTROLS = (
    *"pad end task past demo state action why think next add same reward".split(),
    *"outcome go lose win vary full".split(),
    *(f"line{i}" for i in range(MAX_LINES)),
    "swap",
    "with",
)
CACHED_PIECES = 1 << 14
"""Pieces of text whose ids a tokenizer keeps, at most: lines and words recur in every
prompt of an episode, and a lookup takes an eightieth of the time of encoding them."""
LONGEST_CACHED = 256
"""Characters of such a piece, at most."""
JOIN = "join"
REFERENCES = tuple(f"ref{i}" for i in range(48))


def control_text(name: str) -> str:
    """Return the spelling of a control token in a tokenizer file."""
    return f"<|dg_{name}|>"


EXTRA_FILES = (
    REFERENCE_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files of a tokenizer's directory that are copied. Into the last one `save_model`
writes the ends of texts."""
OTHER_FORMATS = ("vocab.json", "tokenizer.model", "vocab.txt")
"""Files that hold a tokenizer where there is no tokenizer.json."""


MAX_UNUSED_IDS = 100_000
"""Ids without a token below the highest id of a vocabulary, at most."""


def _vocab_size(vocabulary: Mapping[str, int]) -> int:
    """Return the number of rows that a model needs for a vocabulary: highest id + 1.

    Raises:
      ValueError: it has no token, or an id so high that it must be damaged. A model
        would be given rows for all ids below it.
    """
    if not vocabulary:
        raise ValueError("it has no tokens")
    size = max(vocabulary.values()) + 1
    if size > len(vocabulary) + MAX_UNUSED_IDS:
        raise ValueError(f"{len(vocabulary):,} tokens have ids up to {size - 1:,}")
    return size


def _plain(core: Tokenizer) -> Tokenizer:
    """Return the tokenizer without added tokens: all it reads is ordinary text.

    Raises:
      ValueError: its model needs one of the added tokens.
    """
    parts = json.loads(core.to_str())
    # Not only special tokens go: an added token such as `<think>` looks ordinary, and
    # text from outside must not be encoded to it either.
    parts |= {"added_tokens": [], "post_processor": None}
    parts |= {"truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps(parts))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"without its added tokens: {error!s:.200}") from None


def _read(directory: str | os.PathLike) -> tuple[Tokenizer, dict[str, bytes]]:
    path = Path(directory) / "tokenizer.json"
    others = [n for n in OTHER_FORMATS if Path(directory, n).is_file()]
    if not path.is_file() and not others:
        raise FileNotFoundError(f"{path}: expected a Hugging Face tokenizer.json")
    paths = {n: Path(directory, n) for n in EXTRA_FILES}
    if paths["generation_config.json"].is_file():  # read again when it is saved
        read_json_object(paths["generation_config.json"])
    try:
        core = Tokenizer.from_file(str(path)) if path.is_file() else _convert(directory)
    except Exception as error:  # the libraries raise nothing more exact
        text = str(error).replace("\n", " ")
        name = path if path.is_file() else Path(directory, others[0])
        raise RecordError(f"{name}: no tokenizer ({text:.200})") from None
    files = {name: file.read_bytes() for name, file in paths.items() if file.is_file()}
    if REFERENCE_FILE in files:  # also where a model is read that needs no references
        try:
            ReferenceRule.parse(files[REFERENCE_FILE])
        except RecordError as error:
            raise RecordError(f"{Path(directory)}/{error}") from None
    return core, files


def _convert(directory: str | os.PathLike) -> Tokenizer:
    """Return the tokenizer of a directory without a tokenizer.json.

    Transformers knows how each family's older files are put together. It runs no code
    of the directory, and asks nothing of the network.
    """
    # Imported here: it takes seconds, and nearly all directories have a tokenizer.json.
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        directory, local_files_only=True, trust_remote_code=False
    )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("it has no form that the package tokenizers can run")
    return tokenizer.backend_tokenizer


def _write(directory: str | os.PathLike, core: Tokenizer, files: dict[str, bytes]):
    Path(directory).mkdir(parents=True, exist_ok=True)
    core.save(str(Path(directory) / "tokenizer.json"))
    for name, content in files.items():
        (Path(directory) / name).write_bytes(content)


class Vocabulary:
    """A Hugging Face tokenizer without a template, BOS or grammar of ours.

    `ends` are the ids that begin ("bos"), end ("eos") and pad ("pad") a text.
    """

    directory = "this model"  # where it was read from

    def __init__(
        self, core: Tokenizer, files: dict[str, bytes], ends: dict[str, list[int]]
    ):
        core.no_padding()
        core.no_truncation()
        self._core, self._text, self._files = core, _plain(core), files
        self.ends = ends
        vocabulary = core.get_vocab(with_added_tokens=True)
        self.vocab_size: int = _vocab_size(vocabulary)
        self.added: dict[str, int] = {
            token.content: i for i, token in core.get_added_tokens_decoder().items()
        }
        self._special = {
            i for i, token in core.get_added_tokens_decoder().items() if token.special
        }

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "Vocabulary":
        """Return the tokenizer of a model directory.

        Raises:
          FileNotFoundError: the directory has no tokenizer.json.
        """
        core, files = _read(directory)
        raw: dict[str, Any] = {}
        for name in ("config.json", "generation_config.json"):
            path = Path(directory) / name
            if path.is_file():
                raw |= read_json_object(path)
        ends = {}
        for name in ("bos", "eos", "pad"):
            token_id = raw.get(f"{name}_token_id")
            ids = token_id if isinstance(token_id, list) else [token_id]
            if not all(isinstance(i, int) or i is None for i in ids):
                raise RecordError(
                    f"{Path(directory)}: {name}_token_id must be an id or a list of "
                    f"ids, got {token_id!r:.60}"
                )
            ends[name] = [i for i in ids if i is not None]
        try:
            vocabulary = cls(core, files, ends)
        except ValueError as error:
            raise RecordError(f"{directory}/tokenizer.json: {error}") from None
        vocabulary.directory = str(directory)
        return vocabulary

    def save(self, directory: str | os.PathLike) -> None:
        """Write the tokenizer's files into a model directory."""
        _write(directory, self._core, self._files)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of a conversation, or None."""
        name = "chat_template.jinja"
        try:
            if name in self._files:
                return self._files[name].decode()
            name = "tokenizer_config.json"
            settings = json.loads(self._files.get(name, b"{}"))
            template = settings.get("chat_template")
            if isinstance(template, list):  # several, by name
                template = next(
                    (t["template"] for t in template if t["name"] == "default"), None
                )
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise RecordError(
                f"{Path(self.directory, name)}: expected a chat template ({error})"
            ) from None
        if template is not None and not isinstance(template, str):
            raise RecordError(
                f"{Path(self.directory, name)}: expected a chat_template that is a "
                f"string, got {template!r:.60}"
            )
        return template

    def encode(self, text: str, *, controls: bool = False) -> list[int]:
        """Return the ids of a text; with `controls`, control tokens are recognised."""
        core = self._core if controls else self._text
        return core.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], *, controls: bool = False) -> str:
        """Return the text of ids, without special tokens unless `controls`."""
        text_ids = [int(i) for i in ids]
        if not controls:
            text_ids = [i for i in text_ids if i not in self._special]
        return self._core.decode(text_ids, skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """Return the vocabulary's spelling of one token."""
        return self._core.id_to_token(int(token)) or ""


class TextTokenizer:
    """A byte-level BPE with the control tokens of our grammar.

    Each piece of text is encoded with one leading space and decoded without it, so that
    a word has the same ids at the start of a line and inside it. Any text that UTF-8
    can hold round-trips exactly.
    """

    def __init__(self, core: Tokenizer, files: dict[str, bytes] | None = None):
        core.add_special_tokens(
            [AddedToken(control_text(c), special=True) for c in CONTROLS]
        )
        core.no_padding()
        core.no_truncation()
        self._core, self._files = core, files or {}
        plain = _plain(core)
        self._encode = lambda text: plain.encode(text, add_special_tokens=False).ids
        self._piece_ids = functools.lru_cache(CACHED_PIECES)(self._encode)
        vocabulary = core.get_vocab(with_added_tokens=True)
        self._control = {c: vocabulary[control_text(c)] for c in CONTROLS}
        self._names = {i: c for c, i in self._control.items()}
        self.reference_rule: ReferenceRule | None = None
        self.writing = StateWriting()
        self.join = -1
        self.references: list[int] = []
        if REFERENCE_FILE in self._files:
            self.reference_rule = ReferenceRule.parse(self._files[REFERENCE_FILE])
            self.writing = StateWriting(
                self.reference_rule.columns, self.reference_rule.changes, MAX_LINES
            )
            self.join = vocabulary[control_text(JOIN)]
            self.references = [vocabulary[control_text(r)] for r in REFERENCES]
        self._no_text = frozenset([*self._names, self.join, *self.references])
        self.vocab_size: int = _vocab_size(vocabulary)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        *,
        references: ReferenceRule | None = None,
    ) -> "TextTokenizer":
        """Train a byte-level BPE of at most `vocab_size` ids, control tokens included.

        Digits are tokens of their own, so that a number is read and copied digit by
        digit. With `references` there are further tokens for words of a context
        (references.py).

        Merges stay inside words, so that a word has the same ids in every line. Merges
        across words would make states shorter but copying harder (not measured).

        Raises:
          ValueError: `vocab_size` is too small for the 256 bytes and the control
            tokens.
        """
        min_size = 256 + len(CONTROLS)
        if vocab_size < min_size:
            raise ValueError(f"vocab_size must be >= {min_size}, got {vocab_size}")
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                # The space stays with its digit, or a number would begin with a token
                # of its own.
                pre_tokenizers.Split(Regex(r" ?\d"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        core.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(CONTROLS),
            # All 256 bytes, also those that no text holds: any text can then be
            # encoded.
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        core.train_from_iterator((" " + text for text in texts), trainer)
        if references is None:
            return cls(core)
        names = [control_text(c) for c in (*CONTROLS, JOIN, *REFERENCES)]
        core.add_special_tokens([AddedToken(n, special=True) for n in names])
        return cls(core, {REFERENCE_FILE: references.json().encode()})

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "TextTokenizer":
        """Return the tokenizer of a model directory (tokenizer.json).

        Raises:
          FileNotFoundError: the directory has no tokenizer.json.
          RecordError: the file is damaged.
        """
        core, files = _read(directory)
        try:
            return cls(core, files)
        except RecordError:
            raise
        except ValueError as error:
            raise RecordError(f"{directory}/tokenizer.json: {error}") from None

    def save(self, directory: str | os.PathLike) -> None:
        """Write the tokenizer's files into a model directory."""
        _write(directory, self._core, self._files)

    @property
    def base(self) -> "TextTokenizer":
        """This tokenizer: the one without the words of a context."""
        return self

    @property
    def context_view(self) -> "TextTokenizer":
        """This tokenizer: without references contexts are written as replies are."""
        return self

    @property
    def ends(self) -> dict[str, list[int]]:
        """The ids that end ("eos") and pad ("pad") a turn of our grammar."""
        return {"bos": [], "eos": [self.control("end")], "pad": [self.control("pad")]}

    def control(self, name: str) -> int:
        """Return the id of a control token."""
        return self._control[name]

    def name(self, token: int) -> str | None:
        """Return the control token's name, or None for a text token."""
        return self._names.get(token)

    def line(self, index: int) -> int:
        """Return the control token of line `index`; lines from the last on share it."""
        return self._control[f"line{min(index, MAX_LINES - 1)}"]

    def line_marks(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the markers of each line: without a context there are none."""
        return [[] for _ in lines]

    def unused_line_mask(self, lines: int) -> np.ndarray:
        """Return bool [V], true for tokens of lines that a state of `lines` lacks."""
        mask = np.zeros(self.vocab_size, bool)
        mask[[self._control[f"line{i}"] for i in range(lines, MAX_LINES)]] = True
        return mask

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, none of them a control token."""
        return self.encode_piece(" " + text)

    def encode_piece(self, text: str) -> list[int]:
        """Return the ids of a piece of a text, without a space before it."""
        ids = self._piece_ids if len(text) <= LONGEST_CACHED else self._encode
        return list(ids(text))  # a copy: callers append to it

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without control tokens; invalid UTF-8 is replaced."""
        return self.decode_piece(ids).removeprefix(" ")

    def decode_piece(self, ids: Iterable[int]) -> str:
        """Return the text of ids with the space before it."""
        text_ids = [int(i) for i in ids if int(i) not in self._no_text]
        return self._core.decode(text_ids, skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """Return the vocabulary's spelling of one token."""
        return self._core.id_to_token(token) or ""

    def text_mask(self) -> np.ndarray:
        """Return bool [V], true for ids of ordinary text."""
        mask = np.zeros(self.vocab_size, bool)
        mask[list(self._core.get_vocab(with_added_tokens=False).values())] = True
        mask[list(self._core.get_added_tokens_decoder())] = False
        return mask

    def reference_mask(self) -> np.ndarray:
        """Return bool [V], true for references and `join`."""
        mask = np.zeros(self.vocab_size, bool)
        if self.reference_rule is not None:
            mask[[self.join, *self.references]] = True
        return mask

    def unused_references(self) -> np.ndarray:
        """Return bool [V], true for all references: none stands for a word here."""
        return self.reference_mask()

    def number_mask(self) -> np.ndarray:
        """Return bool [V], true for ids made of digits, signs, points and spaces."""
        mask = self.text_mask()
        for token in np.flatnonzero(mask):
            text = self._core.decode([int(token)], skip_special_tokens=False)
            mask[token] = set(text) <= set("0123456789-. ")
        return mask
