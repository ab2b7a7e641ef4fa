"""Names that stand for each other: words of which it only matters where they occur.

episodes -> the words that some tasks have and others do not -> groups of words that
stand between the same words -> those groups for which the episodes show that nothing
depends on which of its words stands where -> episodes in which the names are exchanged.

A model that is fitted to such copies cannot learn by heart what is next to the
`bedroom`; it has to read it. Unless names are declared, a group counts only if
transitions that are equal but for its words have results that are equal but for
them, as often as transitions that are equal word by word. What a step reveals must not
be known by its names either.
"""

import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from worldmodel.data.hashing import content_seed
from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.data.records import Episode, State, atomic_write
from worldmodel.text import identifiers, name_evidence

MAX_NAMES = 2000
"""Words whose places are compared, at most: those that most tasks have."""
MAX_SHARE = 0.85
"""A word that a larger share of a family's tasks hold belongs to the family's form. But
where few tasks are played often, each has seen every name: a word that fewer tasks hold
in their instruction and first state may be a name, if it is seen in the place of
another one."""
CONTAINED = 0.9
"""Share of the contexts of a word that are usual in a larger group, from which on the
word joins it: a name that occurred seldom has few contexts."""
USUAL = 0.2
"""Share of the words of a group that have a usual context."""
ALIKE = 0.5
"""The smallest mean overlap (intersection over union) of the contexts of a group."""
A_NAME = "a name"
"""The neighbour of a word that is a name itself."""
SHARED_NAMES = 0.8
"""Share of the smaller of two groups of names that the other has as well, from which on
they are the same names."""

MAX_DRAWS = 16
"""Copies of the examples with other names or references that a fit has, at most."""

Groups = tuple[tuple[str, ...], ...]
"""Groups of words; the words of a group stand for each other."""


class MinPairs(NamedTuple):
    """Pairs of transitions with different names that must agree to accept a group.

    `in_all` counts those of all families with the same names, `in_family` those of the
    family itself.
    """

    in_all: int
    in_family: int


ENOUGH_PAIRS = MinPairs(in_all=30, in_family=8)
"""Enough pairs to trust a group."""
TRIAL_PAIRS = MinPairs(in_all=6, in_family=1)
"""Enough pairs to try a group: a short fit with its names exchanged decides."""


def word_contexts(
    lines: Iterable[str], names: frozenset[str]
) -> dict[str, frozenset[tuple[int, str]]]:
    """Return what stands before (0) and after (1) each word of `lines` in `names`.

    "" is an end of a line, and a neighbour that is a name itself counts as any name,
    because each task has others.
    """
    neighbours: dict[str, set[tuple[int, str]]] = {}
    for line in lines:
        words = identifiers.words(line)
        kinds = ["", *(A_NAME if w in names else w for w in words), ""]
        for left, word, right in zip(kinds, words, kinds[2:], strict=False):
            if word in names:
                neighbours.setdefault(word, set()).update(((0, left), (1, right)))
    return {word: frozenset(sides) for word, sides in neighbours.items()}


def interchangeable_names(
    episodes: Sequence[Episode],
    min_pairs: MinPairs = ENOUGH_PAIRS,
    *,
    trial_names: Mapping[str, Groups] | None = None,
) -> dict[str, Groups]:
    """Return the groups of names of each family that stand for each other.

    Numbers are none: their order means something. Families without such a group are
    left out. Families that have names in common share the evidence.

    Args:
      min_pairs: the pairs that must agree to accept a group.
      trial_names: groups that a trial accepted, by family: TRIAL_PAIRS pairs are enough
        for a group that shares all but a fifth of its names with one of its family.
    """
    families: dict[str, list[Episode]] = {}
    for e in episodes:
        families.setdefault(e.task.family, []).append(e)
    shares = identifiers.task_shares(episodes)
    by_family: dict[str, list[_Candidate]] = {}
    for family, members in families.items():
        steps = name_evidence.read_steps(members)
        groups = _similar_words(members, shares[family])
        form = frozenset(w for w, n in shares[family].items() if n >= MAX_SHARE)
        lines = {line for e in members for line in identifiers.texts(e)}
        by_family[family] = [
            _candidate(steps, lines, frozenset(g), form) for g in groups
        ]
    candidates = [c for of_family in by_family.values() for c in of_family]
    out: dict[str, Groups] = {}
    for family, of_family in by_family.items():
        before = ({} if trial_names is None else trial_names).get(family, ())
        names = [
            c.names
            for c in of_family
            if c.has_evidence(
                candidates,
                TRIAL_PAIRS if share_names((c.names,), before) else min_pairs,
            )
        ]
        if names:
            out[family] = tuple(names)
    return out


def with_declared(
    groups: Mapping[str, Groups], declared: Groups, episodes: Sequence[Episode]
) -> dict[str, Groups]:
    """Return the groups of each family of the episodes: those declared, then others.

    Of `groups`, which episodes show, those that share a word with a declared one are
    left out: a word stands in one group.
    """
    if not declared:
        return dict(groups)
    words = {word for group in declared for word in group}
    return {
        family: (
            *declared,
            *(g for g in groups.get(family, ()) if words.isdisjoint(g)),
        )
        for family in sorted({e.task.family for e in episodes})
    }


def missing_names(declared: Groups, episodes: Sequence[Episode]) -> list[str]:
    """Return the declared names that are no word of any text of the episodes."""
    lines = {line for e in episodes for line in identifiers.texts(e)}
    words = {word for line in lines for word in identifiers.words(line)}
    return [name for group in declared for name in group if name not in words]


class _Candidate(NamedTuple):
    """Words of a family that may stand for each other, and the evidence for it.

    `pairs` counts the pairs of steps that compare the names, and `agree` says that no
    evidence speaks against them.
    """

    names: tuple[str, ...]
    pairs: int
    agree: bool

    def has_evidence(
        self, candidates: Sequence["_Candidate"], min_pairs: MinPairs
    ) -> bool:
        """Return whether there is enough evidence that the names stand for each other.

        Candidates of other families are evidence if they share all but a fifth of the
        smaller group, and evidence against it if they disagree.
        """
        if not self.agree or self.pairs < min_pairs.in_family:
            return False
        alike = [c for c in candidates if share_names((self.names,), (c.names,))]
        return self.pairs >= min_pairs.in_all or (
            all(c.agree for c in alike)
            and sum(c.pairs for c in alike) >= min_pairs.in_all
        )


def share_names(groups: Groups, others: Groups) -> bool:
    """Return whether a group of each side is of the same names, by SHARED_NAMES."""
    for one, other in itertools.product(groups, others):
        smaller = min(len(one), len(other))
        shared = len(frozenset(one).intersection(other))
        # Less than two names are no group, of which nothing is known.
        if smaller > 1 and shared >= SHARED_NAMES * smaller:
            return True
    return False


def _candidate(
    steps: Sequence[name_evidence.Step],
    lines: Iterable[str],
    group: frozenset[str],
    form: frozenset[str],
) -> _Candidate:
    """Return the group without the words that are no names, and what is known of it.

    A word that is not seen in the place of another one is kept if its contexts are
    those of words that are, and if not most tasks have it (`form`).
    """
    pairs = name_evidence.compare_places(steps, group)
    contexts, movable = word_contexts(lines, group), sorted(pairs.movable_words)
    names = pairs.movable_words | {
        word
        for word in group - pairs.movable_words - pairs.fixed_words - form
        if _are_contained([word], movable, contexts)
    }
    agree = (
        len(names) > 1
        and pairs.agree
        and not name_evidence.are_learnt_by_heart(steps, names)
        and not name_evidence.determine_each_other(steps, names)
    )
    return _Candidate(tuple(sorted(names)), int(pairs.other_names.count), agree)


def save_names(path: Path, names: Mapping[str, Groups]) -> None:
    """Write the groups of names of each family to a JSON file, atomically."""
    with atomic_write(path) as file:
        json.dump(names, file, indent=2)
        file.write("\n")


def load_names(path: Path) -> dict[str, Groups]:
    """Return the groups of names of each family that `save_names` wrote.

    Raises:
      RecordError: the file is missing or damaged, or holds something else.
    """
    families = read_json_object(path)
    for family, groups in families.items():
        if not isinstance(groups, list) or not all(map(_is_group, groups)):
            raise RecordError(
                f"{path}: field {family!r}: expected a list of lists of names, got "
                f"{groups!r:.60}"
            )
    return {family: tuple(map(tuple, groups)) for family, groups in families.items()}


def _is_group(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _similar_words(episodes: Sequence[Episode], shares: Mapping[str, float]) -> Groups:
    """Return the words that stand between the same words, in groups of two and more."""
    verbs = {w for e in episodes for t in e.transitions for w in t.action.split()[:1]}
    first_shares, readable = _first_shares(episodes), _readable_words(episodes)
    candidates = (
        word
        for word, share in shares.items()
        if (share < MAX_SHARE or 0 < first_shares.get(word, 0.0) < MAX_SHARE)
        and word.isalpha()
        and word in readable
        and word not in verbs
    )
    # Pairs are compared, so that time and memory grow with their square.
    commonest = sorted(candidates, key=lambda word: (-shares[word], word))
    names = sorted(commonest[:MAX_NAMES])
    if len(names) < 2:
        return ()
    lines = {line for e in episodes for line in identifiers.texts(e)}
    contexts = word_contexts(lines, frozenset(names))
    distances = [
        1 - len(contexts[a] & contexts[b]) / len(contexts[a] | contexts[b])
        for a, b in itertools.combinations(names, 2)
    ]
    labels = fcluster(linkage(distances, "average"), 1 - ALIKE, "distance")
    clusters: dict[int, list[str]] = {}
    for word, label in zip(names, labels.tolist(), strict=True):
        clusters.setdefault(label, []).append(word)
    groups: list[list[str]] = []
    for words in sorted(clusters.values(), key=len, reverse=True):
        larger = (g for g in groups if len(g) > len(words))
        wider = (g for g in larger if _are_contained(words, g, contexts))
        host = next(wider, None)
        if host is None:
            groups.append(words)
        else:
            host += words
    return tuple(tuple(sorted(words)) for words in groups if len(words) > 1)


def _readable_words(episodes: Sequence[Episode]) -> set[str]:
    """Return the words of instructions and states.

    A policy writes actions with words that the environment never shows there.
    """
    lines = {
        line
        for e in episodes
        for state in (
            (e.task.instruction, *e.task.initial_state),
            *(t.state for t in e.transitions),
            *(t.next_state for t in e.transitions),
        )
        for line in state
    }
    return {word for line in lines for word in identifiers.words(line)}


def _first_shares(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the share of tasks whose instruction or first state holds each word."""
    tasks = {e.task.id: e.task for e in episodes}.values()
    counts: Counter[str] = Counter()
    for task in tasks:
        texts = (task.instruction, *task.initial_state)
        counts.update({w for text in texts for w in identifiers.words(text)})
    return {word: count / len(tasks) for word, count in counts.items()}


def _are_contained(
    words: Sequence[str],
    group: Sequence[str],
    contexts: Mapping[str, frozenset[tuple[int, str]]],
) -> bool:
    """Return whether nearly all contexts of each word are usual ones of the group.

    Those are contexts of at least USUAL of its words. Only neighbours that are no names
    count, and each word must have some.
    """

    def specific(word: str) -> frozenset[tuple[int, str]]:
        return frozenset(c for c in contexts[word] if c[1] not in ("", A_NAME))

    counts = Counter(c for word in group for c in specific(word))
    usual = frozenset(c for c, n in counts.items() if n >= USUAL * len(group))
    return all(
        len(specific(word) & usual) >= max(CONTAINED * len(specific(word)), 1)
        for word in words
    )


def with_exchanged_names(
    episodes: Sequence[Episode], groups: Mapping[str, Groups], *, draw: int
) -> list[Episode]:
    """Return the episodes with the names of each group permuted, everywhere in one.

    Each `draw` has other permutations, drawn for each episode; draw 0 changes nothing.
    Episodes keep their ids and the options of their tasks, so that they can be fitted
    to and not be played.
    """
    if not draw or not groups:
        return list(episodes)
    return [_exchanged(e, groups.get(e.task.family, ()), draw) for e in episodes]


def _exchanged(episode: Episode, groups: Groups, draw: int) -> Episode:
    rng = np.random.default_rng(content_seed(draw, episode.id))
    renames: dict[str, str] = {}
    for group in groups:
        renames |= dict(zip(group, rng.permutation(group).tolist(), strict=True))
    return rename_in_episode(episode, renames) if renames else episode


def rename_in_episode(episode: Episode, renames: Mapping[str, str]) -> Episode:
    """Return the episode with other words, in all of its texts."""

    @functools.cache  # most lines stand in several states of the episode
    def renamed(text: str) -> str:
        return identifiers.replace_words(text, lambda word: renames.get(word, word))

    def renamed_lines(lines: State) -> State:
        return tuple(map(renamed, lines))

    task = dataclasses.replace(
        episode.task,
        instruction=renamed(episode.task.instruction),
        initial_state=renamed_lines(episode.task.initial_state),
    )
    transitions = tuple(
        dataclasses.replace(
            t,
            state=renamed_lines(t.state),
            action=renamed(t.action),
            next_state=renamed_lines(t.next_state),
            thought=None if t.thought is None else renamed(t.thought),
            reasoning=None if t.reasoning is None else renamed(t.reasoning),
            valid_actions=renamed_lines(t.valid_actions),
        )
        for t in episode.transitions
    )
    return dataclasses.replace(episode, task=task, transitions=transitions)
