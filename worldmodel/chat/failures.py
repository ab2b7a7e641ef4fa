"""Failures of a chat server: those of one question, and those that end the work.

replies -> ServerHealth -> an error where other questions would fail too; every other
failure concerns only the question that has no answer.
"""

from collections.abc import Sequence

from worldmodel.chat.protocol import (
    ChatError,
    ChatMalformed,
    ChatRefused,
    ChatReply,
    ChatUnavailable,
)

# Statuses that refuse the client rather than the question: no key, no money, no such
# model or path, too many requests. Statuses below 400 redirect to another address.
_ACCOUNT_STATUSES = (401, 402, 404, 405, 429)
_MAX_REFUSALS = 3
"""Refusals by a server that has accepted no question, after which work ends."""


class ServerHealth:
    """What a server has answered so far; replies from a cache do not count."""

    def __init__(self):
        self.answered = False
        """Whether the server itself has answered anything yet, malformed answers
        included."""
        self._accepted, self._refused = False, 0  # cached replies count for these

    def note(self, replies: Sequence[ChatReply | ChatError]) -> None:
        """Record the replies to some questions."""
        self.answered |= any(
            isinstance(x, ChatReply | ChatMalformed) and not x.cached for x in replies
        )
        self._accepted |= any(isinstance(x, ChatReply | ChatMalformed) for x in replies)
        self._refused += sum(isinstance(x, ChatRefused) for x in replies)

    def check(self, failures: Sequence[ChatError]) -> None:
        """Raise one of the failures where other questions would fail too.

        Going on would then only lose rollouts, while the answers so far are cached.

        Raises:
          ChatUnavailable: the server cannot be reached.
          ChatRefused: it refuses the client, or has refused several questions and never
            accepted one.
          ChatError: requests time out, and the server has never answered.
        """
        # A question that is refused for its content (too long) must not stop the work:
        # when a run resumes, it may be the only one that is not in the cache.
        silent = [
            x for x in failures if not self.answered and not isinstance(x, ChatRefused)
        ]
        never = not self._accepted and self._refused >= _MAX_REFUSALS
        refused = [x for x in failures if never and isinstance(x, ChatRefused)]
        if stops := [*filter(is_lasting, failures), *refused, *silent]:
            raise stops[0]


def unanswered(replies: Sequence[ChatReply | ChatError]) -> list[ChatError]:
    """Return the failures without an answer; a malformed answer is an answer."""
    return [
        x
        for x in replies
        if isinstance(x, ChatError) and not isinstance(x, ChatMalformed)
    ]


def is_lasting(failure: ChatError) -> bool:
    """Return whether other questions would fail for the same reason."""
    if isinstance(failure, ChatRefused):
        return failure.status < 400 or failure.status in _ACCOUNT_STATUSES
    return isinstance(failure, ChatUnavailable)
