"""What an environment saw is what a run reports, stage by stage, resumed or not.

With a budget it sees no more steps than that, test tasks left out.
"""

import contextlib

import pytest

from dreamgym.build.real import timings
from dreamgym.build.real.dev_play import dev_games
from dreamgym.cli import estimate as cli_estimate
from dreamgym.commands.quickstart import stage_names
from dreamgym.commands.results import write_results
from dreamgym.config.budget import ESTIMATE_STEPS
from dreamgym.config.presets import RUN_CONTROLS, preset
from dreamgym.envs.suites.textworld.express import TextWorldExpress
from dreamgym.run.directory import Run
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import STAGES
from tests.ledger import SPEC, Ledger

pytestmark = pytest.mark.slow  # each test runs every stage


def run_all(
    root, settings=None, *, fine_tune=True, interrupt_at=(), test=None, base="tiny"
):
    """Run every stage of a preset; return the run and the steps that each took.

    Of the stages that play test tasks `test` is run, or all without one.
    """
    saw = dict[str, int]()
    config = preset(base, {"env.id": SPEC} | (settings or {}))
    with Run(root, config) as run:
        for name in stage_names(config, fine_tune=fine_tune):
            if test is not None and STAGES[name].test and name != test:
                continue
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
    played = {n for n in tested if "status" not in run.numbers(n)}
    assert tested - played <= {"evaluate/planner"}  # which the preset leaves out
    assert all(saw[n] > 0 for n in played)
    results = write_results(run)
    for policy, maker in STAGES.policies().items():
        if policy not in results["policies"]:
            continue
        shield = ["shield"] if run.numbers("shield").get("shield") else []
        closure = [s.name for s in STAGES.closure([maker, *shield])]
        steps = sum(saw[n] for n in closure) + run.estimate_steps()
        assert results["policies"][policy]["real_transitions"] == steps
    return results


def test_the_ledger_agrees_with_every_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(timings, "FRESH", -1.0)  # what was measured before is old
    Ledger.taken = Ledger.stop_at = 0
    root = tmp_path / "run"
    config = preset("tiny", {"env.id": SPEC} | SHORT)
    cli_estimate.print_estimate(root, config, fine_tune=True)
    queries = Ledger.taken
    assert 0 < queries <= 40
    monkeypatch.undo()
    run, saw = run_all(root, SHORT)
    assert run.estimate_steps() == queries
    check(run, saw)
    cli_estimate.print_estimate(root, run.config, fine_tune=True)  # known for a day
    assert Ledger.taken == queries + sum(saw.values())


def test_steps_of_interrupted_attempts_count(tmp_path):
    Ledger.taken = Ledger.stop_at = 0
    interrupted = ("collect", "branch", "s2r", "evaluate/bc")
    run, saw = run_all(tmp_path / "run", SHORT, interrupt_at=interrupted)
    results = check(run, saw)
    assert results["policies"]["random"]["real_transitions"] == 0


FORKING = "tests.ledger:ForkingLedger"
SHORT = {
    "pretrain.fit.steps": 2,
    "pretrain.fit.eval_every": 2,
    "bc.fit.steps": 2,
    "bc.fit.eval_every": 2,
    "fidelity.transitions": 12,
    "evaluate.tasks": 4,
}
"""Fits that learn nothing: what counts is which steps are taken."""
REFLECTS = {"warmstart.method": "sr"}
"""Branches are taken even where no dev games can tell whether they helped."""
PLANNER = {
    "planner.method": "best-of-n",
    "planner.simulations": 2,
    "planner.depth": 1,
}
ROUNDS = SHORT | {
    **PLANNER,
    "transfer.method": "expert_iteration",
    "transfer.iteration.rounds": 2,
    "transfer.iteration.refit_share": 0.5,
    "transfer.real_transitions": 60,
}
"""Fine-tuning by rounds of real play, a refit and expert iteration, and a planner."""
MENDED = SHORT | {
    "dream_check.force": False,
    "dream_check.remedy_tasks": 3,
    "train.reward.sources": ("rule", "reward_model"),
    "reward_model.steps": 2,
}
"""A dream that is refused, refitted to real episodes and refused again; its rewards
want a learned model."""
BREAKING = SHORT | {"env.id": "tests.ledger:BreakingLedger"}
NARROW = SHORT | {
    **PLANNER,
    "collect.train_tasks": 5,
    "train.monitor.real_eval_tasks": 64,
    "transfer.updates": 50,
}
"""A made-up run: few tasks, as many dev games as are paid for, and fine-tuning until
the budget is spent."""


CUT = SHORT | {
    "collect.train_tasks": 24,
    "collect.episodes": 60,
    "collect.dev_tasks": 6,
    "branch.episodes": 2,
    "train.updates": 1,
    "train.tasks_per_update": 4,
    "train.monitor.real_eval_tasks": 4,
    "expert_iteration.tasks": 4,
    "expert_iteration.fresh_tasks": 4,
    "expert_iteration.rounds": 1,
    "transfer.updates": 1,
    "transfer.tasks_per_update": 4,
    "transfer.real_transitions": 100,
    "planner.simulations": 2,
    "planner.depth": 1,
    "dream_check.force": True,
    "model": "nano",
}
"""Sizes of a preset that change how much is played, and not which stages play."""


@pytest.mark.parametrize("name", ["default", "small"])
def test_the_ledger_agrees_with_every_preset(tmp_path, name):
    """Of `tiny` the other tests are."""
    Ledger.taken = Ledger.stop_at = 0
    config = preset(name)
    planned, method = config.planner.method != "none", config.transfer.method
    run, saw = run_all(tmp_path / "run", CUT, test="evaluate/bc", base=name)
    assert (run.config.preset, run.config.transfer.method) == (name, method)
    results = check(run, saw)
    real = sum(n for stage, n in saw.items() if not STAGES[stage].test)
    assert sum(results["real_transitions"].values()) == real
    assert (saw["planner"] > 0) == planned
    assert saw["s2r"] > 0 < saw["real_only_total"]


@pytest.mark.parametrize(
    ("settings", "fine_tune", "interrupt_at"),
    [
        (SHORT, False, ("collect", "branch", "train")),
        (ROUNDS, True, ("s2r", "planner", "real_only", "real_only_total")),
        (MENDED, False, ("dream_check",)),
        (BREAKING, True, ()),
    ],
    ids=["no transfer", "rounds", "mended", "breaking"],
)
def test_the_ledger_agrees_without_a_budget_too(
    tmp_path, settings, fine_tune, interrupt_at
):
    """Every stage, interrupted ones as well; tests above and below are of others."""
    Ledger.taken = Ledger.stop_at = 0
    run, saw = run_all(
        tmp_path / "run",
        settings,
        fine_tune=fine_tune,
        interrupt_at=interrupt_at,
        test="evaluate/bc",
    )
    results = check(run, saw)
    real = sum(n for name, n in saw.items() if not STAGES[name].test)
    assert sum(results["real_transitions"].values()) == real
    assert ("s2r" in saw) == fine_tune
    if settings is ROUNDS:
        assert saw["planner"] > 0
        assert all(run.path(f"s2r/round-{n}/fidelity.json").is_file() for n in (1, 2))
        assert [len(rows) for rows in results["rounds"].values()] == [2, 2, 2]
    if settings is MENDED:
        assert run.numbers("dream_check")["remedy"]["helped"] is False
        assert run.path("remedy/experience").is_dir()
        assert run.numbers("reward_model")["pairs"] > 0
    if settings is BREAKING:
        assert run.numbers("collect")["broken/OSError"] > 0


@pytest.mark.parametrize(
    ("steps", "settings", "fine_tune", "interrupt_at"),
    [
        (260, NARROW, True, ()),  # next to the minimum: no dev games
        (900, SHORT | REFLECTS, True, ("collect", "branch", "s2r")),
        (1500, NARROW | {"env.id": FORKING}, True, ("warmstart", "train")),
        (1000, NARROW, False, ()),
        (1500, SHORT | {"transfer.method": "expert_iteration"}, True, ("s2r",)),
        (1500, SHORT | {"transfer.method": "dream_updates"}, True, ("s2r",)),
        (1200, NARROW | {"train.environment": "real", "train.updates": 50}, True, ()),
        (1200, SHORT | RUN_CONTROLS["real-play"], True, ("collect", "s2r")),
    ],
)
def test_a_run_takes_no_more_steps_than_its_budget(
    tmp_path, monkeypatch, steps, settings, fine_tune, interrupt_at
):
    monkeypatch.setattr(timings, "FRESH", -1.0)  # the estimate takes its steps
    Ledger.taken = Ledger.stop_at = 0
    settings = settings | {"budget.real_steps": steps}
    root = tmp_path / "run"
    config = preset("tiny", {"env.id": SPEC} | settings)
    for _ in range(2):  # the second one has no steps left to time
        cli_estimate.print_estimate(root, config, fine_tune=fine_tune)
    queries = Ledger.taken
    assert 0 < queries <= ESTIMATE_STEPS
    run, saw = run_all(
        root,
        settings,
        fine_tune=fine_tune,
        interrupt_at=interrupt_at,
        test="evaluate/bc",
    )
    results = check(run, saw)
    real = {name: n for name, n in saw.items() if not STAGES[name].test}
    total = queries + sum(real.values())
    assert results["budget"]["real_steps"] == steps
    assert results["budget"]["spent"] == total
    assert total == sum(results["real_transitions"].values()) <= steps
    assert not {"real_only", "real_only_total"} & set(results["policies"])
    if fine_tune and "transfer.updates" in settings:
        # What is left pays for no group of 4 rollouts of 13 steps, or for no last
        # evaluation on as many dev games as were paid for.
        limit = run.numbers("collect")["max_episode_steps"]
        games = dev_games(run)
        assert games == (0 if steps == 260 else games) != 64
        assert steps - total < ESTIMATE_STEPS + limit * (4 + 3 * games)


def test_a_run_of_tiny_takes_no_more_steps_than_its_budget(tmp_path, monkeypatch):
    """The same with the environment of the preset, counted in its own class."""
    taken, step = [0], TextWorldExpress.step

    def counted(self, action):
        taken[0] += 1
        return step(self, action)

    monkeypatch.setattr(TextWorldExpress, "step", counted)
    config = preset("tiny", SHORT | {"budget.real_steps": 700})
    with Run(tmp_path / "run", config) as run:
        names = stage_names(config, fine_tune=True)
        run_stages(run, STAGES, [n for n in names if not STAGES[n].test])
        results = write_results(run)
    assert results["budget"]["real_steps"] == 700
    assert results["budget"]["spent"] == taken[0]
    assert 300 < taken[0] <= 700
