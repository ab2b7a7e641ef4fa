"""Early experience: branches by prefix replay; BC, IWM and SR examples."""

import dataclasses

import pytest

from dreamgym.agent import early_experience as early
from tests import doubles
from worldmodel.text import edits
from worldmodel.text.records import Branch

POLICY = doubles.policy(history=2)
TOK = doubles.tokenizer()
TASK = doubles.task(0, 2, 3)
EPISODE = doubles.expert(TASK)  # go right, go right, take coin


def names(ids):
    return [TOK.name(i) or TOK.decode([i]) for i in ids]


def target(example):
    """What is trained on, control tokens by name."""
    kept = zip(example.ids, example.mask, strict=True)
    return names([i for i, m in kept if m])


# --- branches ----------------------------------------------------------------


def test_branches_are_what_the_environment_answers_to_other_actions():
    found, spent, drifted = early.branch(
        doubles.Corridor(), [EPISODE], alternatives=5, most=9, seed=0
    )
    assert drifted == []
    for step, expert in enumerate(EPISODE.transitions):
        mine = [b for b in found if b.step == step]
        others = set(doubles.ACTIONS) - {expert.action}
        assert {b.transition.action for b in mine} == others
        for branch in mine:
            assert branch.episode == EPISODE.id
            t, real = branch.transition, doubles.walk(
                expert.state, branch.transition.action
            )  # fmt: skip
            assert t.state == expert.state
            assert t.next_state == real.state
            assert (t.reward, t.terminated) == (real.reward, real.terminated)
            assert t.success is False
    # Step s costs its prefix once to look, and prefix and action for each of two.
    assert spent == sum(s + 2 * (s + 1) for s in range(3))


def test_alternatives_and_episodes_are_limited_and_drawn_by_seed():
    episodes = [doubles.expert(t) for t in doubles.tasks("train")[:6]]

    def of(seed):
        return early.branch(
            doubles.Corridor(), episodes, alternatives=1, most=4, seed=seed
        )

    found, _, _ = of(0)
    places = [(b.episode, b.step) for b in found]
    assert len(set(places)) == len(places)
    assert {e for e, _ in places} == {e.id for e in episodes[:4]}
    assert of(0) == of(0)
    assert any(of(0) != of(seed) for seed in range(1, 4))


def test_without_valid_actions_alternatives_come_from_other_episodes():
    class Silent(doubles.Corridor):
        valid_actions = property()  # type: ignore[assignment]

    other = doubles.episode(doubles.task(1, 0, 3), ["go left", "fly", "take coin"])
    found, _, _ = early.branch(
        Silent(), [EPISODE, other], alternatives=9, most=1, seed=0
    )
    first = {b.transition.action for b in found if b.step == 0}
    assert first == {"go left", "fly", "take coin"}


def test_a_replay_that_does_not_arrive_is_detected():
    wrong = ("at 3", *EPISODE.transitions[1].state[1:])
    first, second, last = EPISODE.transitions
    bad = dataclasses.replace(
        EPISODE, id="bad",
        transitions=(
            dataclasses.replace(first, next_state=wrong),
            dataclasses.replace(second, state=wrong),
            last,
        ),
    )  # fmt: skip
    found, _, drifted = early.branch(
        doubles.Corridor(), [bad, EPISODE], alternatives=2, most=9, seed=0
    )
    assert drifted == ["bad"]
    assert {b.step for b in found if b.episode == "bad"} == {0}  # it still stood there
    assert {b.step for b in found if b.episode == EPISODE.id} == {0, 1, 2}


def test_a_game_that_starts_elsewhere_yields_no_branch():
    moved = dataclasses.replace(
        EPISODE, task=dataclasses.replace(TASK, options={"at": 1, "goal": 2, "end": 3})
    )
    found, spent, drifted = early.branch(
        doubles.Corridor(), [moved], alternatives=2, most=9, seed=0
    )
    assert (found, spent, drifted) == ([], 0, [EPISODE.id])


def test_a_replay_that_drifts_midway_leaves_the_episode():
    class Aging(doubles.Corridor):
        """Another first room from the sixth game on."""

        games = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            type(self).games += 1
            if self.games > 5:
                self.state = ("at 1", *self.state[1:])
            return "\n".join(self.state), {"instruction": "take the coin"}

    # Resets 1-3 serve step 0, 4-5 the look and first branch of step 1, 6 drifts.
    found, _, drifted = early.branch(Aging(), [EPISODE], alternatives=2, most=9, seed=0)
    assert drifted == [EPISODE.id]
    assert sorted(b.step for b in found) == [0, 0, 1]
    assert Aging.games == 6  # no game is spent on an episode that was left


# --- examples ----------------------------------------------------------------


def test_bc_trains_on_the_action_and_its_end_alone():
    examples = early.bc_examples(POLICY, [EPISODE])
    assert len(examples) == 3
    for step, (example, t) in enumerate(
        zip(examples, EPISODE.transitions, strict=True)
    ):
        past = [x.action for x in EPISODE.transitions[:step]]
        context = POLICY.context(TASK, past, t.state)
        turn = [TOK.control("action"), *TOK.encode(t.action), TOK.control("end")]
        assert list(example.ids) == [*context, *turn]
        # `action` is forced when the policy acts: not a target.
        assert list(example.mask) == [False] * (len(context) + 1) + [True] * (
            len(turn) - 1
        )
        assert target(example)[-1] == "end"


def test_bc_keeps_repeats_within_a_task_once():
    twice = [EPISODE, dataclasses.replace(EPISODE, id="again")]
    assert len(early.bc_examples(POLICY, twice)) == 3
    other = dataclasses.replace(TASK, id="other task")
    assert len(early.bc_examples(POLICY, [EPISODE, doubles.expert(other)])) == 6


def with_thoughts(episode):
    return dataclasses.replace(
        episode,
        transitions=tuple(
            dataclasses.replace(t, thought="go on", reasoning="it moves")
            for t in episode.transitions
        ),
    )


def test_thoughts_are_never_in_bc_unless_asked_for():
    thinking = with_thoughts(EPISODE)
    assert early.bc_examples(POLICY, [thinking]) == early.bc_examples(POLICY, [EPISODE])
    asked = early.bc_examples(POLICY, [thinking], thoughts=True)
    assert all(TOK.control("why") in e.ids for e in asked)


BRANCHES = [
    Branch(episode=EPISODE.id, step=1, transition=t)
    for action in ("go left", "fly")
    for t in doubles.episode(TASK, ["go right", action]).transitions[1:]
]


def test_iwm_trains_on_the_next_state_of_expert_and_branch_alike():
    examples = early.iwm_examples(POLICY, [EPISODE], BRANCHES)
    assert len(examples) == 3 + 2
    rows = [(i, t) for i, t in enumerate(EPISODE.transitions)]
    rows += [(b.step, b.transition) for b in BRANCHES]
    for example, (step, t) in zip(examples, rows, strict=True):
        past = [x.action for x in EPISODE.transitions[:step]]
        context = POLICY.context(TASK, past, t.state)
        ids = list(example.ids)
        assert ids[: len(context)] == context
        shown = names(ids[len(context) :])
        assert shown[0] == "action"
        assert shown[shown.index("end") + 1] == "next"
        assert TOK.decode(ids[len(context) + 1 :][: shown.index("end") - 1]) == t.action
        # Trained on: the edits and the end, not the action and not the forced `next`.
        expected = []
        for edit in edits.diff(t.state, t.next_state):
            said = [x for x in edit.lines if isinstance(x, str)]
            assert len(said) == len(edit.lines)  # nothing moves in this game
            expected += [TOK.line(edit.index), *TOK.encode("\n".join(said))]
        assert target(example) == names([*expected, TOK.control("end")])


def test_iwm_of_an_action_without_effect_is_an_empty_script():
    stuck = doubles.episode(TASK, ["fly", "fly"])
    examples = early.iwm_examples(POLICY, [stuck], [])
    assert target(examples[1]) == ["end"]
    assert len(target(examples[0])) > 1


def test_sr_trains_on_thought_and_expert_action_in_the_state_alone():
    examples = early.sr_examples(POLICY, [EPISODE], BRANCHES, per_state=1, seed=0)
    (example,) = examples  # step 1 is the only one with branches
    t = EPISODE.transitions[1]
    context = POLICY.context(TASK, ["go right"], t.state)
    assert list(example.ids[: len(context)]) == context  # no outcome is in sight
    assert not any(example.mask[: len(context)])
    assert all(example.mask[len(context) :])
    shown = names(example.ids[len(context) :])
    assert shown[0] == "why"
    at = shown.index("action")
    assert TOK.decode(example.ids[len(context) + at + 1 : -1]) == "go right"
    thought = TOK.decode(example.ids[len(context) + 1 : len(context) + at])
    assert thought in {early.reflect(t, [b.transition]) for b in BRANCHES}


def test_sr_takes_at_most_as_many_as_told_and_none_without_branches():
    def count(per_state, branches=BRANCHES):
        return len(
            early.sr_examples(POLICY, [EPISODE], branches, per_state=per_state, seed=0)
        )

    assert [count(0), count(1), count(2), count(9)] == [0, 1, 2, 2]
    assert count(3, []) == 0


def step(before, action, after, **told):
    t = doubles.episode(TASK, ["go right"]).transitions[0]
    return dataclasses.replace(
        t, state=before, action=action, next_state=after, **({"rewards": {}} | told)
    )


@pytest.mark.parametrize(
    ("after", "told", "words"),
    [
        (("a", "b"), {"success": True, "terminated": True}, "would finish the task"),
        (("a", "b"), {"rewards": {"r": 0.5}}, "would make progress"),
        (("a", "b"), {"terminated": True}, "would fail"),
        (("a",), {}, "would change nothing"),
        (("a", "b"), {}, "would show something new"),
        (("c",), {}, "would lead on"),
        (("c",), {"rewards": {"r": -0.5}}, "would lead on"),
    ],
)
def test_a_reflection_names_the_real_outcome(after, told, words):
    good = step(("a",), "win", ("z",), success=True, terminated=True)
    other = step(("a",), "try", after, **told)
    assert early.reflect(good, [other]) == (f"try {words} so win would finish the task")
    assert early.reflect(other, []) == f"try {words}"
