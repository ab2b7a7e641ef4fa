"""What novel states pay, by hand, and what tells them apart."""

import dataclasses
import itertools
import math

import pytest

from dreamgym.rewards.config import NoveltyConfig
from dreamgym.rewards.novelty import NoveltyReward
from worldmodel.data.records import Episode, Task, Transition


def walk(*rooms: str) -> Episode:
    """An episode through states of one line each."""
    states = [(f"you are in the {room}",) for room in rooms]
    steps = tuple(
        Transition(state=a, action="go", next_state=b)
        for a, b in itertools.pairwise(states)
    )
    task = Task(id="t", instruction="explore", family="house", initial_state=states[0])
    return Episode(id="e", task=task, transitions=steps, source="policy", success=True)


SEEN = [walk("hall", "kitchen"), walk("hall", "kitchen", "cellar", "attic")]
PAY = NoveltyConfig(weight=2.0)


def twice(*rooms):
    """Two episodes, so that their words are known."""
    return [walk(*rooms)] * 2


def test_a_state_is_paid_by_the_episodes_that_reached_it():
    novelty = NoveltyReward(PAY, twice("hall", "kitchen", "cellar"))
    # Two collected episodes had each of these; the new one is the third.
    (pay,) = novelty.reward([walk("hall", "kitchen", "cellar")])
    assert pay == [2 / math.sqrt(3)] * 2
    (pay,) = novelty.reward([walk("hall", "kitchen")])
    assert pay == [2 / math.sqrt(4)]
    (pay,) = novelty.reward([walk("hall", "cellar")])
    assert pay == [2 / math.sqrt(4)]


def test_only_the_first_visit_in_an_episode_is_paid_and_none_of_its_start():
    novelty = NoveltyReward(PAY, twice("hall", "kitchen"))
    (pay,) = novelty.reward([walk("hall", "kitchen", "hall", "kitchen", "kitchen")])
    assert pay == [2 / math.sqrt(3), 0.0, 0.0, 0.0]
    # And the episode counts the state once, however often it was there.
    (pay,) = novelty.reward([walk("hall", "kitchen")])
    assert pay == [2 / math.sqrt(4)]


def test_equal_rollouts_are_paid_alike_in_any_order():
    rows = [walk("hall", "kitchen"), walk("hall", "cellar"), walk("hall", "kitchen")]
    words = twice("hall", "kitchen", "cellar")
    pay = NoveltyReward(PAY, words).reward(rows)
    assert pay == [[2 / math.sqrt(4)], [2 / math.sqrt(3)], [2 / math.sqrt(4)]]
    assert NoveltyReward(PAY, words).reward(rows[::-1]) == pay[::-1]


def test_numbers_and_random_words_do_not_tell_states_apart():
    novelty = NoveltyReward(PAY, [*twice("hall"), *twice("hall", "screen of")])
    screens = ["screen of 17", "screen of 4.5 and x9", "screen of zorp blick", "screen"]
    keys = {novelty.key((f"you are in the {s}",)) for s in screens}
    assert len(keys) == 2
    # Numbers, and words that nobody knows, are one gap, of whatever length.
    a, b = ("the screen of 17",), ("the screen of zorp blick",)
    assert novelty.key(a) == novelty.key(b) != novelty.key(("the screen of",))
    # Known words, their order and the lines do.
    assert novelty.key(("the hall",)) != novelty.key(("the screen",))
    assert novelty.key(("you are", "the hall")) != novelty.key(("you are the hall",))
    (pay,) = novelty.reward([walk("hall", "screen of 1", "screen of 2", "screen of 3")])
    assert pay == [2.0, 0.0, 0.0]


def test_numbers_tell_states_apart_where_the_settings_say_so():
    config = dataclasses.replace(PAY, numbers=True)
    novelty = NoveltyReward(config, twice("hall", "screen of"))
    (pay,) = novelty.reward([walk("hall", "screen of 1", "screen of 2", "screen of 1")])
    assert pay == [2.0, 2.0, 0.0]
    (pay,) = novelty.reward([walk("hall", "screen of zorp", "screen of blick")])
    assert pay == [2.0, 0.0]  # words that nobody knows still do not


def test_what_a_single_episode_says_is_no_word_that_is_known():
    novelty = NoveltyReward(PAY, [*SEEN, walk("hall", "zorp")])
    assert novelty.key(("the zorp",)) == novelty.key(("the blick",))
    assert novelty.key(("the zorp",)) != novelty.key(("the hall",))


def test_counts_go_on_from_where_they_were_saved():
    words = twice("hall", "kitchen", "cellar")
    novelty = NoveltyReward(PAY, words)
    novelty.reward([walk("hall", "kitchen")])
    other = NoveltyReward(PAY, words)
    other.load(novelty.state())
    rows = [walk("hall", "kitchen", "cellar")]
    assert other.reward(rows) == novelty.reward(rows)
    assert NoveltyReward(PAY, words).reward(rows) != other.reward(rows)


def test_bad_settings_are_refused_by_name():
    with pytest.raises(ValueError, match="weight must be >= 0 and finite, got -1"):
        NoveltyConfig(weight=-1.0)
    with pytest.raises(ValueError, match="weight is 0: set it above 0"):
        NoveltyConfig(numbers=True)
