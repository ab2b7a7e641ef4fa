"""The judge of components: a large model says of one decision whether it is right.

a question -> one request -> yes or no, or a score from 1 to 10 -> a label in [0, 1].
With a cache in the client equal requests are sent once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.rewards.components.questions import Question
from dreamgym.rewards.config import JudgeConfig
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import (
    QUOTING,
    json_choice,
    json_object,
    number_lines,
    quote,
    schema,
)
from worldmodel.chat.retrying import RetryingClient
from worldmodel.data.hashing import content_seed
from worldmodel.text.conversation import Message

ANSWERS = ("yes", "no")
WORST, BEST = 1, 10
"""The scores of a judge."""

_ABOUT = f"""\
You judge one decision of an agent that may call tools in a text environment. You see
the task, the tools as far as they are listed, what the agent did before, and the state
in which it decides. A state is a list of lines; the number before a line is not part of
it.
{QUOTING}
Answer with one JSON object and nothing else:
"""
_FORMS = {
    "when": """\
{"why": "...", "answer": "yes"}
why: in one sentence, what is missing or what is done.
answer: "yes" where the agent should call a tool now, "no" where it needs none: it can
answer already, or all is done.""",
    "which": f"""\
{{"why": "...", "score": {WORST}}}
why: in one sentence, what this step needs.
score: a number from {WORST} to {BEST}. {BEST}: this tool is the best one for this step.
{WORST}: it is of no use here.""",
    "arguments": f"""\
{{"why": "...", "score": {WORST}}}
why: in one sentence, which argument is right or wrong, and by what.
score: a number from {WORST} to {BEST}. {BEST}: all arguments are those that the task
and the state ask for. {WORST}: none of them is.""",
}
_QUESTIONS = {
    "when": "Should the agent call a tool now?",
    "which": "Is this tool the best one for this step? TOOL {text}",
    "arguments": "Are these arguments right? CALL {text}",
}


class ComponentJudge:
    """Labels components with a model behind a chat server, one request a question."""

    def __init__(self, client: ChatClient, config: JudgeConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self._requests = RetryingClient(client, config.retries)

    def labels(self, questions: Sequence[Question]) -> list[float | str]:
        """Return a label in [0, 1] for each question, or why it has none.

        Raises:
          ChatUnavailable: the server is gone; with a cache a second call continues.
          ChatRefused: the server does not accept requests, or no more of them.
          ChatError: the server gives no answer, and has never given one.
        """
        given, problems = self._requests.ask(
            range(len(questions)),
            lambda i, attempt: self._request(questions[i], attempt),
            lambda i, text: read_label(text, questions[i].component),
        )
        return [
            f"judge: {problems[i]}" if i in problems else given[i]
            for i in range(len(questions))
        ]

    def _request(self, question: Question, attempt: int) -> ChatRequest:
        messages = component_messages(question, state_chars=self.config.state_chars)
        seed = content_seed(self._seed, attempt, messages[-1].content)
        return ChatRequest(messages, seed, _answer_schema(question.component))


def _answer_schema(component: str) -> Mapping[str, Any]:
    if component == "when":
        answer = {"type": "string", "enum": list(ANSWERS)}
        return schema(why={"type": "string"}, answer=answer)
    score = {"type": "number", "minimum": WORST, "maximum": BEST}
    return schema(why={"type": "string"}, score=score)


def component_messages(question: Question, *, state_chars: int) -> tuple[Message, ...]:
    """Return the request about one decision.

    Neither the expected calls nor what followed are shown. The state and the list of
    tools are shown up to `state_chars` characters.
    """
    task = question.task
    parts = [f"TASK\n{quote(task.instruction)}"]
    if tools := task.options.get("tools"):
        text = json.dumps(tools, ensure_ascii=False)
        parts.append(f"TOOLS\n{quote(text[:state_chars])}")
    done = "\n".join(quote(action) for action in question.past)
    parts.append(f"DONE BEFORE\n{done or '(nothing)'}")
    parts.append(f"STATE\n{number_lines(question.state, state_chars)}")
    parts.append(_QUESTIONS[question.component].format(text=quote(question.text)))
    system = _ABOUT + _FORMS[question.component]
    return Message("system", system), Message("user", "\n\n".join(parts))


def read_label(text: str, component: str) -> float:
    """Return the label of an answer: 1 or 0, or the score from 0 to 1.

    Raises:
      ValueError: "malformed: " and what is wrong with the answer.
    """
    if component == "when":
        return float(json_choice(text, "answer", ANSWERS) == "yes")
    try:
        score = json_object(text, ("why", "score"))["score"]
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise ValueError(f"score must be a number, got {json.dumps(score):.40}")
        if not WORST <= score <= BEST:
            raise ValueError(f"score must be in [{WORST}, {BEST}], got {score:.4g}")
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None
    return (score - WORST) / (BEST - WORST)
