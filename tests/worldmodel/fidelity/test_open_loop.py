import dataclasses

from tests import helpers
from worldmodel.data.outcomes import outcome_of
from worldmodel.data.records import Task
from worldmodel.experience.base import Prediction
from worldmodel.fidelity.open_loop import open_loop


def brief(rate):
    return {k: rate[k] for k in ("mean", "count")}


class Scripted:
    """Answers a chain of states by (state, action); unknown ones stay."""

    def __init__(self, episodes, change=None):
        self.known = {(t.state, t.action): t for e in episodes for t in e.transitions}
        self.change, self.asked = change, []

    def predict(self, queries):
        self.asked += queries
        out = []
        for q in queries:
            t = self.known.get((q.state, q.action))
            if t is None:
                out.append(Prediction(q.state, 0.0, "go", "", 1.0, None))
                continue
            p = Prediction(t.next_state, t.reward, outcome_of(t), "", 1.0, None)
            out.append(self.change(p, q) if self.change else p)
        return out

    def vary(self, groups, *, key):
        del key
        return [None] * len(groups)


LONG = helpers.won_episode(("start", "walk"), ("room", "turn"), ("wall", "take coin"))
LOST = dataclasses.replace(
    helpers.episode("lost", LONG.task, LONG.transitions[:2]), success=False
)


WORDS = dataclasses.replace(LONG.task, instruction="start room wall take coin done")
KNOWN = dataclasses.replace(LONG, task=WORDS)  # nothing in it is a new word


def test_the_truth_does_not_drift():
    result = open_loop(Scripted([LONG]), [LONG, LOST])
    assert [r["mean"] for r in result["exact"]] == [1.0, 1.0, 1.0]
    assert [r["count"] for r in result["exact"]] == [2, 2, 1]
    assert brief(result["outcomes"]["agree"]) == {"mean": 1.0, "count": 2}
    assert result["outcomes"]["cells"] == {
        "win_win": 1,
        "win_loss": 0,
        "win_broken": 0,
        "loss_win": 0,
        "loss_loss": 1,
        "loss_broken": 0,
    }
    assert brief(result["outcomes"]["over_optimistic"]) == {"mean": 0.0, "count": 1}


def test_one_error_is_carried_on():
    def stray(p, q):
        return p._replace(next_state=("fog",)) if q.action == "turn" else p

    model = Scripted([KNOWN], stray)
    result = open_loop(model, [KNOWN])
    assert [r["mean"] for r in result["exact"]] == [1.0, 0.0, 0.0]
    assert model.asked[-1].state == ("fog",)  # its own state, not the real one
    assert model.asked[-1].past == ("walk", "turn")
    assert model.asked[-1].past_states == (("start",), ("room",))
    assert result["outcomes"]["cells"]["win_loss"] == 1


def test_after_a_reveal_the_episode_goes_on_from_the_real_state():
    """Nobody could know what is there: another thing is no error that goes on."""

    def other(p, q):
        return p._replace(next_state=("fog",)) if q.action == "turn" else p

    model = Scripted([LONG], other)  # each of its steps reveals a new word
    result = open_loop(model, [LONG])
    assert [r["mean"] for r in result["exact"]] == [1.0, 0.0, 1.0]
    assert model.asked[-1].state == ("wall",)
    assert model.asked[-1].past_states == (("start",), ("room",))
    assert result["predictable"] == []
    assert result["outcomes"]["cells"]["win_win"] == 1
    # What does not follow from any state is an error all the same.
    lost = open_loop(Scripted([LONG], lambda p, _: p._replace(outcome="go")), [LONG])
    assert lost["outcomes"]["cells"]["win_loss"] == 1


def test_a_dream_that_wins_early_is_over_optimistic():
    def win(p, q):
        return p._replace(outcome="win") if q.action == "turn" else p

    model = Scripted([LONG], win)
    result = open_loop(model, [LONG, LOST])
    assert brief(result["outcomes"]["over_optimistic"]) == {"mean": 1.0, "count": 1}
    assert result["exact"][2]["mean"] == 0.0  # it ended before the third step
    assert max(len(q.past) for q in model.asked) == 1


def test_a_dream_that_breaks_off_agrees_with_no_outcome():
    """Else a dream of nonsense would agree on every lost episode."""
    model = Scripted([LONG], lambda p, _: p._replace(error="odd", outcome="win"))
    result = open_loop(model, [LONG, LOST])
    assert result["exact"][0]["mean"] == 0.0
    outcomes = result["outcomes"]
    assert (outcomes["cells"]["win_broken"], outcomes["cells"]["loss_broken"]) == (1, 1)
    assert brief(outcomes["agree"]) == {"mean": 0.0, "count": 2}
    assert brief(outcomes["broken"]) == {"mean": 1.0, "count": 2}
    assert brief(outcomes["over_pessimistic"]) == {"mean": 0.0, "count": 1}
    assert len(model.asked) == 2


def test_steps_that_reveal_are_not_predictable():
    # "start", "room" and "wall" are new words each time: each step reveals.
    assert open_loop(Scripted([LONG]), [LONG])["predictable"] == []
    card = open_loop(Scripted([KNOWN]), [KNOWN])
    assert [r["count"] for r in card["predictable"]] == [1, 1, 1]
    told = dataclasses.replace(LONG.task, instruction="start wall take coin done")
    card = open_loop(Scripted([LONG]), [dataclasses.replace(LONG, task=told)])
    assert card["predictable"][1]["count"] == 1  # after "room", which reveals
    assert len(card["predictable"]) == 2


def test_what_other_tasks_show_is_no_reveal():
    """As the scorecard judges it: the same answer to the same query in two tasks."""
    after = ("box wombat",)
    episodes = [
        helpers.episode(
            f"e{i}",
            Task(id=f"t{i}", instruction="open", initial_state=("box shut",)),
            [helpers.transition(("box shut",), "open", after)],
        )
        for i in range(2)
    ]
    model = Scripted(episodes)
    assert open_loop(model, episodes[:1])["predictable"] == []
    for card in (
        open_loop(model, episodes),
        open_loop(model, episodes[:1], recorded=episodes),
    ):
        assert card["predictable"][0]["mean"] == 1.0


def test_a_game_that_is_won_by_lasting_is_won_in_a_dream_that_lasts():
    """No answer tells a win that the step limit brings: the model says go on."""
    step = helpers.transition()
    steps = (step, dataclasses.replace(step, truncated=True, success=True))
    task = helpers.lamp_and_door().task
    e = dataclasses.replace(helpers.episode("e", task, steps), success=True)
    assert not e.transitions[-1].terminated
    outcomes = open_loop(Scripted([e]), [e])["outcomes"]
    assert (outcomes["agree"]["mean"], outcomes["dreamed_success"]["mean"]) == (1.0, 1)
    # A dream that ends it is another matter.
    loses = Scripted([e], lambda p, _: p._replace(outcome="lose"))
    ended = open_loop(loses, [e])["outcomes"]
    assert ended["agree"]["mean"] == 0.0
