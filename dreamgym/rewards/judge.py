"""The judge: a large model behind a chat server scores the steps of episodes.

an episode and some of its steps -> one request -> a score from 0 to 10 for each of
them -> rewards. With a cache in the client equal requests are sent once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.rewards.config import JudgeConfig
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingClient
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
    """Scores steps with a model behind a chat server, one request for an episode."""

    def __init__(self, client: ChatClient, config: JudgeConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self._requests = RetryingClient(client, config.retries)

    def scores(
        self,
        episodes: Sequence[Episode],
        step_numbers: Sequence[Sequence[int]],
        pasts: Sequence[Sequence[str]] | None = None,
    ) -> list[dict[int, float] | str]:
        """Return the reward of each wanted step, or why an episode has none.

        An episode without a wanted step costs no request. `pasts` are the actions
        before each episode; None if all start their task.

        Raises:
          ChatUnavailable: the server is gone; with a cache a second call continues.
          ChatRefused: the server does not accept requests, or no more of them.
          ChatError: the server gives no answer, and has never given one.
        """
        actions = [()] * len(episodes) if pasts is None else pasts
        scores, problems = self._requests.ask(
            [i for i, steps in enumerate(step_numbers) if steps],
            lambda i, n: self._request(episodes[i], step_numbers[i], actions[i], n),
            lambda i, text: read_scores(text, len(step_numbers[i])),
        )
        c, out = self.config, list[dict[int, float] | str]()
        for i, steps in enumerate(step_numbers):
            if i in problems:
                out.append(f"judge: {problems[i]}")
                continue
            rewards = (
                c.min_reward + (c.max_reward - c.min_reward) * x / BEST
                for x in scores.get(i, ())
            )
            out.append(dict(zip(steps, rewards, strict=True)))
        return out

    def _request(
        self,
        episode: Episode,
        step_numbers: Sequence[int],
        past: Sequence[str],
        attempt: int,
    ) -> ChatRequest:
        chars = self.config.state_chars
        messages = judge_messages(episode, step_numbers, state_chars=chars, past=past)
        # A function of the request, not of the id: equal episodes are judged once.
        seed = content_seed(self._seed, attempt, messages[-1].content)
        return ChatRequest(messages, seed, judge_schema(len(step_numbers)))


def judge_schema(count: int) -> Mapping[str, Any]:
    """Return the JSON schema of an answer with `count` scores."""
    score = {"type": "number", "minimum": 0, "maximum": BEST}
    scores = {"type": "array", "items": score, "minItems": count, "maxItems": count}
    return schema(why={"type": "string"}, scores=scores)


def judge_messages(
    episode: Episode,
    step_numbers: Sequence[int],
    *,
    state_chars: int,
    past: Sequence[str] = (),
) -> tuple[Message, ...]:
    """Return the request: the episode with its outcome, and which steps to score.

    States are shown up to `state_chars` characters; of the `past` only the actions are
    shown. Other rewards are not shown, so that the judge does not repeat them.
    """
    ended = {True: "success", False: "failure", None: "not scored"}[episode.success]
    parts = [f"TASK\n{quote(episode.task.instruction)}", f"THE EPISODE: {ended}"]
    if past:
        done = "\n".join(quote(action) for action in past)
        parts.append(f"DONE BEFORE, and not to be scored\n{done}")
    parts.append(f"STATE\n{number_lines(episode.transitions[0].state, state_chars)}")
    for i, t in enumerate(episode.transitions):
        parts.append(
            f"STEP {i + 1}\naction {quote(t.action)}\noutcome {outcome_of(t)}\n"
            f"next state\n{number_lines(t.next_state, state_chars)}"
        )
    steps = ", ".join(str(i + 1) for i in step_numbers)
    parts.append(f"Score these {len(step_numbers)} steps: {steps}.")
    return Message("system", _JUDGE), Message("user", "\n\n".join(parts))


def read_scores(text: str, count: int) -> tuple[float, ...]:
    """Return the `count` scores of an answer, each from 0 to 10.

    Raises:
      ValueError: "malformed: " and what is wrong with the answer.
    """
    try:
        row = json_object(text, ("why", "scores"))
        if not isinstance(row["why"], str):
            raise ValueError("why must be text")
        scores = row["scores"]
        if not isinstance(scores, list) or len(scores) != count:
            size = len(scores) if isinstance(scores, list) else type(scores).__name__
            raise ValueError(f"expected {count} scores, got {size}")
        return tuple(_score(x) for x in scores)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None


def _score(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a score must be a number, got {json.dumps(value):.40}")
    if not 0 <= value <= BEST:
        raise ValueError(f"a score must be in [0, {BEST}], got {value:.4g}")
    return float(value)
