"""The scorecard: agreement with held-out transitions, told apart by what was asked.

Teacher-forced rows hold the real task, history, state and action; the answer is the one
that the dream would give, by the same decoding. Beside it stands the baseline that
copies the state and predicts no reward. What only some backends can tell (signals of
doubt, the mass on the true state) is left out for the others.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, Transition
from worldmodel.experience.base import (
    ExperienceModel,
    Prediction,
    Query,
    rewarded_as,
    right,
)
from worldmodel.experience.calibration import Calibration, calibration
from worldmodel.fidelity import measures, rows
from worldmodel.fidelity.chances import chances
from worldmodel.fidelity.openloop import drift
from worldmodel.fidelity.rows import KINDS, Row
from worldmodel.text.novelty import novel_words as reveals
from worldmodel.text.prompts import outcome_of


@runtime_checkable
class Doubting(Protocol):
    """A backend that can say more of its answers than one confidence."""

    def signals(self, queries: Sequence[Query]) -> dict[str, list[float]]:
        """Signals of trust by name, larger for answers more likely right."""
        ...

    def likelihood(
        self, queries: Sequence[Query], transitions: Sequence[Transition]
    ) -> list[float]:
        """The probability it gives to the real next states."""
        ...


def score(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    *,
    limit: int,
    progress: Callable[[int, int], None] | None = None,
    batch: int = 64,
    deep: bool = False,
    replay: rows.Replay | None = None,
    whole: int | None = None,
) -> dict[str, Any]:
    """The scorecard on at most `limit` distinct transitions.

    exact: share of next states right in every line, for all transitions and by kind
    (known: same and changed, which is one_line and many_lines; reveal), with shares and
    the copy-the-state baseline. lines: precision and recall of the lines that changed.
    reward: accuracy, false positives among unrewarded, recall among rewarded, and false
    positives of near misses (`known`: how many of those are known to earn nothing, by
    the records or by `replay`). done: accuracy of the outcome (go, lose, win).
    confidence: its calibration and how well it tells right answers from wrong ones,
    reveals left out. An answer with a problem is none: it is never right, and no
    reward that was said. chances: the same of the chances that it earns and that it
    ends, as given and scaled on other tasks. invented: answers that name what nobody
    said.
    With `deep` also: open-loop drift, of the first episodes that `whole` steps hold
    (None: of all), and what a Doubting backend tells.
    """
    asked = rows.distinct(episodes, limit)
    answers: list[Prediction] = []
    for at in range(0, len(asked), batch):
        part = asked[at : at + batch]
        answers += model.predict([r.query for r in part])
        if progress is not None:
            progress(len(answers), len(asked))
    near = rows.near_misses(episodes, limit, replay)
    total = max(len(asked), 1)
    kinds = {k: sum(r.kind == k for r in asked) / total for k in KINDS}
    kinds["changed"] = kinds["one_line"] + kinds["many_lines"]
    kinds["known"] = kinds["same"] + kinds["changed"]
    card = {
        "transitions": len(asked),
        **_states(asked, answers),
        "share": kinds,
        "reward": _rewards(asked, answers) | {"near_misses": _near_misses(model, near)},
        "done": _ends(asked, answers),
        "malformed": _share(a.problem is not None for a in answers),
        "confidence": _confidence(asked, answers),
        "chances": chances(asked, answers),
        **_content(asked, answers),
    }
    if deep:
        steps = itertools.accumulate(len(e.transitions) for e in episodes)
        played = zip(episodes, steps, strict=True)
        short = [e for e, n in played if whole is None or n <= whole]
        card["open_loop"] = drift(model, short)
        if isinstance(model, Doubting):
            card |= _doubts(model, asked, answers)
    return card


def calibrated(
    model: ExperienceModel, episodes: Sequence[Episode], *, limit: int
) -> Calibration:
    """How the model's chances come true on at most `limit` held-out transitions.

    Reveals are left out: no confidence can be earned there.
    """
    asked = [r for r in rows.distinct(episodes, limit) if r.kind != "reveal"]
    answers = model.predict([r.query for r in asked]) if asked else []
    return calibration(answers, [r.transition for r in asked])


def threshold(
    model: ExperienceModel, episodes: Sequence[Episode], *, limit: int, gate: float
) -> float:
    """The confidence below which lies a share `gate` of the answers worth keeping.

    Those are the right ones, and all that answer a reveal: nobody can be right there,
    and without them nothing is found. 0 where gate is 0 or nothing is worth keeping.
    A confidence that is unknown (NaN) counts as 0, as in the dream.

    Raises:
      ValueError: none of their confidences is known.
    """
    asked = rows.distinct(episodes, limit) if gate else []
    answers = model.predict([r.query for r in asked]) if asked else []
    kept = [
        a.confidence
        for r, a in zip(asked, answers, strict=True)
        if (r.kind == "reveal" and a.problem is None) or right(a, r.transition)
    ]
    if kept and np.isnan(kept).all():
        raise ValueError(
            f"a gate of {gate:g} needs to know how sure an answer is, and none of the "
            f"{len(kept)} that are worth keeping says it: set it to 0"
        )
    return float(np.quantile(np.nan_to_num(kept), gate)) if kept else 0.0


def _share(cases: Any) -> dict[str, Any]:
    found = Rate()
    for case in cases:
        found.add(case)
    return found.json()


def _states(asked: Sequence[Row], answers: Sequence[Prediction]) -> dict[str, Any]:
    names = ("all", "known", "same", "changed", *KINDS[1:])
    exact, copy = ({k: Rate() for k in names} for _ in range(2))
    precision, recall = Rate(), Rate()
    for (query, t, kind), answer in zip(asked, answers, strict=True):
        more = () if kind == "reveal" else ("known",)
        more += ("changed",) if kind in ("one_line", "many_lines") else ()
        for key in ("all", kind, *more):
            exact[key].add(answer.problem is None and answer.next_state == t.next_state)
            copy[key].add(t.state == t.next_state)
        if kind != "reveal":
            both, said, true = measures.overlap(
                query.state, t.next_state, answer.next_state
            )
            if answer.problem is None:
                precision.add(both, said)
            recall.add(both if answer.problem is None else 0, true)
    return {
        "exact": {k: r.json() for k, r in exact.items()},
        "copy": {k: r.json() for k, r in copy.items()},
        "lines": {"precision": precision.json(), "recall": recall.json()},
    }


def _rewards(asked: Sequence[Row], answers: Sequence[Prediction]) -> dict[str, Any]:
    accuracy, false_positive, recall = Rate(), Rate(), Rate()
    for (_, t, _), answer in zip(asked, answers, strict=True):
        sense = answer.problem is None
        hit = sense and rewarded_as(answer.reward, t.reward)
        accuracy.add(hit)
        if t.reward:
            recall.add(hit)
        elif sense:
            false_positive.add(answer.reward != 0)
    return {
        "accuracy": accuracy.json(),
        "false_positives": false_positive.json(),
        "recall": recall.json(),
    }


def _near_misses(
    model: ExperienceModel, cases: Sequence[rows.NearMiss]
) -> dict[str, Any]:
    """How often a winning action is rewarded one step too early."""
    answers = model.predict([c.query for c in cases]) if cases else []
    wrong = Rate()
    for answer in (a for a in answers if a.problem is None):
        wrong.add(answer.reward > 0 or answer.outcome == "win")
    return wrong.json() | {"known": sum(c.known for c in cases)}


def _ends(asked: Sequence[Row], answers: Sequence[Prediction]) -> dict[str, Any]:
    done, ended = Rate(), Rate()
    for (_, t, _), answer in zip(asked, answers, strict=True):
        hit = answer.problem is None and answer.outcome == outcome_of(t)
        done.add(hit)
        if t.terminated:
            ended.add(hit)
    return {"accuracy": done.json(), "recall": ended.json()}


def _confidence(asked: Sequence[Row], answers: Sequence[Prediction]) -> dict[str, Any]:
    """Of the answers that can be right: reveals cannot, a confidence may be unknown."""
    kept = [
        (a.confidence, right(a, r.transition))
        for r, a in zip(asked, answers, strict=True)
        if r.kind != "reveal" and np.isfinite(a.confidence)
    ]
    said = np.array([c for c, _ in kept], float)
    hits = np.array([h for _, h in kept], bool)
    bins = measures.reliability(said, hits)
    return {
        "count": len(kept),
        "right": float(hits.mean()) if kept else None,
        "auroc": measures.auroc(said, hits),
        "calibration_error": measures.calibration_error(bins),
        "bins": bins,
    }


def _content(asked: Sequence[Row], answers: Sequence[Prediction]) -> dict[str, Any]:
    """What is said: inventions where nothing is new, and the wealth of reveals.

    invented: share of answers, reveals left out, with a word found neither in task,
    history, state, action nor real next state. reveals: words the dream makes up and
    distinct states it reveals, each by the real number; 1 is as rich as the real one.
    """
    invented, words = Rate(), [0, 0]
    states: tuple[set, set] = set(), set()
    for (q, t, kind), a in zip(asked, answers, strict=True):
        if a.problem is not None:
            continue
        known = (*q.state, *q.past, *q.task.initial_state)
        if kind != "reveal":
            seen = (*known, *t.next_state)
            invented.add(
                bool(reveals(seen, q.action, q.task.instruction, a.next_state))
            )
            continue
        for i, said in enumerate((a.next_state, t.next_state)):
            words[i] += len(reveals(known, q.action, q.task.instruction, said))
            states[i].add(said)
    return {
        "invented": invented.json(),
        "reveals": {
            "informativeness": words[0] / words[1] if words[1] else None,
            "diversity": len(states[0]) / len(states[1]) if states[1] else None,
        },
    }


def _doubts(
    model: Doubting, asked: Sequence[Row], answers: Sequence[Prediction]
) -> dict[str, Any]:
    """Signals as detectors of wrong answers, and the mass missing from the truth.

    lost_mass: E[1 - p(real next state)], on the rows given: where those are a policy's
    own visits, a sample of what bounds its loss (DreamGym, Theorem 1); reveals apart.
    """
    sure = [i for i, r in enumerate(asked) if r.kind != "reveal"]
    hits = np.array([right(answers[i], asked[i].transition) for i in sure], bool)
    found = model.signals([asked[i].query for i in sure]) if sure else {}
    mass = np.array(
        model.likelihood([r.query for r in asked], [r.transition for r in asked])
    )
    reveal = np.array([r.kind == "reveal" for r in asked], bool)

    def lost(chosen: np.ndarray) -> dict[str, Any]:
        count = int(chosen.sum())
        mean = float((1 - mass[chosen]).mean()) if count else None
        return {"mean": mean, "count": count}

    consistency = found.get("agreement")
    return {
        "detectors": {
            name: measures.auroc(np.array(values), hits)
            for name, values in found.items()
        },
        "consistency": None if not consistency else float(np.mean(consistency)),
        "lost_mass": {"all": lost(np.ones(len(asked), bool)), "sure": lost(~reveal),
                      "reveal": lost(reveal)},
    }  # fmt: skip
