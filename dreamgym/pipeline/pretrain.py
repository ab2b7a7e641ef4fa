"""Stage 2: the experience model, its tokenizer and memory."""

from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.pipeline.config import MODELS
from dreamgym.pipeline.run import Run, RunError, bar
from worldmodel import pretrain, reasoning
from worldmodel.backbone.mesh import spread
from worldmodel.backbone.model import Model, create
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.local import LocalExperience
from worldmodel.text import prompts
from worldmodel.text.records import Episode, read_episodes
from worldmodel.text.tokenizer import TextTokenizer


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
    return model if run.mesh is None else spread(model, run.mesh), tokenizer


def episodes_of(run: Run) -> tuple[list[Episode], list[Episode]]:
    """(train, dev) episodes of the run, with reasoning traces if it has any."""
    both = (read_episodes(run.path(n)) for n in ("episodes.jsonl", "dev.jsonl"))
    train, dev = ([_traced(run, e) for e in es] for es in both)
    return train, dev


def _traced(run: Run, episode: Episode) -> Episode:
    reasoned = run.config.experience.reasoning
    return reasoning.annotate(episode) if reasoned else reasoning.bare(episode)


def _told(run: Run, train: list[Episode]) -> list[Episode]:
    """What the experience model is fitted to and remembers: a share, or a control."""
    c = run.config
    told = train[: max(round(c.share * len(train)), 1)]
    if not c.shuffled:
        return told
    return [_traced(run, e) for e in pretrain.shuffled(told, seed=c.seed)]


def stage(run: Run) -> dict[str, Any]:
    """Fit the experience model; writes experience/ and tokenizer/."""
    run.require("collect")
    c = run.config
    train, dev = episodes_of(run)
    told = _told(run, train)
    if c.model in MODELS and not c.refit:
        size = MODELS[c.model].vocab_size
        TextTokenizer.train(pretrain.texts_of(train), size).save(run.path("tokenizer"))
    model, tok = blank_model(run)
    memory = pretrain.memory_of(told, capacity=50_000)
    examples = pretrain.transition_examples(tok, told, memory, c.experience)
    distinct = len(examples)
    tokens = pretrain.mean_tokens(examples)
    tasks = [e.task for e in train]
    examples += pretrain.variation_examples(tok, tasks, repeats=2, seed=c.seed)
    held = pretrain.transition_examples(tok, dev, memory, c.experience)
    held = held[: c.evaluate.fidelity]
    with bar(c.pretrain.steps, "pretrain", "update") as show:
        model, curve = pretrain.fit(
            model, examples, c.pretrain, seed=c.seed, held_out=held, progress=show,
            directory=run.path("checkpoints/pretrain"),
        )  # fmt: skip
    save_model(run.path("experience"), model, tok)
    pretrain.write_curve(run.path("curves/pretrain.jsonl"), curve)
    run.drop("checkpoints/pretrain")
    return {
        "distinct_transitions": distinct,
        "tokens_per_transition": round(tokens, 1),
        "tokens_per_state": round(_state_tokens(tok, train), 1),
        "tokens_per_state_dev": round(_state_tokens(tok, dev), 1),
        "loss": curve[-1]["loss"],
        "dev_loss": curve[-1].get("held_out/loss"),
    }


def _state_tokens(tok: TextTokenizer, episodes: list[Episode]) -> float:
    states = {t.state for e in episodes for t in e.transitions}
    return float(np.mean([len(prompts.state_ids(tok, s)) for s in states]))


def load_experience(run: Run) -> LocalExperience:
    """The run's experience model with its memory of real transitions."""
    run.require("pretrain")
    model, tok = load_model(run.path("experience"), mesh=run.mesh)
    train, _ = episodes_of(run)
    memory = pretrain.memory_of(_told(run, train), capacity=50_000)
    return LocalExperience(
        model, tok, memory, run.config.experience, seed=run.config.seed,
        forms=pretrain.forms_of(train),
    )  # fmt: skip
