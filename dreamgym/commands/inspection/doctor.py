"""Explain a disappointing run: what was too little, and what to change first."""

from dreamgym.build.experience import fidelity_file, remedy_folder
from dreamgym.commands.results import evidence_of, read_results, results_of
from dreamgym.evaluation.diagnosis.verdict import diagnosis
from dreamgym.run.directory import Run, RunError
from dreamgym.stages.table import STAGES


def explain(run: Run) -> str:
    """Return the verdict on a run, with likely causes; of what is there so far.

    Raises:
      RunError: it has no scorecard yet.
    """
    if run.path("results.json").is_file():
        return diagnosis(evidence_of(run, read_results(run)))
    if not run.path(fidelity_file(remedy_folder(run))).is_file():
        raise RunError(
            f"{run.root}: nothing to explain before the stage fidelity has measured "
            f"the dream; go on: dreamgym quickstart --run-dir {run.root}"
        )
    done = [name for name in STAGES if run.done(name)]
    head = f"This run is not finished (last stage: {done[-1]}). Of what is there:"
    return f"{head}\n\n{diagnosis(evidence_of(run, results_of(run)))}"
