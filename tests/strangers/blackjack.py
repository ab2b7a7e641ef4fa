"""Gymnasium's Blackjack (toy_text/blackjack.py); a seed fixes the cards."""

import functools

import gymnasium

from tests.strangers.common import SeededEnv, Turn

ACTIONS = ("stick", "hit")


class Blackjack(SeededEnv):
    """One hand against the dealer. Only hands that can be won are tasks."""

    name, instruction, max_episode_steps = "blackjack", "beat the dealer", 6

    def __init__(self):
        super().__init__()
        self.env = gymnasium.make("Blackjack-v1").unwrapped

    def begin(self, seed):
        # The 400th hand that can be won has a seed below 2,000.
        self.hand = winnable(SeededEnv.seeds)[seed][0]
        self.state, _ = self.env.reset(seed=self.hand)
        return self.text("your turn")

    def text(self, message):
        total, dealer, ace = map(int, self.state)
        return (
            f"hand {seed_name(self.hand)}\ndealer {dealer}\n"
            f"said {message} ace {'yes' if ace else 'no'} sum {total}"
        )

    def act(self, action):
        if action not in ACTIONS:
            return Turn(self.text("unknown action"), 0, invalid=True)
        self.state, reward, ended, _, _ = self.env.step(ACTIONS.index(action))
        won = ended and reward > 0
        message = "you win" if won else "you lose" if ended else "your turn"
        return Turn(self.text(message), reward, bool(ended), won)

    def expert(self):
        return ["hit"] * winnable(SeededEnv.seeds)[self.seed][1] + ["stick"]

    def valid_actions(self):
        return list(ACTIONS)


def seed_name(seed):
    """The number of a hand in letters: hands that look alike are different tasks."""
    return "".join(chr(97 + int(digit)) for digit in str(seed))


@functools.cache
def winnable(count):
    """The first hands that some number of cards wins: (seed, cards to take)."""
    env, out, seed = gymnasium.make("Blackjack-v1").unwrapped, [], 0
    while len(out) < count:
        for cards in range(4):
            env.reset(seed=seed)
            if not any(env.step(1)[2] for _ in range(cards)) and env.step(0)[1] > 0:
                out.append((seed, cards))
                break
        seed += 1
    return out
