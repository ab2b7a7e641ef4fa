"""Bounded lines by hand."""

from dreamgym.envs.tools.lines import first_newest, newest_lines, shorten


def test_newest_lines_by_hand():
    rows = ["aaaa", "bb", "ccc"]
    assert newest_lines(rows, 9) == rows
    assert newest_lines(rows, 8) == ["earlier calls 1", "bb", "ccc"]
    assert newest_lines(rows, 4) == ["earlier calls 2", "ccc"]
    assert newest_lines(rows, 2, "results") == ["earlier results 3"]
    assert newest_lines([], 2) == []
    assert [first_newest(rows, limit) for limit in (9, 8, 5, 4, 0)] == [0, 1, 1, 2, 3]
    # What comes before a row that does not fit is left out, too.
    assert newest_lines(["a", "bbbb", "c"], 3) == ["earlier calls 2", "c"]


def test_a_shortened_text_is_one_line():
    assert shorten(" a\n b ", 3) == "a b"
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."
