"""The part of the contract checker that asks whether the agent sees what decides.

Models read the instruction, the present state and the last actions, never an earlier
state. What an environment shows once, and needs later, must stand in the state.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dreamgym.envs.contract.experts import PlannedEpisode
from dreamgym.envs.contract.findings import Findings, difference
from dreamgym.envs.contract.player import Trace
from dreamgym.envs.wrappers import first_word
from worldmodel.text.identifiers import has_digit, is_identifier

ACTIONS_SEEN = 2
"""Actions before a step that an experience model reads (experience.history)."""
POLICY_ACTIONS = 6
"""Actions before a step that a policy reads (policy.history)."""
MIN_EPISODES = 3
"""Episodes in which a name must be unseen or forgotten for a warning."""
MIN_SHARE = 0.2
"""The share of all plans in which it must be."""
MIN_RETURNS = 10
"""Lines that come back after they were gone, for a warning."""
MIN_RETURN_SHARE = 0.25
"""Their share of all lines that are new in a state, for a warning."""

_NAME = re.compile(r"\w(?:[\w.:-]*\w)?")
_ITEM = re.compile(r"\s*(?:[\[(#]\d+[\]).:]?|\d+[\]).:])\s+(.*[^\W\d_]{2}.*)")
"""A numbered line that holds a word, and its text: `[3] link Home`, `3. apples`."""


def check_memory(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn where one task answers the same action in the same state in two ways.

    After the same ACTIONS_SEEN actions before it, too, which models read besides the
    state. What decides is then in no text: an experience model cannot predict it, and a
    policy does not see it. For environments that draw no lots. Steps that reveal
    something, and those at which a limit ends the episode, are left out.
    """
    for (task, _, actions), answers in answers_of(traces).items():
        other = next((a for a in answers if a != answers[0]), None)
        if other is not None:
            findings.warn(
                "the state does not show what decides the next one",
                f"task {task!r}: {actions[-1]!r:.60} leads from one state to "
                f"{difference(answers[0], other)}",
                "write it into the state; where earlier replies or lines hold it, "
                "wrappers do (RecentReplies, KeepLines of dreamgym.envs.wrappers)",
            )
            return


def answers_of(
    traces: Sequence[Trace],
) -> dict[tuple[str, str, tuple[str, ...]], list[str]]:
    """Return what each (task, state, last actions) led to, whenever it was played.

    The last of the actions is the one that is answered. See check_memory for what is
    left out.
    """
    out: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for trace in traces:
        for i, (before, step) in enumerate(itertools.pairwise(trace.steps)):
            if step.reveals or step.truncated:
                continue
            actions = tuple(trace.actions[max(i - ACTIONS_SEEN, 0) : i + 1])
            key = (trace.task.id, before.observation, actions)
            out.setdefault(key, []).append(step.observation)
    return out


def check_names(findings: Findings, episodes: Sequence[PlannedEpisode]) -> None:
    """Warn of plans with names and numbers that the agent does not see at that moment.

    Those that an earlier state showed are forgotten, which a wrapper mends; other names
    the expert knows from elsewhere. Numbers that stood nowhere may be computed.
    """
    shares = _shares(episodes)
    unseen: dict[str, str] = {}
    forgotten: dict[str, str] = {}
    for episode in episodes:
        for where, word, earlier in _missing_names(episode):
            if not is_identifier(word, shares[word]):
                continue
            if earlier:
                forgotten.setdefault(episode.trace.task.id, where)
            elif any(c.isalpha() for c in word):
                unseen.setdefault(episode.trace.task.id, where)
    enough = max(MIN_EPISODES, MIN_SHARE * len(episodes))
    plans = f"of {len(episodes)} plans"
    if len(forgotten) >= enough:
        findings.warn(
            "the expert's plan names what an earlier state showed and the present one "
            "does not",
            f"{len(forgotten)} {plans}; {next(iter(forgotten.values()))}",
            "keep it in the state, which is all that models read: RecentReplies or "
            "KeepLines of dreamgym.envs.wrappers do",
        )
    if len(unseen) >= enough:
        findings.warn(
            "the expert's plan names what the agent has not seen",
            f"{len(unseen)} {plans}; {next(iter(unseen.values()))}",
            "let the plan look first (search, open, read), as an agent would have to; "
            "leave it where the name can be computed from what was seen",
        )


def _names(text: str) -> Iterator[str]:
    """Yield the words of a text; `T-2931` is one, and `"amount": 7` two."""
    yield from _NAME.findall(text)


def _shares(episodes: Sequence[PlannedEpisode]) -> dict[str, float]:
    """Return the share of the tasks whose texts hold each word."""
    counts = Counter(
        word
        for e in episodes
        for word in {
            w
            for text in (e.instruction, *_texts(e.trace), *e.trace.actions)
            for w in _names(text)
        }
    )
    return {word: count / len(episodes) for word, count in counts.items()}


def _texts(trace: Trace) -> Iterator[str]:
    return (step.observation for step in trace.steps)


def _missing_names(episode: PlannedEpisode) -> Iterator[tuple[str, str, bool]]:
    """Yield where, the name, and whether an earlier state showed it.

    Names hold a digit: other words may be of a language that the agent knows.
    """
    instruction, _, trace = episode
    states = list(_texts(trace))
    for i, action in enumerate(trace.actions):
        read = (instruction, states[i], *trace.actions[max(i - POLICY_ACTIONS, 0) : i])
        for word in filter(has_digit, _names(action)):
            if not _holds(read, word) and not _is_place(read, word):
                where = f"task {trace.task.id!r}, step {i + 1}, action {action!r:.80}"
                yield where, word, _holds(states[:i], word)


def _holds(texts: Iterable[str], word: str) -> bool:
    """Whether a text holds a word, also as a part: `K7` in `id:K7`, not in `K71`."""
    pattern = re.compile(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])")
    return any(pattern.search(text) for text in texts)


def _is_place(texts: Iterable[str], word: str) -> bool:
    """Return whether a word is a place, or two, of a board that the texts show.

    `c3` and `c3-d5` are where columns `a b c d e` and rows with a number stand.
    """
    pieces, texts = re.findall(r"[^\W\d_]+|\d+", word), list(texts)
    columns = [piece for piece in pieces if piece.isalpha()]
    if not columns or any(len(piece) > 1 for piece in columns):
        return False
    return all(_holds(texts, piece) for piece in pieces)


def check_returns(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn of lines that disappear and come back as they were: states forget them.

    A line comes back if an earlier state of the episode had it, and no line of the
    state before it begins with the same word, so that `KeepLines` would have kept it.
    The number of a numbered line is no name: these come back where a list takes the
    place of another one (_changes_list), and not where a line of it changes.
    """
    new, returned = 0, list[tuple[str, str]]()
    for trace in traces:
        seen = set[str]()
        for before, after in itertools.pairwise(_texts(trace)):
            lines, next_lines = before.splitlines(), after.splitlines()
            keys = {first_word(line) for line in lines}
            if _changes_list(lines, next_lines):
                keys -= {first_word(line) for line in lines if _ITEM.match(line)}
            added = [x for x in next_lines if x.strip() and x not in lines]
            new += len(added)
            returned += [
                (trace.task.id, x)
                for x in added
                if x in seen
                and len(x.split()) > 1  # a row of a grid has no name
                and first_word(x) not in keys
                and not before.endswith(x)
                and f"{x}\n" not in before  # also as `last seen X`
            ]
            seen.update(lines)
    if len(returned) < MIN_RETURNS or len(returned) < MIN_RETURN_SHARE * new:
        return
    task, line = returned[0]
    findings.warn(
        "lines disappear from the state and come back as they were",
        f"{len(returned)} of {new} new lines; task {task!r}: {line!r:.80}",
        "keep what was seen in the state: KeepLines of dreamgym.envs.wrappers does "
        "(numbered lines need a name_of that does not return their number); leave it "
        "if such a line is no longer true while it is gone",
    )


def _changes_list(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether most numbered lines of a state, two or more, hold a new text."""
    earlier, texts = set(_item_texts(before)), list(_item_texts(after))
    new = sum(text not in earlier for text in texts)
    return new >= 2 and 2 * new > len(texts)


def _item_texts(lines: Iterable[str]) -> Iterator[str]:
    return (match[1] for match in map(_ITEM.match, lines) if match)
