"""Early experience: BC, IWM and SR examples."""

import dataclasses

import numpy as np
import pytest

from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.early_experience.reflection import reflection_cases
from tests import doubles
from worldmodel.data.records import Branch
from worldmodel.reasoning.rule import explain, has_status_line
from worldmodel.text import edits

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


def test_thoughts_are_never_in_bc():
    thinking = with_thoughts(EPISODE)
    assert early.bc_examples(POLICY, [thinking]) == early.bc_examples(POLICY, [EPISODE])


THINKER = doubles.policy(history=2, thought_tokens=6)


def turn_of(example):
    """The ids of the turn, control tokens by name, and which of them are trained."""
    start = len(example.ids) - 1 - list(example.ids)[::-1].index(TOK.control("why"))
    return names(example.ids[start:]), list(example.mask)[start:]


def test_a_policy_that_thinks_learns_thoughts_and_empty_ones():
    """`why` is forced at play and no target; `action` ends the thought and is one."""
    for episode, thought in ((EPISODE, []), (with_thoughts(EPISODE), ["go on"])):
        for example, t in zip(
            early.bc_examples(THINKER, [episode]), episode.transitions, strict=True
        ):
            words = names(i for x in thought for i in TOK.encode(x))
            action = names([TOK.control("action"), *TOK.encode(t.action)])
            ids, mask = turn_of(example)
            assert ids == ["why", *words, *action, "end"]
            assert mask == [False] + [True] * (len(ids) - 1)


LISTED = ("go left", "go right", "take coin")
READER = doubles.policy(history=2, admissible_actions=2)


def with_lists(episode):
    steps = episode.transitions
    listed = tuple(dataclasses.replace(t, valid_actions=LISTED) for t in steps)
    return dataclasses.replace(episode, transitions=listed)


def test_a_policy_that_reads_lists_learns_with_them_and_without():
    """With the environment's list, and without: in the dream there is none."""
    plain = early.bc_examples(READER, [EPISODE])
    examples = early.bc_examples(READER, [with_lists(EPISODE)])
    assert [list(e.ids) for e in examples[::2]] == [list(e.ids) for e in plain]
    for with_list, without, t in zip(
        examples[1::2], plain, EPISODE.transitions, strict=True
    ):
        assert target(with_list) == target(without)
        context = names(with_list.ids[: list(with_list.mask).index(True) - 1])
        assert context.count("add") == 2
        assert context[-2:] == names([TOK.control("add"), *TOK.encode("go right")])[-2:]
        assert t.action in LISTED
    # A policy that reads none has one example each.
    assert early.bc_examples(POLICY, [with_lists(EPISODE)]) == early.bc_examples(
        POLICY, [EPISODE]
    )


BRANCHES = [
    Branch(episode=EPISODE.id, step=1, transition=t)
    for action in ("go left", "fly")
    for t in doubles.episode(TASK, ["go right", action]).transitions[1:]
]


@pytest.mark.parametrize("method", ["iwm", "sr"])
def test_next_states_and_reflections_are_learned_with_lists_and_without(method):
    """A branch has the list of the expert's step: the alternative was taken there."""

    def examples(policy, episode):
        if method == "iwm":
            return early.iwm_examples(policy, [episode], BRANCHES)
        cases = reflection_cases([episode], BRANCHES, per_state=2, seed=0)
        return early.sr_examples(policy, cases, ["to the coin"] * len(cases))

    plain, listed = examples(READER, EPISODE), with_lists(EPISODE)
    both = examples(READER, listed)
    assert len(plain) == {"iwm": 5, "sr": 2}[method]
    assert both[::2] == plain
    for with_list, without in zip(both[1::2], plain, strict=True):
        assert target(with_list) == target(without)
        assert names(with_list.ids).count("add") == 2
    assert examples(POLICY, listed) == examples(POLICY, EPISODE)


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
            messages = [x for x in edit.lines if isinstance(x, str)]
            assert len(messages) == len(edit.lines)  # nothing moves in this game
            expected += [TOK.line(edit.index), *TOK.encode("\n".join(messages))]
        assert target(example) == names([*expected, TOK.control("end")])


def test_iwm_of_an_action_without_effect_is_an_empty_script():
    stuck = doubles.episode(TASK, ["fly", "fly"])
    examples = early.iwm_examples(POLICY, [stuck], [])
    assert target(examples[1]) == ["end"]
    assert len(target(examples[0])) > 1


def test_iwm_with_reasoning_by_hand():
    """`think`, the trace, then the next state: the trace of a branch is by rule."""
    traced = with_thoughts(EPISODE)  # each with the trace "it moves"
    plain = early.iwm_examples(POLICY, [traced], BRANCHES)
    examples = early.iwm_examples(POLICY, [traced], BRANCHES, reasoning=True)
    traces = ["it moves"] * 3 + [
        explain(b.transition, status=has_status_line(EPISODE)) for b in BRANCHES
    ]
    for example, without, trace in zip(examples, plain, traces, strict=True):
        start = int(np.flatnonzero(without.mask)[0]) - 1  # of `next`
        reasoning = [TOK.control("think"), *TOK.encode(trace)]
        assert list(example.ids) == [
            *without.ids[:start],
            *reasoning,
            *without.ids[start:],
        ]
        # All but `think` is a target behind the action.
        assert list(example.mask) == [False] * (start + 1) + [True] * (
            len(example.ids) - start - 1
        )


def test_traces_of_branches_have_the_style_of_those_of_their_episode():
    for style in ("words", "sentences"):
        plain = early.iwm_examples(POLICY, [EPISODE], BRANCHES, style=style)
        assert plain == early.iwm_examples(POLICY, [EPISODE], BRANCHES)
        examples = early.iwm_examples(
            POLICY, [EPISODE], BRANCHES, reasoning=True, style=style
        )
        texts = [TOK.decode(list(e.ids)) for e in examples]
        sentences = [" the action is " in text for text in texts]
        assert sentences == [style == "sentences"] * 5


MOMENTS = reflection_cases([EPISODE], BRANCHES, per_state=1, seed=0)


def test_sr_trains_on_thought_and_expert_action_in_the_state_alone():
    thoughts = ["to the coin"]
    # Step 1 is the only one with branches.
    (example,) = early.sr_examples(POLICY, MOMENTS, thoughts)
    t = EPISODE.transitions[1]
    context = POLICY.context(TASK, ["go right"], t.state)
    assert list(example.ids[: len(context)]) == context  # no outcome is in sight
    assert not any(example.mask[: len(context)])
    assert all(example.mask[len(context) :])
    shown = names(example.ids[len(context) :])
    assert shown[0] == "why"
    at = shown.index("action")
    assert TOK.decode(example.ids[len(context) + at + 1 : -1]) == "go right"
    assert TOK.decode(example.ids[len(context) + 1 : len(context) + at]) == thoughts[0]


def test_a_policy_that_thinks_reflects_as_it_acts():
    (example,) = early.sr_examples(THINKER, MOMENTS, ["to the coin"])
    ids, mask = turn_of(example)
    assert ids[0] == "why"
    assert mask == [False] + [True] * (len(ids) - 1)


def test_a_moment_without_a_thought_is_no_example():
    assert early.sr_examples(POLICY, MOMENTS, [None]) == []
    with pytest.raises(ValueError, match="shorter"):
        early.sr_examples(POLICY, MOMENTS, [])


# --- IWM beside RL -----------------------------------------------------------


def own(trajectories, most=99, seed=0):
    return early.rollout_iwm_examples(
        POLICY, trajectories, max_examples=most, seed=seed
    )


def test_iwm_of_rollouts_is_that_of_episodes_each_turn_once():
    walked = [doubles.trajectory(TASK, ["go right", "fly"], index=i) for i in range(3)]
    other = doubles.trajectory(TASK, ["go right", "go left"])
    results = own([*walked, other])
    plain = early.iwm_examples(POLICY, [walked[0].episode, other.episode], [])
    # Four rollouts begin alike, three of them go on alike.
    assert [list(e.ids) for e in results] == [list(plain[i].ids) for i in (0, 1, 3)]
    assert [e.weight for e in results] == [4.0, 3.0, 1.0]
    assert [e.mask for e in results] == [plain[i].mask for i in (0, 1, 3)]
    # The context is the one that the turn was sampled in.
    for example, turn in zip(results, walked[0].turns, strict=False):
        assert tuple(example.ids[: len(turn.context)]) == turn.context


def test_iwm_of_rollouts_leaves_out_what_broke_and_no_more_than_told():
    broken = doubles.trajectory(TASK, ["go right", "fly"], error="dream: no line")
    assert len(own([broken])) == 1
    assert own([]) == []
    some = [doubles.trajectory(t, ["go right"]) for t in doubles.tasks("train")[:6]]
    whole = [tuple(e.ids) for e in own(some)]
    assert len(whole) == 6
    drawn = [tuple(e.ids) for e in own(some, most=2, seed=1)]
    assert drawn == [x for x in whole if x in drawn]
    assert len(drawn) == 2
    assert drawn == [tuple(e.ids) for e in own(some, most=2, seed=1)]
