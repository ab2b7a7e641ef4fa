"""The experience model that a policy plans in: its real steps have paid for it."""

import dataclasses

import pytest

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.build import planning
from dreamgym.build.experience import REMEDY
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A run that plans, and the folders of the experience models that are loaded."""
    settings = {"evaluate.plan.method": "mpc", "evaluate.plan.depth": 3}
    run, loaded = Run(tmp_path, preset("tiny", settings)), []

    def load(_, *, stage, folder):
        loaded.append((stage, folder))
        return doubles.RuleModel()

    monkeypatch.setattr(planning, "load_experience", load)
    monkeypatch.setattr(planning, "load_policy", lambda *_: doubles.policy())
    monkeypatch.setattr(planning, "step_limit", lambda _: 7)
    return run, loaded


@pytest.mark.parametrize("helped", [False, True])
def test_a_policy_plans_in_the_model_that_it_was_trained_in(folders, helped):
    run, loaded = folders
    run.mark("dream_check", {"remedy": {"helped": helped}})
    trained = ("expert_iteration", "dream", "s2r")
    for name in ("bc", "warmstart", "real_only", "real_only_total", *trained):
        player = planning.load_player(run, name)
        assert isinstance(player, PlanningPolicy)
        assert player.make_dream(2).max_steps == 7
        folder = REMEDY if helped and name in trained else ""
        assert loaded[-1] == (f"evaluate/{name}", folder)


def test_s2r_plans_in_its_last_refit(folders):
    run, loaded = folders
    for number in (2, 10, 9):
        run.path(f"s2r/round-{number}/experience").mkdir(parents=True)
    planning.load_player(run, "s2r")
    planning.load_player(run, "dream")
    assert [folder for _, folder in loaded] == ["s2r/round-10", ""]


def test_without_a_method_the_policy_plays_as_it_is(folders):
    run, loaded = folders
    plain = Run(run.root / "plain", preset("tiny"))
    assert not isinstance(planning.load_player(plain, "bc"), PlanningPolicy)
    assert not loaded


def test_a_star_reads_what_the_run_has_won(folders, monkeypatch):
    run, _ = folders
    won = doubles.expert(doubles.task(0, 2, 4))
    lost = doubles.episode(doubles.task(1, 2, 4), ["go left", "go left"])
    monkeypatch.setattr(planning, "read", lambda _: ([won, lost], []))
    made = []

    def make(policy, dreams, plan, **recorded):
        made.append((plan.method, recorded))
        return PlanningPolicy(policy, dreams, plan, **recorded)

    monkeypatch.setattr(planning, "PlanningPolicy", make)
    for method in ("a_star", "puct"):
        plan = dataclasses.replace(run.config.evaluate.plan, method=method)
        planning.planning_policy(run, doubles.policy(), plan, stage="s", folder="")
    actions = ["go right", "go right", "take coin"]
    recorded = {"won_actions": [actions], "recorded_actions": ()}
    assert made == [("a_star", recorded), ("puct", {})]
