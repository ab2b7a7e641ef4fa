"""Actions made of words, where nothing is listed."""

import collections

import gymnasium
import numpy as np
import pytest

from dreamgym.envs.spaces import AnyText
from dreamgym.envs.word_actions import has_sampler, make_action

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
