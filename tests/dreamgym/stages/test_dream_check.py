"""The dream is asked about the policy, mended once, and refused where that fails."""

import contextlib
import dataclasses

import pytest

from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build import refit as build_refit
from dreamgym.build.experience import load_experience, remedy_folder
from dreamgym.build.real import dev_play
from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset
from dreamgym.evaluation.dream_check import Fault
from dreamgym.run.directory import Run
from dreamgym.run.view import StageView
from dreamgym.stages import collect, dream_check, pretrain
from dreamgym.stages.table import STAGES
from tests import doubles, helpers
from worldmodel.backbone.weights import load_model
from worldmodel.data.records import read_episodes, write_episodes
from worldmodel.fitting import supervised

TASKS = doubles.tasks("dev")[:12]
WON = [Trajectory(doubles.expert(t), (), None) for t in TASKS]
LOST = [Trajectory(doubles.episode(t, ["fly"] * 3), (), None) for t in TASKS]
SETTINGS = {
    "env.id": "tests.doubles:Corridor",
    "dream_check.force": False,
    "pretrain.fit.steps": 10,
    "pretrain.fit.eval_every": 1,
    "dream_check.remedy_tasks": 5,
}


def rate(mean, count=40):
    return {"mean": mean, "count": count}


SOUND = {
    "exact": {"predictable": rate(0.95)},
    "reward": {"recall": rate(0.9)},
    "done": {"recall": rate(0.9)},
}
BLIND = SOUND | {"done": {"recall": rate(0.08)}}


class Dream:
    """The stage with its games and its refit replaced; counts the refits."""

    def __init__(self, monkeypatch, run, before, after, cards=(SOUND, SOUND)):
        self.run, self.refits, self.cards = (
            run,
            [],
            dict(zip(["", "remedy"], cards, strict=True)),
        )
        games = {"": before, "remedy": after}
        replacements = {
            "load_policy": lambda *_: doubles.policy(),
            "play_dev_games": lambda *_: WON,
            "read": lambda _: ([], []),
            "load_experience": lambda *_, **__: doubles.RuleModel(),
            "dreamed_dev_games": lambda *args: games[args[3]],
            "mend": self.refit,
        }
        for name, function in replacements.items():
            monkeypatch.setattr(dream_check, name, function)
        session = contextlib.nullcontext
        monkeypatch.setattr(dream_check.run_chat, "experience_session", session)

    def refit(self, run, policy, faults):
        del run, policy
        self.refits.append(faults)
        return doubles.RuleModel()

    def body(self):
        files = {
            f"{k}/fidelity.json" if k else "fidelity.json": v
            for k, v in self.cards.items()
        }
        self.run.read_json = files.__getitem__
        return dream_check.body(self.run)


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path, preset("tiny", SETTINGS)) as run:
        run.mark("warmstart", {"kept": "warmstart"})
        yield run


def test_a_dream_that_agrees_is_left_as_it_is(monkeypatch, run):
    dream = Dream(monkeypatch, run, WON, LOST)
    numbers = dream.body()
    assert (numbers["refused"], numbers["forced"], dream.refits) == ("", False, [])
    assert not {"remedy", "costs"} & numbers.keys()  # nothing costs anything


def test_few_dev_tasks_are_not_compared_with_dreamed_ones(monkeypatch, run, capsys):
    """Though the real games would all have been won, and the dreamed ones are lost."""
    run.mark("collect", {"dev_tasks": 3})
    numbers = Dream(monkeypatch, run, LOST, LOST).body()
    assert not {"real", "on_policy", "disagrees"} & numbers.keys()
    few = "not compared with real dev games: the environment lists 3 dev tasks, and"
    assert few in capsys.readouterr().err


def test_what_the_games_cost_really_and_in_the_dream_is_told(
    monkeypatch, tmp_path, capsys
):
    limit = {"name": "flight", "limit": 0.5, "pattern": "^fly$"}
    with Run(tmp_path, preset("tiny", {"train.limits": [limit]})) as run:
        run.mark("warmstart", {"kept": "warmstart"})
        numbers = Dream(monkeypatch, run, LOST, LOST).body()
    costs = numbers["costs"]["flight"]
    assert (costs["real"]["mean"], costs["dreamed"]["mean"]) == (0.0, 3.0)
    assert costs["real"]["count"] == len(TASKS)
    assert "3.000 [3.000, 3.000] in the dream, over 12" in capsys.readouterr().err


def test_the_dream_is_scored_in_the_policys_own_real_games(monkeypatch, run, capsys):
    """The model by rules is right in all; in games that it answers wrongly, in none."""
    steps = {(e.task.id, s.state, s.action) for e, s in steps_of(WON)}
    sound = Dream(monkeypatch, run, WON, LOST)
    on_policy = sound.body()["on_policy"]
    assert {x["mean"] for x in on_policy.values()} == {1.0}
    limit = run.config.fidelity.transitions // 2
    assert on_policy["kept"]["count"] == limit < len(steps)
    assert limit / 2 < on_policy["predictable"]["count"] <= limit  # others are reveals
    assert on_policy["ends"]["count"] == on_policy["rewards"]["count"] > 0
    out = capsys.readouterr().out
    assert f"the policy's own {len(WON)} real dev games" in out
    assert "ends found        100.0%" in out

    class Blind(doubles.RuleModel):
        def predict(self, queries):
            return [
                p._replace(next_state=q.state, reward=0.0, outcome="go")
                for p, q in zip(super().predict(queries), queries, strict=True)
            ]

    monkeypatch.setattr(dream_check, "load_experience", lambda *_, **__: Blind())
    on_policy = dream_check.body(run)["on_policy"]
    assert (on_policy["changed"]["mean"], on_policy["ends"]["mean"]) == (0.0, 0.0)
    monkeypatch.setattr(dream_check, "play_dev_games", lambda *_: [])
    assert "on_policy" not in dream_check.body(run)


def steps_of(trajectories):
    """Yield (episode, transition) of every step."""
    for t in trajectories:
        for step in t.episode.transitions:
            yield t.episode, step


@pytest.mark.parametrize(
    ("kept", "unshielded", "refits"),
    [
        ("bc", LOST, 0),  # compared without the shield, and there it loses as well
        ("bc", WON, 1),
    ],
)
def test_a_shielded_policy_is_compared_without_its_shield(
    monkeypatch, run, kept, unshielded, refits
):
    run.mark("warmstart", {"kept": kept})
    run.path("dev_games").mkdir()
    episodes = [t.episode for t in unshielded]
    write_episodes(run.path("dev_games/bc-unshielded.jsonl"), episodes)
    dream = Dream(monkeypatch, run, LOST, WON)
    replace_policy(monkeypatch, "valid")
    numbers = dream.body()
    assert len(dream.refits) == refits
    assert numbers["refused"] == ""
    assert numbers["real"]["real_success"] == 1.0  # what the policy really wins


@pytest.mark.parametrize(
    ("wins", "players", "refits"),
    [(False, None, 0), (True, None, 1), (True, 3, 1), (True, 2, 0)],
)
def test_a_shielded_warm_start_plays_without_its_shield_where_steps_are_left(
    monkeypatch, tmp_path, capsys, wins, players, refits
):
    """The dream says that it loses all: a policy that wins so is dreamed wrongly.

    `players` is how many players' dev games the steps that are left pay for: two of
    later stages, and this one.
    """
    settings = SETTINGS | {"train.monitor.real_eval_tasks": len(TASKS)}
    run = Run(tmp_path, preset("tiny", settings))
    run.mark("warmstart", {"kept": "warmstart"})
    if wins:
        monkeypatch.setattr(dev_play, "_play_once", lambda *_: WON)
    if players is not None:
        left = dev_play.dev_game_steps(run, later=players)
        monkeypatch.setattr(type(run.real_steps), "left", left)
    dream = Dream(monkeypatch, run, LOST, WON)
    replace_policy(monkeypatch, "valid")
    dream.body()
    assert len(dream.refits) == refits
    record = run.path("dev_games/warmstart-no-shield.jsonl")
    assert ("no real steps are left" in capsys.readouterr().err) == (players == 2)
    if not wins:
        assert len(read_episodes(record)) == len(TASKS)


def replace_policy(monkeypatch, shield):
    """Let the stage load a policy with a shield."""
    policy = doubles.policy()
    config = dataclasses.replace(policy.config, shield=shield)
    shielded = Policy(policy.model, policy.tokenizer, config)
    monkeypatch.setattr(dream_check, "load_policy", lambda *_: shielded)


def keep_going(task, state, action, valid):
    """A shield that also acts where nothing is listed."""
    del task, state, valid
    return action


def test_another_shield_acts_in_the_dream_too_and_is_compared(monkeypatch, run):
    dream = Dream(monkeypatch, run, LOST, WON)
    replace_policy(monkeypatch, f"{__name__}:keep_going")
    assert dream.body()["remedy"]["helped"]


def test_only_tasks_that_were_really_played_are_compared(monkeypatch, run):
    run.mark("warmstart", {"kept": "bc"})
    run.path("dev_games").mkdir()
    episodes = [t.episode for t in WON[:8]]  # a budget ended
    write_episodes(run.path("dev_games/bc-unshielded.jsonl"), episodes)
    dream = Dream(monkeypatch, run, LOST, WON)
    replace_policy(monkeypatch, "valid")
    assert dream.body()["refused"] == ""
    assert len(dream.refits) == 1


def test_a_dream_that_is_mended_is_trained_in(monkeypatch, run, capsys):
    dream = Dream(monkeypatch, run, LOST, WON)
    numbers = dream.body()
    # What is missed says how the refit is weighted.
    assert dream.refits == [{"missed_ends", "missed_rewards", "refused_actions"}]
    assert numbers["refused"] == ""
    assert numbers["disagrees"] is False
    assert numbers["remedy"]["helped"] is True
    assert "dreamed minus real -1.000" in numbers["remedy"]["before"]
    assert "episodes reach an end: 100 % really, 0 %" in capsys.readouterr().err
    run.mark("dream_check", numbers)
    assert remedy_folder(run) == "remedy"


def test_a_dream_that_stays_wrong_is_refused_with_both_reasons(monkeypatch, run):
    dream = Dream(monkeypatch, run, LOST, LOST, cards=(BLIND, SOUND))
    numbers = dream.body()
    assert len(dream.refits) == 1  # once, and no more
    assert "dreamed minus real -1.000" in numbers["refused"]
    assert "8 %" not in numbers["refused"]  # that was mended
    assert numbers["refused"].endswith("; a refit did not mend it")
    assert numbers["remedy"]["before"].startswith("only 8 % of 40 ends are found")
    run.mark("dream_check", numbers)
    assert remedy_folder(run) == ""


def test_a_refit_that_tells_rewards_apart_less_well_is_left_out(
    monkeypatch, run, capsys
):
    worse = SOUND | {"families": {"a": SOUND | {"reward": {"recall": rate(0.3)}}}}
    dream = Dream(
        monkeypatch, run, LOST, WON, cards=(SOUND | {"families": {"a": SOUND}}, worse)
    )
    numbers = dream.body()
    assert numbers["remedy"]["helped"] is False
    assert numbers["refused"].startswith("the dream is wrong about how often")
    text = (
        "a refit mended it, but is worse at unusual rewards in family 'a': found 90 %"
    )
    assert text in numbers["refused"]
    assert text in capsys.readouterr().err
    assert numbers["dreamed"]["real_success"] == 0.0  # of the model that stays
    run.mark("dream_check", numbers)
    assert remedy_folder(run) == ""


def test_a_poor_scorecard_alone_is_mended_too(monkeypatch, run):
    dream = Dream(monkeypatch, run, WON, WON, cards=(BLIND, SOUND))
    assert dream.body()["refused"] == ""
    assert dream.refits == [{"missed_ends"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"dream_check.force": True},
        {"dream_check.remedy_share": 0.0},
        {"ensemble.members": 2},
        {"pretrain.permute_outcomes": True},
    ],
)
def test_nothing_is_refitted_where_that_is_off_or_impossible(
    monkeypatch, tmp_path, changes
):
    config = preset("tiny", SETTINGS)
    for name, value in changes.items():
        config = changed(config, name, value)
    with Run(tmp_path / "other", config) as run:
        run.mark("warmstart", {"kept": "warmstart"})
        dream = Dream(monkeypatch, run, LOST, WON)
        numbers = dream.body()
    assert dream.refits == []
    assert "dreamed minus real" in numbers["refused"]


# --- the refit itself ---------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("fitted"), preset("tiny", SETTINGS))
    for stage in (collect, pretrain):
        name = stage.__name__.rpartition(".")[2]
        run.mark(name, stage.body(StageView(run, STAGES[name], STAGES)))
    return run


def view_of(run):
    return StageView(run, STAGES["dream_check"], STAGES)


@pytest.mark.slow
def test_a_refit_plays_train_tasks_and_leaves_the_model_before(fitted, monkeypatch):
    policy = doubles.cloned(doubles.ACTIONS, TASKS)
    seen = {}
    fit = supervised.fit

    def spy(model, examples, config, **rest):
        seen.update(examples=len(examples), steps=config.steps)
        return fit(model, examples, config, **rest)

    monkeypatch.setattr(build_refit.supervised, "fit", spy)
    steps = fitted.root / "stages/refit.steps"
    with fitted.real_steps.recorded(steps) as counter:
        model = build_refit.mend(view_of(fitted), policy, {"missed_ends"})
    assert seen["steps"] == 3  # 0.3 of 10
    played = read_episodes(fitted.path("remedy/episodes.jsonl"))
    assert len(played) == 5
    assert {e.task.split for e in played} == {"train"}
    assert counter.count >= sum(len(e.transitions) for e in played) > 0
    before, _ = load_model(fitted.path("experience"))
    after, _ = load_model(fitted.path("remedy/experience"))
    assert helpers.distance(before.params, after.params) > 0
    card = fitted.read_json("remedy/fidelity.json")
    assert {"calibration", "threshold", "exact"} <= card.keys()
    # The dream of it remembers what the policy has lived through.
    known = load_experience(fitted)
    assert len(model.memory) == len(known.memory) + sum(
        len(e.transitions) for e in played
    )
    # Interrupted after the games and the fit, nothing is played or fitted again.
    again_steps = fitted.root / "stages/again.steps"
    with fitted.real_steps.recorded(again_steps) as counter:
        build_refit.mend(view_of(fitted), policy, {"missed_ends"})
    again, _ = load_model(fitted.path("remedy/experience"))
    assert helpers.distance(after.params, again.params) == 0.0
    assert counter.count < sum(len(e.transitions) for e in played)  # the scorecard's


@pytest.mark.slow
def test_what_a_refit_weights_follows_the_faults(fitted, monkeypatch):
    tok = load_model(fitted.path("experience"))[1]
    view = view_of(fitted)
    shares = []

    def spy(*_, rare_event_share):
        shares.append(rare_event_share)
        return doubles.RuleModel()

    monkeypatch.setattr(build_refit, "refit", spy)
    monkeypatch.setattr(build_refit, "play_train_games", lambda *_: None)
    for fault in ("wrong_states", "missed_ends"):
        build_refit.mend(view, doubles.policy(), {fault})
    assert shares == [fitted.config.pretrain.rare_event_share, build_refit.RARE_SHARE]
    monkeypatch.undo()
    unweighted, plain, weighted = (
        build_refit._examples(view, tok, "remedy", share)[0] for share in (0.0, *shares)
    )
    assert len(unweighted) == len(plain) == len(weighted)

    def largest(examples):
        return max(
            float(max(e.weight)) if not isinstance(e.weight, float) else float(e.weight)
            for e in examples
        )

    assert largest(weighted) > largest(plain) >= largest(unweighted) == 1.0


def test_what_differs_without_a_gap_is_no_disagreement(monkeypatch, run, capsys):
    gap = {"mean": 0.0, "low": -0.9, "high": 0.9, "episodes": 1}
    numbers = {"gap": gap, "disagrees": False, "sentence": "it is wrong", "faults": []}
    faults = [Fault("broken_episodes", "75 % of the dreamed episodes broke off")]
    monkeypatch.setattr(dream_check, "_compare", lambda *_: (numbers, faults))
    dream = Dream(monkeypatch, run, WON, WON)
    assert dream.body()["refused"] == ""
    printed = capsys.readouterr().err
    assert "not refused for how often the warm start wins in it" in printed
    assert "but 75 % of the dreamed episodes broke off" in printed
    assert "it is wrong" not in printed
