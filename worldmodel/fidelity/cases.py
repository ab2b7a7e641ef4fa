"""The cases of a scorecard: held-out transitions of whole episodes, and near misses.

A preset asks a few hundred of thousands of transitions. They are drawn from all steps
of all episodes. Rare ones (ends, unusual rewards, invalid actions, late steps) are
drawn more often than they occur, because rewards and ends decide what a policy learns.
The weight of a case is the number of transitions that it stands for, so that a weighted
mean is that of the whole episodes.
"""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.outcomes import commonest_reward, number_text
from worldmodel.data.records import Episode, State, Transition
from worldmodel.experience.base import Query, content_seed, query_after
from worldmodel.text.identifiers import common_words
from worldmodel.text.novelty import is_reveal, novel_words

KINDS = ("unchanged", "one_line", "many_lines", "reveal", "forgotten")
"""Kinds of transitions. What is forgotten was seen in an earlier state of the episode,
and neither the present state nor what a model reads of the past holds it."""
UNPREDICTABLE = ("reveal", "forgotten")
"""Kinds whose next states do not follow from what a model reads."""


class Case(NamedTuple):
    """A query, the real transition, its kind, and its weight in transitions.

    `earlier` are the lines of the episode's states before the present one.
    """

    query: Query
    transition: Transition
    kind: str
    weight: float = 1.0
    earlier: tuple[str, ...] = ()

    @property
    def predictable(self) -> bool:
        """Whether the next state follows from what the model reads."""
        return self.kind not in UNPREDICTABLE


class NearMiss(NamedTuple):
    """A winning action asked one step too early.

    `known_failure` is true where it is known to fail there.
    """

    query: Query
    known_failure: bool


class ReplayResult(NamedTuple):
    """What a second play of a query's task, past and action led to."""

    next_state: State
    rewarded: bool


Replay = Callable[[Query], ReplayResult | None]
"""Plays a query in the real environment; None where it leads to another state."""


def kind_of(t: Transition, instruction: str, past_states: Sequence[str] = ()) -> str:
    """Return the kind of the next state: unchanged, one_line, many_lines or reveal.

    Whether it is forgotten is not decided here: that depends on what a model reads.

    `Transition.reveals` decides what is a reveal. Where the environment does not set
    it, a reveal holds a word that neither occurred before nor can be computed
    (text/novelty.py); `past_states` may also hold the vocabulary (common_words). A
    change of one line removes a line, adds one, or both.
    """
    if t.next_state == t.state:
        return "unchanged"
    if is_reveal(t, instruction, past_states):
        return "reveal"
    removed = Counter(t.state) - Counter(t.next_state)
    added = Counter(t.next_state) - Counter(t.state)
    one = max(removed.total(), added.total()) <= 1
    return "one_line" if one else "many_lines"


def sample_cases(
    episodes: Sequence[Episode],
    limit: int,
    *,
    replay: Replay | None = None,
    recorded: Sequence[Episode] = (),
    states_read: int = 0,
) -> list[Case]:
    """Return at most `limit` distinct (task, state, action) of whole episodes.

    Transitions are drawn by strata: whether the episode ends, whether the reward is
    unusual, whether the action was invalid, whether the step is in the later half. Half
    of the limit is divided evenly among the strata, the rest by their sizes. The draw
    depends on content only, so that the same episodes give the same cases.

    With `replay`, for an environment with random transitions, each case is played a
    second time; where that leads to another state, the case is of the kind `reveal`.
    What is a reveal is judged by `recorded` episodes as well, such as those that were
    fitted to: by their words, by what they answer alike, and, where transitions are
    random, by what they answer differently. `states_read` is how many past states the
    model reads, which are not forgotten (base.states_read).
    """
    population = distinct_cases(episodes)
    steps = [step for _, step in population.values()]
    late = statistics.median(steps) if steps else 0
    usual = number_text(commonest_reward(episodes))
    strata: dict[tuple[bool, ...], list[tuple]] = {}
    for key, (e, step) in population.items():
        t = e.transitions[step]
        stratum = (
            t.terminated,
            number_text(t.reward) != usual,
            is_invalid(t),
            step > late,
        )
        strata.setdefault(stratum, []).append(key)
    names = sorted(strata)
    weights: dict[tuple, float] = {}
    for name, number in zip(
        names, allocate([len(strata[n]) for n in names], limit), strict=True
    ):
        keys = sorted(strata[name], key=lambda key: content_seed("case", *key))
        weights |= dict.fromkeys(keys[:number], len(keys) / max(number, 1))
    evidence = _known_from(
        [*recorded, *episodes], stochastic=replay is not None, states_read=states_read
    )
    return [
        _case(*population[key], weights[key], evidence, replay)
        for key in population
        if key in weights
    ]


def reveals(episodes: Sequence[Episode]) -> list[Case]:
    """Return every distinct case of the kind `reveal`, judged by these episodes."""
    evidence = _known_from(episodes)
    cases = (
        _case(e, step, 1.0, evidence, None)
        for e, step in distinct_cases(episodes).values()
    )
    return [case for case in cases if case.kind == "reveal"]


def unpredictable_steps(
    episodes: Sequence[Episode],
    recorded: Sequence[Episode],
    *,
    stochastic: bool = False,
    states_read: int = 0,
) -> list[frozenset[int]]:
    """Return the numbers of the steps of each episode, from 0, that are UNPREDICTABLE.

    `recorded` are all episodes that say what can be known, and `states_read` is as in
    sample_cases. `stochastic` says that the transitions of the environment are random.
    """
    evidence = _known_from(
        [*recorded, *episodes], stochastic=stochastic, states_read=states_read
    )
    return [
        frozenset(
            step
            for step in range(len(e.transitions))
            if not _case(e, step, 1.0, evidence, None).predictable
        )
        for e in episodes
    ]


def allocate(sizes: Sequence[int], limit: int) -> list[int]:
    """Return the number of cases of each stratum, at most `limit` in all.

    Half of the limit is divided evenly, as far as the strata suffice; the rest follows
    their sizes, by largest remainders.
    """
    limit = min(limit, sum(sizes))
    floor = limit // (2 * max(len(sizes), 1))
    numbers = [min(size, floor) for size in sizes]
    remaining = [size - number for size, number in zip(sizes, numbers, strict=True)]
    rest = limit - sum(numbers)
    quotas = [rest * x / max(sum(remaining), 1) for x in remaining]
    numbers = [n + int(q) for n, q in zip(numbers, quotas, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda i: int(quotas[i]) - quotas[i])
    for i in by_remainder[: limit - sum(numbers)]:
        numbers[i] += 1
    return numbers


def distinct_cases(episodes: Sequence[Episode]) -> dict[tuple, tuple[Episode, int]]:
    """Return a place of each (task, state, action); of several any one may be chosen.

    Always choosing the first would prefer early steps with short histories.
    """
    places: dict[tuple, tuple[Episode, int]] = {}
    place_order: dict[tuple, int] = {}
    for e in episodes:
        for step, t in enumerate(e.transitions):
            key = (e.task.id, t.state, t.action)
            order = content_seed("place", e.id, step)
            if key not in places or order < place_order[key]:
                places[key], place_order[key] = (e, step), order
    return places


Outcomes = Mapping[tuple, Mapping[State, set[str]]]


def _outcomes(episodes: Sequence[Episode]) -> Outcomes:
    """Return the tasks of each next state, by (instruction, state, action)."""
    out: dict[tuple, dict[State, set[str]]] = {}
    for e in episodes:
        for t in e.transitions:
            next_states = out.setdefault((e.task.instruction, t.state, t.action), {})
            next_states.setdefault(t.next_state, set()).add(e.task.id)
    return out


def _random_families(episodes: Sequence[Episode]) -> frozenset[str]:
    """Return the families in which the same actions in a task led to two next states.

    Only lots explain that: all that the environment remembers was the same. What an
    environment shows when it breaks is no next state.
    """
    next_states: dict[tuple, State] = {}
    families = set[str]()
    for e in episodes:
        history: tuple = (e.task.id,)
        for t in e.transitions[:-1] if e.error else e.transitions:
            history = (hash(history), t.state, t.action)
            if next_states.setdefault(history, t.next_state) != t.next_state:
                families.add(e.task.family)
    return frozenset(families)


class _Known(NamedTuple):
    """What all episodes together say of a transition: see _outcomes, common_words.

    `random` are the families whose transitions are random. `states_read`: see
    sample_cases.
    """

    outcomes: Outcomes
    vocabulary: Mapping[str, str]
    random: frozenset[str]
    states_read: int


def _known_from(
    episodes: Sequence[Episode], *, stochastic: bool = False, states_read: int = 0
) -> _Known:
    """Return what these episodes say of a transition."""
    families = frozenset(e.task.family for e in episodes)
    random = families if stochastic else _random_families(episodes)
    return _Known(_outcomes(episodes), common_words(episodes), random, states_read)


def _case(
    e: Episode, step: int, weight: float, known: _Known, replay: Replay | None
) -> Case:
    """Return the case of one step, its kind decided by all available evidence."""
    t, query = e.transitions[step], _query(e, step, e.transitions[step].action)
    earlier = tuple(line for x in e.transitions[:step] for line in x.state)
    history = (*earlier, known.vocabulary.get(e.task.family, ""))
    kind = kind_of(t, e.task.instruction, history)
    next_states = known.outcomes[e.task.instruction, t.state, t.action]
    # Other tasks have the same answer to the same query: it is predictable.
    shared = len(next_states) == 1 and len(next_states[t.next_state]) > 1
    if len(next_states) > 1 and e.task.family in known.random:
        kind = "reveal"
    elif kind == "reveal" and t.reveals is None and shared:
        kind = kind_of(dataclasses.replace(t, reveals=False), e.task.instruction)
    elif kind in ("one_line", "many_lines") and t.reveals is None and not shared:
        kind = "forgotten" if _is_forgotten(e, step, known) else kind
    if replay is not None and kind != "reveal":
        replayed = replay(query)
        if replayed is not None and replayed.next_state != t.next_state:
            kind = "reveal"
    return Case(query, t, kind, weight, earlier)


def _is_forgotten(e: Episode, step: int, evidence: _Known) -> bool:
    """Return whether a next state holds a word that only states hold that nobody reads.

    Numbers may follow from rules (a fall leads back to field 0), and so may words of a
    family of which too few tasks are known to tell what its vocabulary is.
    """
    vocabulary, t = evidence.vocabulary.get(e.task.family), e.transitions[step]
    if vocabulary is None:
        return False
    past = e.transitions[:step]
    read = past[max(step - evidence.states_read, 0) :]
    lines = [line for x in read for line in x.state]
    history = (*lines, *(x.action for x in past), vocabulary)
    words = novel_words(t.state, t.action, e.task.instruction, t.next_state, history)
    return any(c.isalpha() for word in words for c in word)


def _query(episode: Episode, step: int, action: str) -> Query:
    steps = episode.transitions
    return query_after(episode.task, steps[:step], steps[step].state, action)


def near_misses(
    episodes: Sequence[Episode], limit: int, replay: Replay | None = None
) -> list[NearMiss]:
    """Return won episodes with the step before the winning one left out.

    The winning action is asked in the state in which that step was still to be done.
    Its real result is recorded, or found by `replay`, or else presumed to be no reward
    and no win (of 90 such cases of two games 6 were rewarded, because the omitted step
    was not needed; docs/LOG.md, 2026-11-22). States that the omitted step does not
    change are left out, and so are actions that are known to be rewarded.
    """
    recorded = {
        (e.task.id, t.state, t.action): t for e in episodes for t in e.transitions
    }
    usual = max(commonest_reward(episodes), 0.0)
    out: dict[tuple, NearMiss] = {}
    for e in episodes:
        won = [i for i, t in enumerate(e.transitions) if t.success and t.reward > usual]
        if not won or won[0] == 0 or len(out) >= limit:
            continue
        last, omitted = e.transitions[won[0]], e.transitions[won[0] - 1]
        if omitted.state == last.state or omitted.action == last.action:
            continue
        key = (e.task.id, omitted.state, last.action)
        query, real = _query(e, won[0] - 1, last.action), recorded.get(key)
        rewarded = None if real is None else real.success or real.reward > usual
        if rewarded is None and replay is not None and key not in out:
            replayed = replay(query)
            rewarded = None if replayed is None else replayed.rewarded
        if not rewarded:
            out.setdefault(key, NearMiss(query, rewarded is not None))
    return list(out.values())
