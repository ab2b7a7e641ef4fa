"""What is done about alarms: updates undone, weights turned, training stopped."""

import dataclasses

import jax
import numpy as np
import pytest

from dreamgym import training
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.training import LoopParts, monitor
from dreamgym.training.config import MonitorConfig
from tests import doubles
from tests.dreamgym.training.common import CONFIG, fresh, loop, updater


def watching(**settings):
    return dataclasses.replace(CONFIG, monitor=MonitorConfig(**settings))


def weight_of(state):
    return float(np.asarray(jax.tree.leaves(state.params)[0]).ravel()[0])


@pytest.mark.usefixtures("update_calls")
def test_an_alarm_is_said_and_training_goes_on():
    end = loop(watching(min_entropy=2.0))
    assert end.update == 3
    assert all(row["alarm/min_entropy"] == 1.0 for row in end.curve)
    start = weight_of(updater().learner.init())
    assert weight_of(end.policy) == pytest.approx(start + 3.0)
    assert "reverted" not in end.curve[0]
    assert not any(k.startswith("alarm") for k in loop(CONFIG).curve[0])


@pytest.mark.usefixtures("update_calls")
def test_an_alarm_stops_training_before_its_update():
    end = loop(watching(min_entropy=2.0, response="stop"))
    assert end.update == 1
    assert "update 1: min_entropy" in end.stop_reason
    assert weight_of(end.policy) == weight_of(updater().learner.init())


class Refusing(doubles.RuleModel):
    """A dream in which nothing is answered but in some updates."""

    def __init__(self, sound=()):
        super().__init__()
        self.sound, self.update = sound, 0

    def predict(self, queries):
        problem = None if self.update in self.sound else "refused: too long"
        return [a._replace(error=problem) for a in super().predict(queries)]

    def record(self, progress, trajectories, rewarded):
        del rewarded
        del trajectories
        self.update = progress.update


def refused(dream, updates, progress=None):
    config = dataclasses.replace(CONFIG, updates=updates)
    tasks = doubles.tasks("train")[:8]
    return training.train(
        doubles.Scripted(doubles.expert_rule),
        DreamVectorEnv(dream, 4, max_steps=9),
        updater(),
        progress or fresh(tasks, config),
        config,
        seed=3,
        recorder=dream,
    )


def test_where_no_rollout_is_scored_nobody_says_how_many_were_won():
    end = refused(Refusing(sound=[1]), 2)
    assert [row["unscored_rollouts"] for row in end.curve] == [4.0, 0.0]
    assert [{"success", "return"} <= row.keys() for row in end.curve] == [False, True]
    assert not {"success", "return"} & end.curve[0].keys()


def test_three_updates_without_a_scored_rollout_end_training():
    dream = Refusing()
    begun = refused(dream, 2)
    assert not begun.stop_reason
    end = refused(dream, 9, begun)  # those before it went on count
    assert end.update == 3
    assert "no rollout of 3 updates in a row was scored" in end.stop_reason
    assert "12 ended with 'dream'" in end.stop_reason
    assert end.stop_reason.endswith("dream: refused: too long")
    assert refused(dream, 9, end).update == 3
    interrupted = refused(Refusing(sound=[2, 5]), 8)
    assert (interrupted.update, interrupted.stop_reason) == (8, "")


def test_an_undone_update_leaves_the_policy_and_turns_the_weights(update_calls):
    end = loop(watching(min_entropy=2.0, response="revert", patience=3))
    assert weight_of(end.policy) == weight_of(updater().learner.init())
    assert int(end.policy.step) == 0
    assert [w.kl for w in update_calls.weights] == pytest.approx([0.02, 0.04, 0.08])
    assert [w.entropy for w in update_calls.weights] == pytest.approx([0.0, 1e-3, 2e-3])
    assert "3 updates in a row were reverted" in end.stop_reason
    longer = loop(watching(min_entropy=2.0, response="revert", patience=4))
    assert not longer.stop_reason


def test_remedies_of_a_lost_skill_act_on_the_updates_after_it(
    update_calls, monkeypatch
):
    flagged = ["skill_collapse: valid_json"]
    monkeypatch.setattr(monitor, "alarms", lambda *_: flagged)
    settings = {"response": "revert", "patience": 2, "remedies": ("supervised",)}
    end = loop(watching(**settings))
    # The flag is of the policy from before: to go back to it would mend nothing.
    assert (end.update, end.stop_reason) == (3, "")
    assert weight_of(end.policy) != weight_of(updater().learner.init())
    # A flag stays for a window of checks, and is answered once.
    assert [w.auxiliary for w in update_calls.weights] == pytest.approx([0.0, 0.1, 0.1])
    assert all(row["alarm/skill_collapse: valid_json"] == 1.0 for row in end.curve)
    assert not any("reverted" in row for row in end.curve)
    # One that comes and goes is answered once within the window, too.
    update_calls.weights.clear()
    flags = iter([flagged, [], flagged])
    monkeypatch.setattr(monitor, "alarms", lambda *_: next(flags))
    loop(watching(**settings))
    assert [w.auxiliary for w in update_calls.weights] == pytest.approx([0.0, 0.1, 0.1])
    # Beside another alarm, and without remedies, updates are undone.
    monkeypatch.setattr(monitor, "alarms", lambda *_: flagged)
    flagged.append("min_entropy")
    assert "reverted" in loop(watching(**settings)).curve[0]
    flagged.pop()
    assert "reverted" in loop(watching(**settings | {"remedies": ()})).curve[0]


def test_a_loss_that_is_not_finite_is_undone_where_that_is_the_answer(update_calls):
    update_calls.loss = float("nan")
    with pytest.raises(FloatingPointError):
        loop(CONFIG)
    end = loop(watching(response="revert", patience=2))
    assert end.update == 2
    assert "not finite" in end.stop_reason
    assert weight_of(end.policy) == weight_of(updater().learner.init())


@pytest.mark.usefixtures("update_calls")
def test_real_dev_games_are_played_at_their_time_and_told():
    played = []

    def probe(policy):
        del policy
        played.append(1)
        return {"real_success": 0.5 - 0.2 * len(played), "real_eval_transitions": 7.0}

    end = loop(
        watching(max_real_drop=0.1, real_eval_every=2), parts=LoopParts(real_eval=probe)
    )
    assert ["real_success" in row for row in end.curve] == [False, True, True]
    assert end.curve[1]["real_success"] == pytest.approx(0.3)
    assert len(played) == 2


def probing(*result):
    """Real dev games as they come out, one after the other."""
    rest = iter(result)
    return LoopParts(
        real_eval=lambda _: {"real_success": next(rest), "real_eval_transitions": 7.0}
    )


def kept(config):
    """`fresh` keeps the first policy, as the composition root does where asked to."""
    progress = fresh(doubles.tasks("train")[:8], config)
    return progress._replace(best=updater().learner.init())


@pytest.mark.usefixtures("update_calls")
@pytest.mark.parametrize(
    ("result", "best"),
    [((0.3, 0.5, 0.4), 2), ((0.5, 0.5, 0.5), 1), ((0.1, 0.2, 0.3), 3)],
)
def test_training_ends_with_what_did_best_on_real_games(result, best):
    """An update adds 1 to the weights, so that they tell which one it is."""
    config = watching(real_eval_every=1, keep_best=True)
    end = loop(config, progress=kept(config), parts=probing(*result))
    start = weight_of(updater().learner.init())
    assert weight_of(end.result) == pytest.approx(start + best)
    assert weight_of(end.policy) == pytest.approx(start + 3)
    assert monitor.best_row(end.curve) == best - 1
    last = loop(watching(real_eval_every=1), parts=probing(*result))
    assert weight_of(last.result) == pytest.approx(start + 3)


@pytest.mark.usefixtures("update_calls")
def test_an_undone_gap_goes_back_to_what_did_best(monkeypatch):
    """Best after update 1, worse after 3: 2 and 3 are gone; without keep 3 alone is."""
    monkeypatch.setattr(
        monitor,
        "_dream_and_reality_diverge",
        lambda rows, _: rows[-1].get("real_success") == 0.1,
    )
    settings = {"real_eval_every": 1, "max_real_drop": 0.1, "response": "revert"}
    start = weight_of(updater().learner.init())
    ends = {}
    for keep in (True, False):
        config = watching(keep_best=keep, **settings)
        progress = kept(config) if keep else fresh(doubles.tasks("train")[:8], config)
        ends[keep] = loop(config, progress=progress, parts=probing(0.5, 0.4, 0.1))
    assert weight_of(ends[True].policy) == pytest.approx(start + 1)
    assert weight_of(ends[False].policy) == pytest.approx(start + 2)
    assert ends[True].curve[-1]["reverted"] == 1.0
    config = watching(keep_best=True, **settings)
    longer = dataclasses.replace(config, updates=4)
    on = loop(longer, progress=kept(config), parts=probing(0.5, 0.4, 0.1, 0.6))
    assert weight_of(on.policy) == weight_of(on.result) == pytest.approx(start + 2)
