"""Adds reasoning traces to a file of episodes, in chunks, and resumes if interrupted.

FILE -> a survey of its episodes -> chunks of episodes -> an annotator -> OUT, which is
only written when it is complete. Until then finished chunks are saved in .OUT.part, one
per line: the same command resumes after them.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym.build.experience import load_experience
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from worldmodel import reasoning
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import Episode, iter_episodes, write_episodes
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.reasoning.annotator import Annotator, Report, missing_traces
from worldmodel.reasoning.self_annotator import RejectionSamplingAnnotator
from worldmodel.reasoning.teacher import TeacherAnnotator, TeacherConfig

SCHEMA = "dreamgym.annotation/1"


EPISODES, TRANSITIONS = 16, 256
"""Minimal size of a chunk: enough for a batch, little to lose by an interruption."""


PROBLEMS = 5
"""Number of episodes that fell back to the rule whose reasons are printed."""


HOPELESS = 16
"""Number of episodes without a single explanation after which a teacher is given up."""


class Survey(NamedTuple):
    """The content of an episodes file; `missing` counts transitions without trace."""

    episodes: int
    transitions: int
    missing: int
    digest: str


def survey(source: Path, out: Path) -> Survey:
    """Read the whole file before a model is loaded or a request is sent.

    Raises:
      RunError: `out` already exists; nothing is overwritten.
      RecordError: bad episodes; the message names file and line.
    """
    if out.exists():
        raise RunError(
            f"{out}: there already, and traces can be dear: choose another --to, or "
            "remove it"
        )
    total: Counter[str] = Counter()
    size = source.stat().st_size if source.is_file() else 0
    with progress_bar(size, f"read {source.name}", "B") as show:
        for e in iter_episodes(source, progress=show):
            total.update(e=1, t=len(e.transitions), m=missing_traces(e))
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return Survey(total["e"], total["t"], total["m"], digest)


def answers_of(out: Path) -> Path:
    """Return the path of the cache of a teacher's answers."""
    return out.with_name(f"{out.name}.chat_cache.sqlite")


def teacher(chat: ChatConfig, out: Path) -> TeacherAnnotator:
    """Return the annotator that asks a server; its answers are cached next to `out`."""
    return TeacherAnnotator(ChatClient(chat, answers_of(out)), TeacherConfig())


def model_annotator(run: Run, samples: int) -> RejectionSamplingAnnotator:
    """Return the annotator that samples reasoning from a run's experience model.

    It keeps the samples that predict the real outcome (rejection sampling).

    Raises:
      RunError: the experience model writes no reasoning, or has temperature 0.
    """
    experience = load_experience(run)
    if not isinstance(experience, LocalExperienceModel):
        raise RunError(f"{run.root}: --by own samples a fitted model, not a server")
    if not experience.config.reasoning:
        raise RunError(f"{run.root}: its experience model was fitted to no reasoning")
    if experience.config.temperature == 0:
        raise RunError(f"{run.root}: at temperature 0 every sample is the same")
    return RejectionSamplingAnnotator(experience, samples=samples)


def annotate(
    source: Path,
    out: Path,
    annotator: Annotator,
    settings: Mapping[str, Any],
    survey_result: Survey,
) -> Report:
    """Write the episodes of `source` to `out`, with a trace for every transition.

    Returns the summed report of all chunks, those of earlier attempts included, with
    the first few problems.

    Args:
      settings: everything that determines the traces, as plain data; a second attempt
        must have the same settings.
      survey_result: what `survey` returned.

    Raises:
      RunError: an unfinished attempt had other settings, or a teacher explains nothing.
    """
    part, total = _Part(out, dict(settings) | {"file": survey_result.digest}), _Total()

    def filled() -> Iterator[Episode]:
        yield from _filled(iter_episodes(source), annotator, part, record)
        total.check(1)

    with progress_bar(
        survey_result.missing, f"annotate {source.name}", "trace"
    ) as show:

        def record(row: Mapping[str, Any], chunk: list[Episode]) -> None:
            total.add(row, sum(map(missing_traces, chunk)))
            show(total.traces, dict(total.counts))
            total.check(HOPELESS)

        try:
            write_episodes(out, filled())
        except _NothingExplainedError:
            part.path.unlink()  # no trace in it is the teacher's
            raise
    part.path.unlink()
    return Report(dict(total.counts), tuple(total.problems))


class _NothingExplainedError(RunError):
    """A teacher that explains nothing: the rule does not take over for all of it."""


class _Total:
    """The sum of the chunks' reports."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.traces = 0

    def add(self, row: Mapping[str, Any], traces: int) -> None:
        self.counts.update(row["counts"])
        self.problems += row["problems"][: PROBLEMS - len(self.problems)]
        self.traces += traces

    def check(self, limit: int) -> None:
        """Raise an error if a teacher explained none of at least `limit` episodes."""
        fallbacks = self.counts.get("fallbacks", 0)
        if self.counts.get("annotated") == 0 and fallbacks >= limit:
            raise _NothingExplainedError(
                f"the teacher explained none of {fallbacks} episodes; nothing is "
                "written: "
                f"{'; '.join(self.problems[:2])}"
            )


def _filled(
    episodes: Iterator[Episode], annotator: Annotator, part: "_Part", record: Any
) -> Iterator[Episode]:
    """Yield all episodes with their traces: first those of an earlier attempt."""
    for row in part.rows():
        chunk = list(itertools.islice(episodes, len(row["traces"])))
        if [e.id for e in chunk] != [name for name, _ in row["traces"]]:
            raise RunError(f"{part.path}: not of these episodes; remove it")
        record(row, chunk)
        for e, (_, traces) in zip(chunk, row["traces"], strict=True):
            yield reasoning.annotate(e, traces)
    for chunk in _chunks(episodes):
        done = annotator.annotate(chunk)
        record(part.add(done, annotator.report), chunk)
        yield from done


def _chunks(episodes: Iterator[Episode]) -> Iterator[list[Episode]]:
    chunk: list[Episode] = []
    size = 0
    for e in episodes:
        chunk.append(e)
        size += len(e.transitions)
        if len(chunk) >= EPISODES and size >= TRANSITIONS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Part:
    """The traces of an unfinished attempt on disk, with the settings it used."""

    def __init__(self, out: Path, settings: Mapping[str, Any]):
        self.path = out.with_name(f".{out.name}.part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:  # what is written goes to the end
            file.seek(0)
            head = file.readline()
            if not head.endswith(b"\n"):  # new, or killed at once
                file.truncate(0)
                file.write(_line({"schema": SCHEMA, "made": settings}))
                return
            self._check(head, settings)
            whole = [len(line) for line in file if line.endswith(b"\n")]
            file.truncate(len(head) + sum(whole))  # killed inside the last line

    def _check(self, head: bytes, settings: Mapping[str, Any]) -> None:
        header = json.loads(head)
        if header.get("schema") != SCHEMA:
            raise RunError(f"{self.path}: of another version; remove it to begin anew")
        old = header["made"]
        changed = [
            f"{k}: {old.get(k)!r} there, {settings.get(k)!r} here"
            for k in sorted(old.keys() | settings.keys())
            if old.get(k) != settings.get(k)
        ]
        if changed:
            raise RunError(
                f"{self.path}: begun with other settings ({'; '.join(changed)}); "
                "repeat them, or remove it to begin anew"
            )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks written so far."""
        with self.path.open("rb") as file:
            file.readline()
            for line in file:
                yield json.loads(line)

    def add(self, chunk: list[Episode], report: Report) -> dict[str, Any]:
        """Note a chunk; returns its row."""
        row = {
            "counts": dict(report.counts),
            "problems": report.problems[:PROBLEMS],
            "traces": [[e.id, [t.reasoning for t in e.transitions]] for e in chunk],
        }
        with self.path.open("ab") as file:
            file.write(_line(row))
        return row


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
