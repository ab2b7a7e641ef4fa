"""Count the files that a reader of the code visits on two walks through it.

    python scripts/walks.py

The first walk follows the run of the stage `pretrain`, the second the settings of the
training loop, both in a run of the preset `tiny`. A *stop* is a change of file; a
*climb* is a stop at a file that was left before. The counts stand in docs/DESIGN.md.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import STAGES

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("worldmodel/", "curriculum/", "dreamgym/")
PLUMBING = ("dreamgym/run/",)
"""A reader learns once what `run.path` does, and does not look again."""
COORDINATION = ("worldmodel/data/processes.py",)
"""Left out: in a run of one process these functions return at once."""


class Visit(NamedTuple):
    """A function that is read, and the file of the function that calls it."""

    file: str
    function: str
    caller: str


def source(code: CodeType) -> str:
    """Return the file of a function of this repository, or an empty string."""
    path = Path(code.co_filename)
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
    return name if name.startswith(PACKAGES) else ""


def caller_of(frame: FrameType | None) -> str:
    """Return the file of the nearest function of this repository above a frame."""
    while frame is not None and not source(frame.f_code):
        frame = frame.f_back
    return source(frame.f_code) if frame is not None else ""


def functions_run(body: Callable[[], object]) -> list[Visit]:
    """Return the functions of the repository in the order of their first call."""
    visits: dict[tuple[str, str], Visit] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (file := source(frame.f_code)):
            return
        name = frame.f_code.co_qualname
        if not name.endswith(">") and (file, name) not in visits:
            visits[file, name] = Visit(file, name, caller_of(frame.f_back))

    sys.setprofile(profile)
    try:
        body()
    finally:
        sys.setprofile(None)
    return list(visits.values())


def groups_of(part: Any) -> Iterator[type]:
    """Yield the classes of a group of settings and of the groups in it."""
    yield type(part)
    for field in dataclasses.fields(part):
        if dataclasses.is_dataclass(value := getattr(part, field.name)):
            yield from groups_of(value)


def settings_read(group: Any, body: Callable[[], object]) -> list[Visit]:
    """Return where each setting of a group is read for the first time, in order."""
    visits: dict[tuple[str, str], Visit] = {}

    def watch(cls: type) -> None:
        names = {f.name for f in dataclasses.fields(cls)}

        def read(self: Any, name: str) -> Any:
            if name in names and (file := caller_of(sys._getframe(1))):
                key = f"{cls.__name__}.{name}"
                visits.setdefault((file, key), Visit(file, key, ""))
            return object.__getattribute__(self, name)

        cls.__getattribute__ = read  # type: ignore[method-assign]

    for cls in dict.fromkeys(groups_of(group)):
        watch(cls)
    body()
    checks = ("dreamgym/config/", "dreamgym/run/")  # they read all settings of a run
    return [v for v in visits.values() if not v.file.startswith(checks)]


def composition(visits: Sequence[Visit]) -> list[Visit]:
    """Return what dreamgym/ runs and calls directly: not what lies below that.

    Private helpers are read with the function that calls them, and plumbing once; what
    coordinates several processes is left out.
    """
    result, visited = [], set[str]()
    for v in visits:
        public = not v.function.split(".")[-1].startswith("_")
        if not public or "dreamgym/" not in (v.file[:9], v.caller[:9]):
            continue
        if v.file in COORDINATION:
            continue
        if v.file.startswith(PLUMBING) and v.file in visited:
            continue
        visited.add(v.file)
        result.append(v)
    return result


def stops(visits: Sequence[Visit]) -> list[str]:
    """Return the files in the order of reading, without repeating one in a row."""
    files = [v.file for v in visits]
    return [f for i, f in enumerate(files) if not i or files[i - 1] != f]


def report(title: str, visits: Sequence[Visit], *, verbose: bool) -> None:
    """Print the numbers of stops, files and climbs of a walk."""
    files = stops(visits)
    count = len(set(files))
    print(f"{title}: {len(files)} stops, {count} files, {len(files) - count} climbs")
    if verbose:
        print("".join(f"  {i}. {f}\n" for i, f in enumerate(files, 1)))


def pretrain_visits(run: Run) -> list[Visit]:
    """Collect episodes, and return the functions that the stage `pretrain` runs."""
    run_stages(run, STAGES, ["collect"])
    return functions_run(lambda: run_stages(run, STAGES, ["pretrain"]))


def main() -> None:
    """Run `tiny` up to the training loop, and print both walks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="name every stop")
    verbose = parser.parse_args().verbose
    config = preset("tiny")
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), config) as run:
        visits = pretrain_visits(run)
        report("pretrain, all functions", visits, verbose=False)
        report("pretrain, composition", composition(visits), verbose=verbose)
        run_stages(run, STAGES, ["warmstart", "fidelity", "reward_model"])
        settings = settings_read(
            config.train, lambda: run_stages(run, STAGES, ["train"])
        )
        report("settings of the training loop", settings, verbose=verbose)


if __name__ == "__main__":
    main()
