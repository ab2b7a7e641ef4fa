"""Pairs of attempts -> which is better, by a person or a judge -> a file of pairs.

The file (dreamgym.preferences/1) is written anew after each answer of a person, and the
same command goes on where the file ends.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from dreamgym.evaluation.printable import printable
from dreamgym.evaluation.statistics import wilson
from dreamgym.rewards.comparison import (
    KINDS,
    Attempts,
    PairJudge,
    better_by_outcome,
    difference_kind,
)
from dreamgym.rewards.preferences import (
    Preference,
    read_preferences,
    write_preferences,
)

HELP = "a or b: the better one; e: equal, leave it out; q: stop, and keep what is done"
CHUNK = 16
"""Pairs that a judge is asked about before the file is written."""


class Result(NamedTuple):
    """What was chosen: pairs by verdict and kind, and what a judge's answers were.

    `accuracy` is of the pairs with a verdict of which one attempt was won and the other
    was not, by kind: how many have the won one as the better, and how many there are.
    """

    verdicts: Mapping[str, int]
    kinds: Mapping[str, int]
    judge: Mapping[str, int]
    accuracy: Mapping[str, tuple[int, int]]


def _result(chosen: Sequence[tuple[Attempts, str]], judge: Mapping[str, int]) -> Result:
    """Return the counts of pairs and their verdicts."""
    right, total = Counter[str](), Counter[str]()
    for pair, verdict in chosen:
        if answer := better_by_outcome(pair):
            total[difference_kind(pair)] += 1
            right[difference_kind(pair)] += verdict == answer
    kinds = Counter(difference_kind(p) for p, verdict in chosen if verdict != "equal")
    verdicts = Counter(verdict for _, verdict in chosen)
    return Result(verdicts, kinds, judge, {k: (right[k], n) for k, n in total.items()})


def open_pairs(pairs: Sequence[Attempts], file: Path) -> list[Attempts]:
    """Return the pairs that the file does not have yet, in their order.

    Raises:
      RecordError: the file is there, and no file of pairs.
    """
    if not file.exists():
        return list(pairs)
    in_file = {_key(p.task.id, p.better, p.worse) for p in read_preferences(file)}
    return [p for p in pairs if _key(p.task.id, p.first, p.second) not in in_file]


def _key(task: str, *sides: tuple) -> tuple[str, frozenset]:
    return task, frozenset(tuple(t.action for t in side) for side in sides)


class _PairFile:
    """A file of pairs that grows."""

    def __init__(self, file: Path):
        self._file = file
        self._pairs: list[Preference] = []
        if file.exists():
            self._pairs = read_preferences(file)

    def add(self, pairs: Sequence[Preference]) -> None:
        if pairs:
            self._pairs += pairs
            write_preferences(self._file, self._pairs)


def ask_person(
    pairs: Sequence[Attempts],
    file: Path,
    console: Console,
    read_choice: Callable[[], str | None],
) -> Result:
    """Show one pair after another, and write down which attempt is better.

    Args:
      read_choice: asks for a choice, see HELP; None stops.
    """
    pair_file, chosen = _PairFile(file), list[tuple[Attempts, str]]()
    console.print(Text(HELP, "dim"))
    for number, pair in enumerate(pairs, start=1):
        _show(console, pair, f"{number} of {len(pairs)}")
        choice = read_choice()
        while choice is not None and choice.strip().lower() not in ("a", "b", "e", "q"):
            console.print(Text(HELP, "yellow"))
            choice = read_choice()
        letter = "q" if choice is None else choice.strip().lower()
        if letter == "q":
            break
        verdict = "equal" if letter == "e" else letter.upper()
        chosen.append((pair, verdict))
        if verdict != "equal":
            pair_file.add([pair.preferring(verdict)])
    return _result(chosen, {})


def _show(console: Console, pair: Attempts, title: str) -> None:
    console.print(Rule(title, style="dim"))
    console.print(Text(printable(pair.task.instruction or pair.task.id), "bold"))
    for line in pair.first[0].state:
        console.print(Text(f"  {printable(line)}", "dim"))
    for name, attempt in (("a", pair.first), ("b", pair.second)):
        console.print(Text(f"attempt {name}", "bold"))
        for number, t in enumerate(attempt, start=1):
            console.print(Text(f"  {number:2} {printable(t.action)}"))
            for line in t.next_state:
                if line not in t.state:
                    console.print(Text(f"       {printable(line)}", "dim"))
        console.print(Text(f"  {_end(attempt[-1].success)}"))


def _end(success: bool | None) -> str:
    return {True: "won", False: "not won", None: "not scored"}[success]


def ask_judge(
    pairs: Sequence[Attempts],
    file: Path,
    judge: PairJudge,
    progress: Callable[[int], object],
) -> Result:
    """Write down which attempts a judge finds better, whichever it reads first.

    Args:
      progress: is called with the number of pairs that are done.
    """
    pair_file, chosen = _PairFile(file), list[tuple[Attempts, str]]()
    counts = Counter[str]()
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        result = judge.compare(chunk)
        counts.update(result.counts)
        answers = [x for x in zip(chunk, result.verdicts, strict=True) if x[1]]
        chosen += answers
        pair_file.add([pair.preferring(v) for pair, v in answers if v != "equal"])
        progress(start + len(chunk))
    return _result(chosen, counts)


def summary(result: Result, *, names: tuple[str, str] | None = None) -> str:
    """Return the result as lines: choices, win rate, kinds, accuracy, order bias.

    Args:
      names: of the two sources of attempts, where the first ones are of one and the
        second ones of the other: then their win rate is told.
    """
    a, b, equal = (result.verdicts.get(v, 0) for v in ("A", "B", "equal"))
    out = [f"{a + b} pairs written, {equal} equal"]
    if names is not None and a + b:
        low, high = wilson(a, a + b)
        share = f"{100 * a / (a + b):.1f} % [{100 * low:.0f}, {100 * high:.0f}]"
        out.append(f"win rate of {names[0]} over {names[1]}: {share} of {a + b}")
    kinds = [f"{n} {kind}" for kind in KINDS if (n := result.kinds.get(kind, 0))]
    if kinds:
        out.append(f"first difference: {', '.join(kinds)}")
    if result.accuracy:
        right, total = (sum(x) for x in zip(*result.accuracy.values(), strict=True))
        low, high = wilson(right, total)
        parts = [
            "{} {} of {}".format(kind, *result.accuracy[kind])
            for kind in KINDS
            if kind in result.accuracy
        ]
        out.append(
            f"the won attempt is the better one in {100 * right / total:.1f} % "
            f"[{100 * low:.0f}, {100 * high:.0f}] of {total} pairs with a verdict in "
            f"which the other one was not won: {', '.join(parts)}"
        )
    if result.judge:
        j = result.judge
        chosen = j.get("first", 0) + j.get("second", 0)
        share = f"{100 * j.get('first', 0) / chosen:.1f} %" if chosen else "none"
        out.append(
            f"judge: {j.get('answers', 0)} answers, of which {share} for the attempt "
            f"shown first (50 % without bias); {j.get('contradictions', 0)} pairs left "
            f"out because it contradicts itself, {j.get('unanswered', 0)} without an "
            "answer"
        )
    return "\n".join(out)
