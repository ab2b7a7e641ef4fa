"""The judge: a large model behind a chat server says how good steps were.

episode, the steps in question -> one question -> a score of 0 to 10 for each -> what it
pays. Equal questions have one answer, kept on disk where the client has a cache.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.scoring.config import JudgeConfig
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingAsker
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode
from worldmodel.text.conversation import Message
from worldmodel.text.prompts import outcome_of

BEST = 10
"""The highest score; 0 is the lowest."""

_JUDGE = f"""\
You judge the steps of an agent in a text environment. You see the task, every state,
every action and how the episode ended. A state is a list of lines; the number before a
line is not part of it.
{QUOTING}
Answer with one JSON object and nothing else:
{{"why": "...", "scores": [0, 10]}}
why: in one or two sentences, what brought the task nearer and what did not.
scores: a number from 0 to {BEST} for each step you are asked about, in order. {BEST}: \
this
step was needed, or as good as any. 5: it neither helped nor harmed. 0: it made the task
harder, wasted the step or could not be done."""


class Judge:
    """Scores of steps by a model behind a chat server, one question an episode."""

    def __init__(self, client: ChatClient, config: JudgeConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self._asker = RetryingAsker(client, config.retries)

    def scores(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Sequence[Sequence[str]] | None = None,
    ) -> list[dict[int, float] | str]:
        """What each wanted step is paid, or why an episode's steps could not be scored.

        An episode of which nothing is wanted is not asked about. `pasts` are the
        actions before each; None where all begin at their task's start.

        Raises:
          ChatUnavailable: the server is gone; with a cache, call again to go on.
          ChatRefused: it does not let us ask, or not any more.
          ChatError: it is silent, and has never answered.
        """
        before = [()] * len(episodes) if pasts is None else pasts
        found, problems = self._asker.ask(
            [i for i, steps in enumerate(wanted) if steps],
            lambda i, n: self._request(episodes[i], wanted[i], before[i], n),
            lambda i, text: read_scores(text, len(wanted[i])),
        )
        c, out = self.config, list[dict[int, float] | str]()
        for i, steps in enumerate(wanted):
            if i in problems:
                out.append(f"judge: {problems[i]}")
                continue
            paid = (c.bad + (c.good - c.bad) * x / BEST for x in found.get(i, ()))
            out.append(dict(zip(steps, paid, strict=True)))
        return out

    def _request(
        self, episode: Episode, wanted: Sequence[int], past: Sequence[str], attempt: int
    ) -> ChatRequest:
        most = self.config.state_chars
        messages = judge_messages(episode, wanted, most=most, past=past)
        # Of what is asked, not of the episode's id: who does the same is judged once.
        seed = content_seed(self._seed, attempt, messages[-1].content)
        return ChatRequest(messages, seed, judge_schema(len(wanted)))


def judge_schema(count: int) -> Mapping[str, Any]:
    """The JSON schema of an answer of so many scores."""
    told = {"type": "number", "minimum": 0, "maximum": BEST}
    scores = {"type": "array", "items": told, "minItems": count, "maxItems": count}
    return schema(why={"type": "string"}, scores=scores)


def judge_messages(
    episode: Episode, wanted: Sequence[int], *, most: int, past: Sequence[str] = ()
) -> tuple[Message, ...]:
    """The question: the whole episode with its end, then which steps are meant.

    States are shown up to `most` characters, of the `past` only the actions. What was
    paid before is not shown: the judge shall not repeat it.
    """
    ended = {True: "success", False: "failure", None: "not scored"}[episode.success]
    parts = [f"TASK\n{quote(episode.task.instruction)}", f"THE EPISODE: {ended}"]
    if past:
        done = "\n".join(quote(action) for action in past)
        parts.append(f"DONE BEFORE, and not to be scored\n{done}")
    parts.append(f"STATE\n{number_lines(episode.transitions[0].state, most)}")
    for i, t in enumerate(episode.transitions):
        parts.append(
            f"STEP {i + 1}\naction {quote(t.action)}\noutcome {outcome_of(t)}\n"
            f"next state\n{number_lines(t.next_state, most)}"
        )
    steps = ", ".join(str(i + 1) for i in wanted)
    parts.append(f"Score these {len(wanted)} steps: {steps}.")
    return Message("system", _JUDGE), Message("user", "\n\n".join(parts))


def read_scores(text: str, count: int) -> tuple[float, ...]:
    """So many scores of 0 to 10.

    Raises:
      ValueError: "malformed: " and what is wrong with the answer.
    """
    try:
        row = json_object(text, ("why", "scores"))
        if not isinstance(row["why"], str):
            raise ValueError("why must be text")
        found = row["scores"]
        if not isinstance(found, list) or len(found) != count:
            got = len(found) if isinstance(found, list) else type(found).__name__
            raise ValueError(f"{count} scores were asked for, got {got}")
        return tuple(_score(x) for x in found)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None


def _score(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a score must be a number, got {json.dumps(value):.40}")
    if not 0 <= value <= BEST:
        raise ValueError(f"a score must be in [0, {BEST}], got {value:.4g}")
    return float(value)
