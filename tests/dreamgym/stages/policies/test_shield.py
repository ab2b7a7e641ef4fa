"""The stage shield: when the policies of a run keep to the valid actions."""

import dataclasses
import types

import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.agent.shield import keep_action, valid_shield
from dreamgym.build.models import policy_config
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages.policies import shield as stage
from tests import doubles
from worldmodel.data.records import Episode, Transition


def games(invalid, won=0, unlisted=0, cost=0.0, lists=True):
    """Ten dev games of one step: so many are invalid, not in the list, and won."""

    def one(i):
        step = Transition(
            state=("at 0",),
            action="fly",
            next_state=("at 0",),
            rewards={"env": -cost},
            invalid=i < invalid,
            valid_actions=("walk", *("fly",) * (i >= unlisted)) if lists else (),
        )
        episode = Episode(
            id=f"e{i}",
            task=doubles.task(0, 1, 2),
            transitions=(step,),
            source="real",
            success=i < won,
        )
        return Trajectory(episode, (), None)

    return [one(i) for i in range(10)]


def random_episodes(won):
    """Ten episodes of random players, of which so many are won."""
    return [dataclasses.replace(g.episode, source="random") for g in games(0, won)]


def decide(
    tmp_path,
    monkeypatch,
    *,
    invalid=5,
    unlisted=0,
    won=5,
    shielded_wins=5,
    random_wins=0,
    listed=1.0,
    of=100,
    shield="auto",
    cost=0.0,
    dev_tasks=16,
    lists=True,
):
    """Return the run in which the stage decided, and the shield of its policies."""
    run = Run(
        tmp_path,
        preset("tiny", {"env.id": "tests.doubles:Corridor", "policy.shield": shield}),
    )
    numbers = {"listed_actions": listed, "listed_actions_of": of}
    run.stage("collect", lambda: numbers | {"dev_tasks": dev_tasks})

    def play(run, name, policy):
        path = run.path(f"dev_games/{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        if name == "bc-shielded":
            assert policy.shield is valid_shield
            return games(0, shielded_wins)
        records = of == 0 or (of >= 20 and listed >= 0.99)
        assert policy.shield is (keep_action if records else None)
        return games(invalid, won, unlisted, cost, lists and records)

    monkeypatch.setattr(stage, "play_dev_games", play)
    monkeypatch.setattr(
        stage,
        "paired_dev_games",  # the first ones are those of bc, which were recorded
        lambda run, _, b: (games(invalid, won, unlisted, cost), play(run, *b)),
    )
    monkeypatch.setattr(stage, "load_policy", lambda *_: doubles.policy())
    monkeypatch.setattr(stage, "read", lambda _: (random_episodes(random_wins), []))
    run.stage("shield", lambda: stage.body(run))
    return run, policy_config(run).shield


def test_few_dev_tasks_decide_on_no_shield(tmp_path, monkeypatch, capsys):
    run, _ = decide(tmp_path, monkeypatch, dev_tasks=3)
    assert run.numbers("shield") == {}
    assert not run.path("dev_games").exists()
    assert "shield: no real dev games tell whether bc needs one: the environment " in (
        capsys.readouterr().err
    )


def test_policies_of_many_invalid_actions_keep_to_a_complete_list(
    tmp_path, monkeypatch, capsys
):
    run, shield = decide(tmp_path, monkeypatch)
    assert shield == "valid"
    assert "50 % of the actions of bc in real" in capsys.readouterr().err
    # The games are played anew by the shielded policy.
    assert not run.path("dev_games/bc.jsonl").is_file()
    assert run.path("dev_games/bc-unshielded.jsonl").is_file()


@pytest.mark.parametrize(
    "need",
    [
        {"listed": 0.03},  # mere proposals
        {"of": 10},  # too few to tell
        {"listed": None, "of": 0},  # nothing was recorded to judge the list by
        {"invalid": 0, "random_wins": 7, "listed": 0.03},
        {"invalid": 0, "random_wins": 7},
        {"invalid": 0, "unlisted": 1},  # the list is complete, and few are refused
    ],
)
@pytest.mark.parametrize(("wins", "better"), [(10, True), (6, False), (2, False)])
def test_dev_games_decide_where_policies_need_a_list_that_may_be_incomplete(
    tmp_path, monkeypatch, capsys, need, wins, better
):
    run, shield = decide(tmp_path, monkeypatch, shielded_wins=wins, **need)
    assert shield == ("valid" if better else "auto")
    printed = capsys.readouterr().err
    assert ("it wins 100 % of these games" in printed) == better
    tried = "was tried in 10 real dev games and did not help: bc wins "
    assert (f"{tried}{10 * wins} % with valid actions alone and " in printed) != better
    played = {p.stem: p.read_text() for p in run.path("dev_games").iterdir()}
    # The games that were played with the shield that is kept are those of bc.
    if better:
        assert played == {"bc": "bc-shielded", "bc-unshielded": "bc"}
    else:
        assert played == {"bc": "bc", "bc-shielded": "bc-shielded"}


def test_a_list_that_loses_all_games_at_less_cost_is_not_kept(tmp_path, monkeypatch):
    _, shield = decide(
        tmp_path, monkeypatch, invalid=10, won=0, shielded_wins=0, listed=0.7, cost=0.5
    )
    assert shield == "auto"


def test_a_list_is_not_kept_where_no_game_with_it_was_scored(
    tmp_path, monkeypatch, capsys
):
    unscored = [
        g._replace(error="down", episode=dataclasses.replace(g.episode, success=None))
        for g in games(10, 0)
    ]
    run, _ = decide(tmp_path, monkeypatch, invalid=10, listed=0.7)
    monkeypatch.setattr(stage, "paired_dev_games", lambda *_: (games(10, 5), unscored))
    capsys.readouterr()
    assert stage._success_with_shield(run, "bc is bad") is None
    assert "bc wins none with valid actions alone" in capsys.readouterr().err


@pytest.mark.parametrize("renamed", [1, 2])
def test_an_interrupted_decision_is_taken_again_without_a_further_game(
    tmp_path, monkeypatch, renamed
):
    run, _ = decide(tmp_path, monkeypatch, listed=0.0, shielded_wins=10)
    if renamed == 1:  # it was killed between the two
        run.path(stage.BC).rename(run.path(stage.SHIELDED))

    def read_back(run, name, policy):
        del policy
        assert run.path(f"dev_games/{name}.jsonl").read_text() == name
        return games(0, 10) if name == "bc-shielded" else games(5, 5)

    monkeypatch.setattr(stage, "play_dev_games", read_back)
    monkeypatch.setattr(
        stage,
        "paired_dev_games",
        lambda run, a, b: (read_back(run, *a), read_back(run, *b)),
    )
    assert stage.body(run)["shield"] == "valid"
    played = {p.stem: p.read_text() for p in run.path("dev_games").iterdir()}
    assert played == {"bc": "bc-shielded", "bc-unshielded": "bc"}


@pytest.mark.parametrize(("left", "played"), [(99, False), (100, True)])
def test_steps_of_later_choices_are_not_spent_on_the_shield(
    tmp_path, monkeypatch, capsys, left, played
):
    run, _ = decide(tmp_path, monkeypatch, shield="auto", of=10)
    for path in run.path("dev_games").iterdir():
        path.unlink()
    planned = []

    def steps(run, *names, later=0):
        del run
        planned.append((names, later))
        return 100

    monkeypatch.setattr(stage, "dev_game_steps", steps)
    run.real_steps = types.SimpleNamespace(left=left)
    monkeypatch.setattr(stage, "plays_dev_games", lambda *_: True)
    capsys.readouterr()
    stage.body(run)
    text = "(policy.shield) was not tried: the budget has no real steps left"
    assert (text in capsys.readouterr().err) != played
    assert planned == [(("bc-shielded",), 2)]
    assert run.path("dev_games/bc-shielded.jsonl").is_file() == played


@pytest.mark.parametrize(
    "case",
    [
        {"invalid": 2},  # few invalid actions, and more wins than random players
        {"of": None, "listed": None},  # the environment has no list
        {"invalid": 10, "of": 0, "listed": None, "lists": False},  # it is empty
        {"invalid": 0, "unlisted": 3, "listed": 0.9},  # mere proposals
        {"invalid": 2, "unlisted": 2},  # those are refused
        {"invalid": 0, "unlisted": 3, "won": 10},  # there is nothing to gain
        {"shield": ""},  # the settings say so
    ],
)
def test_others_may_take_any_action(tmp_path, monkeypatch, case):
    run, shield = decide(tmp_path, monkeypatch, **case)
    assert shield == case.get("shield", "auto")
    assert not run.path("dev_games/bc-shielded.jsonl").is_file()
    assert run.path("dev_games/bc.jsonl").is_file() == ("invalid" in case)
