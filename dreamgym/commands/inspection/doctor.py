"""Explain a disappointing run: what was too little, and what to change first."""

from dreamgym.commands.results import evidence_of, read_results
from dreamgym.evaluation.diagnosis.verdict import diagnosis
from dreamgym.run.directory import Run


def explain(run: Run) -> str:
    """Return the verdict on a finished run, with likely causes.

    Raises:
      RunError: it has no results yet.
    """
    return diagnosis(evidence_of(run, read_results(run)))
