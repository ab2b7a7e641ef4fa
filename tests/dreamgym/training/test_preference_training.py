"""Offline DPO: its turns, its loss by hand, and that it learns what the pairs say."""

import collections
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.agent.policy import Situation
from dreamgym.agent.recorded_turns import recorded_attempt, recorded_turn
from dreamgym.rewards.preferences import Preference
from dreamgym.rl.dpo_config import DPOConfig, PlannedPairsConfig
from dreamgym.training.preference_training import (
    PairMetrics,
    PairTurns,
    PreferenceTrainer,
    pair_turns,
    train_preferences,
)
from tests import doubles, helpers
from tests.dreamgym.rl import updates as base
from worldmodel.backbone.model import forward
from worldmodel.fitting.batches import pack
from worldmodel.fitting.learner import copy_params

CONFIG = DPOConfig(
    pairs="pairs.jsonl",
    beta=0.5,
    updates=12,
    batch_pairs=8,
    learning_rate=1e-2,
    batch_rows=8,
    row_tokens=80,
    eval_every=6,
)
WON, LOST = ("go right", "take coin"), ("go left",)


def preference(task, better=WON, worse=LOST):
    sides = (doubles.episode(task, list(x)).transitions for x in (better, worse))
    return Preference(task=task, better=next(sides), worse=next(sides))


def reversed_(pairs):
    return [dataclasses.replace(p, better=p.worse, worse=p.better) for p in pairs]


def pairs_of(split, count):
    """Pairs of different tasks: the way to the coin over back and forth."""
    return [
        Preference(
            task=task,
            better=doubles.expert(task).transitions,
            worse=doubles.episode(task, ["go right", "go left"] * 2).transitions,
        )
        for task in doubles.tasks(split)[:count]
    ]


# --- turns -------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("settings", [{}, {"thought_tokens": 3}])
def test_a_grammar_reads_what_the_policy_samples(settings):
    """Forced tokens, phases and their first tokens are those of sampling."""
    policy = doubles.policy(action_tokens=4, **settings)
    situations = [Situation(t, (), t.initial_state) for t in doubles.tasks("train")[:8]]
    keys = jax.random.split(jax.random.key(0), 8)
    turns = policy.act(situations, keys, temperature=1.0)
    assert not all(all(turn.sampled[1:]) for turn in turns)  # some reach the limit
    for turn in turns:
        parsed = policy.grammar(1.0).parse(turn.ids)
        assert parsed is not None
        sampled, phases, first = parsed
        assert sampled == list(turn.sampled)
        part = [2 * p + f for p, f in zip(phases, first, strict=True)]
        assert part == list(turn.part)


def test_a_recorded_turn_is_as_one_that_was_sampled():
    policy, task = doubles.policy(), doubles.task(0, 1, 2)
    situation = Situation(task, (), task.initial_state)
    turn = doubles.turn(policy, task, (), task.initial_state, "go right")
    want = turn.example()
    got = recorded_turn(policy, policy.grammar(1.0), situation, "go right", "why")
    assert got is not None
    for name in ("ids", "mask", "token_type"):
        assert list(getattr(got, name)) == list(getattr(want, name))
    # A policy that thinks writes the thought, or an empty one.
    thinking = doubles.policy(thought_tokens=4)
    more = [
        recorded_turn(thinking, thinking.grammar(1.0), situation, "go right", thought)
        for thought in ("go", None)
    ]
    size = len(want.ids) + 1  # `why`
    assert [len(e.ids) for e in more] == [
        size + len(policy.tokenizer.encode("go")),
        size,
    ]


def test_a_grammar_reads_no_other_stream():
    policy = doubles.policy(action_tokens=2)
    tok, grammar = policy.tokenizer, policy.grammar(1.0)
    action, end = tok.control("action"), tok.control("end")
    go = tok.encode("go")[0]
    assert grammar.parse([action, go, end]) == (
        [False, True, True],
        [0, 1, 1],
        [True, True, False],
    )
    # The limit of two tokens forces the end: it was no choice.
    assert grammar.parse([action, go, go, end])[0] == [False, True, True, False]
    for ids in ([go, end], [action, end], [action, go], [action, go, go, go, end]):
        assert grammar.parse(ids) is None
    assert grammar.parse([action, go, end, end]) is None


def test_what_cannot_be_learnt_from_is_counted_and_left_out():
    policy, (task, other) = doubles.policy(action_tokens=6), doubles.tasks("train")[:2]
    fine = preference(task)

    def saying(action):
        first = dataclasses.replace(fine.better[0], action=action)
        return dataclasses.replace(fine, better=(first, *fine.better[1:]))

    long = dataclasses.replace(
        fine.worse[0], state=tuple(f"line {i}" for i in range(60))
    )
    given = [
        fine,
        saying("go " * 9),  # longer than the policy may write
        saying(""),
        dataclasses.replace(fine, worse=(long,)),
        preference(other, better=LOST),
        preference(doubles.tasks("test")[0]),
    ]
    narrow = dataclasses.replace(CONFIG, row_tokens=16)
    turns, counts = pair_turns(policy, given, narrow)
    assert len(turns) == 1
    assert counts == {
        "unwritable_action": 2,
        "too_long": 1,
        "same_actions": 1,
        "test_task": 1,
    }
    assert [len(x) for x in turns[0]] == [2, 1]


def test_an_attempt_may_be_one_transition_of_an_episode():
    policy, task = doubles.policy(), doubles.task(0, 2, 4)
    whole = doubles.episode(task, ["go right", "go right", "take coin"]).transitions
    pair = Preference(task=task, better=whole[2:], worse=whole[:1])
    ((better, worse),), counts = pair_turns(policy, [pair], CONFIG)
    assert not counts
    assert len(better) == len(worse) == 1
    start = policy.context(task, (), whole[2].state)
    assert list(better[0].ids)[: len(start)] == start


# --- the loss ----------------------------------------------------------------


def test_metrics_by_hand():
    # Margins 2, 0 and -1: losses log(1 + e^-m); right, a tie, wrong.
    result = PairMetrics.of(np.array([2.0, 0.0, -1.0]))
    expected = (np.log1p(np.exp(-2.0)) + np.log(2.0) + np.log1p(np.exp(1.0))) / 3
    assert result.loss == pytest.approx(expected)
    assert result.accuracy == pytest.approx(0.5)
    assert result.margin == pytest.approx(1 / 3)


def attempt_logp(policy, turns):
    """A function of parameters: log p of what was chosen in each attempt of pairs."""
    sides = [side for pair in turns for side in pair]
    numbered = [e.with_columns(row=i) for i, side in enumerate(sides) for e in side]
    tokens, masks = pack(numbered, 80), base.masks_of(policy)
    rows = (tokens.ids, tokens.position, tokens.segment)

    def of(params):
        logits = forward(policy.model.definition, params, *rows)
        logp = base.logp_of(logits, tokens, masks, 1.0)
        sampled = jnp.where(tokens.mask, logp, 0.0).ravel()
        return jax.ops.segment_sum(sampled, tokens.columns["row"].ravel(), len(sides))

    return of


@pytest.mark.medium
def test_an_update_has_the_gradient_of_dpo():
    """Away from the reference, against autodiff of eq. 7 of arXiv:2305.18290."""
    policy = doubles.policy(action_tokens=6)
    tasks = doubles.tasks("train")[:2]
    pairs = [preference(tasks[0]), preference(tasks[1], ("go right",), LOST)]
    turns, _ = pair_turns(policy, pairs, CONFIG)
    trainer = PreferenceTrainer(policy, turns, CONFIG)
    # A copy: the update donates its state, and other tests use this model.
    state = trainer.init()._replace(params=copy_params(doubles.model(1).params))

    logp = attempt_logp(policy, turns)
    reference = logp(policy.model.params)

    def dpo(params):
        ratio = (logp(params) - reference).reshape(2, 2)
        margin = CONFIG.beta * (ratio[:, 0] - ratio[:, 1])
        return -jax.nn.log_sigmoid(margin).mean()

    loss, want = jax.jit(jax.value_and_grad(dpo))(state.params)
    taken = {}
    learner = trainer._updater.learner
    apply = learner.apply

    def record(state, grads, metrics):
        count = float(metrics["loss"].count)
        taken["gradient"] = jax.tree.map(lambda g: g / count, grads)
        return apply(state, grads, metrics)

    learner.apply = record
    _, metrics, step = trainer.update(state, turns, seed=0)
    assert metrics.loss == pytest.approx(float(loss), rel=1e-4)
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
    assert size > 1e-3
    assert helpers.distance(taken["gradient"], want) < 1e-3 * size
    assert step["grad_norm"] > 0


def test_steps_that_both_attempts_begin_with_change_nothing():
    """They cancel: the pair has the same loss and gradient with them and without."""
    policy, task = doubles.policy(action_tokens=6), doubles.task(0, 2, 4)
    pair = preference(task, ("go right", "go right"), ("go right", "go left"))
    ((better, worse),), _ = pair_turns(policy, [pair], CONFIG)
    assert len(better) == len(worse) == 1
    start = policy.context(task, ("go right",), pair.better[1].state)
    assert list(better[0].ids)[: len(start)] == start  # what came before is read
    whole = PairTurns(
        *(
            recorded_attempt(
                policy,
                policy.grammar(1.0),
                task,
                side,
                max_tokens=99,
                counts=collections.Counter(),
            )
            for side in (pair.better, pair.worse)
        )
    )
    assert [len(side) for side in whole] == [2, 2]
    results = []
    for turns in (PairTurns(better, worse), whole):
        trainer = PreferenceTrainer(policy, [whole], CONFIG)
        params = copy_params(doubles.model(1).params)
        state = trainer.init()._replace(params=params)
        after, metrics, _ = trainer.update(state, [turns], seed=0)
        results.append((after.params, metrics))
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-5)
    assert helpers.distance(results[0][0], results[1][0]) < 1e-4
    assert helpers.distance(results[0][0], doubles.model(1).params) > 1e-3
    # An attempt that is the beginning of another one keeps its last turn.
    longer = preference(task, ("go right", "go right"), ("go right",))
    ((better, worse),), _ = pair_turns(policy, [longer], CONFIG)
    assert (len(better), len(worse)) == (2, 1)


def test_the_start_is_indifferent_and_the_order_of_pairs_does_not_matter():
    policy = doubles.policy(action_tokens=6)
    turns, _ = pair_turns(policy, pairs_of("train", 3), CONFIG)
    trainer = PreferenceTrainer(policy, turns, CONFIG)
    start = trainer.evaluate(trainer.init(), turns)
    assert start == pytest.approx((np.log(2.0), 0.5, 0.0), abs=1e-5)
    one, metrics, _ = trainer.update(trainer.init(), turns, seed=0)
    two, again, _ = trainer.update(trainer.init(), turns[::-1], seed=0)
    assert metrics == pytest.approx(again, abs=1e-6)
    assert helpers.distance(one.params, two.params) < 1e-4


# --- learning ----------------------------------------------------------------


@pytest.fixture(scope="module")
def learner_pairs():
    policy = doubles.policy(action_tokens=6)
    train, dev = pairs_of("train", 16), pairs_of("dev", 6)
    assert not {p.task.id for p in train} & {p.task.id for p in dev}
    return policy, train, dev


def trained(policy, train, dev, directory, config=CONFIG):
    sides = [pair_turns(policy, pairs, config)[0] for pairs in (train, dev)]
    return train_preferences(
        policy, sides[0], config, held_out=sides[1], seed=0, directory=directory
    )


def test_pairs_without_a_gradient_change_nothing(monkeypatch):
    """Where sigma(-margin) is 0 in float32, the policy stays, and training goes on."""
    policy = doubles.policy(action_tokens=6)
    turns, _ = pair_turns(policy, [preference(doubles.tasks("train")[0])], CONFIG)
    trainer = PreferenceTrainer(policy, turns, CONFIG)
    far = np.array([1e6, 1e6, -1e6])
    monkeypatch.setattr(trainer._updater, "reference_log_ratio", lambda _: far)
    state = trainer.init()
    after, metrics, step = trainer.update(state, turns, seed=0)
    assert int(after.step) == int(state.step) + 1
    assert helpers.distance(after.params, state.params) == 0.0
    assert (metrics.loss, step["grad_norm"]) == (0.0, 0.0)


@pytest.mark.medium
def test_the_better_attempt_of_unseen_tasks_becomes_more_likely(
    learner_pairs, tmp_path
):
    policy, train, dev = learner_pairs
    _, curve, result = trained(policy, train, dev, tmp_path / "a")
    assert result.accuracy == 1.0
    assert result.margin > 0.5
    assert [row["step"] for row in curve] == [6, 12]
    assert curve[-1]["held_out/accuracy"] == result.accuracy
    assert curve[-1]["loss"] < curve[0]["loss"] < np.log(2.0) + 0.01
    # The control: the same pairs, reversed, teach the opposite.
    _, _, control = trained(policy, reversed_(train), dev, tmp_path / "b")
    assert control.accuracy == 0.0
    assert control.margin < -0.5


@pytest.mark.medium
def test_an_interrupted_training_goes_on_where_it_was(learner_pairs, tmp_path):
    policy, train, dev = learner_pairs
    whole, curve, result = trained(policy, train, dev, tmp_path / "a")

    class Killed(Exception):
        pass

    def kill(step, row):
        del row
        if step == 6:
            raise Killed

    sides = [pair_turns(policy, pairs, CONFIG)[0] for pairs in (train, dev)]
    more = {"held_out": sides[1], "seed": 0, "directory": tmp_path / "b"}
    with pytest.raises(Killed):
        train_preferences(policy, sides[0], CONFIG, progress=kill, **more)
    steps = []
    again, rows, same = train_preferences(
        policy, sides[0], CONFIG, progress=lambda step, _: steps.append(step), **more
    )
    assert steps == [12]
    assert json.dumps(rows) == json.dumps(curve)
    assert same == result
    assert helpers.distance(again.model.params, whole.model.params) == 0.0


def test_nothing_is_trained_without_pairs(learner_pairs, tmp_path):
    policy, train, _ = learner_pairs
    with pytest.raises(ValueError, match="got 16 and 0"):
        trained(policy, train, [], tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "dream"}, "start must be one of"),
        ({"updates": 0}, "updates must be >= 1, got 0"),
        ({"beta": 0.0}, "beta and learning_rate must be > 0"),
        ({"held_out_share": 1.0}, r"held_out_share in \(0, 1\)"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DPOConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": 0}, "tasks must be >= 1, got 0"),
        ({"min_visits": 0}, "min_visits must be >= 1, got 0"),
        ({"simulations": 1}, "simulations must be >= 2, got 1"),
        ({"margin": 0.0}, r"discount and margin must be in \(0, 1\], got 0.9 and 0.0"),
    ],
)
def test_bad_settings_of_a_search_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PlannedPairsConfig(**changes)


def test_settings_without_effect_are_named():
    assert DPOConfig().dead() is None
    assert "beta has no effect without dpo.pairs" in DPOConfig(beta=0.2).dead()
    file, own = DPOConfig(pairs="p.jsonl"), DPOConfig(pairs="collected")
    assert (file.file, own.file, file.dead(), own.dead()) == ("p.jsonl", "", None, None)
    assert "max_pairs" in dataclasses.replace(file, max_pairs_per_task=2).dead()
    assert "held_out" in dataclasses.replace(own, held_out_share=0.5).dead()
    search = PlannedPairsConfig(margin=0.5)
    planned = DPOConfig(pairs="planned", held_out_share=0.5, planned=search)
    assert (planned.file, planned.dead()) == ("", None)
    assert "planned is about" in dataclasses.replace(own, planned=search).dead()
