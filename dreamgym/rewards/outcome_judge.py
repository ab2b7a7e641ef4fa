"""Was the task done? A model behind a chat server says it where nobody scored it.

an episode without its rewards and outcome -> one request -> "won", "lost" or "unclear"
-> an episode with a score. Of episodes whose outcome is known the same answers tell how
far the judge is to be trusted (`agreement`).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from dreamgym.rewards.config import JudgeConfig
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_choice, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingClient
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode
from worldmodel.text.conversation import Message

VERDICTS = ("won", "lost", "unclear")
JUDGE = "judge"
"""Who scored a judged episode, and the name of the reward of one that was won."""

_JUDGE = f"""\
You judge whether an agent has done its task in a text environment. You see the task,
the first state, and every action with the state after it. A state is a list of lines;
the number before a line is not part of it.
{QUOTING}
Answer with one JSON object and nothing else:
{{"why": "...", "verdict": "won"}}
why: in one or two sentences, what the task asks for, and what shows that it is done or
what is missing.
verdict: "won" where the states show that all of the task is done, "lost" where they
show that it is not, "unclear" where they show neither. What an agent says about itself
shows nothing."""


class OutcomeJudge:
    """Judges outcomes with a model behind a chat server, one request for an episode."""

    def __init__(self, client: ChatClient, config: JudgeConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self._requests = RetryingClient(client, config.retries)

    def verdicts(self, episodes: Sequence[Episode]) -> list[str]:
        """Return a verdict of VERDICTS for each episode, or "" where none was given.

        Raises:
          ChatUnavailable: the server is gone; with a cache a second call continues.
          ChatRefused: the server does not accept requests, or no more of them.
          ChatError: the server gives no answer, and has never given one.
        """
        given, _ = self._requests.ask(
            range(len(episodes)),
            lambda i, attempt: self._request(episodes[i], attempt),
            lambda _, text: read_verdict(text),
        )
        return [given.get(i, "") for i in range(len(episodes))]

    def _request(self, episode: Episode, attempt: int) -> ChatRequest:
        messages = outcome_messages(episode, state_chars=self.config.state_chars)
        seed = content_seed(self._seed, attempt, messages[-1].content)
        verdict = {"type": "string", "enum": list(VERDICTS)}
        answer = schema(why={"type": "string"}, verdict=verdict)
        return ChatRequest(messages, seed, answer)


def outcome_messages(episode: Episode, *, state_chars: int) -> tuple[Message, ...]:
    """Return the request: task, states and actions, without rewards and the outcome."""
    start = number_lines(episode.transitions[0].state, state_chars)
    parts = [f"TASK\n{quote(episode.task.instruction)}", f"STATE\n{start}"]
    for number, t in enumerate(episode.transitions, start=1):
        after = number_lines(t.next_state, state_chars)
        parts.append(f"STEP {number}\naction {quote(t.action)}\nnext state\n{after}")
    parts.append("Has the agent done its task?")
    return Message("system", _JUDGE), Message("user", "\n\n".join(parts))


def read_verdict(text: str) -> str:
    """Return the verdict of an answer.

    Raises:
      ValueError: "malformed: " and what is wrong with the answer.
    """
    return json_choice(text, "verdict", VERDICTS)


def with_outcome(episode: Episode, *, won: bool) -> Episode:
    """Return the episode with a judged outcome.

    A won episode ends with its last step, so that an experience model learns which
    steps win; where nothing positive was paid, that step earns 1, under the name of the
    judge.
    """
    *before, last = episode.transitions
    if won:
        rewards = dict(last.rewards)
        if not any(t.reward > 0 for t in episode.transitions):
            rewards[JUDGE] = 1.0
        last = dataclasses.replace(
            last, rewards=rewards, terminated=True, truncated=False, success=True
        )
    elif last.terminated:
        last = dataclasses.replace(last, success=False)
    return dataclasses.replace(
        episode, transitions=(*before, last), success=won, scored_by=JUDGE
    )


class Agreement(NamedTuple):
    """Verdicts on episodes whose outcome is known.

    `won` and `lost` count verdicts by the real outcome: (right, wrong).
    """

    won: tuple[int, int]
    lost: tuple[int, int]
    without_verdict: int

    @property
    def right(self) -> int:
        """The number of right verdicts."""
        return self.won[0] + self.lost[0]

    @property
    def count(self) -> int:
        """The number of verdicts."""
        return sum(self.won) + sum(self.lost)

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa: agreement beyond chance, 1 if perfect; None if undefined."""
        n = self.count
        if not n:
            return None
        judged_won = self.won[0] + self.lost[1]
        by_chance = sum(self.won) * judged_won + sum(self.lost) * (n - judged_won)
        expected = by_chance / n**2
        return None if expected == 1 else (self.right / n - expected) / (1 - expected)


def agreement(episodes: Sequence[Episode], verdicts: Sequence[str]) -> Agreement:
    """Return how verdicts agree with the outcomes of episodes that have one."""
    counts = {True: [0, 0], False: [0, 0]}
    without = 0
    for episode, verdict in zip(episodes, verdicts, strict=True):
        if episode.success is None:
            continue
        if verdict not in ("won", "lost"):
            without += 1
            continue
        counts[episode.success][(verdict == "won") != episode.success] += 1
    won, lost = (tuple(counts[x]) for x in (True, False))
    return Agreement(won, lost, without)  # type: ignore[arg-type] # two numbers each
