"""Stage: fits the experience model, its tokenizer and replay memory."""

import sys
from collections.abc import Sequence
from typing import Any

from dreamgym.build.episodes import NAMES, read
from dreamgym.build.experience import fit_data, replay_memory
from dreamgym.build.models import initial_model
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import Episode
from worldmodel.experience.examples import text_sizes, unwritable_texts
from worldmodel.fitting import supervised
from worldmodel.text.names import interchangeable_names, save_names
from worldmodel.text.tokenizer import TextTokenizer


def body(run: Run) -> dict[str, Any]:
    """Fit the experience model; write experience/ and tokenizer/.

    If a chat server is the experience model, nothing is fitted: experience/ then holds
    the initial model, from which the policies start, and the numbers have no losses.
    """
    run.require("collect")
    c = run.config
    train, dev = read(run)
    names = interchangeable_names(train) if c.pretrain.exchange_names else {}
    save_names(run.path(NAMES), names)
    model, tok = initial_model(run, train)
    written = {}
    if c.data.base_run or c.model not in MODELS:  # ours can write any text
        written = _check_tokenizer(tok, [*train, *dev])
    if c.server is not None:
        save_model(run.path("experience"), model, tok)
        memory = replay_memory(run, train)
        numbers = {"fitted": "nothing, a server is asked", "remembered": len(memory)}
        return numbers | text_sizes(tok, train, dev) | written
    data = fit_data(run, tok, train, dev, names=names)
    with run.progress_report("pretrain", c.pretrain.fit.steps) as report:
        model, curve = supervised.fit(
            model,
            data.examples,
            c.pretrain.fit,
            seed=c.seed,
            held_out=data.held_out[: c.fidelity.transitions],
            progress=report,
            directory=run.path("checkpoints/pretrain"),
        )
    save_model(run.path("experience"), model, tok)
    run.write_curve("pretrain", curve)
    run.drop("checkpoints/pretrain")
    return {
        **data.numbers,
        **written,
        "loss": curve[-1]["loss"],
        "dev_loss": curve[-1].get("held_out/loss"),
    }


def _check_tokenizer(
    tok: TextTokenizer, episodes: Sequence[Episode]
) -> dict[str, float]:
    """Warn where a tokenizer cannot write the episodes; return the share of texts."""
    share, text = unwritable_texts(tok, episodes)
    if share:
        print(
            f"pretrain: the model's tokenizer cannot write {share:.1%} of the lines of "
            f"states and of the actions: {text!r:.80} becomes "
            f"{tok.decode(tok.encode(text))!r:.80}. No prediction of it can be right: "
            "take a model with a byte-level tokenizer",
            file=sys.stderr,
        )
    return {"unwritable_texts": share} if share else {}


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fit takes; with a chat server only the initial model is saved."""
    if config.server is not None:
        return Cost(disk=workload.model_bytes)
    fit = workload.fit(config.pretrain.fit.steps)
    return fit._replace(compile_seconds=10)
