"""Text of others reaches the terminal without escape sequences."""

import io
import sys
from pathlib import Path

from dreamgym.run.display import make_console
from dreamgym.run.terminal import PrintableStreams, escape_controls, short_path

EVIL = "\x1b]0;title\x07\x1b[2Jx\x9b31m\x7f\u202e"


def test_control_characters_are_shown_as_escapes():
    assert escape_controls(EVIL) == "\\x1b]0;title\\x07\\x1b[2Jx\\x9b31m\\x7f\\u202e"
    assert escape_controls("a\tb\r\nc é 漢") == "a\tb\r\nc é 漢"


def test_a_line_cannot_be_overwritten_or_reversed():
    assert escape_controls("wins 0 %\rwins 100 %") == "wins 0 %\\rwins 100 %"
    assert escape_controls("a\r") == "a\\r"
    marks = "\u061c\u200e\u200f\u202a\u2069"
    assert escape_controls(marks) == ascii(marks)[1:-1]
    assert escape_controls("\u200d") == "\u200d"  # joins the parts of an emoji


def test_what_a_command_prints_is_printable(capsys):
    with PrintableStreams():
        print(EVIL)
        print(EVIL, file=sys.stderr)
    out, err = capsys.readouterr()
    assert out == err == escape_controls(EVIL) + "\n"


def test_what_a_table_prints_is_printable():
    file = io.StringIO()
    make_console(file).print(EVIL, soft_wrap=True)
    assert file.getvalue().rstrip("\n") == escape_controls(EVIL).replace("\\x07", "")


def test_a_path_is_shown_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs/a") == Path("runs/a")
    assert short_path(tmp_path.parent / "b") == tmp_path.parent / "b"
    assert short_path(Path("runs/a")) == Path("runs/a")
