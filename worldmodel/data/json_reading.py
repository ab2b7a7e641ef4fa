"""Read JSON from disk, one value in memory at a time, and check its fields.

file (gzip or not) -> lines or array items -> JSON value and its place -> typed fields.
Any fault becomes a RecordError with file, line, field, the expected and the actual
value. gzip is recognised by its first two bytes, never by the file's name.
"""

import codecs
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Progress = Callable[[int], Any]
"""Called with the number of bytes of the file on disk that have been read."""

MAX_LINE_BYTES = 64 << 20
"""The most bytes of one line, unpacked: an episode of some thousand long states."""

MAX_FILE_BYTES = 16 << 30
"""The most bytes of a file, unpacked: a gzip of 16 MB can hold as many."""

MAX_BLANK_LINES = 1_000_000
"""The most lines in a row without text: nobody writes more, and reading takes long."""

JSON_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a JSON object",
}
"""What a value of a type is called in a message about a JSON file."""

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"
_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_MISSING: Any = object()


class RecordError(ValueError):
    """A record is invalid; the message names file, line, expected and actual value."""


class Where:
    """The place that a value came from, for error messages.

    `line` is 0 where it says nothing: the file is one JSON value.
    """

    def __init__(self, path: Path, line: int, field: str = ""):
        self.path, self.line, self.field = path, line, field

    def at(self, field: str) -> "Where":
        """Return the place of a field of this value."""
        dot = "" if field.startswith("[") else "."
        return Where(self.path, self.line, f"{self.field}{dot}{field}".lstrip("."))

    def error(self, expected: str, value: object) -> RecordError:
        """Return the error to raise for a value at this place."""
        try:
            text = repr(value)
        except (RecursionError, ValueError):  # nested too deep; a huge integer
            text = f"a {type(value).__name__} too large to show"
        text = text if len(text) < 80 else text[:77] + "..."
        name = f" field {self.field!r}:" if self.field else ""
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return RecordError(f"{place}:{name} expected {expected}, got {text}")


def check_type(value: Any, kind: type, where: Where) -> Any:
    """Return the value if it has the type; ints count as floats, bools not as ints.

    Raises:
      RecordError: the value has another type.
    """
    bad_bool = kind is not bool and isinstance(value, bool)
    if kind is float and isinstance(value, int) and not bad_bool:
        try:
            value = float(value)
        except OverflowError:
            raise where.error("a number that fits a float", value) from None
    if not isinstance(value, kind) or bad_bool:
        raise where.error(JSON_NAMES.get(kind, kind.__name__), value)
    return value


def field(row: Any, key: str, kind: type, where: Where, default: Any = _MISSING) -> Any:
    """Return `row[key]` if it has the type, or the default where the key is missing."""
    if not isinstance(row, dict):
        raise where.error("a JSON object", row)
    value = row.get(key, default)
    if value is _MISSING:
        raise where.error(f"a field {key!r}", sorted(map(str, row)))
    if value is default:
        return value
    return value if kind is object else check_type(value, kind, where.at(key))


def strings(row: Any, key: str, where: Where) -> tuple[str, ...]:
    """Return `row[key]`, a list of strings, or () where the key is missing."""
    value = field(row, key, list, where, [])
    if any(not isinstance(x, str) for x in value):
        raise where.at(key).error("a list of strings", value)
    return tuple(value)


def first_use(first_lines: dict[str, int], name: str, where: Where) -> None:
    """Record in `seen` that this line uses an id; raise where it was used before."""
    if name in first_lines:
        raise where.at("id").error(
            f"an id not used before (line {first_lines[name]})", name
        )
    first_lines[name] = where.line


# --- files -------------------------------------------------------------------


@contextlib.contextmanager
def _open_file(path: Path, expected: str) -> Iterator[tuple[Any, Any]]:
    """Yield (the unpacked bytes, the file on disk)."""
    if path.is_dir():
        file = path / "episodes.jsonl"  # of a run
        has_them = file.is_file() and "schema" in expected
        hint = f" (such as {file})" if has_them else ""
        raise RecordError(f"{path}: a directory; expected a file{hint}: {expected}")
    if not path.is_file():
        reason = "no regular file" if path.exists() else "no such file"
        raise RecordError(f"{path}: {reason}; expected {expected}")
    with path.open("rb") as disk:
        packed = disk.peek(2)[:2] == _GZIP
        yield (gzip.GzipFile(fileobj=disk) if packed else disk), disk


def _bad_gzip(where: Where, error: Exception) -> RecordError:
    return where.error("a whole gzip file", f"{type(error).__name__}: {error}")


def _parse_error(error: Exception) -> str:
    """Return why a text is not JSON: nested too deep, or the parser's message."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(getattr(error, "msg", error)).removesuffix(" at")


def _require_encodable(value: Any, where: Where) -> None:
    """Raise for half of a surrogate pair: legal JSON that UTF-8 cannot hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        cut = error.object[max(error.start - 20, 0) : error.start + 20]
        raise where.error("text without lone surrogates", cut) from None


def _value(raw: bytes, where: Where) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise where.error(f"UTF-8 ({error.reason})", raw[:40]) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        cut = "" if text.endswith("\n") else " (the file ends inside it)"
        column = getattr(error, "colno", 1)
        raise where.error(
            f"one JSON object a line{cut}; {_parse_error(error)} (column {column})",
            text[:40],
        ) from None
    if _SURROGATE.search(text):
        _require_encodable(value, where)
    return value


def json_lines(
    path: Path,
    expected: str,
    progress: Progress | None = None,
    *,
    skip: Callable[[RecordError], Any] | None = None,
) -> Iterator[tuple[Any, Where]]:
    """Yield (value, place) of every line that is not blank.

    With `skip`, a line that is not JSON is left out and its error is passed to `skip`.

    Raises:
      RecordError: the file is missing, has broken gzip, bytes that are not UTF-8, or
        lines that are not JSON. `expected` describes what the file should have been.
    """
    number = 0
    with _open_file(path, expected) as (file, disk):
        try:
            for number, raw in _bounded_lines(path, file):
                where = Where(path, number)
                try:
                    value = _value(raw, where)
                except RecordError as error:
                    if skip is None:
                        raise
                    skip(error)
                else:
                    yield value, where
                if progress is not None:
                    progress(disk.tell())
        except _GZIP_ERRORS as error:
            raise _bad_gzip(Where(path, number + 1), error) from None


def _bounded_lines(path: Path, file: Any) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of every line with text, within the bounds above."""
    number = blank = size = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number, size = number + 1, size + len(raw)
        if number == 1:  # programs of Windows write a byte order mark
            raw = raw.removeprefix(codecs.BOM_UTF8)
        blank = 0 if raw.strip() else blank + 1
        where = Where(path, number)
        if len(raw) > MAX_LINE_BYTES:
            raise where.error(f"a line of at most {MAX_LINE_BYTES:,} bytes", raw[:40])
        if size > MAX_FILE_BYTES:
            raise where.error(f"at most {MAX_FILE_BYTES:,} bytes, unpacked", raw[:40])
        if blank > MAX_BLANK_LINES:
            raise where.error("a record", f"{blank:,} blank lines")
        if not blank:
            yield number, raw


def read_json_value(path: Path) -> Any:
    """Return the JSON value of a small file.

    Raises:
      RecordError: the file is no JSON; the message names it.
    """
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: expected JSON, {_parse_error(error)}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a small file.

    Raises:
      RecordError: the file is no JSON object; the message names it.
    """
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: expected a JSON object, got {value!r:.60}")
    return value


def read_json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a small file, one a line.

    Raises:
      RecordError: a line is no JSON object; the message names file and line.
    """
    rows = []
    for value, where in json_lines(path, "JSON lines"):
        if not isinstance(value, dict):
            raise where.error("a JSON object", value)
        rows.append(value)
    return rows


def holds_array(path: Path, expected: str) -> bool:
    """Return whether the first character is `[`: one JSON array, not JSON lines."""
    with _open_file(path, expected) as (file, _):
        try:
            start = file.read(_CHUNK).removeprefix(codecs.BOM_UTF8)
            return start.lstrip()[:1] == b"["
        except _GZIP_ERRORS:
            return False  # json_lines raises the error with the line


class _Text:
    """Text of a file, read on demand; `where` is the line that has been reached."""

    def __init__(self, path: Path, file: Any):
        self._path, self._file, self._text, self._at, self._line = path, file, "", 0, 1
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode

    @property
    def where(self) -> Where:
        return Where(self._path, self._line)

    def _more(self) -> bool:
        """Read further text; return False at the end of the file."""
        rest = self._text[self._at :]
        if len(rest) > MAX_LINE_BYTES:
            raise self.where.error(
                f"an item of at most {MAX_LINE_BYTES:,} characters", rest[:40]
            )
        try:
            raw = self._file.read(max(len(rest), _CHUNK))
            self._text, self._at = rest + self._decode(raw, final=not raw), 0
        except UnicodeDecodeError as error:
            excerpt = error.object[error.start :][:40]
            raise self.where.error(f"UTF-8 ({error.reason})", excerpt) from None
        except _GZIP_ERRORS as error:
            raise _bad_gzip(self.where, error) from None
        return bool(raw)

    def _advance(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end

    def excerpt(self) -> str:
        """Return the next few characters, for a message."""
        return self._text[self._at : self._at + 40]

    def sign(self) -> str:
        """Return the next character that is not blank, or "" at the end of the file."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            assert blanks is not None  # the pattern matches an empty text, too
            self._advance(blanks.end())
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> str:
        """Consume one of the characters in `wanted`, which must come next."""
        sign = self.sign()
        if not sign or sign not in wanted:
            cut = "" if sign else " (the file ends inside it)"
            raise self.where.error(
                f"a JSON array{cut}; one of {' '.join(wanted)} next", self.excerpt()
            )
        self._advance(self._at + 1)
        return sign

    def item(self) -> tuple[Any, Where]:
        """Return the next JSON value and the place where it begins."""
        self.sign()
        where = self.where
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                break
            except (ValueError, RecursionError) as error:
                if not isinstance(error, json.JSONDecodeError) or not self._more():
                    message = f"a JSON object in the array; {_parse_error(error)}"
                    raise where.error(message, self.excerpt()) from None
        if _SURROGATE.search(self._text, self._at, end):
            _require_encodable(value, where)
        self._advance(end)
        return value, where


def json_array(
    path: Path, expected: str, progress: Progress | None = None
) -> Iterator[tuple[Any, Where]]:
    """Yield (value, place) of every item of a file that is one JSON array.

    The place is the line on which the item begins; errors are those of json_lines.
    """
    with _open_file(path, expected) as (file, disk):
        text = _Text(path, file)
        text.take("[")
        sign = text.take("]") if text.sign() == "]" else ","
        while sign == ",":
            yield text.item()
            sign = text.take(",]")
            if progress is not None:
                progress(disk.tell())
        if text.sign():
            raise text.where.error("nothing after the JSON array", text.excerpt())
