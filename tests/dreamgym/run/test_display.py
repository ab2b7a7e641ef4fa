"""What a person who waits sees: lines by hand, a terminal's screen, a file."""

import io
import re
import sys
import time
import types

import pytest

from dreamgym.run import display
from dreamgym.run.display import (
    Status,
    duration,
    make_console,
    metric_text,
    seconds_left,
    sparkline,
)

ROWS = [
    {"success": 0.1, "return": 0.0, "kl": 0.5},
    {
        "success": 0.52,
        "return": 0.5,
        "kl": 0.0123,
        "entropy": 1.25,
        "tokens/s": 5234.4,
        "what nobody shows": 0.3,
    },
]


def test_a_spark_for_each_value_least_to_most():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([9, 0.0, 3.5, 7.0], 3) == "▁▅█"  # the last three: 0, 1/2, 1
    assert sparkline([2, 2], 5) == "▁▁"
    assert sparkline([], 5) == ""
    assert sparkline([0, 7], 5, display.ASCII_BARS) == "_#"


def test_times_and_numbers_are_short():
    assert [duration(s) for s in (0, 9.6, 61, 3600, 36065)] == [
        "0:00",
        "0:10",
        "1:01",
        "1:00:00",
        "10:01:05",
    ]
    assert metric_text("success", 0.0812) == "8.1 %"
    assert metric_text("kl", 0.012345) == "0.0123"
    assert metric_text("tokens/s", 52344.4) == "52,344"


def test_time_left_forgets_what_the_compiler_took():
    assert seconds_left([(0, 0.0)], 10) is None
    assert seconds_left([(0, 0.0), (1, 60.0)], 10) == 540.0  # nothing better is known
    # From the second position on: 4 updates in 8 s, 5 to go.
    assert seconds_left([(0, 0.0), (1, 60.0), (5, 68.0)], 10) == 10.0
    assert seconds_left([(5, 1.0), (5, 2.0)], 10) is None
    assert seconds_left([(0, 0.0), (1, 1.0), (12, 2.0)], 10) == 0.0


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_a_status_is_one_line(clock):
    status = Status(30, "dream", "update")
    clock[0] += 10
    status.update(2, ROWS[0])
    clock[0] += 40
    status.update(12, ROWS[1])
    # 10 updates in 40 s, 18 to go: 72 s; 2 s have gone by since.
    clock[0] += 2
    assert status.line() == (
        "dream  12/30 updates  0:52, 1:10 left  success 52.0 %  return 0.5  "
        "KL to the start 0.0123  entropy 1.25  tokens/s 5,234"
    )
    status.update(30)
    assert status.head() == "dream  30/30 updates  0:52"  # what follows is not known


def test_a_status_of_unknown_length_and_one_of_bytes(clock):
    status = Status(0, "pretrain", "it")
    clock[0] += 61
    assert status.line() == "pretrain  1:01"
    status = Status(2_000_000, "read x.jsonl", "B")
    status.update(500_000)
    assert status.line() == "read x.jsonl  500.0 kB/2.0 MB  0:00"


def test_what_was_done_before_the_start_does_not_count_as_speed(clock):
    status = Status(100, "bc", "update")
    status.update(50)  # a resumed run
    clock[0] += 10
    status.update(55)
    assert "1:30 left" in status.line()  # 5 in 10 s, 45 to go


def test_what_is_no_number_is_not_shown(clock):
    status = Status(9, "bc", "update")
    for row in ({"loss": 2.0, "kl": float("nan")}, {"loss": float("nan")}, {"loss": 1}):
        clock[0] += 1
        status.update(3, row)
    assert status.line().endswith("left  loss 1")
    assert [(label, values) for label, _, values in status.metrics()] == [
        ("loss", [2.0, 1])
    ]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    made = Terminal()
    monkeypatch.setattr(display, "sys", types.SimpleNamespace(stderr=made))
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "70"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    return made


def shown(text):
    """What was written, without codes."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def test_a_terminal_shows_a_live_table_and_is_left_clean(terminal):
    with display.progress_bar(30, "dream", "update") as update:
        update(1, ROWS[0])
        update(12, ROWS[1])
        time.sleep(0.6)  # it is drawn four times a second
        output = shown(terminal.getvalue())
    assert "dream  12/30 updates" in output
    assert re.search(r"success +52\.0 % +▁█", output)
    assert re.search(r"KL to the start +0\.0123 +█▁", output)
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back
    assert not display._DISPLAY._open


def test_what_is_printed_meanwhile_stays(terminal, capsys):
    with display.progress_bar(30, "bc", "update") as update:
        update(1)
        print("out of memory: going on", file=sys.stderr)
        time.sleep(0.3)
    assert "out of memory: going on" in shown(terminal.getvalue())
    capsys.readouterr()


def test_blocks_nest_and_the_innermost_is_shown(terminal):
    with display.progress_bar(0, "pretrain"):
        with display.progress_bar(30, "fit", "update") as update:
            update(7)
            time.sleep(0.6)
        assert "fit  7/30 updates" in shown(terminal.getvalue())
        assert len(display._DISPLAY._open) == 1
        before = len(terminal.getvalue())
        time.sleep(0.6)
        assert "pretrain  0:0" in shown(terminal.getvalue()[before:])


@pytest.fixture
def file(monkeypatch):
    made = io.StringIO()
    monkeypatch.setattr(display, "sys", types.SimpleNamespace(stderr=made))
    monkeypatch.setattr(display, "INTERVAL", 0.05)
    return made


@pytest.mark.parametrize("broken", [False, True])
def test_a_file_gets_a_plain_line_at_times_also_when_nothing_moves(file, broken):
    try:
        with display.progress_bar(30, "dream", "update") as update:
            update(12, ROWS[1])
            time.sleep(0.4)
            if broken:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    lines = file.getvalue().splitlines()
    assert len(lines) >= 3
    assert all(x.startswith("dream  12/30 updates  0:0") for x in lines)
    assert "success 52.0 %" in lines[0]
    assert "\x1b" not in file.getvalue()
    written = file.getvalue()
    time.sleep(0.2)
    assert file.getvalue() == written  # nothing is left behind


def test_short_work_writes_nothing(file, monkeypatch):
    monkeypatch.setattr(display, "INTERVAL", 60.0)
    with display.progress_bar(30, "dream", "update") as update:
        update(30, ROWS[1])
    assert file.getvalue() == ""


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(display, "INTERVAL", 0.05)
    with display.progress_bar(30, "dream", "update") as update:
        update(12, ROWS[1])
        time.sleep(0.2)
    assert "dream  12/30 updates" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_colours_are_for_terminals_alone(terminal):
    make_console(terminal).print("x", style="bold red")
    assert "\x1b[" in terminal.getvalue()
    plain = io.StringIO()
    make_console(plain).print("[red]x[/red] :smile: 12", style="bold red")
    assert plain.getvalue() == "[red]x[/red] :smile: 12\n"  # no markup of rich's


def test_a_screen_of_plain_letters_gets_them():
    class Ascii(io.StringIO):
        encoding = "ascii"

    file = Ascii()
    status = Status(30, "dream", "update")
    for row in ROWS:
        status.update(15, row)
    make_console(file).print(status)
    file.getvalue().encode("ascii")
    assert "_#" in file.getvalue()


def test_a_finished_stage_is_one_line_in_a_file(capsys):
    numbers = {"loss": 0.12345, "games": 8, "note": "learned nothing " * 20}
    display.print_stage("bc", 12.4, numbers)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("bc: 12 s  loss 0.123  games 8  note learned nothing")
