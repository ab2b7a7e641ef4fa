"""The experience model of a run with its replay memory, local or behind a server."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dreamgym.build.chat import ANSWERS
from dreamgym.build.episodes import read, training_share
from dreamgym.build.models import initial_model
from dreamgym.config.stages import ServerConfig
from dreamgym.envs.dream import Trust
from dreamgym.run.directory import Run, RunError
from worldmodel.backbone.weights import load_model
from worldmodel.chat.client import ChatClient
from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.calibration import Calibration
from worldmodel.experience.examples import transition_examples, variation_examples
from worldmodel.experience.grammar import REWARD_TOKENS, ExperienceConfig
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.fidelity.cases import sample_cases
from worldmodel.fitting.batches import Example
from worldmodel.memory import Hidden, ReplayMemory
from worldmodel.text import state_format
from worldmodel.text.state_format import StateFormat
from worldmodel.text.tokenizer import TextTokenizer

CAPACITY = 50_000
"""Real transitions that the replay memory begins with, the newest, at most."""


def replay_memory(run: Run, told: list[Episode]) -> ReplayMemory:
    """The replay memory of a run, which finds by what its settings say.

    Vectors of a model are dear: they stay in memory/.
    """
    if run.config.retrieval == "lexical":
        return ReplayMemory.from_episodes(told, capacity=CAPACITY)
    encoder, kept = Hidden(*initial_model(run)), run.path("memory")
    if kept.is_dir():
        return ReplayMemory.load(kept, encoder=encoder)
    memory = ReplayMemory.from_episodes(told, capacity=CAPACITY, encoder=encoder)
    memory.save(kept)
    return memory


def examples(run: Run, tok: TextTokenizer) -> list[Example]:
    """What the run's experience model is fitted to: transitions, then variations."""
    train, _ = read(run)
    told = training_share(run, train)
    memory = replay_memory(run, told)
    return [*transitions(run, tok, told, memory), *variations(run, tok, train)]


def transitions(
    run: Run, tok: TextTokenizer, told: list[Episode], memory: ReplayMemory
) -> list[Example]:
    """Return what the experience model is fitted to, a transition each."""
    c = run.config
    return transition_examples(tok, told, memory, c.experience, balance=c.balance)


def variations(run: Run, tok: TextTokenizer, train: list[Episode]) -> list[Example]:
    """Return what it is fitted to for proposing variations of tasks."""
    tasks = [e.task for e in train]
    return variation_examples(tok, tasks, repeats=2, seed=run.config.seed)


def _calibration(run: Run) -> Calibration | None:
    """What the fidelity stage found, if it did; runs of older versions have none."""
    found = run.read_json("fidelity.json") if run.done("fidelity") else {}
    told = found.get("calibration")
    return None if told is None else Calibration.parsed(told)


def _roomy(run: Run) -> ExperienceConfig:
    """How the model is asked, with room for replies as long as it was fitted to.

    Runs of older versions did not count them: theirs have the room of the settings.
    """
    found, config = run.numbers("pretrain"), run.config.experience
    least = {
        "reasoning_tokens": config.reasoning_tokens,
        "state_tokens": config.state_tokens,
    }
    return dataclasses.replace(
        config, **{k: max(n, found.get(k, 0)) for k, n in least.items()}
    )


def load_experience(
    run: Run,
    *,
    stage: str | None = None,
    server: ServerConfig | None = None,
    scaled: bool = False,
) -> LocalExperienceModel | PromptedExperienceModel:
    """The run's experience model with its memory of real transitions.

    Args:
      stage: whose numbers will tell what was asked of a server (run_chat.spent).
      server: asked in the place of the run's own model.
      scaled: its chances are those that the fidelity stage has calibrated.
    """
    run.require("pretrain" if server is None else "collect")
    train, _ = read(run)
    memory = replay_memory(run, training_share(run, train))
    forms = state_format.state_formats(train)
    server = run.config.server if server is None else server
    scale = _calibration(run) if scaled else None
    if server is not None:
        return prompted(run, server, memory, forms, stage, scale)
    model, tok = load_model(run.path("experience"), mesh=run.mesh)
    c, told = run.config, run.numbers("pretrain")
    if c.ensemble.members:
        run.require("ensemble")
    paths = (run.path(f"ensemble/{i}") for i in range(c.ensemble.members))
    return LocalExperienceModel(
        model, tok, memory, _roomy(run), seed=c.seed, state_formats=forms,
        members=[load_model(p, mesh=run.mesh)[0] for p in paths],
        trust=c.trust.signal, calibration=scale,
        reward_tokens=max(REWARD_TOKENS, told.get("reward_tokens", 0)),
    )  # fmt: skip


PROBES = 4
"""Dev transitions that are asked to see whether the server tells its confidence."""


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


def trust(run: Run) -> Trust:
    """The trust that the run's settings ask for, by what was measured on dev games."""
    c, threshold = run.config.trust, 0.0
    if c.gate:
        run.require("fidelity")
        threshold = run.read_json("fidelity.json")["threshold"]
    return Trust(threshold=threshold, pessimism=c.pessimism)
