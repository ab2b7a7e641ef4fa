"""What a local model's answers are trusted by, and further samples."""

import dataclasses

import jax
import numpy as np
import pytest

from tests import helpers
from tests.worldmodel.experience.test_grammar import HERE, SHAPE, task
from tests.worldmodel.experience.test_local import QUERIES, others
from worldmodel.backbone.model import create, forward
from worldmodel.experience.calibration import Calibration, Platt
from worldmodel.experience.config import SIGNALS
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts


def test_signals_leave_answers_as_they_are(tok, text_model):
    model, plain = others(tok, text_model), others(tok, text_model)
    result = model.signals(QUERIES[:3])
    assert model.predict(QUERIES[:3]) == plain.predict(QUERIES[:3])
    assert result["token_probability"] == [
        p.confidence for p in plain.predict(QUERIES[:3])
    ]
    assert {round(3 * x) / 3 for x in result["self_consistency"]} == set(
        result["self_consistency"]
    )
    assert "ensemble" not in result
    assert result["nearest_neighbor"][0] == pytest.approx(
        1.0
    )  # the same state and action
    assert result["nearest_neighbor"][3 - 1] < 0.9
    empty = LocalExperienceModel(text_model, tok, ReplayMemory(), SHAPE)
    assert empty.signals(QUERIES[:1])["nearest_neighbor"] == [0.0]


def test_a_sample_is_the_same_in_any_batch_and_another_for_another_number(
    tok, text_model
):
    once = dataclasses.replace(SHAPE, retries=0)  # answers are as they came, too
    model, again = (others(tok, text_model, once) for _ in range(2))
    one, two = (model.sample(QUERIES, number) for number in (0, 1))
    assert again.sample(QUERIES[::-1], 1)[::-1] == two
    assert [again.sample([q], 0)[0] for q in QUERIES[:3]] == one[:3]
    answers = again.predict(QUERIES)
    for item, other in ((one, two), (one, answers), (two, answers)):
        assert [p.reasoning for p in item] != [p.reasoning for p in other]
    # They are not remembered: the answers are those of a model never sampled.
    assert others(tok, text_model, once).predict(QUERIES) == answers
    assert (model.queried, model.computed) == (0, 0)


@pytest.mark.parametrize(("problem", "share"), [(None, 1 / 3), ("malformed", 0.0)])
def test_signals_count_the_samples_that_agree(
    tok, text_model, monkeypatch, problem, share
):
    model = others(tok, text_model)
    (answer,) = model.predict(QUERIES[:1])
    requests = []

    def sample(queries, number):
        requests.append(number)
        said = answer._replace(reward=answer.reward + (number > 0), error=problem)
        return [said for _ in queries]

    monkeypatch.setattr(model, "sample", sample)
    assert model.signals(QUERIES[:1])["self_consistency"] == [share]
    assert requests == [0, 1, 2]


def trusting(tok, model, signal="token_probability", **settings):
    memory = others(tok, model).memory
    return LocalExperienceModel(
        model, tok, memory, SHAPE, confidence_signal=signal, **settings
    )


def test_the_ensemble_goes_by_its_least_sure_member(tok, text_model):
    two = create(text_model.config, seed=5)
    result = {
        name: trusting(tok, text_model, members=m).signals(QUERIES[:4])["ensemble"]
        for name, m in (("a", [text_model]), ("b", [two]), ("ab", [text_model, two]))
    }
    np.testing.assert_allclose(result["ab"], np.minimum(result["a"], result["b"]))
    assert result["a"] != result["b"]
    # A member that is the model says what the model does of the same words.
    answers = others(tok, text_model).predict(QUERIES[:1])
    said = (
        answers[0].next_state,
        prompts.reward_and_outcome_ids(tok, answers[0].reward, answers[0].outcome),
    )
    mass = others(tok, text_model)._sequence_probability(
        text_model, QUERIES[:1], answers, [said]
    )
    np.testing.assert_allclose(result["a"][0], mass[0], rtol=1e-5)


@pytest.mark.medium
def test_an_answer_is_trusted_by_the_signal_that_is_chosen(tok, text_model):
    members = [create(text_model.config, seed=5)]
    plain = trusting(tok, text_model, members=members)
    signals, answers = plain.signals(QUERIES), plain.predict(QUERIES)
    for name, values in signals.items():
        model = trusting(tok, text_model, name, members=members)
        got = model.predict(QUERIES)
        assert [p.confidence for p in got] == values
        assert [p._replace(confidence=0.0) for p in got] == [
            p._replace(confidence=0.0) for p in answers
        ]
        assert model.signals(QUERIES)[name] == values
    assert len(set(signals)) == len(SIGNALS)
    for wrong in ("ensemble", "hope"):
        with pytest.raises(ValueError, match=f"got '{wrong}' and 0 members"):
            trusting(tok, text_model, wrong)


def test_chances_are_scaled_last(tok, text_model):
    scale = Calibration(confidence=Platt(0.5, -1.0), p_terminal=Platt(1.0, 2.0))
    for signal in ("token_probability", "self_consistency"):
        raw = trusting(tok, text_model, signal).predict(QUERIES)
        got = trusting(tok, text_model, signal, calibration=scale).predict(QUERIES)
        assert got == [scale(p) for p in raw]
        assert got != raw


def test_without_noise_every_sample_is_the_answer(tok, text_model):
    greedy = dataclasses.replace(SHAPE, temperature=0.0)
    model = others(tok, text_model, greedy)
    answers = model.predict(QUERIES[:3])
    for number in range(3):
        samples = model.sample(QUERIES[:3], number)
        assert [s[:3] for s in samples] == [a[:3] for a in answers]
    assert all(a.error for a in answers)  # it is not trained
    assert model.signals(QUERIES[:3])["self_consistency"] == [0.0] * 3


@pytest.mark.slow
def test_likelihood_is_the_chain_of_the_real_effect(tok, text_model):
    model = others(tok, text_model)
    t = helpers.transition(HERE, "press lamp", ("the lamp is on", HERE[1]))
    (got,) = model.next_state_probability([QUERIES[0]], [t])
    (answer,) = model.predict([QUERIES[0]])
    (demos,) = model.memory.search([("t1", HERE, "press lamp")], 1)
    context = [
        *prompts.query_ids(tok, task(), (), demos, HERE, "press lamp", history=2),
        *tok.encode(answer.reasoning),
        tok.control("next"),
    ]
    effect = [*prompts.effect_ids(tok, HERE, t.next_state)[1:], tok.control("reward")]
    logp = 0.0
    for i, token in enumerate(effect):
        row = np.array([[*context, *effect[:i]]], np.int32)
        logits = forward(
            text_model.definition,
            text_model.params,
            row,
            np.arange(row.shape[1])[None],
            np.ones_like(row),
        )[0, -1]
        logp += float(jax.nn.log_softmax(logits)[token])
    assert got == pytest.approx(np.exp(logp), rel=1e-3)
    assert 0 < got < 1
