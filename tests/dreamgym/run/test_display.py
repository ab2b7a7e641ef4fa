"""What a person who waits sees: its lines by hand, and on a terminal's screen."""

import io
import itertools
import os
import re
import types

import pytest

from dreamgym.run import display
from dreamgym.run.display import duration, lines, number, seconds_left, sparkline

ROWS = [
    {"success": 0.1, "return": 0.0, "kl": 0.5},
    {
        "success": 0.52, "return": 0.5, "kl": 0.0123, "moved": 0.00345, "entropy": 1.25,
        "invalid": 0.081, "gate": 0.0, "tokens/s": 5234.4, "unchanged": 0.3,
    },
]  # fmt: skip


def test_a_spark_for_each_value_least_to_most():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([9, 0.0, 3.5, 7.0], 3) == "▁▅█"  # the last three: 0, 1/2, 1
    assert sparkline([2, 2], 5) == "▁▁"
    assert sparkline([], 5) == ""
    assert sparkline([0, 7], 5, display.PLAIN_BARS) == "_#"


def test_times_and_numbers_are_short():
    assert [duration(s) for s in (0, 9.6, 61, 3600, 36065)] == [
        "0:00", "0:10", "1:01", "1:00:00", "10:01:05"
    ]  # fmt: skip
    assert number("invalid", 0.0812) == "8.1 %"
    assert number("kl", 0.012345) == "0.0123"
    assert number("tokens/s", 52344.4) == "52,344"


def test_the_block_by_hand():
    got = lines("dream", "update", 12, 30, ROWS, spent=130, left=195.4, width=60)
    assert got == [
        "dream  12/30 updates  2:10, 3:15 left  ████████▁▁▁▁▁▁▁▁▁▁▁▁▁",
        "success 0.52 ▁█   return 0.5 ▁█   KL 0.0123   moved 0.00345",
        "entropy 1.25   invalid 8.1 %   gate 0.0 %   tokens/s 5,234",
    ]
    # The first line: 37 + 2 characters leave 21 of 60, of which 12/30 are full: 8.


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(width):
    rows = ROWS * 40
    got = lines("real_only_total", "step", 1, 10**6, rows, spent=9, left=None,
                width=width)  # fmt: skip
    assert max(map(len, got)) <= width
    if width >= 40:
        text = " ".join(got)
        assert all(f"{called} " in text for _, called in display.SHOWN if called in (
            "success", "return", "KL", "moved", "entropy", "invalid", "gate", "tokens/s"
        ))  # fmt: skip
        assert "held out" not in text


def test_a_fit_shows_its_losses_and_nothing_of_an_agent():
    rows = [{"loss": 2.0}, {"loss": 1.0, "held_out/loss": 1.5}, {"loss": 0.5}]
    got = lines("bc", "update", 30, 200, rows, spent=1, left=5, width=60)[1:]
    assert got == ["loss 0.5 █▃▁   held out 1.5"]  # 1.5 / 2 down: mark 7 / 3 is 2


def test_what_is_no_number_is_not_drawn():
    rows = [{"loss": 2.0, "kl": float("nan")}, {"loss": float("nan")}, {"loss": 1.0}]
    got = lines("bc", "update", 3, 9, rows, spent=1, left=None, width=60)[1:]
    assert got == ["loss 1 █▁"]


def test_time_left_forgets_what_the_compiler_took():
    assert seconds_left([(0, 0.0)], 10) is None
    assert seconds_left([(0, 0.0), (1, 60.0)], 10) == 540.0  # nothing better is known
    # From the second position on: 4 updates in 8 s, 5 to go.
    assert seconds_left([(0, 0.0), (1, 60.0), (5, 68.0)], 10) == 10.0
    assert seconds_left([(5, 1.0), (5, 2.0)], 10) is None
    assert seconds_left([(0, 0.0), (1, 1.0), (12, 2.0)], 10) == 0.0


class Terminal(io.StringIO):
    """A screen that knows what we write: text, returns, clearing, going up."""

    encoding = "utf-8"

    def __init__(self):
        super().__init__()
        self.screen, self.row, self.column, self.raw = [""], 0, 0, ""

    def isatty(self):
        return True

    def write(self, text):
        self.raw += text
        for mark in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            self.one(mark)

    def one(self, mark):
        line = self.screen[self.row]
        if mark == "\n":
            self.row, self.column = self.row + 1, 0
            self.screen += [""] * (self.row + 1 - len(self.screen))
        elif mark == "\r":
            self.column = 0
        elif mark == "\x1b[K":
            self.screen[self.row] = line[: self.column]
        elif mark == "\x1b[J":
            self.screen[self.row :] = [line[: self.column]]
        elif mark.startswith("\x1b"):
            assert mark.endswith("F"), f"unknown code {mark!r}"
            self.row, self.column = self.row - int(mark[2:-1]), 0
            assert self.row >= 0
        else:
            end = self.column + len(mark)
            self.screen[self.row] = line[: self.column].ljust(self.column) + (
                mark + line[end:]
            )
            self.column = end


@pytest.fixture
def terminal(monkeypatch):
    made, clock = Terminal(), itertools.count()
    monkeypatch.setattr(display, "sys", types.SimpleNamespace(stderr=made))
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(
        display.shutil, "get_terminal_size", lambda: os.terminal_size((60, 24))
    )
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return made


def test_the_block_is_redrawn_where_it_stands_and_leaves_nothing(terminal):
    with display.bar(30, "dream", "update") as show:
        show(1, ROWS[0])
        first = list(terminal.screen)
        show(2, ROWS[1])
        second = list(terminal.screen)
        show(2)
        assert len(terminal.screen) == 4
    assert first[0] == ""
    assert first[1].startswith("dream  1/30 updates  0:01")
    assert first[2] == "success 0.1   return 0   KL 0.5"
    assert second[1].startswith("dream  2/30 updates  0:02, 0:28 left  ")
    assert second[2].startswith("success 0.52 ▁█   return 0.5 ▁█   KL 0.0123")
    assert terminal.screen == [""]
    assert not re.search(r"\x1b\[[\d;]*m", terminal.raw)  # no colour, ever


def test_what_others_write_stays(terminal):
    with display.bar(30, "bc", "update") as show:
        show(1, {"loss": 2.0})
        terminal.write("out of memory: going on\n")
        show(2, {"loss": 1.0})
        assert terminal.screen[0] == "out of memory: going on"
        assert terminal.screen[1] == ""
        assert terminal.screen[2].startswith("bc  2/30")
    assert terminal.screen == ["out of memory: going on", ""]


def test_where_no_cursor_moves_there_is_a_line_without_codes(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with display.bar(30, "dream", "update") as show:
        show(12, ROWS[1])
    assert "12/30" in terminal.raw
    assert "success=0.52" in terminal.raw.replace(" ", "")
    assert not re.search(r"\x1b\[[\d;]*m", terminal.raw)


def test_where_nobody_looks_nothing_is_written(terminal, monkeypatch):
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with display.bar(30, "dream", "update") as show:
        show(12, ROWS[1])
    assert terminal.raw == ""


def test_a_terminal_of_plain_letters_gets_them(terminal, monkeypatch):
    monkeypatch.setattr(terminal, "encoding", "ascii")
    with display.bar(30, "dream", "update") as show:
        show(15, ROWS[0])
        show(16, ROWS[1])
    terminal.raw.encode("ascii")
