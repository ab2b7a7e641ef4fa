"""Rounds of real play, a refit and updates in the dream: order, budget, resuming."""

import json

import pytest

from dreamgym.build import loop
from dreamgym.build.episodes import NAMES, recorded_episodes
from dreamgym.build.real import dream_rounds as module
from dreamgym.build.real import real_iteration
from dreamgym.build.real.dream_rounds import dream_rounds
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import STAGES
from dreamgym.training import TrainingState
from tests import doubles, helpers
from worldmodel.data.records import write_episodes
from worldmodel.memory import ReplayMemory

LIMIT = 8
SHOWN = doubles.tasks("train")[:8]
SETTINGS = {
    "env.id": "tests.doubles:Corridor",
    "env.max_episode_steps": LIMIT,
    "transfer.method": "dream_updates",
    "transfer.iteration.rounds": 2,
    "transfer.updates": 2,
    "transfer.tasks_per_update": 2,
    "transfer.group_size": 4,
    "transfer.update.row_tokens": 64,
    "transfer.update.learning_rate": 3e-3,
    "transfer.curriculum.proposals_per_update": 0,
    "transfer.curriculum.generated_share": 0.0,
}


@pytest.fixture
def calls(monkeypatch):
    """What was refitted, from which model, and which model was dreamed in."""
    calls = []

    def refit(run, folder, name, share, *, start):
        calls.append(("refit", folder, start))
        assert (name, share) == (f"{folder}-experience", 0.3)
        mean = {"mean": 0.75, "n": 4}
        run.write_json(f"{folder}/fidelity.json", {"exact": {"predictable": mean}})

    def load(run, *, stage, scaled, folder, for_rollouts):
        del run, stage, scaled, for_rollouts
        calls.append(("dream", folder))
        return doubles.Known(ReplayMemory())

    known = doubles.Known(ReplayMemory())  # what is scored before the refit
    monkeypatch.setattr(real_iteration, "load_experience", lambda *_, **__: known)
    monkeypatch.setattr(real_iteration, "refit", refit)
    monkeypatch.setattr(module, "load_experience", load)
    return calls


def made(folder, **settings):
    run = Run(folder, preset("tiny", SETTINGS | settings))
    run.write_json(NAMES, {})
    write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in SHOWN])
    dev = [doubles.expert(t) for t in doubles.tasks("dev")[:2]]
    write_episodes(run.path("dev.jsonl"), dev)
    run.mark("collect", {"deterministic": True, "max_episode_steps": LIMIT})
    return run


def warm():
    return doubles.cloned(doubles.ACTIONS, SHOWN)


def played(run, number):
    return recorded_episodes(run.path(f"s2r/round-{number}/episodes.jsonl"))


def curve(run, number):
    text = run.path(f"curves/s2r/round-{number}.jsonl").read_text()
    return list(map(json.loads, text.splitlines()))


@pytest.mark.medium
def test_each_round_plays_refits_and_learns_in_its_own_dream(tmp_path, calls):
    with made(tmp_path) as run:
        with run.real_steps.recorded(run.path("x.steps")) as counter:
            policy, numbers = dream_rounds(run, "s2r", warm(), steps=160)
        one, two = "s2r/round-1", "s2r/round-2"
        assert calls == [
            *(("refit", one, ""), ("dream", one)),
            *(("refit", two, one), ("dream", two)),
        ]
        # Real steps are those of play, half of them in each round, and no more.
        first, both = played(run, 1), played(run, 2)
        steps = [sum(len(e.transitions) for e in x) for x in (first, both)]
        assert both[: len(first)] == first
        assert 80 - 2 * LIMIT < steps[0] <= 80
        # Less where every task was won before.
        assert steps[0] < steps[1] == counter.count <= 160
        rows = numbers["rounds"]
        assert [row["real_transitions"] for row in rows] == steps
        won = [bool(e.success) for e in both[len(first) :]]
        assert rows[1]["real_success"] == pytest.approx(sum(won) / len(won))
        assert numbers["updates"] == 4
        for number, row in enumerate(rows, 1):
            assert row["exact_predictable"] == 0.75
            assert row["exact_on_policy"] == 1.0
            assert [r["update"] for r in curve(run, number)] == [1, 2]
            assert row["dreamed_success"] == curve(run, number)[-1]["success"]
        assert helpers.distance(policy.model.params, warm().model.params) > 0.0
        # Only the last policy is one of the run, which its stage writes.
        assert not list(run.path("policies/s2r").glob("*"))


@pytest.mark.medium
def test_interrupted_it_goes_on_bit_for_bit(tmp_path, calls, monkeypatch):
    with made(tmp_path / "whole") as run:
        policy, numbers = dream_rounds(run, "s2r", warm(), steps=160)
    whole = list(calls)
    calls.clear()
    reinforce = module.reinforce

    def interrupt(run, name, *arguments, **more):
        if name == "s2r/round-2":
            raise KeyboardInterrupt
        return reinforce(run, name, *arguments, **more)

    with made(tmp_path / "two") as run:
        with monkeypatch.context() as patch:
            patch.setattr(module, "reinforce", interrupt)
            with pytest.raises(KeyboardInterrupt):
                dream_rounds(run, "s2r", warm(), steps=160)
        with run.real_steps.recorded(run.path("x.steps")) as counter:
            other, again = dream_rounds(run, "s2r", warm(), steps=160)
        assert counter.count == 0  # all of it was played before
    assert helpers.distance(other.model.params, policy.model.params) == 0.0
    assert again == numbers
    assert [c for c in calls if c[0] == "refit"] == [
        c for c in whole if c[0] == "refit"
    ]


@pytest.mark.usefixtures("calls")
def test_the_rounds_leave_the_reserve_of_a_budget(tmp_path, monkeypatch):
    result = TrainingState(0, None, None, 0, [])
    monkeypatch.setattr(module, "_dream_updates", lambda _, __, p, *___: (p, result))
    with made(tmp_path) as run:
        with run.real_steps.recorded(run.path("x.steps"), 100) as counter:
            dream_rounds(run, "s2r", warm(), steps=160, reserve=40)
        assert 60 - 2 * LIMIT < counter.count <= 60


def test_a_model_that_cannot_be_refitted_is_dreamed_in_as_it_is(tmp_path, calls):
    with made(tmp_path, **{"ensemble.members": 1}) as run:
        _, numbers = dream_rounds(run, "s2r", warm(), steps=60)
    assert calls == [("dream", "")] * 2
    assert "exact_predictable" not in numbers["rounds"][0]


@pytest.mark.medium
@pytest.mark.usefixtures("calls")
def test_each_round_draws_of_its_own_under_the_gate_of_its_model(tmp_path, monkeypatch):
    seeds, gates, filters = [], [], loop.feasibility_filter_for

    def train(*arguments, seed, **settings):
        seeds.append(("loop", seed))
        return loop_train(*arguments, seed=seed, **settings)

    def proposer(*arguments, seed, **settings):
        seeds.append(("proposals", seed))
        return loop_proposer(*arguments, seed=seed, **settings)

    def filter_for(*arguments, seed, uncertainty, **settings):
        seeds.append(("trials", seed))
        gates.append(uncertainty)
        return filters(*arguments, seed=seed, uncertainty=uncertainty, **settings)

    def refit(run, folder, *_, start):
        threshold = 0.01 if start else 0.02
        exact = {"predictable": {"mean": 0.75, "n": 4}}
        run.write_json(
            f"{folder}/fidelity.json", {"exact": exact, "threshold": threshold}
        )

    loop_train, loop_proposer = loop.train, loop.run_curriculum.proposer
    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(loop.run_curriculum, "proposer", proposer)
    monkeypatch.setattr(loop, "feasibility_filter_for", filter_for)
    monkeypatch.setattr(real_iteration, "refit", refit)
    settings = {
        "transfer.updates": 1,
        "transfer.curriculum.proposals_per_update": 1,
        "transfer.curriculum.generated_share": 0.5,
        "transfer.curriculum.feasibility.rollouts": 1,
        "uncertainty.false_abort_rate": 0.1,
    }
    with made(tmp_path, **settings) as run:
        run.write_json("fidelity.json", {"threshold": 0.9})  # of the first model
        run.mark("fidelity", {})
        dream_rounds(run, "s2r", warm(), steps=60)
        assert [gate.threshold for gate in gates] == [0.02, 0.01]
        first, second = (loop._seed(run, f"s2r/round-{n}") for n in (1, 2))
        assert loop._seed(run, "s2r") == loop._seed(run, "dream") == run.config.seed
    assert len({first, second, run.config.seed}) == 3
    kinds = ("proposals", "trials", "loop")
    assert sorted(seeds) == sorted((k, s) for k in kinds for s in (first, second))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transfer.iteration.refit_share": 0.0}, "refit_share must be > 0"),
        ({"transfer.reward.novelty.weight": 0.5}, "may only have invented"),
        ({"transfer.iteration.plan.method": "mpc"}, "plan needs method"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        preset("tiny", SETTINGS | settings)


@pytest.mark.slow
def test_a_tiny_run_has_rounds_within_its_budget(tmp_path):
    """All stages up to s2r, with real fits, refits and updates."""
    settings = SETTINGS | {"transfer.real_transitions": 60, "evaluate.tasks": 2}
    with Run(tmp_path / "r", preset("tiny", settings)) as run:
        names = [s.name for s in STAGES.closure(["s2r", "real_only"])]
        run_stages(run, STAGES, names)
        numbers = run.numbers("s2r")
        rows = numbers["rounds"]
        assert [row["updates"] for row in rows] == [2, 2]
        assert rows[-1]["real_transitions"] <= 60
        assert run.path("s2r/round-2/experience/config.json").is_file()
        games = 4 * LIMIT * 2  # those that choose, of start and end
        assert numbers["real_transitions"] <= 60 + games
        assert "rounds" not in run.numbers("real_only")  # the control: real updates
        assert run.path("policies/s2r/config.json").is_file()
        assert not list(run.path("policies/s2r").glob("round-*"))
