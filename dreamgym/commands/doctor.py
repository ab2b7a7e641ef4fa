"""Explain a disappointing run: what was too little, and what to change first."""

from typing import Any

from dreamgym.evaluation.verdict import Evidence, diagnosis
from dreamgym.run.directory import Run, RunError
from dreamgym.stages.table import STAGES
from worldmodel.data.json_reading import read_json_rows


def evidence_of(run: Run, results: dict[str, Any]) -> Evidence:
    """Return the evidence for a verdict on a run."""
    path, curve = run.path("curves/dream.jsonl"), []
    if path.is_file():
        curve = read_json_rows(path)
    numbers = {name: run.numbers(name) for name in STAGES if run.done(name)}
    return Evidence(results, numbers, curve)


def explain(run: Run) -> str:
    """Return the verdict on a run, finished or not, with likely causes.

    Raises:
      RunError: it has no results yet.
    """
    if not run.path("results.json").is_file():
        raise RunError(
            f"{run.root}: no results.json yet; finish it: dreamgym quickstart "
            f"--run-dir {run.root}"
        )
    return diagnosis(evidence_of(run, run.read_json("results.json")))
