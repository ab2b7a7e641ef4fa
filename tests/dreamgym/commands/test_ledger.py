"""What an environment saw is what a run reports, stage by stage, resumed or not."""

import contextlib

import pytest

from dreamgym.build import timings
from dreamgym.cli import estimate as cli_estimate
from dreamgym.commands.quickstart import stage_names
from dreamgym.commands.results import write_results
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import STAGES
from tests.ledger import SPEC, Ledger

pytestmark = pytest.mark.slow  # each test runs every stage


def run_all(root, *, interrupt_at=()):
    """Run every stage; return the run and the steps that each stage took."""
    saw = dict[str, int]()
    with Run(root, preset("tiny", {"env.id": SPEC})) as run:
        for name in stage_names(fine_tune=True):
            before = Ledger.taken
            if name in interrupt_at:
                Ledger.stop_at = before + 3
                with contextlib.suppress(KeyboardInterrupt):
                    run_stages(run, STAGES, [name])
                assert Ledger.taken == Ledger.stop_at, name
                assert run.done(name) is None
            run_stages(run, STAGES, [name])
            saw[name] = Ledger.taken - before
        return run, saw


def check(run, saw):
    for name, count in saw.items():
        numbers = run.numbers(name)
        kind = "test_transitions" if STAGES[name].test else "real_transitions"
        assert numbers.get(kind, 0) == count, name
    tested = {n for n in saw if n.startswith("evaluate/")}
    assert all(saw[n] > 0 for n in tested)
    results = write_results(run)
    for policy, maker in STAGES.policies().items():
        closure = [s.name for s in STAGES.closure([maker])]
        steps = sum(saw[n] for n in closure) + run.estimate_steps()
        assert results["policies"][policy]["real_transitions"] == steps
    return results


def test_the_ledger_agrees_with_every_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(timings, "FRESH", -1.0)  # what was measured before is old
    Ledger.taken = Ledger.stop_at = 0
    root = tmp_path / "run"
    cli_estimate.print_estimate(root, preset("tiny", {"env.id": SPEC}), fine_tune=True)
    queries = Ledger.taken
    assert 0 < queries <= 40
    monkeypatch.undo()
    run, saw = run_all(root)
    assert run.estimate_steps() == queries
    check(run, saw)
    cli_estimate.print_estimate(root, run.config, fine_tune=True)  # known for a day
    assert Ledger.taken == queries + sum(saw.values())


def test_steps_of_interrupted_attempts_count(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    interrupted = ("collect", "branch", "s2r", "evaluate/bc")
    run, saw = run_all(tmp_path / "run", interrupt_at=interrupted)
    results = check(run, saw)
    assert results["policies"]["random"]["real_transitions"] == 0
