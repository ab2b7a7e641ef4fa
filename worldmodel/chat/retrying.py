"""Questions to a chat server until their answers make sense.

questions -> answers -> read, or asked again with another seed -> what was read of each,
or why there is nothing. Where others would fail too it is an error, never an empty
answer (failures.py).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from worldmodel.chat.client import ChatClient
from worldmodel.chat.failures import ServerHealth, unanswered
from worldmodel.chat.protocol import ChatError, ChatRequest

T = TypeVar("T")


class RetryingAsker:
    """Questions to a chat server, asked again where an answer makes no sense."""

    def __init__(self, client: ChatClient, retries: int):
        self.client, self._retries, self._health = client, retries, ServerHealth()

    def ask(
        self,
        questions: Sequence[int],
        request: Callable[[int, int], ChatRequest],
        read: Callable[[int, str], T],
    ) -> tuple[dict[int, T], dict[int, str]]:
        """What was read of the answers, and why there is none for the others.

        Args:
          request: of a question's number and the attempt's.
          read: of a question's number and an answer; ValueError where it is senseless.

        Raises:
          ChatUnavailable: the server is gone; with a cache, call again to go on.
          ChatRefused: it does not let us ask, or not any more.
          ChatError: it is silent, and has never answered.
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
