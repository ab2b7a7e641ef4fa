"""The experience model as a large model behind a chat server: prompted, not trained.

query -> retrieve k demonstrations -> prompt (DreamGym, Eq. 4) -> chat client -> strict
JSON -> Prediction. Where the server refuses one query or takes too long, its prediction
has an error; where other queries would fail too, an exception is raised
(chat/failures.py).
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from worldmodel.chat.client import ChatClient
from worldmodel.chat.failures import ServerHealth, unanswered
from worldmodel.chat.protocol import ChatError, ChatMalformed, ChatReply, ChatRequest
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience import prompting
from worldmodel.experience.base import (
    SAMPLED,
    CachingExperienceModel,
    Prediction,
    Query,
    agreement,
    failed_prediction,
    variation,
)
from worldmodel.experience.config import SERVER_SIGNALS, PromptedConfig
from worldmodel.memory import ReplayMemory
from worldmodel.text.state_format import StateFormat, format_error


class PromptedExperienceModel(CachingExperienceModel):
    """An experience model that prompts a chat server with demonstrations.

    Answers are cached until the memory changes (`add_to_memory`). A query that the
    server did not answer gets a prediction with an error, which is not cached.
    """

    def __init__(
        self,
        client: ChatClient,
        memory: ReplayMemory,
        config: PromptedConfig,
        *,
        seed: int = 0,
        state_formats: Mapping[str, StateFormat] | None = None,
        scale: Callable[[Prediction], Prediction] | None = None,
        confidence_signal: str = "token_probability",
    ):
        """Build the model; further arguments are those of CachingExperienceModel.

        Args:
          scale: calibrates the probabilities of an answer.
          confidence_signal: which of SERVER_SIGNALS the confidence of an answer is.
            "self_consistency" asks SAMPLES further times for every answer.

        Raises:
          ValueError: the signal is unknown, or is "self_consistency" at a temperature
            of 0.
        """
        if confidence_signal not in SERVER_SIGNALS:
            raise ValueError(
                f"confidence_signal must be one of {SERVER_SIGNALS}, "
                f"got {confidence_signal!r}"
            )
        if confidence_signal == "self_consistency" and not client.config.temperature:
            raise ValueError(
                "agreement compares answers under different noise: the server's "
                "temperature must be > 0"
            )
        super().__init__(
            memory, history=config.history, seed=seed, state_formats=state_formats
        )
        self.client, self.config, self._scale = client, config, scale
        self._confidence_signal, self._health = confidence_signal, ServerHealth()

    @property
    def answered(self) -> bool:
        """Whether the server itself has answered anything yet."""
        return self._health.answered

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction a query; equal queries are asked once.

        Raises:
          ChatError: as ServerHealth.check; the answers so far are cached.
        """
        keys, todo = self._unanswered(queries)
        answers = self._compute(list(todo.values()))
        results = dict(zip(todo, answers, strict=True))
        predictions = {k: x for k, x in results.items() if isinstance(x, Prediction)}
        calibrated = self._with_confidence(
            [todo[k] for k in predictions], list(predictions.values())
        )
        self._answers.update(zip(predictions, calibrated, strict=True))
        self._health.check([x for x in answers if isinstance(x, ChatError)])
        failed = {
            k: failed_prediction(todo[k], str(x))
            for k, x in results.items()
            if isinstance(x, ChatError)
        }
        return [failed[k] if k in failed else self._answers[k] for k in keys]

    def sample(self, queries: Sequence[Query], number: int) -> list[Prediction]:
        """Return reply `number` to each query, under its own noise and without retries.

        A malformed or missing reply has an error.

        Raises:
          ChatError: as ServerHealth.check.
        """
        results = self._compute(queries, SAMPLED + number, retries=0)
        self._health.check([x for x in results if isinstance(x, ChatError)])
        return [
            x if isinstance(x, Prediction) else failed_prediction(q, str(x))
            for q, x in zip(queries, results, strict=True)
        ]

    def _with_confidence(
        self, queries: Sequence[Query], answers: Sequence[Prediction]
    ) -> list[Prediction]:
        """Return the answers with their confidence, calibrated."""
        out = list(answers)
        if self._confidence_signal != "token_probability":
            valid = [i for i, a in enumerate(out) if a.error is None]
            valid_queries = [queries[i] for i in valid]
            if self._confidence_signal == "nearest_neighbor":
                confidences = self.neighbor_similarity(valid_queries)
            else:
                confidences = agreement(self, valid_queries, [out[i] for i in valid])
            for i, x in zip(valid, confidences, strict=True):
                out[i] = out[i]._replace(confidence=x)
        if self._scale is None:
            return out
        return [a if a.error is not None else self._scale(a) for a in out]

    def _compute(
        self, queries: Sequence[Query], first: int = 0, retries: int | None = None
    ) -> list[Prediction | ChatError]:
        """Ask for each query until its answer is well-formed, within the retries.

        Attempts are numbered from `first`, each with noise of its own.
        """
        retries = self.config.retries if retries is None else retries
        demos = self.memory.search(
            [(q.task.id, q.state, q.action) for q in queries],
            self.config.demonstrations,
        )
        prompts = [
            prompting.predict_messages(
                q, d, history=self.config.history, demo_chars=self.config.state_chars
            )
            for q, d in zip(queries, demos, strict=True)
        ]
        out: dict[int, Prediction | ChatError] = {}
        todo = list(range(len(queries)))
        for attempt in range(first, first + retries + 1):
            if not todo:
                break
            seeds = [self._noise(queries[i], attempt) for i in todo]
            requests = [
                ChatRequest(prompts[i], seed, prompting.PREDICT_SCHEMA, logprobs=True)
                for i, seed in zip(todo, seeds, strict=True)
            ]
            replies = self.client.ask(requests)
            self._health.note(replies)
            for i, reply in zip(todo, replies, strict=True):
                out[i] = self._read(queries[i], reply)
            todo = [i for i in todo if _malformed(out[i])]
        return [out[i] for i in range(len(queries))]

    def _noise(self, query: Query, attempt: int) -> int:
        # History is left out, so that rollouts which reach a state in different ways
        # get the same answer, as far as the server respects seeds.
        return content_seed(
            self._seed, attempt, query.task.id, query.state, query.action
        )

    def _read(
        self, query: Query, reply: ChatReply | ChatError
    ) -> Prediction | ChatError:
        if isinstance(reply, ChatMalformed):
            return failed_prediction(query, str(reply))
        if isinstance(reply, ChatError):
            return reply
        parsed = prompting.read_reply(reply.text)
        error, state_format = parsed.error, self._state_formats.get(query.task.family)
        if error is None and state_format is None and not parsed.next_state:
            error = "malformed: next_state has no line of text"
        if error is None and state_format is not None:
            error = format_error(parsed.next_state, state_format)
        if error is not None:
            return failed_prediction(query, error)._replace(reasoning=parsed.reasoning)
        return Prediction(
            parsed.next_state,
            parsed.reward,
            parsed.outcome,
            parsed.reasoning,
            prompting.confidence(reply),
            None,
        )

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        """Return a new task from each group, None where it is malformed or missing.

        Raises:
          ChatError: as ServerHealth.check.
        """
        if not groups:
            return []
        groups = [group[: self.config.variation_seeds] for group in groups]
        noise = np.asarray(jax.random.bits(key, (len(groups),))) >> 1
        requests = [
            ChatRequest(prompting.vary_messages(group), int(n), prompting.VARY_SCHEMA)
            for group, n in zip(groups, noise, strict=True)
        ]
        replies = self.client.ask(requests)
        self._health.note(replies)
        self._health.check(unanswered(replies))
        return [
            self._parse_variation(g, r) for g, r in zip(groups, replies, strict=True)
        ]

    def _parse_variation(
        self, group: Sequence[SeedTask], reply: ChatReply | ChatError
    ) -> Task | None:
        if not isinstance(reply, ChatReply):
            return None
        task = group[0].task
        parsed = prompting.read_variation(
            reply.text, has_instruction=bool(task.instruction)
        )
        if parsed is None:
            return None
        state_format = self._state_formats.get(task.family)
        if state_format is not None and format_error(parsed.state, state_format):
            return None
        return variation(group, parsed.instruction, parsed.state)


def _malformed(result: Prediction | ChatError) -> bool:
    return isinstance(result, Prediction) and result.error is not None
