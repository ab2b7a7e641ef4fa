"""The experience model as a large model behind a chat server: prompted, not trained.

query -> retrieve k demonstrations -> prompt (papers.md Eq. 4) -> chat client -> strict
JSON -> Prediction. Without an answer of the server there is none of ours: a problem
where some queries of a batch are left, an error where all are.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from worldmodel.experience import (
    Prediction,
    Query,
    Remembering,
    content_seed,
    variation,
)
from worldmodel.memory import ReplayMemory
from worldmodel.served import prompting
from worldmodel.served.client import ChatClient
from worldmodel.served.protocol import ChatError, ChatMalformed, ChatReply, ChatRequest
from worldmodel.text.forms import Form, fault
from worldmodel.text.records import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptedConfig:
    """What a prompt holds: past actions, demonstrations, characters of their states.

    An answer that makes no sense is asked for again with another seed, `retries` times.
    """

    history: int = 8
    demos: int = 4
    demo_chars: int = 2000
    retries: int = 2

    def __post_init__(self):
        if min(self.history, self.demos, self.demo_chars, self.retries) < 0:
            raise ValueError(
                "history, demos, demo_chars and retries must be >= 0, got "
                f"{dataclasses.astuple(self)}"
            )


class PromptedExperience(Remembering):
    """An ExperienceModel that asks a chat server, with demonstrations in the prompt.

    Answers are remembered until the memory changes (`refresh`). A query that the server
    did not answer gets a prediction whose problem says why, and is not remembered.
    """

    def __init__(
        self,
        client: ChatClient,
        memory: ReplayMemory,
        config: PromptedConfig,
        *,
        seed: int = 0,
        forms: Mapping[str, Form] | None = None,
    ):
        super().__init__(memory, history=config.history, seed=seed, forms=forms)
        self.client, self.config = client, config

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """One prediction a query; equal queries are asked once.

        Raises:
          ChatError: the server answered none of the queries that it was asked.
        """
        keys, todo = self._new(queries)
        found = dict(zip(todo, self._compute(list(todo.values())), strict=True))
        failures = [x for x in found.values() if isinstance(x, ChatError)]
        known = {k: x for k, x in found.items() if isinstance(x, Prediction)}
        self._answers.update(known)
        if failures and not known:
            raise failures[0]
        failed = {
            k: _nothing(todo[k], str(x))
            for k, x in found.items()
            if isinstance(x, ChatError)
        }
        return [failed[k] if k in failed else self._answers[k] for k in keys]

    def _compute(self, queries: Sequence[Query]) -> list[Prediction | ChatError]:
        """An answer each, however often it has to be asked for."""
        demos = self.memory.search(
            [(q.task.id, q.state, q.action) for q in queries], self.config.demos
        )
        prompts = [
            prompting.predict_messages(
                q, d, history=self.config.history, demo_chars=self.config.demo_chars
            )
            for q, d in zip(queries, demos, strict=True)
        ]
        out: dict[int, Prediction | ChatError] = {}
        todo = list(range(len(queries)))
        for attempt in range(self.config.retries + 1):
            if not todo:
                break
            seeds = [self._noise(queries[i], attempt) for i in todo]
            requests = [
                ChatRequest(prompts[i], seed, prompting.PREDICT_SCHEMA, logprobs=True)
                for i, seed in zip(todo, seeds, strict=True)
            ]
            for i, reply in zip(todo, self.client.ask(requests), strict=True):
                out[i] = self._read(queries[i], reply)
            todo = [i for i in todo if _malformed(out[i])]
        return [out[i] for i in range(len(queries))]

    def _noise(self, query: Query, attempt: int) -> int:
        # History is left out: a group of rollouts that comes to one place by two ways
        # finds the same there, as far as the server's seeds go.
        return content_seed(
            self._seed, attempt, query.task.id, query.state, query.action
        )

    def _read(
        self, query: Query, found: ChatReply | ChatError
    ) -> Prediction | ChatError:
        if isinstance(found, ChatMalformed):
            return _nothing(query, str(found))
        if isinstance(found, ChatError):
            return found
        reply = prompting.read_reply(found.text)
        problem, form = reply.problem, self._forms.get(query.task.family)
        if problem is None and form is not None:
            problem = fault(reply.next_state, form)
        if problem is not None:
            return _nothing(query, problem)._replace(reasoning=reply.reasoning)
        return Prediction(
            reply.next_state, reply.reward, reply.outcome, reply.reasoning,
            prompting.confidence(found), None,
        )  # fmt: skip

    def vary(self, tasks: Sequence[Task], *, key: jax.Array) -> list[Task | None]:
        """One variation a task; None where it is malformed or was not answered.

        Raises:
          ChatError: the server answered for none of the tasks.
        """
        if not tasks:
            return []
        seeds = np.asarray(jax.random.bits(key, (len(tasks),))) >> 1
        requests = [
            ChatRequest(prompting.vary_messages(task), int(seed), prompting.VARY_SCHEMA)
            for task, seed in zip(tasks, seeds, strict=True)
        ]
        replies = self.client.ask(requests)
        failures = unanswered(replies)
        if len(failures) == len(replies):
            raise failures[0]
        return [self._varied(t, r) for t, r in zip(tasks, replies, strict=True)]

    def _varied(self, task: Task, reply: ChatReply | ChatError) -> Task | None:
        if not isinstance(reply, ChatReply):
            return None
        found, form = prompting.read_variation(reply.text), self._forms.get(task.family)
        if found is None or (form is not None and fault(found.state, form)):
            return None
        return variation(task, found.instruction, found.state)


def _nothing(query: Query, problem: str) -> Prediction:
    return Prediction(query.state, 0.0, "go", "", math.nan, problem)


def _malformed(found: Prediction | ChatError) -> bool:
    return isinstance(found, Prediction) and found.problem is not None


def unanswered(found: Sequence[ChatReply | ChatError]) -> list[ChatError]:
    """What the server did not answer; a malformed answer is one."""
    return [
        x
        for x in found
        if isinstance(x, ChatError) and not isinstance(x, ChatMalformed)
    ]
