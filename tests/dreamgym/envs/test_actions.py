"""Lists of actions, and actions made of words where nothing is listed."""

import collections
import math
import time

import gymnasium
import numpy as np
import pytest

from dreamgym.envs import base, restarting
from dreamgym.envs.actions import as_list, has_sampler, make_action
from dreamgym.envs.failures import deadlines_of, declared_copies
from dreamgym.envs.spaces import AnyText
from dreamgym.envs.vector import RealVectorEnv
from tests import doubles

INSTRUCTION = "Bring the lamp on. You can say: press N, open [box] or wait."
STATE = ("switch 1 untried", "switch 2 untried", "the cellar is dark")


def made(instruction=INSTRUCTION, state=STATE, taken=(), count=4000):
    rng = np.random.default_rng(0)
    actions = (make_action(rng, instruction, state, taken) for _ in range(count))
    return collections.Counter(actions)


def test_forms_of_the_instruction_are_filled_with_words_of_the_state():
    actions = made()
    # Every number and many a word stands in place of `N`; the form itself is no action.
    assert min(actions["press 1"], actions["press 2"]) > 100
    assert actions["press cellar"] > 0
    assert actions["press N"] == 0
    assert actions["open cellar"] > 0
    assert actions["open [box]"] == 0
    assert actions["wait"] > 50  # a phrase without a placeholder
    assert actions["Bring the lamp on"] > 50
    seen = set(" ".join((*STATE, INSTRUCTION)).replace(",", " ").split())
    words = {word for action in actions for word in action.split()}
    assert words <= seen | {w.strip(".:,[]") for w in seen}


def test_values_of_several_spellings_are_found_among_many_words():
    dates, times = ("2026-12-03", "2026-12-04"), ("09:30", "12:00")
    state = (f"days {' '.join(dates)}", f"times {' '.join(times)}", "a b c d e f g h")
    actions = made("Actions: book DATE TIME.", state)
    # Of 17 words one pair of two in 17^2 would fit; spellings are 4.
    fitting = sum(actions[f"book {d} {t}"] for d in dates for t in times)
    assert fitting > 0.03 * sum(actions.values())
    # A value is exchanged for another one of its spelling.
    actions = made("Do it.", state, taken=["book 2026-12-03 12,50 Ana"])
    assert actions["book 2026-12-04 12,50 Ana"] > 50
    assert not any("book 09:30" in action for action in actions)
    assert actions["book 2026-12-03 12,50 Do"] > 50  # a name, by its spelling
    assert actions["book 2026-12-03 09:30 Ana"] > 10  # nothing else is spelt so


def test_one_word_of_what_was_taken_is_exchanged_a_number_for_a_number():
    actions = made("Do what is right.", taken=["turn wheel 1"])
    total = sum(actions.values())
    assert 0.35 < actions["turn wheel 1"] / total < 0.55  # as it is, or 1 for 1
    assert actions["turn wheel 2"] > 0.03 * total
    assert actions["turn wheel cellar"] == 0
    assert actions["turn switch 1"] > 0
    assert actions["cellar wheel 1"] > 0


def test_without_any_phrase_there_are_words():
    actions = made("", count=500)
    assert all(1 <= len(action.split()) <= 3 for action in actions)
    assert actions["cellar"] > 0
    assert made("", state=(), count=20) == {"wait": 20}
    # A clause that is no short phrase is not said as a whole.
    long = "one two three four five six seven"
    assert max(len(a.split()) for a in made(long, state=(), count=500)) == 3


def test_equal_generators_make_equal_actions():
    assert made(count=50) == made(count=50)
    rngs = [np.random.default_rng(seed) for seed in (0, 1)]
    a, b = ([make_action(r, INSTRUCTION, STATE, ()) for _ in range(20)] for r in rngs)
    assert a != b


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (AnyText(), False),
        (gymnasium.spaces.Text(10), False),
        (gymnasium.spaces.Discrete(3), True),
    ],
)
def test_spaces_of_text_have_no_sampler(space, expected):
    env = gymnasium.Env()
    env.action_space = space
    assert has_sampler(env) is expected


def test_what_is_listed_is_a_list_in_the_same_order_everywhere():
    names = [f"go {i}" for i in range(20)]
    assert as_list(set(names)) == sorted(names)
    assert as_list(frozenset(names)) == sorted(names)
    assert as_list(name for name in names) == names
    assert as_list(np.array(names)) == names
    assert as_list(None) is None
    for text in ("go left", b"go left"):
        with pytest.raises(
            TypeError, match=r"must return a list, got the text b?'go left'"
        ):
            as_list(text)


class Listing(doubles.Corridor):
    """A corridor whose lists are of other types."""

    def valid_actions(self):
        return {"go left", "go right", "take coin"}

    def expert(self):
        yield from super().expert()


def test_lists_of_other_types_are_read_by_all_who_play():
    envs = RealVectorEnv([restarting.RestartingEnv(Listing)], max_steps=9)
    envs.reset(options={"tasks": [doubles.tasks("train")[0]], "reset_mask": [True]})
    assert envs.valid_actions(0) == ["go left", "go right", "take coin"]
    bare = RealVectorEnv([Listing()], max_steps=9)
    bare.reset(options={"tasks": [doubles.tasks("train")[0]], "reset_mask": [True]})
    assert bare.valid_actions(0) == ["go left", "go right", "take coin"]
    env = restarting.RestartingEnv(Listing)
    base.begin(env, doubles.tasks("train")[0])
    assert isinstance(env.expert(), list)


class Slow(doubles.Corridor):
    reset_seconds = 0.1

    def expert(self):
        for action in super().expert():
            time.sleep(1)
            yield action


def test_a_generator_keeps_the_deadline_too():
    env = restarting.RestartingEnv(Slow)
    base.begin(env, doubles.tasks("train")[0])
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="expert"):
        env.expert()
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("value", [None, math.inf, 0])
def test_no_limit_may_be_said_in_several_ways(value):
    env = doubles.Corridor()
    env.reset_seconds = env.step_seconds = env.max_copies = value
    assert deadlines_of(env)[:2] == (0.0, 0.0)
    assert declared_copies(env) == (None if value != 0 else 1)


@pytest.mark.parametrize("value", ["ten", -1, [1], True, math.nan])
def test_other_limits_are_named(value):
    env = doubles.Corridor()
    env.step_seconds = env.max_copies = value
    with pytest.raises(ValueError, match=r"Corridor.step_seconds must be a number"):
        deadlines_of(env)
    with pytest.raises(ValueError, match=r"Corridor.max_copies must be a number"):
        declared_copies(env)
