"""Progress display: a live table on a terminal, a regular line elsewhere.

position, rows of metrics, clock -> Status -> rich's Live on a terminal that can move
its cursor, or a plain line every INTERVAL seconds in a file, so that a log shows that
the program is alive. Only terminals get colours.
"""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dreamgym.envs.interrupts import check_interrupt
from dreamgym.evaluation.metric_names import METRICS
from dreamgym.run.terminal import PrintableStream, escape_controls

INTERVAL = 10.0
"""Seconds between two lines where the display is not live."""
HISTORY = 1.0
"""Positions within so many seconds of the start were reached before (a resumed run)."""
MIN_HEIGHT = 10
"""Minimal height of a terminal, in lines, for a live table."""
TREND_CELLS = 24
BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-~=+*#"


class _PrintableConsole(Console):
    """A console that escapes control characters in what it prints, not its own."""

    def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
        """Yield the segments of a renderable; see rich."""
        for text, style, control in super().render(*args, **options):
            yield Segment(text if control else escape_controls(text), style, control)


def make_console(file: Any) -> Console:
    """Return a console for a stream: colours on a terminal, plain lines elsewhere."""
    # Our own cursor movements go to the stream behind, which escapes nothing.
    file = file.raw if isinstance(file, PrintableStream) else file
    terminal = file.isatty()
    return _PrintableConsole(
        file=file,
        force_terminal=terminal,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal else 100,
    )


def output_console() -> Console:
    """Return the console of results: standard output."""
    return make_console(sys.stdout)


def sparkline(values: Sequence[float | int], cells: int, marks: str = BARS) -> str:
    """Return the last values as bars of one line; equal values have the lowest bar."""
    last = [float(v) for v in values][-cells:]
    low, span = min(last, default=0.0), max(last, default=0.0) - min(last, default=0.0)
    top = len(marks) - 1
    return "".join(marks[round((v - low) / span * top) if span else 0] for v in last)


def duration(seconds: float | int) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    hours, rest = divmod(round(max(seconds, 0.0)), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def metric_text(name: str, value: float | int) -> str:
    """Return a metric in a few characters: shares in per cent, large ones whole."""
    if METRICS[name].share:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def seconds_left(marks: Sequence[tuple[int, float]], total: int) -> float | None:
    """Return an estimate from positions and their times, the oldest first, or None.

    The first interval includes compilation: it only counts while it is the only one.
    """
    (start, since), (done, until) = marks[1 if len(marks) > 2 else 0], marks[-1]
    if done <= start or until <= since:
        return None
    return max(total - done, 0) * (until - since) / (done - start)


class Status:
    """The progress of a task: its position out of `total` (0: unknown) and metrics."""

    def __init__(self, total: int, text: str, unit: str):
        self._total, self._text, self._unit = total, text, unit
        self._start, self._done = time.monotonic(), 0
        self._marks = [(0, self._start)]
        self._rows: list[dict[str, float | int]] = []

    def update(self, done: int, note: Any = None) -> None:
        """Go to a position; a note that is a mapping is a row of metrics."""
        check_interrupt()  # a fit is not finished first where a library swallowed it
        seconds, self._done = time.monotonic(), min(done, self._total)
        if isinstance(note, Mapping):
            row = {k: v for k, v in note.items() if isinstance(v, int | float)}
            self._rows += [row] if row and row not in self._rows[-1:] else []
        if self._done and seconds - self._start < HISTORY:
            self._marks = [(self._done, seconds)]
        elif self._done > self._marks[-1][0]:
            self._marks = [*self._marks[:2], (self._done, seconds)]

    def head(self) -> str:
        """Return the name, position and time of the task."""
        seconds = time.monotonic()
        out = [self._text]
        if self._total:
            whole = decimal if self._unit == "B" else "{:,}".format
            unit = "" if self._unit == "B" else f" {self._unit}s"
            out.append(f"{whole(self._done)}/{whole(self._total)}{unit}")
        remaining = seconds_left(self._marks, self._total)
        if self._done == self._total:
            remaining = None  # what follows, nobody has counted
        if remaining is not None:  # since the last position time went on
            remaining = max(remaining - (seconds - self._marks[-1][1]), 0.0)
        until = "" if remaining is None else f", {duration(remaining)} left"
        return "  ".join([*out, f"{duration(seconds - self._start)}{until}"])

    def metrics(self) -> Iterator[tuple[str, str, list[float | int]]]:
        """Yield label, newest value and all values of each known metric."""
        for name, metric in METRICS.items():
            values = [
                r[name]
                for r in list(self._rows)
                if math.isfinite(r.get(name, math.nan))
            ]
            if values:
                yield metric.label, metric_text(name, values[-1]), values

    def line(self) -> str:
        """Return everything as one plain line."""
        metrics = [f"{label} {value}" for label, value, _ in self.metrics()]
        return "  ".join([self.head(), *metrics])

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        del console  # rich's protocol
        yield Text(self.head(), "bold")
        if self._total:
            yield ProgressBar(
                self._total,
                self._done,
                width=min(options.max_width, 60),
                complete_style="cyan",
                finished_style="cyan",
            )
            yield Segment.line()
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column(justify="right")
        table.add_column(style="cyan")
        marks = ASCII_BARS if options.ascii_only else BARS
        for label, value, values in self.metrics():
            trend = sparkline(values, TREND_CELLS, marks) if len(values) > 1 else ""
            table.add_row(label, value, trend)
        if table.row_count:
            yield table


class _Display:
    """The statuses that are open, the innermost shown; one for the whole process."""

    def __init__(self) -> None:
        self._open: list[Status] = []
        self._close: Callable[[], None] = lambda: None

    def push(self, status: Status) -> None:
        self._open.append(status)
        if len(self._open) == 1:
            console = make_console(sys.stderr)
            live = console.is_terminal and not console.is_dumb_terminal
            live = live and console.height >= MIN_HEIGHT
            self._close = self._start_live(console) if live else self._start_lines()

    def pop(self, status: Status) -> None:
        self._open.remove(status)
        if not self._open:
            self._close()

    def _start_live(self, console: Console) -> Callable[[], None]:
        live = Live(
            get_renderable=lambda: self._open[-1] if self._open else Text(""),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        live.start()
        return live.stop

    def _start_lines(self) -> Callable[[], None]:
        stopped, file = threading.Event(), sys.stderr

        def write() -> None:
            while not stopped.wait(INTERVAL):
                with contextlib.suppress(IndexError, ValueError):  # it has just ended
                    print(self._open[-1].line(), file=file, flush=True)

        thread = threading.Thread(target=write, name="display", daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            thread.join()

        return stop


_DISPLAY = _Display()


@contextlib.contextmanager
def progress_bar(
    total: int, text: str, unit: str = "it"
) -> Iterator[Callable[..., None]]:
    """Show progress within a `with` block; yields update(done, note), see Status.

    Blocks may be nested; the innermost is shown.
    """
    status = Status(total, text, unit)
    _DISPLAY.push(status)
    try:
        yield status.update
    finally:
        _DISPLAY.pop(status)


def print_stage(name: str, seconds: float, numbers: Mapping[str, Any]) -> None:
    """Print a line on a finished stage: its seconds, and what it counted."""
    counts = "  ".join(f"{k} {_short(v)}" for k, v in numbers.items())
    text = Text.assemble((name, "bold"), f": {seconds:.0f} s  ", (counts, "dim"))
    output_console().print(text, soft_wrap=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
