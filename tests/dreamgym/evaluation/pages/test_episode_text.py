"""Compared steps in a terminal."""

import io

from rich.console import Console

from dreamgym.evaluation.comparisons.episode_comparison import LEGEND, episode_view
from dreamgym.evaluation.pages.episode_text import print_episode
from dreamgym.evaluation.state_text import as_lines
from tests.dreamgym.evaluation.comparisons.test_episode_comparison import (
    EPISODE,
    steps,
    view,
)
from tests.dreamgym.evaluation.hostile import ATTACK


def printed(found, width=80, **more):
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False, **more)
    print_episode(found, console)
    return file.getvalue()


def test_both_sides_stand_next_to_each_other_and_differences_are_marked():
    text = printed(view())
    first, second, third = text.partition("Action   ")[0].split("─\n")[1:4]
    assert "1. press lamp   the dream is right" in first
    assert "Reasoning: so <it> is" in first
    assert "Confidence: 0.750" in first
    assert "(0.50) nothing: nothing changes" in first
    assert "2. nothing   the dream differs" in second
    (row,) = [x for x in second.splitlines() if x.endswith("fog") or "fog " in x]
    assert row.split() == ["-", "the", "lamp", "is", "on", "+", "fog"]
    assert "! reward 1, the episode is won" in second
    assert "Confidence: not known" in second
    assert "the dream has ended" in third


def test_every_part_has_a_legend():
    text = " ".join(printed(view(), width=300).split())
    for name, meaning in LEGEND:
        assert f"{name} {meaning}" in text


def test_no_line_is_wider_than_the_terminal():
    assert max(map(len, printed(view(), width=40).splitlines())) <= 40


def test_hostile_text_is_no_markup_and_no_escape_sequence():
    one = steps()[0]
    bad = one._replace(
        real=one.real.__class__(state=(ATTACK,), action=ATTACK, next_state=(ATTACK,)),
        dreamed=one.dreamed._replace(next_state=(ATTACK,), reasoning=ATTACK),
    )
    text = printed(episode_view(EPISODE, [bad], as_lines), width=1000)
    assert "\x1b" not in text
    assert "[bold]" in text  # as written
    coloured = printed(
        episode_view(EPISODE, [bad], as_lines), width=1000, force_terminal=True
    )
    assert "\x1b[2J" not in coloured
