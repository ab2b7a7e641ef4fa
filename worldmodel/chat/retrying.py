"""A chat client that repeats requests whose answers cannot be parsed.

questions -> answers -> results, or another request with another seed -> results, and
the errors of the questions without one. A failure that would meet every other question
too is raised (failures.py), never returned as an empty answer.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from worldmodel.chat.client import ChatClient
from worldmodel.chat.failures import ServerHealth, unanswered
from worldmodel.chat.protocol import ChatError, ChatRequest

T = TypeVar("T")


class RetryingClient:
    """Sends requests to a chat server, again where an answer cannot be parsed."""

    def __init__(self, client: ChatClient, retries: int):
        self.client, self._retries, self._health = client, retries, ServerHealth()

    def ask(
        self,
        questions: Sequence[int],
        request: Callable[[int, int], ChatRequest],
        read: Callable[[int, str], T],
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Return the results by question, and the errors of questions without one.

        Args:
          request: returns the request of a question and an attempt, both by number.
          read: returns the result of a question's answer; raises ValueError where the
            answer makes no sense.

        Raises:
          ChatUnavailable: the server cannot be reached; with a cache, a second call
            continues where this one ended.
          ChatRefused: it refuses the client.
          ChatError: requests time out, and the server has never answered.
        """
        pending, results, problems = list(questions), dict[int, T](), dict[int, str]()
        for attempt in range(self._retries + 1):
            replies = self.client.ask([request(i, attempt) for i in pending])
            self._health.note(replies)
            self._health.check(unanswered(replies))
            retry = []
            for i, reply in zip(pending, replies, strict=True):
                try:
                    if isinstance(reply, ChatError):
                        raise ValueError(str(reply))
                    results[i] = read(i, reply.text)
                except ValueError as error:
                    problems[i] = str(error)
                    retry += [] if unanswered([reply]) else [i]
            pending = retry
        return results, {i: x for i, x in problems.items() if i not in results}
