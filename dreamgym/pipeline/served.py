"""A chat server as the experience model of a run: nothing is fitted, much is kept.

settings, memory -> PromptedExperienceModel -> answers in answers.sqlite, so that a
stage that was killed asks nothing again; what a stage asked beside its marker.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dreamgym.pipeline.config import RunConfig, ServerConfig
from dreamgym.pipeline.run import Run, RunError
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatError
from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.calibration import Calibration
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.fidelity.cases import sample_cases
from worldmodel.memory import ReplayMemory
from worldmodel.text.state_format import StateFormat

ANSWERS = "answers.sqlite"
PROBES = 4
"""Dev transitions that are asked to see whether the server tells its confidence."""


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


def prompted(
    run: Run,
    server: ServerConfig,
    memory: ReplayMemory,
    forms: Mapping[str, StateFormat],
    stage: str | None,
    scale: Calibration | None,
) -> PromptedExperienceModel:
    """A chat server in the place of the run's model, with the run's memory.

    Its answers are kept in answers.sqlite: asked again, they cost nothing. What a
    `stage` asked, in all its attempts, stands in stages/STAGE.usage.
    """
    spent = None if stage is None else run.path(f"stages/{stage}.usage")
    client = ChatClient(server.chat, run.path(ANSWERS), spent)
    return PromptedExperienceModel(
        client, memory, server.prompt, seed=run.config.seed, state_formats=forms,
        scale=scale,
        trust=run.config.trust.signal,
    )  # fmt: skip


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


def check_trust(
    run: Run, experience: ExperienceModel, episodes: Sequence[Episode]
) -> None:
    """Refuse a trust gate, or pessimism, where no confidence of answers is known.

    An unknown confidence counts as none in the dream: a gate would cut every rollout,
    and pessimism take as much off every reward. Asks a few transitions of `episodes`,
    which are kept. Where only some confidences are unknown, the gate's threshold counts
    those as none, too.

    Raises:
      RunError: a gate or pessimism is set, and none of the answers has a confidence.
    """
    trust = run.config.trust
    doubting = trust.gate > 0 or trust.pessimism > 0
    if not doubting or not isinstance(experience, PromptedExperienceModel):
        return
    asked = sample_cases(episodes, PROBES)
    answers = experience.predict([r.query for r in asked])
    sure = [a.confidence for a in answers if a.error is None]
    if sure and all(math.isnan(x) for x in sure):
        raise RunError(
            f"trust: gate {trust.gate:g} and pessimism {trust.pessimism:g} need to "
            "know how sure an answer is, and the server tells no log-probabilities: "
            "set both to 0, ask a server that does, or trust answers by another "
            "signal (trust.signal nearest or agreement)"
        )
