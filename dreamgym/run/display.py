"""What a person who waits sees: a block on a terminal, redrawn where it stands.

position, rows of metrics, clock -> lines of text (pure) -> a few ANSI codes that move
and clear, none that colours. Where they cannot be written it is a line of tqdm, and
nothing where nobody looks.
"""

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

SHOWN = (
    ("success", "success"), ("return", "return"), ("loss", "loss"),
    ("held_out/loss", "held out"), ("kl", "KL"), ("moved", "moved"),
    ("entropy", "entropy"), ("invalid", "invalid"), ("gate", "gate"),
    ("probe", "real dev"), ("tokens/s", "tokens/s"),
)  # fmt: skip
"""Metrics that the block has room for, in this order, and how they are called there."""


CURVES = ("success", "return", "loss", "held_out/loss")
"""Those with a small curve beside them."""


SHARES = ("invalid", "gate")


BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-~=+*#"


EVERY = 0.1
"""Seconds between two drawings, at least."""


HISTORY = 1.0
"""What is told within so many seconds of the first position was done before."""


def sparkline(values: Sequence[float | int], cells: int, marks: str = BARS) -> str:
    """The last values as marks of growing height, least to most; flat: the lowest."""
    last = [float(v) for v in values][-cells:]
    low, span = min(last, default=0.0), max(last, default=0.0) - min(last, default=0.0)
    top = len(marks) - 1
    return "".join(marks[round((v - low) / span * top) if span else 0] for v in last)


def duration(seconds: float | int) -> str:
    """Seconds as m:ss or h:mm:ss."""
    hours, rest = divmod(round(max(seconds, 0.0)), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def number(name: str, value: float | int) -> str:
    """A metric in a few characters: shares in per cent, large ones whole."""
    if name in SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def lines(
    text: str,
    unit: str,
    done: int,
    total: int,
    rows: Sequence[Mapping[str, float | int]],
    *,
    spent: float | int,
    left: float | int | None,
    width: int,
    marks: str = BARS,
) -> list[str]:
    """The block: a line of progress, then the newest metrics, as many as a line holds.

    Seconds `spent` and `left` (None: not known yet); no line is wider than `width`.
    """
    until = "" if left is None else f", {duration(left)} left"
    head = f"{text}  {done:,}/{total:,} {unit}s  {duration(spent)}{until}"
    room = min(width - len(head) - 2, 30)
    if room >= 5 and total:
        full = min(done * room // total, room)
        head += "  " + marks[-1] * full + marks[0] * (room - full)
    out, cells = [head], max(min(width // 8, 16), 4)
    for name, called in SHOWN:
        values = [r[name] for r in rows if math.isfinite(r.get(name, math.nan))]
        if not values:
            continue
        piece = f"{called} {number(name, values[-1])}"
        if name in CURVES and len(values) > 1:
            piece += " " + sparkline(values, cells, marks)
        if len(out) > 1 and len(out[-1]) + 3 + len(piece) <= width:
            out[-1] += "   " + piece
        else:
            out.append(piece)
    return [line[:width] for line in out]


def seconds_left(marks: Sequence[tuple[int, float]], total: int) -> float | None:
    """From positions and their times, oldest first; None where nothing tells.

    The first interval holds the compiler's work: it only counts while it is the only
    one.
    """
    (at, since), (done, now) = marks[1 if len(marks) > 2 else 0], marks[-1]
    if done <= at or now <= since:
        return None
    return max(total - done, 0) * (now - since) / (done - at)


class Live:
    """The block on a terminal. The cursor waits on an empty line above it, so that
    what others write there stays."""

    def __init__(self, file: Any, total: int, text: str, unit: str):
        self._file, self._total, self._text, self._unit = file, total, text, unit
        self._start, self._drawn = time.monotonic(), -EVERY
        self._marks = [(0, self._start)]
        self._rows: list[Mapping[str, float | int]] = []
        self._marks_of = BARS if _writes(file, BARS) else PLAIN_BARS

    def __call__(self, done: int, note: Any = None) -> None:
        """Go to a position; a note that is a mapping is a row of metrics."""
        now, done = time.monotonic(), min(done, self._total)
        row = _numbers(note) if isinstance(note, Mapping) else {}
        fresh = bool(row) and row not in self._rows[-1:]
        if fresh:
            self._rows.append(row)
        if done and now - self._start < HISTORY:
            self._marks = [(done, now)]
        elif done > self._marks[-1][0]:
            self._marks = [*self._marks[:2], (done, now)]
        if fresh or now - self._drawn >= EVERY:
            self._draw(done, now)

    def _draw(self, done: int, now: float) -> None:
        self._drawn = now
        left = seconds_left(self._marks, self._total)
        if left is not None:  # since the last position time went on
            left = max(left - (now - self._marks[-1][1]), 0.0)
        columns = shutil.get_terminal_size().columns
        block = lines(
            self._text, self._unit, done, self._total, self._rows,
            spent=now - self._start, left=left, width=columns - 1,
            marks=self._marks_of,
        )  # fmt: skip
        drawn = "".join(f"\n{line}\x1b[K" for line in block)
        self._file.write(f"\r\x1b[K{drawn}\x1b[J\x1b[{len(block)}F")
        self._file.flush()

    def close(self) -> None:
        """Clear the block."""
        self._file.write("\r\x1b[J")
        self._file.flush()


def able(file: Any) -> bool:
    """Whether a block can be drawn: a terminal that moves its cursor, not too low."""
    if not file.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return shutil.get_terminal_size().lines >= 10


def _numbers(note: Mapping[str, Any]) -> dict[str, float | int]:
    return {k: v for k, v in note.items() if isinstance(v, int | float)}


def _writes(file: Any, text: str) -> bool:
    try:
        text.encode("ascii" if file.encoding is None else file.encoding)
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def bar(total: int, text: str, unit: str = "it") -> Iterator[Callable[..., None]]:
    """Progress set by position: yields show(done, note); see the file's docstring."""
    if able(sys.stderr):
        live = Live(sys.stderr, total, text, unit)
        try:
            yield live
        finally:
            live.close()
        return
    with tqdm(
        total=total, desc=text, unit=unit, leave=False, disable=None, file=sys.stderr
    ) as line:

        def show(done: int, note: Any = None) -> None:
            line.n = min(done, total)
            if isinstance(note, Mapping):
                known = _numbers(note)
                told = {c: number(k, known[k]) for k, c in SHOWN if k in known}
                line.set_postfix(told, refresh=False)
            line.refresh()

        yield show
