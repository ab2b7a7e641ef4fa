"""Names that stand for each other: words of which it only matters where they occur.

episodes -> the words that some tasks have and others do not -> groups of words that
stand between the same words -> those groups for which the episodes show that nothing
depends on which of its words stands where -> episodes in which the names are exchanged.

A model that is fitted to such copies cannot learn by heart what is next to the
`bedroom`; it has to read it. Which words are names is not declared: a group counts only
if transitions that are equal but for its words have results that are equal but for
them, as often as transitions that are equal word by word.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from worldmodel.data.hashing import content_seed
from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.data.outcomes import number_text
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State, Task, Transition, atomic_write
from worldmodel.text import identifiers
from worldmodel.text.novelty import is_reveal

MAX_NAMES = 2000
"""Words whose places are compared, at most: those that most tasks have."""
MAX_SHARE = 0.85
"""A word that a larger share of a family's tasks hold belongs to the family's form."""
ALIKE = 0.5
"""The smallest mean overlap (intersection over union) of the contexts of a group."""
MIN_PAIRS = 30
"""Pairs of transitions with different names that must be compared to trust a group."""
MAX_DIFFERENCE = 0.01
"""How much more often such pairs may disagree than pairs with the same names."""

MAX_DRAWS = 16
"""Copies of the examples with other names or references that a fit has, at most."""

Groups = tuple[tuple[str, ...], ...]
"""Groups of words; the words of a group stand for each other."""


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
        kinds = ["", *("a name" if w in names else w for w in words), ""]
        for left, word, right in zip(kinds, words, kinds[2:], strict=False):
            if word in names:
                neighbours.setdefault(word, set()).update(((0, left), (1, right)))
    return {word: frozenset(sides) for word, sides in neighbours.items()}


def interchangeable_names(episodes: Sequence[Episode]) -> dict[str, Groups]:
    """Return the groups of names of each family that stand for each other.

    Numbers are none: their order means something. Families without such a group are
    left out.
    """
    families: dict[str, list[Episode]] = {}
    for e in episodes:
        families.setdefault(e.task.family, []).append(e)
    shares = identifiers.task_shares(episodes)
    out: dict[str, Groups] = {}
    for family, members in families.items():
        steps = _computable_steps(members)
        groups = _similar_words(members, shares[family])
        trusted = [g for g in groups if _only_places_count(steps, frozenset(g))]
        if trusted:
            out[family] = tuple(trusted)
    return out


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
    candidates = (
        word
        for word, share in shares.items()
        if share < MAX_SHARE and word.isalpha() and word not in verbs
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
    return tuple(tuple(words) for words in clusters.values() if len(words) > 1)


def _computable_steps(
    episodes: Sequence[Episode],
) -> list[tuple[Task, Transition, frozenset[str]]]:
    """Return the steps that reveal nothing, with their task and the words they read.

    What a step reveals cannot be computed from what was seen, whatever its names.
    """
    out = []
    for e in episodes:
        history = [e.task.instruction, *e.task.initial_state]
        for t in e.transitions:
            reveals = is_reveal(t, e.task.instruction, history)
            history += t.state
            if not reveals:
                texts = (e.task.instruction, *t.state, t.action)
                read = {w for text in texts for w in identifiers.words(text)}
                out.append((e.task, t, frozenset(read)))
    return out


def _only_places_count(
    steps: Sequence[tuple[Task, Transition, frozenset[str]]], group: frozenset[str]
) -> bool:
    """Return whether the results of actions do not depend on which name is where.

    Steps are compared whose task, state and action are equal once each name of the
    group is replaced by the order in which it first occurs there: pairs with other
    names must agree as often as pairs with the same names.
    """
    first: dict[tuple[str, ...], tuple[tuple[str, ...], tuple]] = {}
    other_names, same_names = Rate(), Rate()
    for task, t, read in steps:
        if not read & group:
            continue
        key, outcome, names = _by_places(task, t, group)
        if key not in first:
            first[key] = names, outcome
            continue
        names_before, outcome_before = first[key]
        rate = same_names if names == names_before else other_names
        rate.add(outcome != outcome_before)
    if other_names.count < MIN_PAIRS:
        return False
    chance = same_names.hits / same_names.count if same_names.count else 0.0
    return other_names.hits / other_names.count <= chance + MAX_DIFFERENCE


def _by_places(
    task: Task, t: Transition, group: frozenset[str]
) -> tuple[tuple[str, ...], tuple[State, str, bool], tuple[str, ...]]:
    """Return the query and the outcome of a step with numbers in place of names.

    The third result are the names of the query, in their order.
    """
    places: dict[str, str] = {}
    query = (task.instruction, *t.state, t.action)
    key = tuple(_with_places(text, group, places) for text in query)
    names = tuple(places)
    state = tuple(_with_places(text, group, places) for text in t.next_state)
    return key, (state, number_text(t.reward), t.terminated), names


def _with_places(text: str, group: frozenset[str], places: dict[str, str]) -> str:
    """Return the text with a place for each name of the group; add new ones."""
    return identifiers.replace_words(
        text,
        lambda word: (
            places.setdefault(word, f"<{len(places)}>") if word in group else word
        ),
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
    if not renames:
        return episode
    task = dataclasses.replace(
        episode.task,
        instruction=_renamed(episode.task.instruction, renames),
        initial_state=_renamed_lines(episode.task.initial_state, renames),
    )
    transitions = tuple(
        dataclasses.replace(
            t,
            state=_renamed_lines(t.state, renames),
            action=_renamed(t.action, renames),
            next_state=_renamed_lines(t.next_state, renames),
            thought=None if t.thought is None else _renamed(t.thought, renames),
            reasoning=None if t.reasoning is None else _renamed(t.reasoning, renames),
            valid_actions=_renamed_lines(t.valid_actions, renames),
        )
        for t in episode.transitions
    )
    return dataclasses.replace(episode, task=task, transitions=transitions)


def _renamed(text: str, renames: Mapping[str, str]) -> str:
    return identifiers.replace_words(text, lambda word: renames.get(word, word))


def _renamed_lines(lines: State, renames: Mapping[str, str]) -> State:
    return tuple(_renamed(line, renames) for line in lines)
