"""Stage: the experience model, its tokenizer and memory; a server's is not fitted."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.pipeline import served
from dreamgym.pipeline.config import MODELS, ServerConfig
from dreamgym.pipeline.policies import room
from dreamgym.pipeline.run import Run, RunError
from worldmodel import reasoning
from worldmodel.backbone.mesh import shard
from worldmodel.backbone.model import Model, create
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.data.records import Episode, read_episodes
from worldmodel.experience.calibration import Calibration
from worldmodel.experience.examples import (
    mean_tokens,
    permute_outcomes,
    reply_tokens,
    texts_of,
    transition_examples,
    variation_examples,
)
from worldmodel.experience.grammar import REWARD_TOKENS, ExperienceConfig
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.memory import Hidden, ReplayMemory
from worldmodel.text import prompts, state_format
from worldmodel.text.tokenizer import TextTokenizer

CAPACITY = 50_000
"""Real transitions that the replay memory begins with, the newest, at most."""


def check_model(name: str) -> None:
    """Raise RunError unless `name` is a known shape or a model directory."""
    if name not in MODELS and not (Path(name) / "config.json").is_file():
        raise RunError(
            f"--model {name!r}: expected one of {sorted(MODELS)} or a directory "
            "with config.json, *.safetensors and tokenizer.json"
        )


def blank_model(run: Run) -> tuple[Model, TextTokenizer]:
    """The model that the fit starts from: a directory's, or a fresh one.

    Raises:
      RunError: neither a known shape nor a model directory.
    """
    name = run.config.model
    if run.config.refit:
        return load_model(Path(run.config.refit) / "experience", mesh=run.mesh)
    if name not in MODELS:
        check_model(name)
        return load_model(name, mesh=run.mesh)
    tokenizer = TextTokenizer.load(run.path("tokenizer"))
    shape = MODELS[name].model(tokenizer.vocab_size)
    model = create(shape, seed=run.config.seed)
    return model if run.mesh is None else shard(model, run.mesh), tokenizer


def episodes_of(run: Run) -> tuple[list[Episode], list[Episode]]:
    """(train, dev) episodes of the run, with reasoning traces if it has any."""
    both = (read_episodes(run.path(n)) for n in ("episodes.jsonl", "dev.jsonl"))
    train, dev = ([_traced(run, e) for e in es] for es in both)
    return train, dev


def _traced(run: Run, episode: Episode) -> Episode:
    reasoned = run.config.experience.reasoning
    return (
        reasoning.annotate(episode)
        if reasoned
        else reasoning.without_reasoning(episode)
    )


def _told(run: Run, train: list[Episode]) -> list[Episode]:
    """What the experience model is fitted to and remembers: a share, or a control."""
    c = run.config
    told = train[: max(round(c.share * len(train)), 1)]
    if not c.shuffled:
        return told
    return [_traced(run, e) for e in permute_outcomes(told, seed=c.seed)]


def remembered(run: Run, told: list[Episode]) -> ReplayMemory:
    """The replay memory of a run, which finds by what its settings say.

    Vectors of a model are dear: they stay in memory/.
    """
    if run.config.retrieval == "lexical":
        return ReplayMemory.from_episodes(told, capacity=CAPACITY)
    encoder, kept = Hidden(*blank_model(run)), run.path("memory")
    if kept.is_dir():
        return ReplayMemory.load(kept, encoder=encoder)
    memory = ReplayMemory.from_episodes(told, capacity=CAPACITY, encoder=encoder)
    memory.save(kept)
    return memory


def examples_of(run: Run, tok: TextTokenizer) -> list[Example]:
    """What the run's experience model is fitted to: transitions, then variations."""
    train, _ = episodes_of(run)
    told = _told(run, train)
    memory = remembered(run, told)
    return [*_transitions(run, tok, told, memory), *_variations(run, tok, train)]


def _transitions(
    run: Run, tok: TextTokenizer, told: list[Episode], memory: ReplayMemory
) -> list[Example]:
    c = run.config
    return transition_examples(tok, told, memory, c.experience, balance=c.balance)


def _variations(run: Run, tok: TextTokenizer, train: list[Episode]) -> list[Example]:
    tasks = [e.task for e in train]
    return variation_examples(tok, tasks, repeats=2, seed=run.config.seed)


def stage(run: Run) -> dict[str, Any]:
    """Fit the experience model; writes experience/ and tokenizer/.

    Where a server is asked nothing is fitted: experience/ then holds the model as it is
    before any fit, from which the policies start, and the numbers have no losses.
    """
    run.require("collect")
    c = run.config
    served.check_server(c)
    train, dev = episodes_of(run)
    told = _told(run, train)
    if c.model in MODELS and not c.refit:
        size = MODELS[c.model].vocab_size
        TextTokenizer.train(texts_of(train), size).save(run.path("tokenizer"))
    model, tok = blank_model(run)
    memory = remembered(run, told)
    sizes = {
        "tokens_per_state": round(_state_tokens(tok, train), 1),
        "tokens_per_state_dev": round(_state_tokens(tok, dev), 1),
        "action_tokens": _action_tokens(run, tok, [*train, *dev]),
    }
    if c.server is not None:
        save_model(run.path("experience"), model, tok)
        asked = {"fitted": "nothing, a server is asked", "remembered": len(memory)}
        return asked | sizes
    examples = _transitions(run, tok, told, memory)
    distinct = len(examples)
    tokens, longest = mean_tokens(examples), reply_tokens(examples)
    examples += _variations(run, tok, train)
    held = transition_examples(tok, dev, memory, c.experience)
    held = held[: c.evaluate.fidelity]
    with run.following("pretrain", c.pretrain.steps) as told:
        model, curve = supervised.fit(
            model, examples, c.pretrain, seed=c.seed, held_out=held, progress=told,
            directory=run.path("checkpoints/pretrain"),
        )  # fmt: skip
    save_model(run.path("experience"), model, tok)
    run.write_curve("pretrain", curve)
    run.drop("checkpoints/pretrain")
    return {
        "distinct_transitions": distinct,
        "tokens_per_transition": round(tokens, 1),
        **sizes,
        **longest,
        "loss": curve[-1]["loss"],
        "dev_loss": curve[-1].get("held_out/loss"),
    }


def _calibration(run: Run) -> Calibration | None:
    """What the fidelity stage found, if it did; runs of older versions have none."""
    found = run.read_json("fidelity.json") if run.done("fidelity") else {}
    told = found.get("calibration")
    return None if told is None else Calibration.parsed(told)


def _state_tokens(tok: TextTokenizer, episodes: list[Episode]) -> float:
    states = {t.state for e in episodes for t in e.transitions}
    return float(np.mean([len(prompts.state_ids(tok, s)) for s in states]))


def _action_tokens(run: Run, tok: TextTokenizer, episodes: list[Episode]) -> int:
    """The longest action of a won episode, in tokens; 0 where none was won."""
    won = {t.action for e in episodes if e.success for t in e.transitions}
    longest = max((len(tok.encode(action)) for action in won), default=0)
    have = room(run.config.policy, longest)
    if longest >= have:
        print(
            f"policies have room for actions of {have} tokens, and one that won has "
            f"{longest}: policy.action_tokens gives more",
            file=sys.stderr,
        )
    return longest


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
      stage: whose numbers will tell what was asked of a server (served.spent).
      server: asked in the place of the run's own model.
      scaled: its chances are those that the fidelity stage has calibrated.
    """
    run.require("pretrain" if server is None else "collect")
    train, _ = episodes_of(run)
    memory = remembered(run, _told(run, train))
    forms = state_format.state_formats(train)
    server = run.config.server if server is None else server
    scale = _calibration(run) if scaled else None
    if server is not None:
        return served.prompted(run, server, memory, forms, stage, scale)
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
