import dataclasses

import pytest

from tests import helpers
from worldmodel import fidelity
from worldmodel.data.outcomes import outcome_of
from worldmodel.data.records import Task, Transition
from worldmodel.experience.base import Prediction, query_after
from worldmodel.fidelity import scorecard
from worldmodel.fidelity.cases import NearMiss, sample_cases

SEED = helpers.lamp_and_door()


def brief(value):
    """Rates as {mean, count}: where all cases weigh alike the rest says no more."""
    if not isinstance(value, dict):
        return value
    return {k: brief(v) for k, v in value.items() if k != "effective"}


class Truth:
    """Knows the answers; what it says may be changed before it is given."""

    def __init__(self, episodes, change=None):
        self._answers = {
            (e.task.id, t.state, t.action): t for e in episodes for t in e.transitions
        }
        self._change, self.batches, self.queries = change, [], []

    def predict(self, queries):
        self.batches.append(len(queries))
        self.queries += queries
        out = []
        for q in queries:
            t = self._answers.get((q.task.id, q.state, q.action))
            p = Prediction(q.state, 0.0, "go", "", 1.0, None)  # a state of its own
            if t is not None:
                p = Prediction(t.next_state, t.reward, outcome_of(t), "", 1.0, None)
            out.append(self._change(p, q.state) if self._change else p)
        return out

    def vary(self, groups, *, key):
        del key  # unused: scoring never varies
        return [None] * len(groups)


def test_kind_of_by_hand():
    same = helpers.transition(next_state=("the lamp is off",))
    lit = helpers.transition()
    assert fidelity.kind_of(same, "") == "unchanged"
    assert fidelity.kind_of(lit, "") == "reveal"  # "on" was never seen
    assert fidelity.kind_of(lit, "switch it on") == "one_line"
    assert fidelity.kind_of(lit, "", ["it was on before"]) == "one_line"
    # The environment knows best, but where nothing changes nothing is revealed.
    messages = {x: dataclasses.replace(lit, reveals=x) for x in (True, False)}
    assert fidelity.kind_of(messages[False], "") == "one_line"
    assert fidelity.kind_of(messages[True], "switch it on") == "reveal"
    assert fidelity.kind_of(dataclasses.replace(same, reveals=True), "") == "unchanged"


def test_the_truth_scores_one():
    card = brief(fidelity.score(Truth([SEED]), [SEED], limit=99))
    assert card["transitions"] == 3
    # Steps: lamp off -> on (reveal), nothing (unchanged), shut -> open (reveal).
    assert card["share"] == {
        "all": 1.0,
        "predictable": 1 / 3,
        "unchanged": 1 / 3,
        "changed": 0.0,
        "one_line": 0.0,
        "many_lines": 0.0,
        "reveal": 2 / 3,
        "forgotten": 0.0,
    }
    none = {"mean": None, "count": 0}
    assert (
        card["exact"]
        == card["kept"]
        == {
            "all": {"mean": 1.0, "count": 3},
            "predictable": {"mean": 1.0, "count": 1},
            "unchanged": {"mean": 1.0, "count": 1},
            "changed": none,
            "one_line": none,
            "many_lines": none,
            "reveal": {"mean": 1.0, "count": 2},
            "forgotten": none,
        }
    )
    assert card["copy"]["all"] == {"mean": 1 / 3, "count": 3}
    assert card["copy"]["unchanged"]["mean"] == 1.0
    assert card["copy"]["reveal"]["mean"] == 0.0
    assert card["reward"] == {
        "usual": 0.0,
        "accuracy": {"mean": 1.0, "count": 3},
        "false_positives": {"mean": 0.0, "count": 1},
        "recall": {"mean": 1.0, "count": 2},
        "near_misses": {"mean": None, "count": 0, "known": 0},
    }
    assert card["done"] == {
        "accuracy": {"mean": 1.0, "count": 3},
        "recall": {"mean": 1.0, "count": 1},
        "predictable": none,  # the end is a reveal
        "false_positives": {"mean": 0.0, "count": 2},
    }
    assert card["malformed"] == {"mean": 0.0, "count": 3}
    assert card["open_loop"]["outcomes"]["agree"] == {"mean": 1.0, "count": 1}


def test_what_was_seen_before_is_no_reveal():
    # Off, on, off again: the last "off" is in neither state nor action, but was seen.
    off, on = ("the lamp is off",), ("the lamp is on",)
    steps = [helpers.transition(off, "x", on), helpers.transition(on, "x", off)]
    ending = dataclasses.replace(steps[1], terminated=True, success=True)
    e = helpers.episode("e", SEED.task, [steps[0], ending])
    card = fidelity.score(Truth([e]), [e], limit=9)
    assert card["share"]["reveal"] == card["share"]["changed"] == 1 / 2
    assert card["share"]["one_line"] == 1 / 2
    assert brief(card["done"]["predictable"]) == {"mean": 1.0, "count": 1}


def test_a_model_that_copies_scores_as_the_baseline():
    def copying(p, state):
        return p._replace(next_state=state, reward=0.0, outcome="go")

    card = fidelity.score(Truth([SEED], copying), [SEED], limit=99)
    assert card["exact"] == card["copy"]
    assert card["kept"]["all"]["mean"] == 1.0  # it is late, and forgets nothing
    assert card["reward"]["accuracy"]["mean"] == 1 / 3
    assert card["reward"]["false_positives"]["mean"] == 0.0
    assert card["reward"]["recall"]["mean"] == 0.0
    assert card["done"]["accuracy"]["mean"] == 2 / 3
    assert card["done"]["recall"]["mean"] == 0.0
    assert card["malformed"]["mean"] == 0.0


def test_an_answer_with_a_problem_is_never_right_and_no_reward():
    """Even where what stands in it is what really happened."""
    card = fidelity.score(
        Truth([SEED], lambda p, _: p._replace(error="odd")), [SEED], limit=99
    )
    assert card["malformed"]["mean"] == 1.0
    assert {x["mean"] for x in card["exact"].values() if x["count"]} == {0.0}
    assert card["reward"]["accuracy"]["mean"] == card["done"]["accuracy"]["mean"] == 0.0
    assert brief(card["reward"]["recall"]) == {"mean": 0.0, "count": 2}
    assert card["reward"]["false_positives"]["count"] == 0
    assert card["reward"]["near_misses"]["count"] == 0
    assert card["lines"]["precision"]["count"] == 0
    assert card["hallucinated"]["count"] == 0


def test_a_limit_holds_for_whole_episodes_too():
    other = helpers.lamp_and_door("room-2")
    model = Truth([SEED, other])
    card = fidelity.score(model, [SEED, other], limit=1, open_loop_steps=4)
    assert card["open_loop"]["episodes"] == 1  # of three steps; six are in both
    card = fidelity.score(model, [SEED, other], limit=1)
    assert card["open_loop"]["episodes"] == 2
    card = fidelity.score(model, [SEED, other], limit=1, open_loop_steps=0)
    assert "open_loop" not in card


def test_a_model_that_always_pays_is_caught():
    card = fidelity.score(
        Truth([SEED], lambda p, _: p._replace(reward=1.0)), [SEED], limit=99
    )
    # Rewards 0.5, 0, 1: only the last is right, and the unrewarded one is paid.
    assert card["reward"]["accuracy"]["mean"] == 1 / 3
    assert card["reward"]["false_positives"]["mean"] == 1.0
    assert card["reward"]["recall"]["mean"] == 1 / 2


def test_a_small_reward_is_not_found_by_none():
    idle = helpers.transition(SEED.transitions[0].next_state, "nothing")
    idle = dataclasses.replace(idle, next_state=idle.state, rewards={"reward": 0.0})
    small = dataclasses.replace(SEED.transitions[0], rewards={"reward": 0.0004})
    episode = dataclasses.replace(SEED, transitions=(small, idle))
    card = fidelity.score(
        Truth([episode], lambda p, _: p._replace(reward=0.0)), [episode], limit=9
    )
    assert card["reward"]["usual"] == 0.0
    assert brief(card["reward"]["recall"]) == {"mean": 0.0, "count": 1}


def test_rewards_are_compared_with_the_commonest_one():
    """Where each step costs 1, to say so of the winning one is no reward found."""
    steps = [
        dataclasses.replace(t, rewards={"reward": r})
        for t, r in zip(SEED.transitions, (-1.0, -1.0, 20.0), strict=True)
    ]
    episode = dataclasses.replace(SEED, transitions=tuple(steps))
    model = Truth([episode], lambda p, _: p._replace(reward=-1.0))
    reward = brief(fidelity.score(model, [episode], limit=9)["reward"])
    assert reward["usual"] == -1.0
    assert reward["accuracy"] == {"mean": pytest.approx(2 / 3), "count": 3}
    assert reward["recall"] == {"mean": 0.0, "count": 1}
    assert reward["false_positives"] == {"mean": 0.0, "count": 2}


@pytest.mark.parametrize(("error", "share"), [(4e-4, 1 / 1.5), (6e-4, 0.0)])
def test_a_reward_is_right_to_three_decimals(error, share):
    model = Truth([SEED], lambda p, _: p._replace(reward=p.reward + error))
    card = fidelity.score(model, [SEED], limit=99)
    # Beside a reward of 0 the smaller error is one, too.
    assert card["reward"]["accuracy"]["mean"] == pytest.approx(share)


def test_one_wrong_line_is_a_wrong_state():
    def cut(p, _):
        return p._replace(next_state=p.next_state[:-1])

    card = fidelity.score(Truth([SEED], cut), [SEED], limit=99)
    assert card["exact"]["all"]["mean"] == 0.0


def test_each_question_is_asked_once_with_its_history():
    again = dataclasses.replace(SEED, id="again")
    other = helpers.lamp_and_door("room-2")
    model = Truth([SEED, other])
    card = fidelity.score(model, [SEED, again, other], limit=99, open_loop_steps=0)
    assert card["transitions"] == 6
    queries = sorted((q.task.id, q.past) for q in model.queries)
    pasts = [(), ("press lamp",), ("press lamp", "nothing")]
    assert queries == [(t, p) for t in ("room-1", "room-2") for p in pasts]


def test_the_limit_and_the_batches():
    episodes = [helpers.lamp_and_door(f"room-{i}") for i in range(4)]
    model, seen = Truth(episodes), []
    card = fidelity.score(
        model,
        episodes,
        limit=10,
        batch=4,
        open_loop_steps=0,
        progress=lambda *at: seen.append(at),
    )
    assert card["transitions"] == 10
    assert model.batches == [4, 4, 2]
    assert seen == [(4, 10), (8, 10), (10, 10)]
    whole = Truth(episodes)
    assert card == fidelity.score(
        whole, episodes, limit=10, batch=64, open_loop_steps=0
    )


def test_no_episodes_are_no_numbers():
    card = fidelity.score(Truth([]), [], limit=5)
    assert card["transitions"] == 0
    assert brief(card["exact"]["all"]) == {"mean": None, "count": 0}


# --- confidence --------------------------------------------------------------

TOLD = dataclasses.replace(
    SEED, task=dataclasses.replace(SEED.task, instruction="lamp on door open")
)


def test_confidence_is_compared_with_what_is_right():
    def doubting(p, state):
        sure = state == TOLD.transitions[0].state
        return p._replace(
            confidence=0.9 if sure else 0.2, reward=p.reward if sure else 7.0
        )

    scorecard = fidelity.score(Truth([TOLD], doubting), [TOLD], limit=9)["confidence"]
    assert (scorecard["count"], scorecard["right"], scorecard["auroc"]) == (
        3,
        1 / 3,
        1.0,
    )
    # One right at 0.9, two wrong at 0.2: gaps 0.1 and 0.2.
    assert scorecard["calibration_error"] == pytest.approx((0.1 + 2 * 0.2) / 3)


def test_an_unknown_confidence_is_no_number():
    model = Truth([TOLD], lambda p, _: p._replace(confidence=float("nan")))
    scorecard = fidelity.score(model, [TOLD], limit=9)["confidence"]
    assert (scorecard["count"], scorecard["auroc"], scorecard["bins"]) == (0, None, [])


def test_inventions_are_told_from_mistakes():
    def at(name):
        model = Truth([TOLD], lambda p, _: p._replace(next_state=(name,)))
        return fidelity.score(model, [TOLD], limit=9)["hallucinated"]["mean"]

    assert at("the lamp is open") == 0.0  # wrong, but of known words
    assert at("a dragon") == 1.0


def test_missing_words_by_hand():
    """A shell: what a folder holds is new, and then forgotten by the state."""
    task = Task(id="t", instruction="look around")

    def step(state, action, next_state, **more):
        return Transition(
            state=state, action=action, next_state=next_state, rewards={}, **more
        )

    root, folder = ("/ a b",), ("/a apple",)
    steps = (step(root, "cd a", folder), step(folder, "cd ..", root))
    flagged = (step(root, "cd a", folder, reveals=False), steps[1])

    def scored(transitions, change):
        # Ten tasks have the apple, so that it is a word of the vocabulary.
        episodes = [
            dataclasses.replace(
                SEED,
                id=f"e{i}",
                task=dataclasses.replace(task, id=f"t{i}"),
                transitions=transitions,
            )
            for i in range(10)
        ]
        card = fidelity.score(Truth(episodes, change), episodes, limit=99)
        return card["missing_words"]

    def other(p, state):
        return p._replace(next_state=("/a pear",) if state == root else ("/",))

    wrong = scored(steps, other)
    assert {k: (v["mean"], v["count"]) for k, v in wrong.items()} == {
        "new": (0.5, 20),  # the apple, in one of two wrong next states
        "earlier": (0.5, 20),  # b, in the other
    }
    # Where the environment says that nothing was revealed, it could be known.
    knows = scored(flagged, other)
    assert (knows["new"]["count"], knows["earlier"]["count"]) == (10, 20)
    assert knows["new"]["mean"] == 0.0
    assert scored(steps, None)["new"]["count"] == 0
    partly = scored(steps, lambda p, _: p._replace(next_state=(*p.next_state, "x")))
    assert (partly["new"]["mean"], partly["earlier"]["mean"]) == (0.0, 0.0)


def test_reveals_are_weighed_against_the_real_ones():
    model = Truth([SEED], lambda p, _: p._replace(next_state=("nothing",)))
    poor = fidelity.score(model, [SEED], limit=9)["reveals"]
    same = fidelity.score(Truth([SEED]), [SEED], limit=9)["reveals"]
    assert (same["informativeness"], same["diversity"]) == (1.0, 1.0)
    assert same["form"]["mean"] == 1.0
    assert poor["form"]["mean"] == 0.0  # real states have two lines, of other keys
    assert poor["diversity"] == 1 / 2  # one state for both reveals


class Doubt(Truth):
    """Knows itself: its signals are its hits, its mass is half."""

    def signals(self, queries):
        return {
            "oracle": [float(q.past == ()) for q in queries],
            "self_consistency": [0.5 for _ in queries],
        }

    def next_state_probability(self, queries, transitions):
        assert len(queries) == len(transitions)
        return [0.25 if q.past else 1.0 for q in queries]


def test_signals_are_compared_as_detectors():
    def wrong_later(p, state):
        first = state == TOLD.transitions[0].state
        return p if first else p._replace(reward=7.0)

    model = Doubt([TOLD], wrong_later)
    card = fidelity.score(model, [TOLD], limit=9, full=True)
    assert card["error_detection_auroc"] == {"oracle": 1.0, "self_consistency": 0.5}
    assert card["consistency"] == 0.5
    assert brief(card["missing_probability"]["all"]) == {
        "mean": pytest.approx(0.5),
        "count": 3,
    }
    assert brief(card["missing_probability"]["reveal"]) == {"mean": None, "count": 0}
    assert card["open_loop"]["episodes"] == 1
    plain = fidelity.score(Truth([TOLD]), [TOLD], limit=9, full=True)
    assert "error_detection_auroc" not in plain
    assert "open_loop" in plain


def test_the_largest_errors_are_of_what_the_world_does_not_draw():
    def wrong_later(p, state):
        first = state == TOLD.transitions[0].state
        return p if first else p._replace(reward=p.reward - 0.25)

    result = fidelity.largest_errors(Doubt([TOLD], wrong_later), [TOLD], limit=9)
    assert result == (0.25, 0.75, 3, 1.25)  # TOLD pays up to 1, the model -0.25 too
    # Two of SEED's three steps reveal something: only `nothing` is left, which is late.
    # Rewards are those of all three, and of what the model says.
    seed = fidelity.largest_errors(Doubt([SEED]), [SEED], limit=9)
    most = max(t.reward for t in SEED.transitions)
    assert seed == (0.0, 0.75, 1, most)
    assert most > 0
    rich = Doubt([TOLD], lambda p, _: p._replace(reward=-2.0))
    assert fidelity.largest_errors(rich, [TOLD], limit=9).span == 1.0 + 2.0
    assert fidelity.largest_errors(Truth([TOLD]), [TOLD], limit=9) is None
    assert fidelity.largest_errors(Doubt([TOLD]), [], limit=9) is None


def test_the_threshold_spares_what_is_worth_keeping():
    def by_step(p, state):
        first = state == TOLD.transitions[0].state
        wrong = p.outcome == "win"
        return p._replace(
            confidence=0.8 if first else 0.1 if wrong else 0.4,
            reward=9.0 if wrong else p.reward,
        )

    model = Truth([TOLD], by_step)
    at = {
        g: fidelity.confidence_threshold(model, [TOLD], limit=9, gate=g)
        for g in (0.0, 0.5, 0.99)
    }
    # Right answers have 0.4 and 0.8; the wrong one does not count.
    assert at[0.0] == 0.0
    assert at[0.5] == pytest.approx(0.6)
    assert at[0.99] == pytest.approx(0.796)
    wrong = Truth([TOLD], lambda p, _: p._replace(reward=9.0))
    assert fidelity.confidence_threshold(wrong, [TOLD], limit=9, gate=0.1) == 0.0


def test_an_unknown_confidence_counts_as_none_and_nothing_else_is_no_threshold():
    unknown = float("nan")

    def by_step(p, state):
        first = state == TOLD.transitions[0].state
        sure = unknown if first else 0.8 if p.outcome == "win" else 0.4
        return p._replace(confidence=sure)

    model = Truth([TOLD], by_step)
    result = [
        fidelity.confidence_threshold(model, [TOLD], limit=9, gate=g)
        for g in (0.25, 0.75)
    ]
    assert result == pytest.approx([0.2, 0.6])  # of 0, 0.4 and 0.8
    silent = Truth([TOLD], lambda p, _: p._replace(confidence=unknown))
    with pytest.raises(ValueError, match=r"gate of 0\.1.*none of the 3"):
        fidelity.confidence_threshold(silent, [TOLD], limit=9, gate=0.1)
    assert fidelity.confidence_threshold(silent, [TOLD], limit=9, gate=0.0) == 0.0


def test_ends_of_training_episodes_that_a_model_gives():
    """Three tasks end, one of them twice; a model that never ends gives none."""
    ended = [
        dataclasses.replace(SEED, id=f"e{i}", task=dataclasses.replace(SEED.task, id=t))
        for i, t in enumerate(("a", "b", "c", "c"))
    ]
    steps = SEED.transitions[:-1]
    running = dataclasses.replace(SEED, id="cut", transitions=steps, success=None)
    truth = Truth([*ended, running])
    rate = fidelity.ends_recalled(truth, [*ended, running], 50)
    assert brief(rate) == {"mean": 1.0, "count": 3}
    assert [q.past for q in truth.queries] == [tuple(t.action for t in steps)] * 3
    assert brief(fidelity.ends_recalled(truth, ended, 2)) == {"mean": 1.0, "count": 2}
    endless = Truth(ended, lambda p, _: p._replace(outcome="go"))
    assert brief(fidelity.ends_recalled(endless, ended, 50)) == {"mean": 0, "count": 3}
    broken = Truth(ended, lambda p, _: p._replace(error="garbled"))
    assert brief(fidelity.ends_recalled(broken, ended, 50)) == {"mean": 0, "count": 3}
    assert brief(fidelity.ends_recalled(truth, [running], 50))["count"] == 0


def test_what_every_step_earns_is_no_reward_of_a_near_miss():
    """Replies have three decimals, and the usual reward may have more."""
    miss = NearMiss(query_after(SEED.task, (), SEED.transitions[0].state, "wait"), True)
    usual = 2 / 3

    def earning(reward):
        return Truth([SEED], lambda p, _: p._replace(reward=reward, outcome="go"))

    for reward, share in ((0.667, 0.0), (0.0, 0.0), (1.0, 1.0)):
        rate = scorecard._near_misses(earning(reward), [miss], usual)
        assert rate["mean"] == share


def drawn_ends():
    """Return episodes of ten steps; of a small draw more than a tenth are ends."""
    step = helpers.transition()
    episodes = []
    for n in range(60):
        steps = [
            dataclasses.replace(
                step,
                state=(f"room {n} {i}",),
                next_state=(f"room {n} {i + 1}",),
                terminated=i == 9,
                reveals=False,
            )
            for i in range(10)
        ]
        task = dataclasses.replace(SEED.task, id=f"t{n}")
        episodes.append(helpers.episode(f"e{n}", task, steps))
    return episodes


def test_calibration_and_threshold_stand_for_whole_episodes():
    """Ends are drawn more often than they occur, and weigh less for it."""
    episodes = drawn_ends()

    def unsure_of_ends(p, _):
        sure = p.outcome == "go"
        state = p.next_state if sure else ("fog",)  # wrong at each end
        return p._replace(
            next_state=state, p_terminal=0.1, confidence=0.9 if sure else 0.3
        )

    model = Truth(episodes, unsure_of_ends)
    draw = sample_cases(episodes, 100)
    assert sum(c.transition.terminated for c in draw) == 20  # twice their share
    scale = fidelity.fit_calibration(model, episodes, limit=100)
    assert scale.p_terminal(0.1) == pytest.approx(0.1, abs=0.03)
    card = fidelity.score(model, episodes, limit=100)
    assert card["confidence"]["right"] == pytest.approx(0.9, abs=0.02)
    assert card["probabilities"]["ends"]["positive"] == pytest.approx(0.1, abs=0.02)
    # Right ends at 0.3 are a tenth of what is acceptable, and a fifth of the draw.
    honest = Truth(
        episodes, lambda p, _: p._replace(confidence=0.9 - 0.6 * (p.outcome != "go"))
    )
    gate = fidelity.confidence_threshold(honest, episodes, limit=100, gate=0.15)
    assert gate == pytest.approx(0.9)


def test_the_scorecard_tells_what_is_forgotten_apart():
    """Two pages, the first of which is opened again: its text stands nowhere then."""
    episodes = []
    for i in range(12):
        first, second = ((f"text {chr(97 + i) * n}",) for n in (3, 4))
        walk = [(("menu",), 0, first), (first, 1, second), (second, 0, first)]
        steps = [helpers.transition(a, f"open {n}", b, reward=0.0) for a, n, b in walk]
        task = Task(id=f"t{i}", instruction=f"read {i}", initial_state=("menu",))
        episodes.append(helpers.episode(f"e{i}", task, steps))

    def forgets(p, state):
        again = len(state[0]) == len("text aaaa")
        return p._replace(next_state=("text other",)) if again else p

    card = fidelity.score(Truth(episodes, forgets), episodes, limit=99)
    assert card["share"]["forgotten"] == pytest.approx(1 / 3)
    assert brief(card["exact"]["forgotten"]) == {"mean": 0.0, "count": 12}
    assert card["exact"]["predictable"]["count"] == 0
    assert brief(card["missing_words"]["earlier"]) == {"mean": 1.0, "count": 12}
    assert card["hallucinated"]["count"] == 0
    model = Truth(episodes, forgets)
    model.states_read = 2  # and so it could know the page
    card = fidelity.score(model, episodes, limit=99)
    assert brief(card["exact"]["predictable"]) == {"mean": 0.0, "count": 12}
    assert card["share"]["forgotten"] == 0.0
