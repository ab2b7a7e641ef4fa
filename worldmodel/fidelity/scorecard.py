"""The scorecard: agreement of an experience model with held-out real transitions.

A case holds the real task, history, state and action (teacher forcing); the answer is
the one that the dream would give, by the same decoding. Cases are drawn from whole
episodes and weighted (cases.py). The baseline copies the state. What only some backends
can compute (confidence signals, the probability of the real state) is left out for the
others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from worldmodel.data.hashing import content_seed
from worldmodel.data.outcomes import commonest_reward, outcome_of
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, Transition
from worldmodel.experience.base import (
    ExperienceModel,
    Prediction,
    Query,
    is_correct,
    query_after,
    same_reward,
    states_read,
)
from worldmodel.fidelity import cases, metrics
from worldmodel.fidelity.calibration_error import probability_calibration
from worldmodel.fidelity.cases import KINDS, UNPREDICTABLE, Case
from worldmodel.fidelity.copying import copy_accuracy
from worldmodel.fidelity.facts import known_facts, preserves
from worldmodel.fidelity.instruction import instruction_agreement
from worldmodel.fidelity.open_loop import episodes_within, open_loop
from worldmodel.text.identifiers import task_shares
from worldmodel.text.novelty import novel_words, words_of
from worldmodel.text.state_format import StateFormat, format_error, state_format

GROUPS = ("all", "predictable", "unchanged", "changed", *KINDS[1:])
"""Kinds of transitions and their unions: `predictable` is all but reveals and what is
forgotten, `changed` is one_line and many_lines. Where reveals are left out, so is what
is forgotten, but for the missing words."""


@runtime_checkable
class HasConfidenceSignals(Protocol):
    """A backend with several confidence signals and next-state probabilities."""

    def signals(self, queries: Sequence[Query]) -> dict[str, list[float]]:
        """Return confidence signals by name, larger where correct is more likely."""
        ...

    def next_state_probability(
        self, queries: Sequence[Query], transitions: Sequence[Transition]
    ) -> list[float]:
        """Return the probabilities of the real next states."""
        ...


def score(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    *,
    limit: int,
    progress: Callable[[int, int], None] | None = None,
    batch: int = 64,
    full: bool = False,
    replay: cases.Replay | None = None,
    stochastic: bool = False,
    open_loop_steps: int | None = None,
    recorded: Sequence[Episode] = (),
) -> dict[str, Any]:
    """Return the scorecard on at most `limit` distinct transitions.

    Every figure is {mean, count, effective} (data/rates.py): means are weighted to be
    those of whole episodes, counts are of cases.

      exact: share of next states with every line right, by group (GROUPS); share: how
        often each group occurs; kept: share of answers that preserve all known facts
        (facts.py), by group; copy: the baseline that copies the state.
      lines: precision and recall of the changed lines, without reveals.
      reward: accuracy; recall of unusual rewards; false_positives: usual ones (`usual`
        is the most frequent reward) predicted as others; near_misses: winning actions
        one step too early that are rewarded (`known`: how many are known to fail).
      done: accuracy of the outcome (go, lose, win); recall of ends; predictable: the
        same without reveals; false_positives: predicted ends of steps that go on.
      confidence: its calibration and how well it separates correct answers from wrong
        ones, without reveals. probabilities: the same for a reward and for an end, as
        given and calibrated on other tasks.
      copying: copy accuracy (copying.py); without `recorded` no word is unseen.
      instruction: how well reveals show what the task's instruction says
        (instruction.py), on up to a quarter of the limit of further cases.
      missing_words: of the well-formed answers with a wrong next state, without
        reveals alone, the share that lacks a word which the real episode shows there
        for the first time (`new`, where the environment does not say what it reveals:
        if nobody could know it, it should report a reveal), and the share that lacks
        one which earlier states hold and the present one does not (`earlier`).
      malformed: answers with an error; they are never correct and predict no reward.
      hallucinated, reveals: see _content. open_loop: episodes dreamed from their real
        actions: one, and as many more as fit `open_loop_steps` (None: all; 0: none).

    With `full`, also the signals of a HasConfidenceSignals backend. In a `stochastic`
    environment `replay` finds what cannot be predicted. `recorded` was fitted to.
    """
    lots = replay if stochastic else None
    sampled = cases.sample_cases(
        episodes, limit, replay=lots, recorded=recorded, states_read=states_read(model)
    )
    answers: list[Prediction] = []
    for at in range(0, len(sampled), batch):
        part = sampled[at : at + batch]
        answers += model.predict([c.query for c in part])
        if progress is not None:
            progress(len(answers), len(sampled))
    near = cases.near_misses(episodes, limit, replay)
    usual = commonest_reward(episodes)
    scorecard = {
        "transitions": len(sampled),
        **_states(sampled, answers),
        "reward": _rewards(sampled, answers, usual)
        | {"near_misses": _near_misses(model, near, usual)},
        "done": _ends(sampled, answers),
        "copying": copy_accuracy(sampled, answers, task_shares(recorded or episodes)),
        "instruction": instruction_agreement(model, episodes, limit=max(limit // 4, 2)),
        "missing_words": _missing_words(sampled, answers),
        "malformed": _rate(
            (a.error is not None, c) for c, a in _pairs(sampled, answers)
        ),
        "confidence": _confidence(sampled, answers),
        "probabilities": probability_calibration(sampled, answers),
        **_content(sampled, answers, _formats(episodes)),
    }
    if open_loop_steps != 0:
        whole = episodes_within(episodes, open_loop_steps)
        judged_by = {"recorded": [*recorded, *episodes], "stochastic": stochastic}
        scorecard["open_loop"] = open_loop(model, whole, **judged_by)
    if full and isinstance(model, HasConfidenceSignals):
        scorecard |= _signals(model, sampled, answers)
    return scorecard


def _pairs(sampled: Sequence[Case], answers: Sequence[Prediction]):
    return zip(sampled, answers, strict=True)


def _rate(hits: Any) -> dict[str, Any]:
    """Return the rate of (hit, case) pairs."""
    rate = Rate()
    for hit, case in hits:
        rate.add(hit, case.weight)
    return rate.json()


def _groups(kind: str) -> tuple[str, ...]:
    if kind in UNPREDICTABLE:
        return ("all", kind)
    changed = ("changed",) if kind in ("one_line", "many_lines") else ()
    return ("all", "predictable", *changed, kind)


def _states(sampled: Sequence[Case], answers: Sequence[Prediction]) -> dict[str, Any]:
    exact, copy, preserved, share = ({k: Rate() for k in GROUPS} for _ in range(4))
    precision, recall = [0, 0], [0, 0]
    for c, answer in _pairs(sampled, answers):
        t, valid = c.transition, answer.error is None
        facts = known_facts(t.state, t.next_state)
        groups = _groups(c.kind)
        for group in GROUPS:
            share[group].add(group in groups, c.weight)
        for group in groups:
            exact[group].add(valid and answer.next_state == t.next_state, c.weight)
            copy[group].add(t.state == t.next_state, c.weight)
            preserved[group].add(
                valid and preserves(facts, answer.next_state), c.weight
            )
        if not c.predictable:
            continue
        both, num_predicted, true = metrics.changed_line_overlap(
            t.state, t.next_state, answer.next_state
        )
        if valid:
            precision = [precision[0] + both, precision[1] + num_predicted]
        recall = [recall[0] + both * valid, recall[1] + true]
    return {
        "exact": {k: r.json() for k, r in exact.items()},
        "kept": {k: r.json() for k, r in preserved.items()},
        "copy": {k: r.json() for k, r in copy.items()},
        "share": {k: r.json()["mean"] or 0.0 for k, r in share.items()},
        "lines": {
            "precision": Rate.of(*precision).json(),
            "recall": Rate.of(*recall).json(),
        },
    }


def _missing_words(
    sampled: Sequence[Case], answers: Sequence[Prediction]
) -> dict[str, Any]:
    """Return how often wrong next states lack new and earlier words of the episode."""
    new, earlier = Rate(), Rate()
    for c, a in _pairs(sampled, answers):
        if c.kind == "reveal" or a.error is not None:
            continue
        if a.next_state != c.transition.next_state:
            t, words = c.transition, set(words_of(" ".join(a.next_state)))
            context = (t.state, t.action, c.query.task.instruction, t.next_state)
            # In a case that is no reveal other tasks have them: they can be known (the
            # answer `wrong`), or are some of a few that recur (an apple in a drawer).
            new_words = novel_words(*context, c.earlier)
            earlier_words = novel_words(*context) - new_words
            earlier.add(bool(earlier_words - words), c.weight)
            if t.reveals is None:  # else the environment knows what can be known
                new.add(bool(new_words - words), c.weight)
    return {"new": new.json(), "earlier": earlier.json()}


def _rewards(
    sampled: Sequence[Case], answers: Sequence[Prediction], usual: float
) -> dict[str, Any]:
    accuracy, false_positive, recall = Rate(), Rate(), Rate()
    for c, answer in _pairs(sampled, answers):
        valid = answer.error is None
        hit = valid and same_reward(answer.reward, c.transition.reward)
        accuracy.add(hit, c.weight)
        if not same_reward(c.transition.reward, usual):
            recall.add(hit, c.weight)
        elif valid:
            false_positive.add(not hit, c.weight)
    return {
        "usual": usual,
        "accuracy": accuracy.json(),
        "false_positives": false_positive.json(),
        "recall": recall.json(),
    }


def _near_misses(
    model: ExperienceModel, queries: Sequence[cases.NearMiss], usual: float
) -> dict[str, Any]:
    """Return how often a winning action earns more than usual one step too early."""
    answers = model.predict([c.query for c in queries]) if queries else []
    wrong = Rate()
    for answer in (a for a in answers if a.error is None):
        more = answer.reward > max(usual, 0.0) and not same_reward(answer.reward, usual)
        wrong.add(more or answer.outcome == "win")
    return wrong.json() | {"known": sum(c.known_failure for c in queries)}


def _ends(sampled: Sequence[Case], answers: Sequence[Prediction]) -> dict[str, Any]:
    accuracy, recall, predictable, false_positive = (Rate() for _ in range(4))
    for c, answer in _pairs(sampled, answers):
        valid = answer.error is None
        hit = valid and answer.outcome == outcome_of(c.transition)
        accuracy.add(hit, c.weight)
        if c.transition.terminated:
            recall.add(hit, c.weight)
            if c.predictable:
                predictable.add(hit, c.weight)
        elif valid:
            false_positive.add(answer.outcome != "go", c.weight)
    return {
        "accuracy": accuracy.json(),
        "recall": recall.json(),
        "predictable": predictable.json(),
        "false_positives": false_positive.json(),
    }


def ends_recalled(
    model: ExperienceModel, episodes: Sequence[Episode], limit: int
) -> dict[str, Any]:
    """Return how often the model gives the outcome of real ends, as a rate.

    Of more than `limit` distinct ends so many are asked, the same ones each time. The
    rate is optimistic for episodes that the model was fitted to: ends that it has not
    learned there it hardly finds elsewhere.
    """
    ends = [
        (e, step)
        for e, step in cases.distinct_cases(episodes).values()
        if e.transitions[step].terminated
    ]
    ends = sorted(ends, key=lambda end: content_seed("end", end[0].id, end[1]))[:limit]
    steps = [(e.task, e.transitions[:i], e.transitions[i]) for e, i in ends]
    queries = [query_after(task, past, t.state, t.action) for task, past, t in steps]
    answers = model.predict(queries) if queries else []
    return _rate(
        (a.error is None and a.outcome == outcome_of(t), Case(query, t, ""))
        for query, (_, _, t), a in zip(queries, steps, answers, strict=True)
    )


def _confidence(
    sampled: Sequence[Case], answers: Sequence[Prediction]
) -> dict[str, Any]:
    """Score the known confidences of the answers to predictable transitions."""
    scored = [
        (a.confidence, is_correct(a, c.transition), c.weight)
        for c, a in _pairs(sampled, answers)
        if c.predictable and np.isfinite(a.confidence)
    ]
    confidence, right, weights = np.array(scored, float).reshape(-1, 3).T
    hits = right.astype(bool)
    bins = metrics.reliability(confidence, hits, weights)
    return {
        "count": len(scored),
        "right": metrics.weighted_mean(hits, weights) if scored else None,
        "auroc": metrics.auroc(confidence, hits),
        "calibration_error": metrics.calibration_error(bins),
        "bins": bins,
    }


def _formats(episodes: Sequence[Episode]) -> Mapping[str, StateFormat]:
    """Return what all real states of a family share."""
    states: dict[str, list] = {}
    for e in episodes:
        rows = states.setdefault(e.task.family, [])
        rows += [e.transitions[0].state, *(t.next_state for t in e.transitions)]
    return {family: state_format(rows) for family, rows in states.items()}


def _content(
    sampled: Sequence[Case],
    answers: Sequence[Prediction],
    formats: Mapping[str, StateFormat],
) -> dict[str, Any]:
    """Score what answers say: hallucinated words, and richness and format of reveals.

    hallucinated: the share of answers to predictable transitions with a word that
    occurs neither in task, history, state, action nor in the real next state. reveals:
    the number of novel words and of distinct states that the dream reveals, each
    divided by the real number (1 is as rich as reality), and the share of its states in
    the real format.
    """
    hallucinated, well_formed, words = Rate(), Rate(), [0, 0]
    states: tuple[set, set] = set(), set()
    for c, a in _pairs(sampled, answers):
        q, t = c.query, c.transition
        history = (*q.past, *q.task.initial_state)
        if c.kind == "reveal":
            fits = a.error is None
            fits = fits and format_error(a.next_state, formats[q.task.family]) is None
            well_formed.add(fits, c.weight)
        if a.error is not None:
            continue

        def new(state, q=q, history=history):
            return novel_words(q.state, q.action, q.task.instruction, state, history)

        if c.predictable:
            hallucinated.add(bool(new(a.next_state) - new(t.next_state)), c.weight)
        if c.kind != "reveal":
            continue
        for i, state in enumerate((a.next_state, t.next_state)):
            words[i] += len(new(state))
            states[i].add(state)
    return {
        "hallucinated": hallucinated.json(),
        "reveals": {
            "form": well_formed.json(),
            "informativeness": words[0] / words[1] if words[1] else None,
            "diversity": len(states[0]) / len(states[1]) if states[1] else None,
        },
    }


def _signals(
    model: HasConfidenceSignals, sampled: Sequence[Case], answers: Sequence[Prediction]
) -> dict[str, Any]:
    """Score signals as detectors of wrong answers, and the missing probability.

    missing_probability: E[1 - p(real next state)] on the given episodes; where those
    are a policy's own it is a sample of what bounds the policy's loss (DreamGym,
    Theorem 1).
    """
    predictable = [i for i, c in enumerate(sampled) if c.predictable]
    hits = np.array(
        [is_correct(answers[i], sampled[i].transition) for i in predictable], bool
    )
    queries = [sampled[i].query for i in predictable]
    signals = model.signals(queries) if queries else {}
    probabilities = model.next_state_probability(
        [c.query for c in sampled], [c.transition for c in sampled]
    )

    def missing(selects: Callable[[Case], bool]) -> dict[str, Any]:
        rate = Rate()
        for c, p in zip(sampled, probabilities, strict=True):
            if selects(c):
                rate.add(1.0 - p, c.weight)
        return rate.json()

    consistency = signals.get("self_consistency")
    return {
        "error_detection_auroc": {
            name: metrics.auroc(np.array(values), hits)
            for name, values in signals.items()
        },
        "consistency": None if not consistency else float(np.mean(consistency)),
        "missing_probability": {
            "all": missing(lambda _: True),
            "predictable": missing(lambda c: c.predictable),
            "reveal": missing(lambda c: c.kind == "reveal"),
        },
    }
