"""The classifier of components: its questions and loss by hand, and what it learns."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rewards.components import classifier
from dreamgym.rewards.components.classifier import (
    COMPONENTS,
    ComponentClassifier,
    accuracies,
    answered_questions,
    label_error,
    question_example,
)
from dreamgym.rewards.reward_model_config import RewardModelConfig
from tests import doubles
from tests.dreamgym.rewards.components.common import episode, episodes
from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.model import create
from worldmodel.data.records import Episode, Task, Transition

CONFIG = RewardModelConfig(
    steps=40, batch_pairs=4, row_tokens=64, learning_rate=1e-2, save_every=40, history=0
)


def asked(actions, calls, *, success=True):
    """An episode of these actions, with a state for each."""
    options = {} if calls is None else {"calls": calls}
    steps = tuple(
        Transition(state=(f"step {i}",), action=a, next_state=(f"step {i + 1}",))
        for i, a in enumerate(actions)
    )
    task = Task(id="t", instruction="", options=options)
    return Episode(id="e", task=task, transitions=steps, source="", success=success)


def rows(*answered):
    return [(q.component, q.state[0], q.text, label) for q, label in answered]


A, B = {"tool": "a", "arguments": {"n": 1}}, {"tool": "b", "arguments": {}}


def test_questions_by_hand():
    (one,) = answered_questions(
        [asked(['a {"n": 1}', "done"], [A, None])], "step", seed=0
    )
    assert rows(*one) == [
        ("when", "step 0", "", 1.0),
        ("which", "step 0", "a", 1.0),
        ("arguments", "step 0", 'a {"n": 1}', 1.0),
        ("when", "step 1", "", 0.0),
    ]
    assert one[-1][0].past == ('a {"n": 1}',)


def test_what_was_made_wrongly_is_a_wrong_answer():
    # n = 3 scores 1 - |3 - 1| / 1, at least 0; n = 1.5 scores 0.5.
    made = ["b {}", 'a {"n": 1.5}', 'a {"n": 3}']
    (one,) = answered_questions([asked(made, [A, A, A])], "step", seed=0)
    assert rows(*one)[:5] == [
        ("when", "step 0", "", 1.0),
        ("which", "step 0", "a", 1.0),
        ("which", "step 0", "b", 0.0),
        ("arguments", "step 0", 'a {"n": 1}', 1.0),
        ("when", "step 1", "", 1.0),
    ]
    arguments = {text: x for name, _, text, x in rows(*one) if name == "arguments"}
    assert arguments == {'a {"n": 1}': 1.0, 'a {"n": 1.5}': 0.5, 'a {"n": 3}': 0.0}


@pytest.mark.parametrize(
    ("match", "due"),
    [
        ("step", ["a", "b", ""]),
        ("order", ["a", "a", "b"]),  # nothing was made at the first step
        ("assignment", ["ab", "ab", "b"]),
    ],
)
def test_what_is_due_follows_the_rule_of_matching(match, due):
    e = asked(["wait", 'a {"n": 1}', "wait"], [A, B])
    (one,) = answered_questions([e], match, seed=0)
    right = [
        "".join(q.text for q, x in one if q.component == "which" and x and q.state == s)
        for s in (t.state for t in e.transitions)
    ]
    assert right == due


def test_a_tool_that_the_task_lists_is_a_wrong_answer_too():
    e = asked(['a {"n": 1}'], [A])
    options = {**e.task.options, "tools": [{"name": "a"}, {"name": "c"}]}
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, options=options))
    (one,) = answered_questions([e], "step", seed=0)
    which = [(q.text, x) for q, x in one if q.component == "which"]
    assert which == [("a", 1.0), ("c", 0.0)]


@pytest.mark.parametrize("wrong", ["b {}", 'a {"n": '])
@pytest.mark.parametrize("match", ["order", "assignment"])
def test_a_wrong_or_malformed_call_leaves_open_what_was_expected(match, wrong):
    e = asked([wrong, wrong, 'a {"n": 1}', "done"], [A, None])
    (one,) = answered_questions([e], match, seed=0)
    assert [x for q, x in one if q.component == "when"] == [1.0, 1.0, 1.0, 0.0]
    assert {q.text for q, x in one if q.component == "which" and x} == {"a"}


def test_a_wrong_call_leaves_open_what_another_call_of_the_tool_is_for():
    # The second a is matched with b, where nothing better is left: b is still open.
    e = asked(['a {"n": 1}', 'a {"n": 1}', "b {}"], [A, B])
    (one,) = answered_questions([e], "assignment", seed=0)
    right = [(q.state[0], q.text) for q, x in one if q.component == "which" and x]
    assert right == [("step 0", "a"), ("step 0", "b"), ("step 1", "b"), ("step 2", "b")]


@pytest.mark.parametrize("match", ["step", "order", "assignment"])
def test_a_task_that_expects_no_call_teaches_that_none_is_due(match):
    silent = asked(["look", 'a {"n": 1}'], [], success=False)
    (one,) = answered_questions([silent], match, seed=0)
    assert rows(*one) == [("when", "step 0", "", 0.0), ("when", "step 1", "", 0.0)]


def test_without_expected_calls_those_of_a_won_episode_are_taken():
    won = asked(['a {"n": 1}', "done"], None)
    (one,) = answered_questions([won], "assignment", seed=0)
    assert rows(*one)[0] == ("when", "step 0", "", 1.0)
    lost = dataclasses.replace(won, success=False)
    without = asked(["go right", "done"], None)
    malformed = asked(['a {"n": ', 'a {"n": 1}'], None)
    assert answered_questions([lost, without, malformed], "assignment", seed=0) == []


@pytest.mark.parametrize("wrong", ['a {"n": 2}', 'a {"n": '])
def test_a_refused_call_of_a_won_episode_was_not_right(wrong):
    won = asked([wrong, 'a {"n": 1}', "done"], None)
    first, *others = won.transitions
    refused = dataclasses.replace(first, invalid=True)
    won = dataclasses.replace(won, transitions=(refused, *others))
    (row,) = answered_questions([won], "assignment", seed=0)
    asked_for = {(q.text, x) for q, x in row if q.component == "arguments" and x == 1}
    assert {text for text, _ in asked_for} == {'a {"n": 1}'}


def test_wrong_answers_are_of_other_tools_and_of_other_calls():
    whole = [episode(2, 1, ("wall", "ok")), episode(2, 5, ("no coin", "ok"))]
    for row in answered_questions(whole, "step", seed=0):
        which = [(q.text, x) for q, x in row if q.component == "which"]
        assert {x for _, x in which} == {0.0, 1.0}
        assert {text for text, _ in which} == {"go", "take"}
    more = [episode(2, 1, ("wall",)), episode(2, 5, ("wall",))]
    first, _ = answered_questions(more, "step", seed=0)
    arguments = {q.text: x for q, x in first if q.component == "arguments"}
    assert arguments == {'go {"room": 1}': 1.0, 'go {"room": 5}': 0.0}


def test_the_loss_by_hand():
    # -log sigmoid(2) = 0.1269 where the label is 1, -log(1 - sigmoid(-1)) = 0.3133
    # where it is 0; for a label of 0.5 it is softplus(0) - 0 = 0.6931, on no side.
    scores = jnp.array([[2.0, -1.0, 0.0, 9.0]])
    mask = np.array([[True, True, True, False]])
    label = np.array([[1.0, 0.0, 0.5, 0.0]], np.float32)
    error, right = label_error(scores, mask, label)
    np.testing.assert_allclose(
        float(error.total), 0.1269280 + 0.3132617 + 0.6931472, rtol=1e-5
    )
    assert (float(error.count), float(right.total)) == (3, 3)
    nan = label_error(scores.at[0, 3].set(jnp.nan), mask, label)
    assert float(nan[0].total) == float(error.total)


# --- what is learned -----------------------------------------------------------

ROOMS = tuple(range(10))
SEEN = answered_questions(episodes(ROOMS[:8]), "step", seed=0)
UNSEEN = answered_questions(episodes(ROOMS[8:], split="dev"), "step", seed=0)


def only(answered, *names):
    return [[(q, x) for q, x in row if q.component in names] for row in answered]


def permuted(answered, seed):
    """Labels that know nothing of the rule: permuted within each component."""
    rng = np.random.default_rng(seed)
    flat = [x for row in answered for x in row]
    for name in COMPONENTS:
        index = [i for i, (q, _) in enumerate(flat) if q.component == name]
        labels = rng.permutation([flat[i][1] for i in index])
        for i, label in zip(index, labels, strict=True):
            flat[i] = (flat[i][0], float(label))
    again = iter(flat)
    return [[next(again) for _ in row] for row in answered]


def fitted(answered, folder, config=CONFIG, model=None):
    return classifier.fit(
        model or doubles.model(),
        doubles.tokenizer(),
        answered,
        config,
        seed=0,
        directory=folder,
    )[0]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return fitted(only(SEEN, "when"), tmp_path_factory.mktemp("learned"))


@pytest.mark.medium
def test_when_a_call_is_due_is_learned_and_permuted_labels_teach_nothing(
    learned, tmp_path
):
    seen, unseen = only(SEEN, "when"), only(UNSEEN, "when")
    right = accuracies(learned, seen, unseen)["when"]
    assert right["held_out"] == 2 * 2 * 6 * 3
    assert right["majority"] == pytest.approx(2 / 3)
    assert right["accuracy"] > 0.95
    lied = permuted(seen, 0)
    control = accuracies(fitted(lied, tmp_path), lied, unseen)["when"]
    assert control["accuracy"] < 0.75


@pytest.mark.slow
def test_tools_and_arguments_are_learned_too(tmp_path):
    tok = doubles.tokenizer()
    model = create(
        ModelConfig(
            vocab_size=tok.vocab_size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=64,
        ),
        seed=0,
    )
    config = dataclasses.replace(CONFIG, steps=250, learning_rate=5e-3, save_every=250)
    right = accuracies(fitted(SEEN, tmp_path / "a", config, model), SEEN, UNSEEN)
    lied = permuted(SEEN, 0)
    control = accuracies(fitted(lied, tmp_path / "b", config, model), lied, UNSEEN)
    assert list(right) == list(COMPONENTS)
    assert all(row["accuracy"] > 0.9 for row in right.values())
    assert all(row["accuracy"] < 0.75 for row in control.values())


def test_it_is_saved_and_loaded(learned, tmp_path):
    questions = [q for row in UNSEEN[:2] for q, _ in row]
    labels = learned.labels(questions)
    learned.save(tmp_path / "c")
    again = ComponentClassifier.load(tmp_path / "c")
    np.testing.assert_allclose(again.labels(questions), labels, rtol=1e-5)
    assert all(0 <= x <= 1 for x in labels)
    assert learned.labels([]) == []
    path = tmp_path / "c" / "reward.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"objective": "progress"})
    )
    with pytest.raises(ValueError, match="got a reward model of the objective"):
        ComponentClassifier.load(tmp_path / "c")


def test_a_label_does_not_depend_on_the_other_questions(learned):
    questions = [q for row in UNSEEN[:6] for q, _ in row]
    alone = [learned.labels([q])[0] for q in questions[:4]]
    together = learned.labels(questions)[:4]
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_the_question_is_read_to_its_end():
    tok = doubles.tokenizer()
    (question, _), *_ = SEEN[0]
    example = question_example(tok, question, 0)
    assert example.mask == [False] * (len(example.ids) - 1) + [True]
    other = question._replace(component="which", text="go")
    assert question_example(tok, other, 0).ids != example.ids


def test_nothing_to_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no questions"):
        fitted([], tmp_path)
