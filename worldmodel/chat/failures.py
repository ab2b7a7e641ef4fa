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

# Refusals of who asks, not of the question: no key, no money, no such model or path,
# too often. Those below 400 send us to another address.
_ACCOUNT_STATUSES = (401, 402, 404, 405, 429)
_MAX_REFUSALS = 3
"""Refused questions of a server that never took one, before that is why."""


class ServerHealth:
    """What a server has shown of itself to one who asks; a cache is not the server."""

    def __init__(self):
        self.answered = False
        """Whether it has answered anything yet, however badly."""
        self._accepted, self._refused = False, 0  # as a cache may tell, too

    def note(self, replies: Sequence[ChatReply | ChatError]) -> None:
        """Hear what came of some questions."""
        self.answered |= any(
            isinstance(x, ChatReply | ChatMalformed) and not x.cached for x in replies
        )
        self._accepted |= any(isinstance(x, ChatReply | ChatMalformed) for x in replies)
        self._refused += sum(isinstance(x, ChatRefused) for x in replies)

    def check(self, failures: Sequence[ChatError]) -> None:
        """Raise one of the failures where others would fail too.

        To go on would then only lose rollouts, while what was answered is kept.

        Raises:
          ChatUnavailable: the server is gone.
          ChatRefused: it does not let us ask, or not any more, or has refused every
            one of several questions and never taken one.
          ChatError: it is silent (a time-out), and has never answered.
        """
        # A question that is refused for itself (too long) never stops the work: when a
        # run goes on it may be the only one that is not in the cache, time and again.
        silent = [
            x for x in failures
            if not self.answered and not isinstance(x, ChatRefused)
        ]  # fmt: skip
        never = not self._accepted and self._refused >= _MAX_REFUSALS
        refused = [x for x in failures if never and isinstance(x, ChatRefused)]
        if stops := [*filter(is_lasting, failures), *refused, *silent]:
            raise stops[0]


def unanswered(replies: Sequence[ChatReply | ChatError]) -> list[ChatError]:
    """What the server did not answer; a malformed answer is one."""
    return [
        x
        for x in replies
        if isinstance(x, ChatError) and not isinstance(x, ChatMalformed)
    ]


def is_lasting(failure: ChatError) -> bool:
    """Whether others would fail too: then nothing else may take over unseen."""
    if isinstance(failure, ChatRefused):
        return failure.status < 400 or failure.status in _ACCOUNT_STATUSES
    return isinstance(failure, ChatUnavailable)
