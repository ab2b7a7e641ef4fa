"""What each stage of a run with a budget may take, by hand."""

import pytest

from dreamgym.config.budget import division
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.run.runner import step_allowance
from dreamgym.stages.table import CONTROLS, STAGES

SHARES = {
    "env.id": "tests.doubles:Corridor",
    "budget.real_steps": 1040,
    "budget.collect": 0.5,
    "budget.score": 0.05,
    "budget.branch": 0.1,
    "budget.select": 0.2,
}


def allowance(run, name):
    return step_allowance(run, STAGES, STAGES[name])


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path, preset("tiny", SHARES)) as run:
        yield run


def test_a_stage_takes_its_part_and_what_those_it_needs_left_over(run):
    assert allowance(run, "collect") == 500
    run.mark("collect", {"real_transitions": 490})  # 510 remain
    assert allowance(run, "fidelity") == 51
    assert allowance(run, "branch") == 102
    run.mark("branch", {"real_transitions": 30})
    assert allowance(run, "warmstart") == 102 - 30 + 204
    run.mark("warmstart", {"real_transitions": 100})
    run.mark("fidelity", {"real_transitions": 50})
    assert allowance(run, "dream_check") == 51 + 102 + 204 - 180
    run.mark("dream_check", {"real_transitions": 7})
    assert allowance(run, "train") == 51 + 102 + 204 - 187
    run.mark("train", {"real_transitions": 20})
    assert allowance(run, "s2r") == 510 - 207  # all that is left


def test_test_tasks_are_free_and_what_has_no_part_takes_nothing(run):
    run.mark("collect", {"real_transitions": 500})
    for name, stage in STAGES.items():
        if stage.test:
            assert allowance(run, name) is None
    for name in ("pretrain", "bc", "reward_model", "dpo", "off_policy", *CONTROLS):
        assert allowance(run, name) == 0


def test_training_in_the_environment_takes_the_part_of_fine_tuning(tmp_path):
    with Run(tmp_path, preset("tiny", SHARES | {"train.environment": "real"})) as run:
        run.mark("collect", {"real_transitions": 500})
        assert allowance(run, "train") == 500
        run.mark("train", {"real_transitions": 480})
        assert allowance(run, "s2r") == 20


def test_stages_of_a_run_never_have_more_than_the_budget_together(run):
    """Whatever each takes of what it may, from nothing to all."""
    budget = run.config.budget
    for shares in ((1.0,), (0.0, 1.0), (0.5, 1.0, 0.2)):
        total = 0
        for number, (name, stage) in enumerate(STAGES.items()):
            if not stage.test:
                steps = int(allowance(run, name) * shares[number % len(shares)])
                run.mark(name, {"real_transitions": steps})
                total += steps
        assert total <= sum(division(budget).values()) == 1000
        for name in STAGES:
            run.path(f"stages/{name}.json").unlink(missing_ok=True)


def test_without_a_budget_there_is_no_bound(tmp_path):
    with Run(tmp_path, preset("tiny", {"env.id": "tests.doubles:Corridor"})) as run:
        assert all(allowance(run, name) is None for name in STAGES)
