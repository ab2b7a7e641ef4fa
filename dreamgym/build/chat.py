"""A chat server as the experience model of a run: nothing is fitted, much is kept.

settings, memory -> PromptedExperienceModel -> answers in answers.sqlite, so that a
stage that was killed asks nothing again; what a stage asked beside its marker.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from dreamgym.config.settings import RunConfig
from dreamgym.run.directory import RunError
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatError
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel

ANSWERS = "answers.sqlite"


class ServerLost(RunError):
    """The server of a run does not answer; `__cause__` is the ChatError."""


def check_server(config: RunConfig) -> None:
    """Raise ValueError where a judge has no URL, or a key's variable is not set."""
    if config.server is not None:
        ChatClient(config.server.chat)
    if config.warmstart.writer == "teacher":
        ChatClient(config.warmstart.teacher.chat())
    for loop in (config.dream, config.transfer):
        if "judge" in loop.reward.tiers:
            ChatClient(loop.reward.judge.chat())


@contextlib.contextmanager
def asking(experience: ExperienceModel) -> Iterator[None]:
    """While an experience model of a run is asked; closes what it holds.

    Raises:
      ServerLost: a server that gave no answer, and what to do, in one line.
    """
    client = (
        experience.client if isinstance(experience, PromptedExperienceModel) else None
    )
    with answering(client):
        yield


@contextlib.contextmanager
def answering(client: ChatClient | None) -> Iterator[None]:
    """While a client of a run asks; closes it.

    Raises:
      ServerLost: as asking.
    """
    try:
        yield
    except ChatError as error:
        raise ServerLost(
            f"{error}; what it answered is kept in {ANSWERS}: once it answers again "
            "the same command goes on"
        ) from error
    finally:
        if client is not None:
            client.close()


def spent(experience: ExperienceModel) -> dict[str, Any]:
    """What was asked of a server, for a stage's numbers; of a model of ours, nothing.

    Requests are those that were sent; tokens are as the server counts them.
    """
    if not isinstance(experience, PromptedExperienceModel):
        return {}
    return asked(experience.client, "server")


def asked(client: ChatClient, name: str) -> dict[str, Any]:
    """What was asked through a client, as numbers whose names begin with `name`."""
    usage, prices = client.usage, client.config
    out = {
        f"{name}_requests": usage.requests - usage.cached,
        f"{name}_prompt_tokens": usage.prompt_tokens,
        f"{name}_completion_tokens": usage.completion_tokens,
    }
    known = prices.price_in or prices.price_out
    return out | ({f"{name}_cost": usage.cost} if known else {})
