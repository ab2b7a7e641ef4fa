"""The judge: a large model behind a chat server scores the steps of episodes.

an episode and some of its steps -> one request -> a score from 0 to 10 for each of
them -> rewards. With a cache in the client equal requests are sent once.

With a tool the judge may run programs before it scores: thought, action, observation,
rationale, score, as in tool-augmented reward modelling (Themis, arXiv:2310.01045). It
is prompted, not trained.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.rewards.config import JudgeConfig
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingClient
from worldmodel.data.hashing import content_seed
from worldmodel.data.outcomes import outcome_of
from worldmodel.data.records import Episode
from worldmodel.text.conversation import Message

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


_PYTHON = """
Before you score you may run Python, {runs} programs at most, to compute what is hard to
see: sums, counts, dates. Then answer {{"why": "...", "python": "print(2 + 2)",
"scores": []}}, with what you want to know as why, and you will see what is printed. An
answer with scores has "python": ""."""
_LAST = "\n\nNo program is left. Score the steps now."


class Program(NamedTuple):
    """A program that the judge wants to run, and what it wants to know."""

    why: str
    python: str


class Judge:
    """Scores steps with a model behind a chat server, one request for an episode.

    Each program that it runs is one more request. `run_python` returns what a program
    printed, or why it failed.
    """

    def __init__(
        self,
        client: ChatClient,
        config: JudgeConfig,
        *,
        seed: int = 0,
        run_python: Callable[[str], str] | None = None,
    ):
        """Raise ValueError if programs may be run, and nobody runs them."""
        if config.python_runs and run_python is None:
            raise ValueError(
                f"python_runs is {config.python_runs}, and no run_python was given"
            )
        self.client, self.config, self._seed = client, config, seed
        self._requests = RetryingClient(client, config.retries)
        self._run_python = run_python

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
        questions = {
            i: self._question(episodes[i], steps, actions[i])
            for i, steps in enumerate(step_numbers)
            if steps
        }
        counts = {i: len(steps) for i, steps in enumerate(step_numbers)}
        scores, problems = self._answers(questions, counts)
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

    def _question(
        self, episode: Episode, step_numbers: Sequence[int], past: Sequence[str]
    ) -> tuple[Message, ...]:
        chars, runs = self.config.state_chars, self.config.python_runs
        system, user = judge_messages(
            episode, step_numbers, state_chars=chars, past=past
        )
        if not runs:
            return system, user
        return Message("system", system.content + _PYTHON.format(runs=runs)), user

    def _answers(
        self, questions: dict[int, tuple[Message, ...]], counts: Mapping[int, int]
    ) -> tuple[dict[int, tuple[float, ...]], dict[int, str]]:
        """Return scores, or what prevented them; run the programs in between."""
        scores: dict[int, tuple[float, ...]] = {}
        problems: dict[int, str] = {}
        for left in reversed(range(self.config.python_runs + 1)):
            replies, failed = self._requests.ask(
                list(questions),
                lambda i, n, left=left, questions=questions: self._request(
                    questions[i], counts[i], n, left
                ),
                lambda i, text, left=left: self._read(text, counts[i], left),
            )
            problems |= failed
            programs = {i: x for i, x in replies.items() if isinstance(x, Program)}
            scores |= {i: x for i, x in replies.items() if not isinstance(x, Program)}
            if not programs:
                break
            questions = {
                i: (*questions[i], *self._observation(program, left - 1))
                for i, program in programs.items()
            }
        return scores, problems

    def _request(
        self, messages: tuple[Message, ...], count: int, attempt: int, left: int
    ) -> ChatRequest:
        # A function of the request, not of the id: equal episodes are judged once.
        seed = content_seed(self._seed, attempt, messages[-1].content)
        form = judge_schema(count)
        if self.config.python_runs:
            form = tool_schema(count, may_run=left > 0)
        return ChatRequest(messages, seed, form)

    def _read(self, text: str, count: int, left: int) -> tuple[float, ...] | Program:
        if not self.config.python_runs:
            return read_scores(text, count)
        return read_tool_answer(text, count, may_run=left > 0)

    def _observation(self, program: Program, left: int) -> tuple[Message, Message]:
        """Run a program; return it and what it printed as the next two messages."""
        assert self._run_python is not None
        output = quote(self._run_python(program.python))
        answer = {"why": program.why, "python": program.python, "scores": []}
        return (
            Message("assistant", json.dumps(answer, ensure_ascii=False)),
            Message("user", f"OUTPUT\n{output}" + _LAST * (left == 0)),
        )


def _scores_schema(count: int, minimum: int) -> Mapping[str, Any]:
    score = {"type": "number", "minimum": 0, "maximum": BEST}
    return {"type": "array", "items": score, "minItems": minimum, "maxItems": count}


def judge_schema(count: int) -> Mapping[str, Any]:
    """Return the JSON schema of an answer with `count` scores."""
    return schema(why={"type": "string"}, scores=_scores_schema(count, count))


def tool_schema(count: int, *, may_run: bool) -> Mapping[str, Any]:
    """Return the JSON schema of an answer with a program or `count` scores."""
    python = {"type": "string"} if may_run else {"type": "string", "enum": [""]}
    scores = _scores_schema(count, 0 if may_run else count)
    return schema(why={"type": "string"}, python=python, scores=scores)


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
        return _scores(json_object(text, ("why", "scores")), count)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None


def read_tool_answer(
    text: str, count: int, *, may_run: bool
) -> tuple[float, ...] | Program:
    """Return the program of an answer, or its `count` scores.

    Raises:
      ValueError: "malformed: " and what is wrong with the answer.
    """
    try:
        row = json_object(text, ("why", "python", "scores"))
        why, python = row["why"], row["python"]
        if not isinstance(python, str) or not isinstance(why, str):
            raise ValueError("why and python must be text")
        if not python.strip():
            return _scores(row, count)
        if not may_run:
            raise ValueError("no program is left")
        if row["scores"] != []:
            raise ValueError("a program and scores in one answer")
        return Program(why, python)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None


def _scores(row: Mapping[str, Any], count: int) -> tuple[float, ...]:
    if not isinstance(row["why"], str):
        raise ValueError("why must be text")
    scores = row["scores"]
    if not isinstance(scores, list) or len(scores) != count:
        size = len(scores) if isinstance(scores, list) else type(scores).__name__
        raise ValueError(f"expected {count} scores, got {size}")
    return tuple(_score(x) for x in scores)


def _score(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a score must be a number, got {json.dumps(value):.40}")
    if not 0 <= value <= BEST:
        raise ValueError(f"a score must be in [0, {BEST}], got {value:.4g}")
    return float(value)
