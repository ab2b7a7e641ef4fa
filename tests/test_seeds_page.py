"""The page on the source texts names only what exists, and counts what it lists."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/SEEDS.md").read_text(encoding="utf-8")
STATUS = ("works", "partly", "missing")


def cells(line: str) -> list[str]:
    return [x.strip() for x in re.split(r"(?<!\\)\|", line)[1:-1]]


ROWS = [
    cells(line)
    for line in TEXT.split("## Mechanisms")[1].split("## Formulas")[0].splitlines()
    if line.startswith("|") and "**" in line
]


def test_all_mechanisms_are_there_and_counted():
    assert len(ROWS) == 90
    assert all(len(row) == 7 for row in ROWS)
    counts = Counter((row[1], row[2].strip("*")) for row in ROWS)
    for line in TEXT.splitlines():
        weight, *numbers = cells(line) if line.startswith("|") else [""]
        if weight in ("core", "useful", "peripheral") and len(numbers) == 3:
            assert numbers == [str(counts[weight, s]) for s in STATUS]
    totals = [str(sum(n for (_, s), n in counts.items() if s == x)) for x in STATUS]
    assert f"| all | {' | '.join(totals)} |" in TEXT


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_a_row_names_code_tests_and_studies_that_exist(row):
    _, _, status, code, test, study, differs = row
    assert status.strip("*") in STATUS
    if status == "**missing**":
        assert (code, test) == ("-", "-")
        assert differs != "-"
        return
    for group in re.findall(r"`([^`]+)`", code):
        folder = None
        names, _, symbol = group.partition(":")
        for name in names.split(","):
            path = ROOT / name.strip()
            path = path if folder is None or path.exists() else folder / name.strip()
            assert path.exists(), name
            folder = path.parent
        for word in re.findall(r"\w+", symbol):
            assert word in path.read_text(encoding="utf-8"), word
    assert test != "-" or status == "**partly**"
    for name in re.findall(r"`([^`]+)`", test):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"\w+\.toml", study):
        assert (ROOT / "scripts/studies" / name).is_file(), name
