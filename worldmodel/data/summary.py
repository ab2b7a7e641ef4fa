"""Statistics of a set of episodes and warnings about it, in one pass.

episodes -> counters of lengths and outcomes, 8-byte digests of what may repeat ->
sorted once at the end -> a dict for JSON, or a table for the terminal. Each transition
leaves three digests, 24 bytes, so millions fit into memory. The probability that any
two of n different things share a digest is about n^2 / 2^65: 3e-8 for a million.
"""

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from worldmodel.data.hashing import content_digest
from worldmodel.data.records import SPLITS, Episode, Transition

_SIZES = ("episode_length", "state_lines", "state_chars", "action_chars")
_ENDS = {
    (True, False): "terminated",
    (False, True): "truncated",
    (True, True): "both",
    (False, False): "neither",
}
_MAX_ROWS = 10  # rows of a table
_MAX_EXAMPLES = 5  # examples of a leak

NO_REWARD = "no rewarded transition: updates in the dream have nothing to learn from"
"""What is wrong with episodes none of whose steps earns anything."""


def _digest(*parts: object) -> int:
    """Return an eight-byte number computed from the parts."""
    return int.from_bytes(content_digest(*parts), "little")


class _Group:
    """Counts of one split, family or source."""

    def __init__(self) -> None:
        self.episodes = self.transitions = 0
        self.tasks: set[int] = set()

    def add(self, task: int, length: int) -> None:
        self.episodes += 1
        self.transitions += length
        self.tasks.add(task)

    def json(self) -> dict[str, int]:
        return {
            "episodes": self.episodes,
            "tasks": len(self.tasks),
            "transitions": self.transitions,
        }


class _Overlap:
    """The things of one kind in each split, and those that several splits share."""

    def __init__(self) -> None:
        self.digests: dict[str, set[int]] = {}
        self.examples: list[str] = []

    def add(self, split: str, digest: int, name: str) -> None:
        known_digests = self.digests.setdefault(split, set())
        if digest in known_digests:
            return
        known_digests.add(digest)
        if len(self.examples) < _MAX_EXAMPLES and any(
            digest in other
            for other_split, other in self.digests.items()
            if other_split != split
        ):
            self.examples.append(name)

    def json(self) -> dict[str, Any]:
        order = {name: i for i, name in enumerate(SPLITS)}
        splits = sorted(self.digests, key=lambda x: (order.get(x, len(order)), x))
        pairs = [
            {"splits": [a, b], "count": len(self.digests[a] & self.digests[b])}
            for a, b in itertools.combinations(splits, 2)
        ]
        return {
            "shared": [pair for pair in pairs if pair["count"]],
            "examples": list(dict.fromkeys(self.examples)),
        }


class _Tally:
    """All counts of one pass over the episodes."""

    def __init__(self) -> None:
        self.all = _Group()
        self.by: dict[str, dict[str, _Group]] = {
            "split": {},
            "family": {},
            "source": {},
        }
        self.sizes = {name: Counter[int]() for name in _SIZES}
        self.success, self.ends, self.flags = (Counter[str]() for _ in range(3))
        self.ids, self.episode_digests = array("Q"), array("Q")
        self.queries, self.answered = array("Q"), array("Q")
        self.overlaps = {"tasks": _Overlap(), "starts": _Overlap()}
        self.steps: dict[str, array] = {}  # by split, over all tasks

    def add(self, e: Episode) -> None:
        """Count one episode."""
        task, split, length = _digest(e.task.id), e.task.split, len(e.transitions)
        self.all.add(task, length)
        for kind, name in (
            ("split", split),
            ("family", e.task.family),
            ("source", e.source),
        ):
            self.by[kind].setdefault(name, _Group()).add(task, length)
        self.sizes["episode_length"][length] += 1
        self.success[str(e.success).lower()] += 1
        self.flags["silent"] += not e.task.instruction.strip()
        last = e.transitions[-1] if e.transitions else None
        self.ends[_ENDS[last.terminated, last.truncated] if last else "neither"] += 1
        self.flags["unscored"] += bool(
            last and last.terminated and last.success is None
        )
        self.flags["open_wins"] += bool(last and last.success and not last.terminated)
        self.ids.append(_digest(e.id))
        self.overlaps["tasks"].add(split, task, e.task.id)
        start = _digest(e.task.instruction, e.task.initial_state)
        self.overlaps["starts"].add(split, start, e.task.id)
        steps = self.steps.setdefault(split, array("Q"))
        answers = []
        for t in e.transitions:
            query = _digest(t.state, t.action)
            steps.append(_digest(query, t.next_state))
            answers.append(_digest(task, steps[-1]))
            self.queries.append(_digest(task, query))
            self._transition(t)
        self.answered.extend(answers)
        self.episode_digests.append(_digest(task, answers))

    def _transition(self, t: Transition) -> None:
        self.sizes["state_lines"][len(t.state)] += 1
        self.sizes["state_chars"][sum(map(len, t.state))] += 1
        self.sizes["action_chars"][len(t.action)] += 1
        self.flags["rewarded"] += t.reward != 0
        self.flags["invalid"] += t.invalid is True
        self.flags["validity"] += t.invalid is not None
        self.flags["unchanged"] += t.next_state == t.state


# --- the end of the pass -----------------------------------------------------


def _quantiles(lengths: Mapping[int, int]) -> dict[str, int] | None:
    """Return exact quantiles by nearest rank, or None for no lengths."""
    total = sum(lengths.values())
    if not total:
        return None
    values = sorted(lengths)
    up_to = list(itertools.accumulate(lengths[v] for v in values))
    out = {}
    for name, q in (("min", 0.0), ("median", 0.5), ("p90", 0.9), ("max", 1.0)):
        rank = max(math.ceil(q * total), 1)
        out[name] = next(v for v, n in zip(values, up_to, strict=True) if n >= rank)
    return out


def _numbers(digests: array) -> np.ndarray:
    return np.frombuffer(digests, np.uint64) if digests else np.zeros(0, np.uint64)


def _repeats(digests: array) -> int:
    """Return how many digests repeat an earlier one."""
    return len(digests) - len(np.unique(_numbers(digests)))


def _contradictions(queries: array, answered: array) -> dict[str, int]:
    """Count distinct (task, state, action), and those with several next states."""
    _, first = np.unique(_numbers(answered), return_index=True)
    _, answers = np.unique(_numbers(queries)[first], return_counts=True)
    return {"asked": len(answers), "several_answers": int((answers > 1).sum())}


def _seen_in_train(steps: Mapping[str, array]) -> dict[str, dict[str, Any]]:
    """Return by split how many transitions also occur in train, under any task."""
    train = _numbers(steps.get("train", array("Q")))
    out = {}
    for split, digests in steps.items():
        if split != "train" and digests:
            count = int(np.isin(_numbers(digests), train).sum())
            out[split] = {"transitions": count, "share": count / len(digests)}
    return out


def summarise(episodes: Iterable[Episode]) -> dict[str, Any]:
    """Return counts, sizes, outcomes, duplicates, contradictions, leaks and warnings.

    The episodes are read once and not kept. docs/reference/episodes.md explains each
    entry.
    """
    tally = _Tally()
    for episode in episodes:
        tally.add(episode)
    count = tally.all.transitions
    out: dict[str, Any] = tally.all.json()
    for kind, groups in tally.by.items():
        out[f"by_{kind}"] = {name: g.json() for name, g in sorted(groups.items())}
    out["sizes"] = {name: _quantiles(tally.sizes[name]) for name in _SIZES}
    out["success"] = {k: tally.success[k] for k in ("true", "false", "none")}
    out["ends"] = {k: tally.ends[k] for k in _ENDS.values()}
    for flag in ("rewarded", "invalid", "unchanged"):
        transitions = tally.flags[flag]
        out[flag] = {
            "transitions": transitions,
            "share": transitions / count if count else 0.0,
        }
    out["invalid"]["recorded"] = tally.flags["validity"]
    out["unscored_ends"] = tally.flags["unscored"]
    out["wins_without_end"] = tally.flags["open_wins"]
    out["without_instruction"] = tally.flags["silent"]
    out["duplicates"] = {
        "transitions": _repeats(tally.queries),
        "episodes": _repeats(tally.episode_digests),
        "ids": _repeats(tally.ids),
    }
    out["contradictions"] = _contradictions(tally.queries, tally.answered)
    out["leaks"] = {name: overlap.json() for name, overlap in tally.overlaps.items()}
    out["leaks"]["seen_in_train"] = _seen_in_train(tally.steps)
    out["warnings"] = _warnings(out)
    return out


def _leaks(leaks: Mapping[str, Any]) -> list[str]:
    out = []
    kinds = {  # with small first states, different tasks may look alike
        "tasks": "leak: the same task id",
        "starts": "possible leak: the same instruction and first state",
    }
    for kind, text in kinds.items():
        named = ", ".join(leaks[kind]["examples"])
        for pair in leaks[kind]["shared"]:
            both = " and ".join(pair["splits"])
            out.append(f"{text} in {both}: {pair['count']} (such as {named})")
    for split, row in leaks["seen_in_train"].items():
        if row["share"] > 0.5:
            out.append(
                f"leak: {row['share']:.0%} of the {split} transitions are in train "
                "too: scores on them measure memory"
            )
    return out


def _warnings(s: Mapping[str, Any]) -> list[str]:
    """Return what to know before training on these episodes, as sentences."""
    out = []
    if not s["rewarded"]["transitions"]:
        out.append(
            f"{NO_REWARD} (give `reward` to the step that wins; to an import `score`)"
        )
    if s["success"]["none"] == s["episodes"]:
        out.append(
            "no episode says whether it succeeded: there is nothing to imitate; "
            "add a success field"
        )
    elif not s["success"]["true"]:
        out.append("no episode succeeded: there is nothing to imitate")
    elif not s["success"]["false"]:
        out.append("no episode failed: the dream learns only how things go well")
    if s["unscored_ends"]:
        out.append(
            f"ends of which nobody says whether they were won: {s['unscored_ends']}; a "
            "dream takes them as lost: add a success field"
        )
    if not s["ends"]["terminated"] + s["ends"]["both"]:
        out.append("no episode terminates: the dream cannot learn when one is over")
    elif s["wins_without_end"]:
        out.append(
            f"episodes that were won and do not terminate: {s['wins_without_end']}; a "
            "dream learns from them that play goes on after a win"
        )
    for name in s["by_split"]:
        if name not in SPLITS:
            out.append(
                f"split {name!r} is none of {', '.join(SPLITS)}: training ignores it"
            )
    if "train" not in s["by_split"]:
        out.append("no episode of split 'train': there is nothing to learn from")
    elif s["by_split"]["train"]["tasks"] < 2 and "dev" not in s["by_split"]:
        out.append("one task alone: none can be held out to choose and measure by")
    if s["without_instruction"]:
        out.append(
            f"{s['without_instruction']} of {s['episodes']} episodes have no "
            "instruction: the agent does not know what to do"
        )
    doubles = s["duplicates"]
    if doubles["ids"]:
        out.append(f"{doubles['ids']} episode ids are used again: the same file twice?")
    if doubles["episodes"]:
        out.append(f"{doubles['episodes']} episodes repeat another step for step")
    odd = s["contradictions"]
    if odd["several_answers"] and odd["several_answers"] * 100 >= odd["asked"]:
        out.append(
            f"{odd['several_answers']} of {odd['asked']} distinct (task, state, "
            "action) have several next states: hidden state or chance, of which a "
            "dream gives one"
        )
    return out + _leaks(s["leaks"])


# --- the terminal ------------------------------------------------------------


def _row(label: str, counts: Mapping[str, int]) -> str:
    columns = (counts["episodes"], counts["tasks"], counts["transitions"])
    return f"  {label:<32}" + "".join(f"{n:>14,}" for n in columns)


def _rows(groups: Mapping[str, Mapping[str, int]], kind: str) -> list[str]:
    """Return one row a group, the largest first; the others are only counted."""
    largest = sorted(groups, key=lambda k: -groups[k]["transitions"])
    out = [_row(f"{kind} {k or '(none)'}", groups[k]) for k in largest[:_MAX_ROWS]]
    if len(groups) > _MAX_ROWS:
        out.append(f"  ... and {len(groups) - _MAX_ROWS} more: {kind}")
    return out


def _validity(s: Mapping[str, Any]) -> str:
    """Return in how many transitions nobody recorded whether the action was valid."""
    unknown = s["transitions"] - s["invalid"]["recorded"]
    return f"; not recorded in {unknown:,}" if unknown else ""


def table(summary: Mapping[str, Any]) -> str:
    """Return a summary as lines for the terminal, warnings last."""
    s = summary
    headers = ("episodes", "tasks", "transitions"), ("min", "median", "90 %", "max")
    counts, sizes = (f"  {'':<32}" + "".join(f"{x:>14}" for x in h) for h in headers)
    out = [counts, _row("all", s)]
    for kind in ("split", "family", "source"):
        out += _rows(s[f"by_{kind}"], kind)
    out += ["", sizes]
    for name, q in s["sizes"].items():
        if q is not None:
            cells = "".join(f"{n:>14,}" for n in q.values())
            out.append(f"  {name.replace('_', ' '):<32}{cells}")
    won, ends = s["success"], s["ends"]
    doubles, odd = s["duplicates"], s["contradictions"]
    out += [
        "",
        f"  success         {won['true']:,} yes, {won['false']:,} no, "
        f"{won['none']:,} not told",
        "  ends            " + ", ".join(f"{n:,} {k}" for k, n in ends.items()),
        *(
            f"  {flag:<16}{s[flag]['transitions']:,} transitions "
            f"({s[flag]['share']:.1%})" + (_validity(s) if flag == "invalid" else "")
            for flag in ("rewarded", "invalid", "unchanged")
        ),
        f"  duplicates      {doubles['transitions']:,} transitions (task, state and "
        f"action again), {doubles['episodes']:,} whole episodes",
        f"  contradictions  {odd['several_answers']:,} of {odd['asked']:,} distinct "
        "(task, state, action) have several next states",
    ]
    for split, row in s["leaks"]["seen_in_train"].items():
        out.append(
            f"  {split + ' in train':<15} {row['transitions']:,} transitions "
            f"({row['share']:.1%})"
        )
    for kind in ("tasks", "starts"):
        for pair in s["leaks"][kind]["shared"]:
            both = " and ".join(pair["splits"])
            out.append(f"  {'shared ' + kind:<16}{pair['count']:,} in {both}")
    out += [""] * bool(s["warnings"]) + [f"  warning: {w}" for w in s["warnings"]]
    return "\n".join(out)
