"""Chat clients of a run, for a server that acts as experience model or judge.

Answers are cached in the run's chat_cache.sqlite, so that a stage that was killed does
not repeat a request. The requests of a stage are counted in stages/STAGE.usage.json.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from dreamgym.config.settings import RunConfig
from dreamgym.run.directory import Run, RunError
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import ChatError
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel

CACHE = "chat_cache.sqlite"


class ServerLost(RunError):
    """The chat server of a run does not answer; `__cause__` is the ChatError."""


def check_server(config: RunConfig) -> None:
    """Raise ValueError where a judge has no URL, or a key's variable is not set."""
    if config.server is not None:
        ChatClient(config.server.chat)
    if config.warmstart.writer == "teacher":
        ChatClient(config.warmstart.teacher)
    for name, loop in (("train", config.train), ("transfer", config.transfer)):
        if loop.reward.asks_judge:
            if not loop.reward.judge.chat.base_url:
                raise ValueError(
                    f"{name}.reward.judge.chat.base_url must be set where a judge "
                    "scores, got ''"
                )
            ChatClient(loop.reward.judge.chat)


def run_client(
    run: Run, config: ChatConfig, stage: str | None, name: str
) -> ChatClient:
    """Return a client with the run's cache of answers.

    Its requests in all attempts of a `stage` are counted under its name in
    stages/STAGE.usage.json.
    """
    usage = None if stage is None else run.path(f"stages/{stage}.usage.json")
    return ChatClient(config, run.path(CACHE), usage, name)


@contextlib.contextmanager
def experience_session(experience: ExperienceModel) -> Iterator[None]:
    """Use an experience model within a `with` block; close its client at the end.

    Raises:
      ServerLost: a server that gave no answer, and what to do, in one line.
    """
    client = (
        experience.client if isinstance(experience, PromptedExperienceModel) else None
    )
    with client_session(client):
        yield


@contextlib.contextmanager
def client_session(client: ChatClient | None) -> Iterator[None]:
    """Use a client within a `with` block; close it at the end.

    Raises:
      ServerLost: as experience_session.
    """
    try:
        yield
    except ChatError as error:
        raise ServerLost(
            f"{error}; what it answered is kept in {CACHE}: once it answers again "
            "the same command goes on"
        ) from error
    finally:
        if client is not None:
            client.close()


def server_usage(experience: ExperienceModel) -> dict[str, Any]:
    """Return the requests and tokens of a run's server; empty for a fitted model.

    Requests are those that were sent; tokens are as the server counts them.
    """
    if not isinstance(experience, PromptedExperienceModel):
        return {}
    return client_usage(experience.client, "server")


def client_usage(client: ChatClient, name: str) -> dict[str, Any]:
    """Return a client's requests, tokens and cost, their names prefixed by `name`."""
    usage, prices = client.usage, client.config
    out = {
        f"{name}_requests": usage.requests - usage.cached,
        f"{name}_prompt_tokens": usage.prompt_tokens,
        f"{name}_completion_tokens": usage.completion_tokens,
    }
    has_prices = prices.price_in or prices.price_out
    return out | ({f"{name}_cost": usage.cost} if has_prices else {})
