"""Counts the alarms of finished runs, and how many of these runs lost no real success.

runs -> curves of their training in the dream -> alarms by kind, true and false

    python scripts/count_alarms.py runs/*

An alarm of a run is false where the policy after the last update won at least as many
real dev games as the one that training began at, within a standard error: nothing had
broken. Kinds are the settings of `train.monitor` whose bound was crossed.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dreamgym.run.directory import Run, RunError
from dreamgym.training.monitor import alarms
from worldmodel.data.json_reading import read_json_rows


class Training(NamedTuple):
    """The alarms of a run by kind, its updates, and the change of real success.

    `change` is None where no real dev games were played after the last update, and
    `error` is its standard error, that of two independent proportions.
    """

    alarms: Counter[str]
    updates: int
    change: float | None
    error: float

    @property
    def has_harmed(self) -> bool:
        """Return whether real success fell by more than a standard error."""
        return self.change is not None and self.change < -self.error


def training_of(run: Run) -> Training | None:
    """Return the alarms of a run's training in the dream; None if it has none."""
    path = run.path("curves/dream.jsonl")
    if not path.is_file() or run.config.train.environment == "real":
        return None
    rows, config = read_json_rows(path), run.config.train.monitor
    kinds = Counter(
        alarm.partition(":")[0]
        for i, row in enumerate(rows)
        for alarm in alarms(rows[:i], row, config)
    )
    before = run.numbers("train").get("dev_success_before")
    after = rows[-1].get("real_success") if rows else None
    if before is None or after is None:
        return Training(kinds, len(rows), None, 0.0)
    games = sum(v for k, v in rows[-1].items() if k.startswith("real_games/"))
    pooled = (before + after) / 2
    error = math.sqrt(2 * pooled * (1 - pooled) / max(games, 1))
    return Training(kinds, len(rows), after - before, error)


def trainings(roots: Sequence[Path]) -> Iterator[Training]:
    """Yield those of all runs among the directories, and below them."""
    manifests = sorted({m for root in roots for m in root.rglob("manifest.json")})
    for manifest in manifests:
        try:
            training = training_of(Run.open(manifest.parent))
        except RunError:
            continue  # of another version
        if training is not None:
            yield training


def table(rows: Sequence[Training]) -> str:
    """Return Markdown: of each kind of alarm the runs with one, harmed and not."""
    measured = [t for t in rows if t.change is not None]
    lines = [
        f"{len(rows)} trainings, {sum(t.updates for t in rows):,} updates; of "
        f"{len(measured)} real dev games were played at the end, "
        f"{sum(t.has_harmed for t in measured)} won fewer by more than a standard "
        "error",
        "",
        "| alarm | updates | runs | runs that lost success | false |",
        "|---|---|---|---|---|",
    ]
    for kind in sorted({kind for t in rows for kind in t.alarms}):
        alarmed = [t for t in rows if t.alarms[kind]]
        harmed = sum(t.has_harmed for t in alarmed)
        false = sum(t.change is not None and not t.has_harmed for t in alarmed)
        count = sum(t.alarms[kind] for t in alarmed)
        lines.append(f"| {kind} | {count} | {len(alarmed)} | {harmed} | {false} |")
    silent = [t for t in measured if t.has_harmed and not t.alarms]
    lines += ["", f"runs that lost success without an alarm: {len(silent)}"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of the runs that the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or above")
    print(table(list(trainings(parser.parse_args(argv).runs))))


if __name__ == "__main__":
    main()
