"""Reward of novel states: what has seldom been seen in the run pays more.

episodes -> states without numbers and random words -> counts of episodes that reached
them -> weight / sqrt(count) for the first visit of each in an episode (count-based
exploration, MBIE-EB; arXiv:1606.01868).

A screen that draws lots shows a new state at every step, and a reward of novelty holds
an agent there for ever (the noisy television of arXiv:1808.04355). So numbers, and
words that are in no two of the collected episodes, do not tell states apart.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dreamgym.rewards.config import NoveltyConfig
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Episode, State
from worldmodel.text.novelty import words_of

COMPONENT = "novelty"
"""The name of the reward component."""
MASK = "_"
"""Stands for numbers and random words; no word of a text is equal to it alone."""


class NoveltyReward:
    """Counts of the states of a run, and what the next visits of them are paid."""

    def __init__(self, config: NoveltyConfig, collected: Sequence[Episode]):
        self.config = config
        self._vocabulary = _common_words(collected)
        self._counts: Counter[str] = Counter()
        self._add(self._keys(e) for e in collected)

    def key(self, state: State) -> str:
        """Return what tells a state apart from others: a hash of its known words."""
        return content_hash([self._masked_words(line) for line in state])[:16]

    def reward(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Count the states of the episodes; return the reward of each of their steps.

        A step is paid for its next state, unless the episode was in it before. All
        episodes are counted before any is paid: of two that reach the same state none
        is paid less for being the second one.
        """
        keys = [self._keys(e) for e in episodes]
        self._add(keys)
        return [self._pay(row) for row in keys]

    def state(self) -> dict[str, int]:
        """Return the counts, as plain data."""
        return dict(self._counts)

    def load(self, counts: Mapping[str, int]) -> None:
        """Go on from counts that `state` returned."""
        self._counts = Counter(counts)

    def _keys(self, episode: Episode) -> list[str]:
        """Return the keys of the state that an episode begins in, and of all others."""
        steps = episode.transitions
        states = [t.state for t in steps[:1]] + [t.next_state for t in steps]
        return [self.key(state) for state in states]

    def _add(self, rows: Iterable[Sequence[str]]) -> None:
        for row in rows:
            self._counts.update(set(row))  # an episode counts a state once

    def _pay(self, keys: Sequence[str]) -> list[float]:
        seen, out = set(keys[:1]), []
        for key in keys[1:]:
            is_first = key not in seen
            seen.add(key)
            out.append(is_first * self.config.weight / math.sqrt(self._counts[key]))
        return out

    def _masked_words(self, line: str) -> list[str]:
        """Return the words of a line, with a mask for each run of unknown ones."""
        out: list[str] = []
        for word in words_of(line):
            is_number = any(c.isdigit() for c in word)
            is_known = self.config.numbers if is_number else word in self._vocabulary
            if is_known or out[-1:] != [MASK]:
                out.append(word if is_known else MASK)
        return out


def _common_words(episodes: Sequence[Episode]) -> frozenset[str]:
    """Return the words that at least two of the episodes hold."""
    counts: Counter[str] = Counter()
    for e in episodes:
        lines = {line for t in e.transitions for line in (*t.state, *t.next_state)}
        counts.update({w for line in lines for w in words_of(line)})
    return frozenset(w for w, n in counts.items() if n > 1)
