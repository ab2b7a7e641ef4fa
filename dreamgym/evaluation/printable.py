"""Text from outside (episodes, tasks, servers, files) made fit to be printed.

A terminal obeys escape sequences, and a page cannot hold control characters.
"""

_BLANKS = (ord("\t"), ord("\n"), ord("\r"))
_REPLACEMENTS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(32), *range(127, 160), 0x2028, 0x2029)
} | dict.fromkeys(_BLANKS, " ")
"""C0 and C1 control characters and separators of lines, within one line of text."""


def printable(text: str) -> str:
    """Return one line of text without control characters or unpaired surrogates.

    The lines of a longer text, as an instruction may be, are joined by blanks.
    """
    text = text.encode("utf-8", "replace").decode()
    return text.translate(_REPLACEMENTS)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text, each printable."""
    return [printable(line) for line in text.splitlines()]
