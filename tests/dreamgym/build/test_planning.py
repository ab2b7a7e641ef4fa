"""The experience model that a policy plans in: its real steps have paid for it."""

import dataclasses

import pytest

from dreamgym.agent.config import PlanConfig
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.search.controls import PermutedOutcomes, RealOutcomes
from dreamgym.build import planning
from dreamgym.build.experience import REMEDY
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
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


def test_a_control_plans_in_another_world(folders, monkeypatch):
    run, loaded = folders
    won = doubles.expert(doubles.task(0, 2, 4))
    monkeypatch.setattr(planning, "read", lambda _: ([won], []))
    worlds = {}
    for world in ("dream", "permuted", "real"):
        plan = dataclasses.replace(run.config.evaluate.plan, world=world)
        player = planning.planning_policy(
            run, doubles.policy(), plan, stage="s", folder=""
        )
        assert isinstance(player, PlanningPolicy)
        worlds[world] = player.make_dream(2).model
        assert len(loaded) == (2 if world == "real" else len(worlds))
    assert isinstance(worlds["dream"], doubles.RuleModel)
    assert isinstance(worlds["permuted"], PermutedOutcomes)
    assert worlds["permuted"].actions == ["go right", "take coin"]
    assert isinstance(worlds["real"], RealOutcomes)


def test_episodes_of_an_environment_that_draws_lots_are_not_replayed(folders):
    run, _ = folders
    run.mark("collect", {"deterministic": False})
    plan = dataclasses.replace(run.config.evaluate.plan, world="real")
    with pytest.raises(RunError, match="deterministic = False"):
        planning.planning_policy(run, doubles.policy(), plan, stage="s", folder="")


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


class Wavering(doubles.Scripted):
    """A policy that draws two actions in so many of the moments that it is asked."""

    def __init__(self, moments):
        super().__init__(doubles.expert_rule)
        self.moments = moments

    def act(self, situations, keys, *, temperature):
        assert temperature == 1.0
        turns = super().act(situations, keys, temperature=temperature)
        draws = 7
        assert len(turns) == draws * planning.AGREEMENT_MOMENTS
        other = range(0, draws * self.moments, draws)
        return [
            turn._replace(action="dance") if i in other else turn
            for i, turn in enumerate(turns)
        ]


@pytest.mark.parametrize(
    ("reveals", "wavering", "won", "method"),
    [
        (0, 0, 1, "a_star"),
        (10, 33, 1, "a_star"),
        (11, 0, 1, "mpc"),
        (10, 34, 1, "mpc"),
        (0, 0, 0, "mpc"),  # A* looks for a win, and nobody has seen one
    ],
)
def test_auto_searches_by_a_star_where_little_is_revealed_and_draws_agree(
    folders, monkeypatch, reveals, wavering, won, method
):
    run, _ = folders
    dev = [doubles.expert(t) for t in doubles.tasks("train")[:60]]
    assert sum(len(e.transitions) for e in dev) > planning.AGREEMENT_MOMENTS
    lost = doubles.episode(doubles.task(0, 2, 4), ["go left"])
    train = [dev[0] if won else lost, lost]
    monkeypatch.setattr(planning, "read", lambda _: (train, dev))
    policy = Wavering(wavering)
    rate = {"mean": 0.9, "count": 99}
    exact = {"predictable": rate, "all": {"count": 100}, "reveal": {"count": reveals}}
    card = {"exact": exact, "reward": {"recall": rate}, "done": {"recall": rate}}
    run.write_json("fidelity.json", card)
    auto = PlanConfig(method="auto", depth=5, simulations=7, discount=0.9)
    plan = planning.chosen_plan(run, policy, auto)
    searches = (10, 3) if method == "a_star" else (5, 7)
    assert (plan.method, plan.depth, plan.simulations) == (method, *searches)
    assert plan.discount == 0.9
    for other in (PlanConfig(), PlanConfig(method="puct")):
        assert planning.chosen_plan(run, policy, other) == other


def test_without_a_recorded_moment_auto_compares_sequences(folders, monkeypatch):
    run, _ = folders
    won = doubles.expert(doubles.tasks("train")[0])
    monkeypatch.setattr(planning, "read", lambda _: ([won], []))
    monkeypatch.setattr(
        planning,
        "read_scorecard",
        lambda _: {"exact": {"reveal": {"count": 0}, "all": {"count": 9}}},
    )
    auto = PlanConfig(method="auto")
    assert planning.chosen_plan(run, doubles.policy(), auto).method == "mpc"


def test_a_planner_is_not_made_before_auto_is_decided():
    dreams = planning.Dreams(doubles.RuleModel(), 7)
    with pytest.raises(ValueError, match="decided"):
        PlanningPolicy(doubles.policy(), dreams, PlanConfig(method="auto"))
