"""Which of two attempts at a task is better: asked of a model behind a chat server.

two attempts -> two requests, in both orders -> a verdict where both answers agree

A model that prefers whatever it reads first, or last, contradicts itself when the order
is turned around; such pairs have no verdict, and are counted. Differences are of three
kinds, as rewards for tool use are: when a tool is called, which one, and how.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.rewards.config import JudgeConfig
from dreamgym.rewards.preferences import Preference
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_choice, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingClient
from worldmodel.data.hashing import content_seed
from worldmodel.data.outcomes import outcome_of
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.conversation import Message
from worldmodel.text.tools.tool_calls import read_action

KINDS = ("when", "which", "how", "text")
"""Kinds of differences: in the call, the tool, its arguments, or an action's text."""
CHOICES = ("A", "B", "equal")

_COMPARE = f"""\
You compare two attempts of an agent at one task in a text environment. You see the
task, and of each attempt every action with the state after it and how it ended. A state
is a list of lines; the number before a line is not part of it.
{QUOTING}
Answer with one JSON object and nothing else:
{{"why": "...", "better": "A"}}
why: in one or two sentences, what makes one attempt better.
better: "A" or "B", or "equal" where neither is. Nearer to the goal is better; with the
same result fewer and cleaner steps are. The order in which they are shown means \
nothing."""


class Attempts(NamedTuple):
    """Two attempts at one task that are to be compared."""

    task: Task
    first: tuple[Transition, ...]
    second: tuple[Transition, ...]

    def preferring(self, choice: str) -> Preference:
        """Return the preference for the attempt "A", the first one, or "B"."""
        sides = (self.first, self.second)
        better, worse = sides if choice == "A" else sides[::-1]
        return Preference(task=self.task, better=better, worse=worse)


class Comparison(NamedTuple):
    """Verdicts by pair: "A", "B", "equal", or "" where there is none; and counts.

    `counts` has `answers`, how many of them chose the `first` or the `second` attempt
    that they were shown, the pairs with `contradictions`, and the `unanswered` ones.
    """

    verdicts: list[str]
    counts: Mapping[str, int]


def pair_attempts(
    episodes: Sequence[Episode],
    others: Sequence[Episode] | None = None,
    *,
    max_pairs: int,
    kinds: Collection[str] = KINDS,
) -> list[Attempts]:
    """Return pairs of attempts at the same task with different actions.

    Both are of `episodes`, or the second one is of `others`. Of a task there are at
    most `max_pairs` of these kinds of difference, in the order of the episodes; equal
    pairs are there once.
    """
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes if others is None else others:
        by_task.setdefault(episode.task.id, []).append(episode)
    out, counts = dict[tuple, Attempts](), Counter[str]()
    for episode in episodes:
        for other in by_task.get(episode.task.id, ()):
            pair = Attempts(episode.task, episode.transitions, other.transitions)
            key = _key(pair)
            if len(set(key[1:])) < 2 or counts[key[0]] >= max_pairs:
                continue
            if difference_kind(pair) not in kinds:
                continue
            if key not in out and (key[0], key[2], key[1]) not in out:
                out[key] = pair
                counts[key[0]] += 1
    return list(out.values())


def _key(pair: Attempts) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    sides = (tuple(t.action for t in side) for side in pair[1:])
    return (pair.task.id, *sides)  # type: ignore[return-value]


def difference_kind(pair: Attempts) -> str:
    """Return in what the first actions that differ do differ (KINDS)."""
    for one, two in zip(pair.first, pair.second, strict=False):
        if one.action == two.action:
            continue
        calls = [read_action(t.action).calls for t in (one, two)]
        if not any(calls):
            return "text"
        if not all(calls):
            return "when"
        tools = [[call.tool for call in side] for side in calls]
        if len(tools[0]) != len(tools[1]):
            return "when"
        return "how" if tools[0] == tools[1] else "which"
    return "when"  # one goes on where the other one has ended


def better_by_outcome(pair: Attempts) -> str:
    """Return "A" or "B", the attempt that was won if the other one was not, or ""."""
    won = pair.first[-1].success, pair.second[-1].success
    if None in won or won[0] == won[1]:
        return ""
    return "A" if won[0] else "B"


class PairJudge:
    """Compares attempts with a model behind a chat server, in both orders."""

    def __init__(self, client: ChatClient, config: JudgeConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self._requests = RetryingClient(client, config.retries)

    def compare(self, pairs: Sequence[Attempts]) -> Comparison:
        """Return a verdict for each pair.

        Raises:
          ChatUnavailable: the server is gone; with a cache a second call continues.
          ChatRefused: the server does not accept requests, or no more of them.
          ChatError: the server gives no answer, and has never given one.
        """
        chosen, problems = self._requests.ask(
            range(2 * len(pairs)),
            lambda i, attempt: self._request(pairs[i // 2], i % 2 == 1, attempt),
            lambda _, text: read_choice(text),
        )
        counts = Counter(answers=len(chosen))
        counts["first"] = sum(choice == "A" for choice in chosen.values())
        counts["second"] = sum(choice == "B" for choice in chosen.values())
        verdicts = []
        for i in range(len(pairs)):
            if 2 * i in problems or 2 * i + 1 in problems:
                verdicts.append("")
                counts["unanswered"] += 1
                continue
            turned = {"A": "B", "B": "A"}.get(chosen[2 * i + 1], "equal")
            agrees = chosen[2 * i] == turned
            verdicts.append(turned if agrees else "")
            counts["contradictions"] += not agrees
        return Comparison(verdicts, dict(counts))

    def _request(self, pair: Attempts, turned: bool, attempt: int) -> ChatRequest:
        if turned:
            pair = Attempts(pair.task, pair.second, pair.first)
        messages = pair_messages(pair, state_chars=self.config.state_chars)
        seed = content_seed(self._seed, attempt, messages[-1].content)
        return ChatRequest(messages, seed, _choice_schema())


def _choice_schema() -> Mapping[str, Any]:
    return schema(
        why={"type": "string"}, better={"type": "string", "enum": list(CHOICES)}
    )


def pair_messages(pair: Attempts, *, state_chars: int) -> tuple[Message, ...]:
    """Return the request: the task, its first state, and both attempts."""
    start = number_lines(pair.first[0].state, state_chars)
    parts = [f"TASK\n{quote(pair.task.instruction)}", f"STATE\n{start}"]
    for name, attempt in zip(CHOICES, pair[1:], strict=False):
        parts.append(f"ATTEMPT {name}")
        for number, t in enumerate(attempt, start=1):
            after = number_lines(t.next_state, state_chars)
            parts.append(
                f"{name} STEP {number}\naction {quote(t.action)}\n"
                f"outcome {outcome_of(t)}\nnext state\n{after}"
            )
    parts.append("Which attempt is better?")
    return Message("system", _COMPARE), Message("user", "\n\n".join(parts))


def read_choice(text: str) -> str:
    """Return the choice of an answer.

    Raises:
      ValueError: "malformed: " and what is wrong with the answer.
    """
    return json_choice(text, "better", CHOICES)
