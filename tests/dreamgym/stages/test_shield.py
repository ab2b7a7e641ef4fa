"""The stage shield: when the policies of a run keep to the valid actions."""

import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.build.models import policy_config
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages import shield as stage
from tests import doubles
from worldmodel.data.records import Episode, Transition


def games(invalid):
    """Ten dev games of one step, of which so many have an invalid action."""

    def one(i):
        step = Transition(
            state=("at 0",), action="fly", next_state=("at 0",), invalid=i < invalid
        )
        episode = Episode(
            id=f"e{i}",
            task=doubles.task(0, 1, 2),
            transitions=(step,),
            source="real",
            success=False,
        )
        return Trajectory(episode, (), None)

    return [one(i) for i in range(10)]


def decide(tmp_path, monkeypatch, *, invalid=5, listed=1.0, of=100, shield="auto"):
    """Return what the stage decides, and the shield of the policies after it."""
    run = Run(
        tmp_path,
        preset("tiny", {"env.id": "tests.doubles:Corridor", "policy.shield": shield}),
    )
    run.stage("collect", lambda: {"listed_actions": listed, "listed_actions_of": of})

    def play(run, name, policy):
        del policy
        path = run.path(f"dev_games/{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        return games(invalid)

    monkeypatch.setattr(stage, "play_dev_games", play)
    monkeypatch.setattr(stage, "load_policy", lambda *_: doubles.policy())
    run.stage("shield", lambda: stage.body(run))
    return run, policy_config(run).shield


def test_policies_of_many_invalid_actions_keep_to_the_list(
    tmp_path, monkeypatch, capsys
):
    run, shield = decide(tmp_path, monkeypatch)
    assert shield == "valid"
    assert "50 % of the actions of bc in real" in capsys.readouterr().err
    # The games are played anew by the shielded policy.
    assert not run.path("dev_games/bc.jsonl").is_file()
    assert run.path("dev_games/bc-unshielded.jsonl").is_file()


@pytest.mark.parametrize(
    "case",
    [
        {"invalid": 2},  # few invalid actions
        {"listed": 0.9},  # mere proposals
        {"of": 10},  # too few to tell
        {"shield": ""},  # the settings say so
    ],
)
def test_others_may_take_any_action(tmp_path, monkeypatch, case):
    run, shield = decide(tmp_path, monkeypatch, **case)
    assert shield == case.get("shield", "auto")
    played = "invalid" in case
    assert run.path("dev_games/bc.jsonl").is_file() == played
