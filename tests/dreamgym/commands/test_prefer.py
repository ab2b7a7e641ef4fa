"""The command `prefer`: a person's choices, a judge's, and what it writes."""

import io

import pytest
from rich.console import Console

from dreamgym.cli import main
from dreamgym.commands import prefer
from dreamgym.rewards.comparison import pair_attempts
from dreamgym.rewards.preferences import read_preferences
from tests.chat_server import answering, serving, user_text
from tests.dreamgym.rewards.test_comparison import (
    answer,
    truth,
    won_and_lost,
    won_and_lost_by_kind,
)
from worldmodel.data.records import write_episodes


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine" / "episodes.jsonl"
    write_episodes(path, won_and_lost(4))
    return path


def typing(*choices):
    """Return a function that gives one choice after another, then none."""
    some = iter(choices)
    return lambda: next(some, None)


def test_a_person_chooses_and_the_same_command_goes_on(tmp_path):
    pairs = pair_attempts(won_and_lost(4), max_pairs=1)
    file, screen = tmp_path / "pairs.jsonl", io.StringIO()
    console = Console(file=screen, highlight=False)
    result = prefer.ask_person(pairs, file, console, typing("a", "what", "E", " b "))
    assert result.verdicts == {"A": 1, "equal": 1, "B": 1}
    one, two = read_preferences(file)
    assert (one.better, one.worse) == (pairs[0].first, pairs[0].second)
    assert (two.better, two.worse) == (pairs[2].second, pairs[2].first)
    shown = screen.getvalue()
    assert "1 of 4" in shown
    assert "attempt a" in shown
    assert "fly" in shown
    left = prefer.open_pairs(pairs, file)
    assert left == [pairs[1], pairs[3]]
    prefer.ask_person(left, file, console, typing("a", "q"))
    assert len(read_preferences(file)) == 3
    assert "2 pairs written, 1 equal" in prefer.summary(result)
    assert result.accuracy == {"text": (1, 3)}  # "equal" is not right
    assert "33.3 % [6, 79] of 3 pairs with a verdict" in prefer.summary(result)


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(tmp_path):
    (pair,) = pair_attempts(won_and_lost(1), max_pairs=1)
    step = pair.first[0]
    bad = type(step)(**{**vars(step), "action": "\x1b[2Jgo"})
    screen = io.StringIO()
    prefer.ask_person(
        [pair._replace(first=(bad,))],
        tmp_path / "pairs.jsonl",
        Console(file=screen, highlight=False, force_terminal=True),
        typing("q"),
    )
    assert "\x1b[2J" not in screen.getvalue()


def test_a_judge_writes_the_pairs_it_is_sure_of(file, tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    with serving(answering(lambda body: answer(truth(body)))) as server:
        command = ["prefer", str(file), "--to", str(out), "--by", "judge"]
        assert main([*command, "--server", server.url]) == 0
        count = len(server.posts)
        assert main([*command, "--server", server.url]) == 0
        assert len(server.posts) == count == 8
    for pair in read_preferences(out):
        assert pair.better[-1].success
        assert not pair.worse[-1].success
    text = capsys.readouterr().out
    assert "4 pairs written, 0 equal" in text
    assert "8 answers, of which 50.0 % for the attempt shown first" in text
    assert "0 pairs left out because it contradicts itself" in text
    assert "first difference: 4 text" in text


def test_two_files_have_a_win_rate(file, tmp_path, capsys):
    episodes = won_and_lost(4)
    other = tmp_path / "theirs" / "episodes.jsonl"
    write_episodes(file, episodes[::2])
    write_episodes(other, episodes[1::2])
    with serving(answering(lambda body: answer(truth(body)))) as server:
        command = ["prefer", str(file), str(other), "--to", str(tmp_path / "p.jsonl")]
        assert main([*command, "--by", "judge", "--server", server.url]) == 0
    text = capsys.readouterr().out
    assert "win rate of mine/episodes.jsonl over theirs/episodes.jsonl: 100.0 %" in text


def test_pairs_of_a_kind_alone_are_asked_about(file, tmp_path, capsys):
    write_episodes(file, won_and_lost_by_kind(3))
    out = tmp_path / "pairs.jsonl"
    command = ["prefer", str(file), "--to", str(out), "--by", "judge"]

    def rule(body):  # it takes the lost one where the tools differ
        right = truth(body)
        wrong = "open" in user_text(body)
        return answer({"A": "B", "B": "A"}[right] if wrong else right)

    with serving(answering(rule)) as server:
        assert main([*command, "--server", server.url, "--kind", "which,how"]) == 0
        assert len(server.posts) == 12
    assert {p.task.id.rpartition("-")[2] for p in read_preferences(out)} == {
        "which",
        "how",
    }
    text = capsys.readouterr().out
    assert "first difference: 3 which, 3 how" in text
    assert "the won attempt is the better one in 50.0 % [19, 81] of 6 pairs" in text
    assert "which 0 of 3, how 3 of 3" in text
    write_episodes(file, won_and_lost(3))
    assert main([*command, "--server", server.url, "--kind", "which,how"]) != 0
    assert "at the same task differ first in which or how" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "judge"], "--by judge needs --server URL"),
        (["--server", "http://127.0.0.1:1/v1"], "--by person takes no --server"),
        (["--max-pairs", "0"], "--max-pairs must be >= 1, got 0"),
        (["--limit", "0"], "--limit must be >= 1, got 0"),
        (["--kind", "which,why"], "--kind must be among ('when', 'which', 'how',"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    file, tmp_path, capsys, options, message
):
    command = ["prefer", str(file), "--to", str(tmp_path / "pairs.jsonl")]
    assert main([*command, *options]) != 0
    assert message in capsys.readouterr().err


def test_episodes_without_a_second_attempt_are_refused(file, tmp_path, capsys):
    write_episodes(file, won_and_lost(4)[::2])
    assert main(["prefer", str(file), "--to", str(tmp_path / "pairs.jsonl")]) != 0
    assert "no two attempts at the same task differ" in capsys.readouterr().err
