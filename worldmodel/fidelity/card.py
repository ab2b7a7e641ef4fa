"""How far the experience model can be trusted: agreement with held-out transitions.

Teacher-forced: each query holds the real task, history, state and action; the answer is
the one that the dream would give, by the same decoding. Beside it stands the baseline
that copies the state and predicts no reward.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from worldmodel.experience import ExperienceModel, Query
from worldmodel.reasoning import reveals
from worldmodel.text.prompts import outcome_of
from worldmodel.text.records import Episode, Transition


@dataclasses.dataclass
class _Rate:
    hits: int = 0
    count: int = 0

    def add(self, hit: bool) -> None:
        self.hits, self.count = self.hits + bool(hit), self.count + 1

    def json(self) -> dict[str, Any]:
        return {"mean": self.hits / self.count if self.count else None,
                "count": self.count}  # fmt: skip


def kind_of(t: Transition, instruction: str, past_states: Sequence[str] = ()) -> str:
    """same, changed, or reveal: what the next state asks of a predictor."""
    if t.next_state == t.state:
        return "same"
    fresh = reveals((*t.state, *past_states), t.action, instruction, t.next_state)
    return "reveal" if fresh else "changed"


def score(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    *,
    limit: int,
    progress: Callable[[int, int], None] | None = None,
    batch: int = 64,
) -> dict[str, Any]:
    """The scorecard on at most `limit` distinct transitions.

    exact: share of next states right in every line, for all transitions and by kind
    (same, changed, reveal), with shares and the copy-the-state baseline.
    reward: accuracy, false positives among unrewarded, recall among rewarded.
    done: accuracy of the three-way outcome (go, lose, win).
    """
    rows = _distinct(episodes, limit)
    exact = {k: _Rate() for k in ("all", "same", "changed", "reveal")}
    copy = {k: _Rate() for k in exact}
    reward, false_positive, recall = _Rate(), _Rate(), _Rate()
    done, ended, malformed = _Rate(), _Rate(), _Rate()
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        answers = model.predict([q for q, _, _ in part])
        for (_, t, kind), answer in zip(part, answers, strict=True):
            for key in ("all", kind):
                exact[key].add(answer.next_state == t.next_state)
                copy[key].add(t.state == t.next_state)
            right = abs(answer.reward - t.reward) < 5e-4
            reward.add(right)
            (recall if t.reward else false_positive).add(
                right if t.reward else answer.reward != 0
            )
            done.add(answer.outcome == outcome_of(t))
            if t.terminated:
                ended.add(answer.outcome == outcome_of(t))
            malformed.add(answer.problem is not None)
        if progress is not None:
            progress(min(at + batch, len(rows)), len(rows))
    total = max(len(rows), 1)
    return {
        "transitions": len(rows),
        "exact": {k: r.json() for k, r in exact.items()},
        "copy": {k: r.json() for k, r in copy.items()},
        "share": {k: exact[k].count / total for k in ("same", "changed", "reveal")},
        "reward": {
            "accuracy": reward.json(),
            "false_positives": false_positive.json(),
            "recall": recall.json(),
        },
        "done": {"accuracy": done.json(), "recall": ended.json()},
        "malformed": malformed.json(),
    }


def _distinct(
    episodes: Sequence[Episode], limit: int
) -> list[tuple[Query, Transition, str]]:
    """Distinct (task, state, action), taken in turn from the episodes."""
    rows: dict[tuple, tuple[Query, Transition, str]] = {}
    longest = max((len(e.transitions) for e in episodes), default=0)
    for step in range(longest):
        for e in episodes:
            if step >= len(e.transitions) or len(rows) >= limit:
                continue
            t = e.transitions[step]
            past = tuple(x.action for x in e.transitions[:step])
            seen = [line for x in e.transitions[:step] for line in x.state]
            kind = kind_of(t, e.task.instruction, seen)
            query = Query(e.task, past, t.state, t.action)
            rows.setdefault((e.task.id, t.state, t.action), (query, t, kind))
    return list(rows.values())
