"""Which failures of a server stop the work, by hand."""

import pytest

from worldmodel.chat.failures import ServerHealth, is_lasting, unanswered
from worldmodel.chat.protocol import (
    ChatCut,
    ChatError,
    ChatMalformed,
    ChatRefused,
    ChatReply,
    ChatTimeout,
    ChatUnavailable,
)

GONE, SLOW, LONG = ChatUnavailable("gone"), ChatTimeout("slow"), ChatRefused("", 413)
BARRED = ChatRefused("no key", 401)
ALIVE = (ChatReply("a"), ChatMalformed("b"), ChatCut())
KEPT = (ChatReply("a", cached=True), ChatCut(cached=True))


def stopped(failures, *replies) -> ChatError | None:
    pulse = ServerHealth()
    pulse.note(replies)
    try:
        pulse.check(failures)
    except ChatError as error:
        return error


@pytest.mark.parametrize("reply", [*ALIVE, *KEPT])
def test_what_others_would_meet_too_always_stops(reply):
    assert stopped([LONG, GONE], reply) is GONE
    assert stopped([SLOW, BARRED], reply) is BARRED
    assert stopped([], reply) is None


def test_a_refused_question_never_stops():
    assert stopped([LONG, LONG]) is None
    assert stopped([LONG], *KEPT) is None


@pytest.mark.parametrize("reply", [*ALIVE, *KEPT])
def test_refusals_alone_stop_where_nothing_was_ever_taken(reply):
    pulse = ServerHealth()
    for _ in range(2):
        pulse.note([LONG])
        pulse.check([LONG])
    pulse.note([LONG])
    with pytest.raises(ChatRefused):
        pulse.check([LONG])
    pulse.note([reply])
    pulse.check([LONG])
    assert stopped([LONG], LONG, LONG, LONG) is LONG


@pytest.mark.parametrize("reply", ALIVE)
def test_silence_stops_until_the_server_itself_has_answered(reply):
    assert stopped([LONG, SLOW]) is SLOW
    assert stopped([SLOW], *KEPT) is SLOW
    assert stopped([SLOW], reply) is None
    pulse = ServerHealth()
    pulse.note([reply])
    pulse.note([LONG, SLOW])
    pulse.check([LONG, SLOW])  # it answered before


@pytest.mark.parametrize(
    ("status", "lasts"),
    [
        (301, True),
        (401, True),
        (402, True),
        (404, True),
        (405, True),
        (429, True),
        (400, False),
        (403, False),
        (413, False),
        (422, False),
    ],
)
def test_refusals_of_who_asks_last(status, lasts):
    assert is_lasting(ChatRefused("", status)) is lasts


def test_a_malformed_answer_is_one():
    assert unanswered([*ALIVE, *KEPT, SLOW, LONG]) == [SLOW, LONG]
