"""Damaged input to everything that reads what others wrote (scripts/fuzz.py).

The kept inputs were findings once. The same hundred damages of each reader are tried
every time: they are too few to find much, and CI runs the script for longer.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "scripts" / "fuzz.py"
_spec = importlib.util.spec_from_file_location("fuzz", PATH)
assert _spec is not None
assert _spec.loader is not None
fuzz = importlib.util.module_from_spec(_spec)
sys.modules["fuzz"] = fuzz
_spec.loader.exec_module(fuzz)
READERS = fuzz.readers()


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_its_inputs_and_refuses_what_is_damaged(name):
    reader = READERS[name]
    for data in reader.inputs:
        reader.read(data)  # else nothing but refusals would be tested
    count, findings = fuzz.fuzz(name, reader, seconds=120.0, seed=0, limit=100)
    assert count >= len(reader.inputs) + 100
    assert [(f.what, f.data[:200]) for f in findings] == []


def test_the_corpus_is_replayed():
    names = {name.replace(" ", "_") for name in READERS}
    folders = [path for path in fuzz.CORPUS.iterdir() if path.is_dir()]
    assert folders
    assert {path.name for path in folders} <= names
    assert all(fuzz.kept_inputs(path.name) for path in folders)


def test_what_a_reader_does_wrong_is_found_and_kept(tmp_path):
    def read(data):
        if b"q" in data:
            raise KeyError(data)
        if not data.isascii():
            raise ValueError("expected ASCII")

    reader = fuzz.Reader([b'{"a": 1}'], read)
    _, findings = fuzz.fuzz("mine", reader, seconds=3.0, seed=0, corpus=tmp_path)
    assert findings
    assert all(f.what.startswith("KeyError") for f in findings)
    path = fuzz.keep(findings[0], tmp_path)
    assert path.read_bytes() == findings[0].data
    count, again = fuzz.fuzz("mine", reader, seconds=0.0, seed=0, corpus=tmp_path)
    assert (count, len(again)) == (2, 1)
    long = fuzz.Reader(
        [b"a"], lambda _: (_ for _ in ()).throw(ValueError("x" * 30_000))
    )
    assert "characters" in fuzz.problem_of(long, b"a")
