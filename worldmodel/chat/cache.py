"""A cache of a chat server's answers on disk.

the digest of a request -> ChatCache -> the stored answer, or None.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from worldmodel.chat.protocol import (
    ChatCut,
    ChatReply,
    Token,
)

_CACHE_VERSION = 1


class CacheError(RuntimeError):
    """The cache file cannot be read or written."""


class ChatCache:
    """Answers in an SQLite file, one transaction each.

    A killed process loses at most its last answer. SQLite waits 30 seconds for another
    process that writes.
    """

    def __init__(self, path: Path):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._database_errors():
            self._db = sqlite3.connect(
                path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._create()
            elif version != _CACHE_VERSION:
                raise sqlite3.DatabaseError(f"version {version}")

    def _create(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        names = [row[0] for row in self._db.execute("SELECT name FROM sqlite_master")]
        if "replies" not in names and names:
            raise sqlite3.DatabaseError(f"a database of something else, {names[:3]}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT)"
        )
        self._db.execute(f"PRAGMA user_version = {_CACHE_VERSION}")
        self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _database_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise CacheError(
                f"{self._path}: not a usable cache of answers ({error}); "
                "move the file away to begin a new one"
            ) from None

    def get(self, key: str) -> ChatReply | ChatCut | None:
        """Return the answer under a key, or None."""
        with self._database_errors():
            rows = self._db.execute("SELECT reply FROM replies WHERE key = ?", (key,))
            row = rows.fetchone()
            if row is None:
                return None
            text, tokens = json.loads(row[0])
            if text is None:
                return ChatCut(cached=True)
            if tokens is not None:
                tokens = tuple(Token(*t) for t in tokens)
            return ChatReply(text, tokens, cached=True)

    def put(self, key: str, reply: ChatReply | ChatCut) -> None:
        """Store an answer, or the fact that it was cut off."""
        cut = isinstance(reply, ChatCut)
        # json.dumps escapes to ASCII, so that lone surrogates can be stored.
        row = json.dumps([None, None] if cut else [reply.text, reply.tokens])
        with self._database_errors():
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, row))

    def close(self) -> None:
        """Close the file."""
        self._db.close()
