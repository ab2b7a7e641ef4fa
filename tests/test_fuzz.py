"""Damaged input to everything that reads what others wrote (scripts/fuzz.py).

The kept inputs were findings once, or are the worst that came to mind: each reader has
one. The same hundred damages of each reader are tried every time: they are too few to
find much, and CI runs the script for longer.
"""

import importlib.util
import io
import math
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "scripts" / "fuzz.py"
sys.path.append(str(PATH.parent))  # where the script finds fuzz_readers
_spec = importlib.util.spec_from_file_location("fuzz", PATH)
assert _spec is not None
assert _spec.loader is not None
fuzz = importlib.util.module_from_spec(_spec)
sys.modules["fuzz"] = fuzz
_spec.loader.exec_module(fuzz)
READERS = fuzz.readers()
fuzz_readers = sys.modules[fuzz.readers.__module__]


@pytest.mark.medium
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_its_inputs_and_refuses_what_is_damaged(name):
    reader = READERS[name]
    for data in reader.inputs:
        reader.read(data)  # else nothing but refusals would be tested
    count, findings = fuzz.fuzz(name, reader, seconds=120.0, seed=0, limit=100)
    assert count >= len(reader.inputs) + 100
    assert [(f.what, f.data[:200]) for f in findings] == []


def test_the_corpus_is_replayed():
    names = {name.replace(" ", "_") for name in (*READERS, *fuzz_readers.FRAME_READERS)}
    folders = [path for path in fuzz.CORPUS.iterdir() if path.is_dir()]
    assert {path.name for path in folders} == names  # each reader has a kept input
    assert all(fuzz.kept_inputs(path.name) for path in folders)
    for name, reader in READERS.items():
        for data in fuzz.kept_inputs(name):
            assert fuzz.problem_of(reader, data) == "", (name, data[:200])


@pytest.mark.medium
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
    printed = fuzz.text_of(findings[0].data)
    assert fuzz.data_of(printed) == findings[0].data
    long = fuzz.Reader(
        [b"a"], lambda _: (_ for _ in ()).throw(ValueError("x" * 30_000))
    )
    assert "characters" in fuzz.problem_of(long, b"a")


def test_a_reader_that_asks_for_all_memory_is_a_finding():
    before = fuzz.resource.getrlimit(fuzz.resource.RLIMIT_AS)
    reader = fuzz.Reader([b"0"], lambda _: bytearray(3 * 2**30))
    with fuzz.limited_memory(gib=1):
        assert fuzz.problem_of(reader, b"0").startswith("MemoryError")
    assert fuzz.resource.getrlimit(fuzz.resource.RLIMIT_AS) == before


def test_a_finding_is_kept_from_the_text_of_a_log(tmp_path, monkeypatch, capsys):
    """A log is what is left of a machine of CI."""

    def read(data):
        if b"q" in data:
            raise KeyError(data)

    reader = fuzz.Reader([b'{"a": "q"}'], read)
    monkeypatch.setattr(fuzz, "readers", lambda: {"mine": reader})
    monkeypatch.setattr(fuzz, "keep", lambda f, keep=fuzz.keep: keep(f, tmp_path))
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--seed", "0", "--inputs", "3"])
    with pytest.raises(SystemExit) as end:
        fuzz.main()
    assert end.value.code == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    text = lines[lines.index('KeyError: b\'{"a": "q"}\'') + 2]
    for path in tmp_path.rglob("*"):
        path.is_file() and path.unlink()
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--keep", "mine"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{text}\n"))
    fuzz.main()
    assert fuzz.kept_inputs("mine", tmp_path) == [reader.inputs[0]]


def test_a_number_of_inputs_and_a_seed_are_the_same_search():
    def trace(seed):
        seen = []
        reader = fuzz.Reader([b'{"a": [1, 2]}', b"xyz"], seen.append)
        fuzz.fuzz("mine", reader, seconds=math.inf, seed=seed, limit=50)
        return seen

    assert trace(0) == trace(0)
    assert trace(0) != trace(1)
