"""Stage: fits the experience model, its tokenizer and replay memory."""

from typing import Any

import numpy as np

from dreamgym.build.episodes import read, training_share
from dreamgym.build.experience import (
    redrawn_transitions,
    replay_memory,
    transitions,
    variations,
)
from dreamgym.build.models import initial_model
from dreamgym.config.shapes import MODELS
from dreamgym.run.directory import Run
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import Episode
from worldmodel.experience.examples import (
    mean_tokens,
    reply_tokens,
    texts_of,
    transition_examples,
)
from worldmodel.fitting import supervised
from worldmodel.text import prompts
from worldmodel.text.references import reference_rule
from worldmodel.text.tokenizer import TextTokenizer


def body(run: Run) -> dict[str, Any]:
    """Fit the experience model; write experience/ and tokenizer/.

    If a chat server is the experience model, nothing is fitted: experience/ then holds
    the initial model, from which the policies start, and the numbers have no losses.
    """
    run.require("collect")
    c = run.config
    train, dev = read(run)
    episodes = training_share(run, train)
    if c.model in MODELS and not c.data.base_run:
        size = MODELS[c.model].vocab_size
        rule = reference_rule(train) if c.pretrain.reference_draws else None
        tokenizer = TextTokenizer.train(texts_of(train), size, references=rule)
        tokenizer.save(run.path("tokenizer"))
    model, tok = initial_model(run)
    memory = replay_memory(run, episodes)
    sizes = {
        "tokens_per_state": round(_state_tokens(tok, train), 1),
        "tokens_per_state_dev": round(_state_tokens(tok, dev), 1),
        "action_tokens": _action_tokens(tok, [*train, *dev]),
    }
    if c.server is not None:
        save_model(run.path("experience"), model, tok)
        numbers = {"fitted": "nothing, a server is asked", "remembered": len(memory)}
        return numbers | sizes
    examples = transitions(run, tok, episodes, memory)
    distinct = len(examples)
    tokens, longest = mean_tokens(examples), reply_tokens(examples)
    redrawn = redrawn_transitions(run, tok, episodes, memory, examples)
    examples += [*redrawn, *variations(run, tok, train)]
    held_out = transition_examples(tok, dev, memory, c.experience)
    held_out = held_out[: c.fidelity.transitions]
    with run.progress_report("pretrain", c.pretrain.fit.steps) as report:
        model, curve = supervised.fit(
            model,
            examples,
            c.pretrain.fit,
            seed=c.seed,
            held_out=held_out,
            progress=report,
            directory=run.path("checkpoints/pretrain"),
        )
    save_model(run.path("experience"), model, tok)
    run.write_curve("pretrain", curve)
    run.drop("checkpoints/pretrain")
    return {
        "distinct_transitions": distinct,
        "reference_examples": len(redrawn),
        "tokens_per_transition": round(tokens, 1),
        **sizes,
        **longest,
        "loss": curve[-1]["loss"],
        "dev_loss": curve[-1].get("held_out/loss"),
    }


def _state_tokens(tok: TextTokenizer, episodes: list[Episode]) -> float:
    states = {t.state for e in episodes for t in e.transitions}
    return float(np.mean([len(prompts.state_ids(tok, s)) for s in states]))


def _action_tokens(tok: TextTokenizer, episodes: list[Episode]) -> int:
    """Return the tokens of the longest action of a won episode; 0 if none was won."""
    won = {t.action for e in episodes if e.success for t in e.transitions}
    return max((len(tok.encode(action)) for action in won), default=0)
