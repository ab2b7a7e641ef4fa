"""The command `judge`: outcomes that a judge of known error finds, and its audit."""

import dataclasses
import json
import random

import pytest

from dreamgym.cli import main
from dreamgym.rewards.outcome_judge import (
    agreement,
    outcome_messages,
    read_verdict,
    with_outcome,
)
from tests import chat_server, doubles
from tests.chat_server import answering, serving
from tests.dreamgym.rewards.test_comparison import won_and_lost
from worldmodel.data.records import read_episodes, write_episodes


def unscored(episode):
    """Return an episode as an environment records it that never says who won."""
    *before, last = episode.transitions
    last = dataclasses.replace(last, success=None, rewards={}, terminated=False)
    steps = tuple(dataclasses.replace(t, rewards={}) for t in before)
    return dataclasses.replace(episode, transitions=(*steps, last), success=None)


def truth(body):
    """Return whether the attempt of a request was won: the lost ones only fly."""
    return "lost" if "fly" in chat_server.user_text(body) else "won"


def answer(verdict):
    return json.dumps({"why": "the states show it", "verdict": verdict})


@pytest.fixture
def episodes():
    return won_and_lost(6)


def test_the_judge_sees_neither_rewards_nor_the_outcome(episodes):
    for episode in episodes[:2]:
        one, two = (
            outcome_messages(e, state_chars=500) for e in (episode, unscored(episode))
        )
        assert one == two
        assert episode.transitions[0].action in one[-1].content


def test_a_judged_outcome_by_hand(episodes):
    won, lost = (unscored(e) for e in episodes[:2])
    judged = with_outcome(won, won=True)
    assert judged.success
    assert judged.transitions[:-1] == won.transitions[:-1]
    last = judged.transitions[-1]
    assert (last.terminated, last.success, last.rewards) == (True, True, {"judge": 1.0})
    assert judged.scored_by == "judge"
    costs = dataclasses.replace(won.transitions[-1], rewards={"step": -0.1})
    costly = dataclasses.replace(won, transitions=(*won.transitions[:-1], costs))
    rewards = with_outcome(costly, won=True).transitions[-1].rewards
    assert rewards == {"step": -0.1, "judge": 1.0}
    # What the environment paid stays as it is.
    paid = with_outcome(episodes[0], won=True)
    assert paid.transitions[-1].rewards == episodes[0].transitions[-1].rewards
    assert with_outcome(lost, won=False).transitions == lost.transitions
    assert with_outcome(lost, won=False).success is False


def test_agreement_by_hand(episodes):
    # Four won (two found, one missed, one without verdict), three lost (two found).
    some = [*episodes[0:8:2], *episodes[1:7:2]]
    verdicts = ["won", "won", "lost", "unclear", "lost", "lost", "won"]
    result = agreement(some, verdicts)
    assert (result.won, result.lost, result.without_verdict) == ((2, 1), (2, 1), 1)
    assert (result.right, result.count) == (4, 6)
    # By chance: (3 won * 3 judged won + 3 lost * 3 judged lost) / 36 = 1 / 2.
    assert result.kappa == pytest.approx((4 / 6 - 1 / 2) / (1 - 1 / 2))
    assert agreement(some, [""] * 7).kappa is None
    unknown = [dataclasses.replace(e, success=None) for e in some]
    assert agreement(unknown, verdicts).count == 0


@pytest.mark.parametrize(
    "text", ["", "won", '{"why": "x"}', '{"why": "x", "verdict": "maybe"}', "[" * 9999]
)
def test_malformed_answers_are_named(text):
    with pytest.raises(ValueError, match="malformed: "):
        read_verdict(text)


def test_the_command_scores_what_nobody_scored(tmp_path, capsys, episodes):
    file, out = tmp_path / "mine.jsonl", tmp_path / "judged.jsonl"
    broken = dataclasses.replace(unscored(episodes[0]), id="broken", error="it broke")
    write_episodes(file, [*map(unscored, episodes[:6]), *episodes[6:], broken])
    with serving(answering(lambda body: answer(truth(body)))) as server:
        command = ["judge", str(file), "--to", str(out), "--server", server.url]
        assert main(command) == 0
        count = len(server.posts)
        first = out.read_bytes()
        assert main(command) == 0  # from the cache
        assert len(server.posts) == count
        assert out.read_bytes() == first
    judged = read_episodes(out)
    assert [e.success for e in judged[:12]] == [e.success for e in episodes]
    assert judged[6:12] == episodes[6:]
    assert judged[12] == broken
    text = capsys.readouterr().out
    assert "judged: 6 episodes, 3 won and 3 lost; 0 stay without a score" in text
    assert "right 100.0 % [61, 100] of 6" in text
    assert "kappa 1.00" in text
    assert "whoever always says the same is right in 50.0 %" in text


def test_a_judge_is_not_measured_by_its_own_verdicts(tmp_path, capsys, episodes):
    file, out = tmp_path / "mine.jsonl", tmp_path / "judged.jsonl"
    write_episodes(file, map(unscored, episodes))
    with serving(answering(lambda _: answer("won"))) as server:
        for source, target in ((file, out), (out, tmp_path / "again.jsonl")):
            command = ["judge", str(source), "--to", str(target)]
            assert main([*command, "--server", server.url]) == 0
            assert "agreement: unknown" in capsys.readouterr().out
    assert {e.scored_by for e in read_episodes(out)} == {"judge"}


@pytest.mark.medium
def test_a_judge_of_known_error_is_measured(tmp_path, capsys):
    # Each task is judged wrong with a probability of 0.3, the same each time.
    episodes = won_and_lost(len(doubles.tasks("train")))

    def wrong(body):
        draw = random.Random(chat_server.user_text(body)).random()
        verdict = truth(body)
        return {"won": "lost", "lost": "won"}[verdict] if draw < 0.3 else verdict

    file, out = tmp_path / "mine.jsonl", tmp_path / "judged.jsonl"
    write_episodes(file, episodes)
    with serving(answering(lambda body: answer(wrong(body)))) as server:
        command = ["judge", str(file), "--to", str(out), "--audit", "1000"]
        assert main([*command, "--server", server.url]) == 0
    text = capsys.readouterr().out
    low, high = text.split("right ")[1].split("[")[1].split("]")[0].split(",")
    assert float(low) < 70 < float(high)
    assert read_episodes(out) == episodes  # what is known stays


def test_what_cannot_be_judged_is_said(tmp_path, capsys, episodes):
    file, out = tmp_path / "mine.jsonl", tmp_path / "judged.jsonl"
    write_episodes(file, map(unscored, episodes))
    assert main(["judge", str(file), "--to", str(out)]) == 2
    assert "judge needs --server URL" in capsys.readouterr().err
    with serving(answering(lambda _: answer("unclear"))) as server:
        assert main(["judge", str(file), "--to", str(out), "--server", server.url]) == 0
    text = capsys.readouterr().out
    assert "judged: 0 episodes" in text
    assert "12 stay without a score" in text
    assert "agreement: unknown, no episode with an outcome of its own" in text
    assert [e.success for e in read_episodes(out)] == [None] * 12
