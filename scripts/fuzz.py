"""Feed damaged input to everything that reads what others wrote.

    python scripts/fuzz.py                          half a minute for all readers
    python scripts/fuzz.py --seconds 600 --only episodes settings
    python scripts/fuzz.py --replay                 the kept inputs alone
    python scripts/fuzz.py --seed 0 --inputs 500    the same damages every time
    echo TEXT | python scripts/fuzz.py --keep episodes   keep what a log has printed

Each reader has inputs that it accepts. They are damaged: bytes are flipped, cut out,
doubled or taken from another input, and values of JSON are replaced by odd ones. A
reader may accept what it gets, or raise an error of its own kind (a type that it
documents), in a few seconds and a few GiB of memory. Whatever else happens is a
finding: the input is kept in tests/fuzz_corpus/READER/, printed, and replayed at every
later start, in the tests as well. It is printed as text, too (base64 of what zlib has
compressed), so that it can be taken from the log of a machine that is gone. Exit status
1 with a finding.

With a number of inputs and a seed the damages depend on the code alone: a finding is
one of the change at hand, and comes again. With a time and no seed it may be as old as
the code, and the next search may miss it.
"""

import argparse
import base64
import hashlib
import math
import random
import resource
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fuzz_readers import ROOT, Reader, readers

CORPUS = ROOT / "tests" / "fuzz_corpus"
SECONDS = 20.0
"""What one input may take, at most; on a busy machine as well."""
MEMORY_GIB = 4
"""Address space that the search may take beyond what the process had at its start."""
MAX_TEXT = 20_000
"""Characters of a damaged input as text, at most; weights of a model are longer."""
ODD = (
    *("NaN", "1e999", "-1e999", "1" * 400, "null", "true", "[]", "{}", '""', "-0.0"),
    *('"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"' + "x" * 5000 + '"', "0.5", "-1"),
    *("[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600, '{"x": {"x": []}}'),
)


class Finding(NamedTuple):
    """An input that a reader does not refuse as it should."""

    reader: str
    data: bytes
    what: str


# --- damage ---


def damaged(inputs: Sequence[bytes], draw: random.Random) -> bytes:
    """Return one of the inputs with one to four damages."""
    data = draw.choice(inputs)
    for _ in range(draw.randint(1, 4)):
        data = draw.choice((_flip, _cut, _double, _splice, _odd_value, _odd_value))(
            data, inputs, draw
        )
    return data


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randint(0, len(data))
    return start, min(len(data), start + draw.choice((1, 2, 8, 64, 1024)))


def _flip(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _double(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:end] + data[start:end] * draw.choice((1, 3, 100)) + data[end:]


def _splice(data: bytes, inputs: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(inputs)
    start, end = _span(other, draw)
    at = draw.randint(0, len(data))
    return data[:at] + other[start:end] + data[at:]


def _odd_value(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    """Put an odd value of JSON in the place of one that stands behind a colon."""
    places = [i + 1 for i, byte in enumerate(data) if byte in b":=["]
    if not places:
        return data
    start = draw.choice(places)
    ends = [i for i in range(start, min(len(data), start + 300)) if data[i] in b",]}\n"]
    end = draw.choice(ends) if ends else start
    return data[:start] + draw.choice(ODD).encode() + data[end:]


# --- the search ---


def problem_of(reader: Reader, data: bytes) -> str:
    """Return what is wrong with how a reader takes an input; empty where nothing is."""
    start_time = time.monotonic()
    try:
        reader.read(data)
    except reader.errors as error:
        if len(str(error)) > 20_000 + len(data):
            return f"a message of {len(str(error)):,} characters"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    except RecursionError:
        return "RecursionError"
    seconds = time.monotonic() - start_time
    return f"{seconds:.1f} s" if seconds > SECONDS else ""


@contextmanager
def limited_memory(gib: float = MEMORY_GIB) -> Iterator[None]:
    """Let the process take so much more memory, and no more, while the block runs.

    A reader that asks for more gets a MemoryError, which is a finding. Without the
    limit the operating system ends the search, and nobody learns by which input. Where
    it does not tell how much a process has (/proc), there is no limit.
    """
    status = Path("/proc/self/statm")
    if not status.is_file():
        yield
        return
    used = int(status.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + int(gib * 2**30)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def kept_inputs(name: str, corpus: Path = CORPUS) -> list[bytes]:
    """Return the inputs of a reader that were findings once."""
    folder = corpus / name.replace(" ", "_")
    return [path.read_bytes() for path in sorted(folder.glob("*"))]


def fuzz(
    name: str,
    reader: Reader,
    *,
    seconds: float,
    seed: int,
    corpus: Path = CORPUS,
    limit: float = math.inf,
) -> tuple[int, list[Finding]]:
    """Replay the kept inputs, then damage others for a time; return count, findings.

    At most `limit` inputs are damaged; they depend on the seed alone.
    """
    findings, count = [], 0
    draw = random.Random(f"{seed} {name}")
    for data in (*reader.inputs, *kept_inputs(name, corpus)):
        count += 1
        if what := problem_of(reader, data):
            findings.append(Finding(name, data, what))
    end = time.monotonic() + seconds
    kinds = set[str]()
    while time.monotonic() < end and limit > 0:
        limit -= 1
        count += 1
        data = damaged(reader.inputs, draw)
        what = problem_of(reader, data)
        if what and what[:60] not in kinds:
            kinds.add(what[:60])
            findings.append(Finding(name, data, what))
    return count, findings


def keep(finding: Finding, corpus: Path = CORPUS) -> Path:
    """Write a finding into the corpus; return its file."""
    folder = corpus / finding.reader.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(finding.data).hexdigest()[:16]
    path.write_bytes(finding.data)
    return path


def text_of(data: bytes) -> str:
    """Return an input as text for a log."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def data_of(text: str) -> bytes:
    """Return the input of a text.

    Raises:
      ValueError, zlib.error: it is none.
    """
    return zlib.decompress(base64.b64decode(text, validate=True))


def main() -> None:
    """Parse the arguments, search, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="in all (30)")
    parser.add_argument(
        "--inputs", type=int, metavar="N", help="of each reader, in place of a time"
    )
    parser.add_argument("--seed", type=int, help="of the damage (default: the time)")
    parser.add_argument("--only", nargs="+", metavar="READER", help="readers (all)")
    parser.add_argument("--replay", action="store_true", help="kept inputs alone")
    parser.add_argument(
        "--keep", metavar="READER", help="keep the input that stdin has as text"
    )
    args = parser.parse_args()
    all_readers = readers()
    chosen = args.only or ([args.keep] if args.keep else list(all_readers))
    if unknown := sorted(set(chosen) - set(all_readers)):
        sys.exit(f"no reader {unknown[0]!r}; have {', '.join(all_readers)}")
    if args.keep:
        print(keep(Finding(args.keep, data_of(sys.stdin.read().strip()), "")))
        return
    seed = int(time.time()) if args.seed is None else args.seed
    seconds, limit = args.seconds / len(chosen), math.inf
    if args.replay or args.inputs is not None:
        seconds, limit = math.inf, 0 if args.replay else args.inputs
    failed = False
    for name in chosen:
        with limited_memory():
            count, findings = fuzz(
                name, all_readers[name], seconds=seconds, seed=seed, limit=limit
            )
        print(f"{name}: {count:,} inputs, {len(findings)} findings", flush=True)
        for finding in findings:
            failed = True
            print(f"  {finding.what}\n    {keep(finding)}", flush=True)
            if len(text := text_of(finding.data)) <= MAX_TEXT:
                print(f"    {text}", flush=True)
    print(f"seed {seed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
