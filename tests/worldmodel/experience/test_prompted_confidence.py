"""What a server's answers are trusted by, and samples beside them."""

import dataclasses
import json
import math

import pytest

from tests.chat_server import Server, answering, ok, serving, status
from tests.worldmodel.experience.test_prompted import GOOD, SAID, ask, chat, memory
from worldmodel.chat.protocol import ChatUnavailable
from worldmodel.experience.base import SAMPLES, Sampling
from worldmodel.experience.config import PromptedConfig
from worldmodel.experience.prompted import PromptedExperienceModel


def trusting(
    server: Server, signal: str, *names: str, **more
) -> PromptedExperienceModel:
    return PromptedExperienceModel(
        chat(server.url, **more),
        memory(*names),
        PromptedConfig(retries=1),
        confidence_signal=signal,
    )


def once(*message: str):
    """The n-th request for each question gets the n-th text, later ones the last."""
    queries: dict[str, list[int]] = {}

    def rule(body):
        seeds = queries.setdefault(body["messages"][-1]["content"], [])
        if body["seed"] not in seeds:
            seeds.append(body["seed"])
        return message[min(seeds.index(body["seed"]), len(message) - 1)]

    return answering(rule)


OTHER = json.dumps(GOOD | {"reward": 0.25})
THOUGHT = json.dumps(GOOD | {"reasoning": "another way to say it"})


@pytest.mark.parametrize(
    ("replies", "share"),
    [
        ((SAID,), 1.0),
        ((SAID, OTHER, SAID, OTHER), 1 / 3),
        ((SAID, THOUGHT, SAID, THOUGHT), 1.0),  # what is compared is what happens
        ((SAID, "nonsense", OTHER, SAID), 1 / 3),  # a malformed sample does not agree
    ],
)
def test_agreement_is_the_share_of_more_samples_that_say_the_same(replies, share):
    with serving(once(*replies)) as server:
        model = trusting(server, "self_consistency")
        (result,) = model.predict([ask()])
        assert len(server.posts) == 1 + SAMPLES  # a malformed sample stands
        model.predict([ask()])
        assert len(server.posts) == 1 + SAMPLES  # and all of it is remembered
    assert result.confidence == pytest.approx(share)
    assert result.reward == GOOD["reward"]


@pytest.mark.parametrize("lost", ["nonsense", 413])
def test_a_sample_that_is_none_does_not_agree_that_nothing_happens(lost):
    """What stands in its place is: the same state, no reward, go on."""
    same = json.dumps(GOOD | {"next_state": list(ask().state), "reward": 0})
    with serving(once(same, same, lost)) as server:
        (result,) = trusting(server, "self_consistency").predict([ask()])
    assert result.error is None
    assert result.confidence == pytest.approx(1 / 3)


def test_nearest_is_how_near_the_memory_is_without_the_own_task():
    with serving(ok(SAID)) as server:
        near = trusting(server, "nearest_neighbor", "t8")
        same, far = near.predict([ask(), ask("sing a long song", state=("a field",))])
        own = trusting(server, "nearest_neighbor", "t1").predict([ask()])[0]
        assert len(server.posts) == 3
    assert same.confidence == pytest.approx(1.0, abs=1e-5)
    assert far.confidence < 0.5
    assert own.confidence == 0.0


def test_the_chances_are_scaled_after_the_signal_is_taken():
    with serving(ok(SAID)) as server:
        model = PromptedExperienceModel(
            chat(server.url),
            memory(),
            PromptedConfig(),
            confidence_signal="self_consistency",
            scale=lambda a: a._replace(confidence=a.confidence / 2),
        )
        (result,) = model.predict([ask()])
    assert result.confidence == 0.5


def test_what_has_no_answer_has_no_confidence():
    with serving(ok("nonsense")) as server:
        (result,) = trusting(server, "self_consistency").predict([ask()])
        assert len(server.posts) == 2  # asked again, and never for agreement
    assert result.error is not None
    assert math.isnan(result.confidence)


def test_samples_have_noise_of_their_own_and_are_no_answers():
    with serving(once(SAID, OTHER, THOUGHT)) as server:
        model = trusting(server, "token_probability")
        assert isinstance(model, Sampling)
        first = model.predict([ask()])
        samples = [model.sample([ask()], n)[0] for n in range(2)]
        assert model.predict([ask()]) == first
        assert len({body["seed"] for body in server.posts}) == 3
    assert [s.reward for s in samples] == [0.25, 0.5]


def test_a_server_that_dies_while_it_is_sampled_is_an_error():
    with serving(ok(SAID), status(500)) as server:
        model = trusting(server, "self_consistency")
        with pytest.raises(ChatUnavailable):
            model.predict([ask()])


@pytest.mark.parametrize(
    ("signal", "temperature", "message"),
    [
        ("ensemble", 0.7, "confidence_signal must be one of"),
        ("self_consistency", 0.0, "must be > 0"),
    ],
)
def test_a_signal_that_a_server_cannot_give_is_refused(signal, temperature, message):
    client = chat("http://127.0.0.1:9/v1", temperature=temperature)
    assert dataclasses.asdict(client.config)["temperature"] == temperature
    with pytest.raises(ValueError, match=message):
        PromptedExperienceModel(
            client, memory(), PromptedConfig(), confidence_signal=signal
        )
