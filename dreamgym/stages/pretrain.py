"""Stage: fits the experience model, its tokenizer and replay memory."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.build.episodes import NAMES, read
from dreamgym.build.experience import fit_data, held_out_by_family, replay_memory
from dreamgym.build.models import initial_model
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from worldmodel.backbone.model import Model
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import Episode
from worldmodel.experience.examples import text_sizes, unwritable_texts
from worldmodel.fitting import supervised
from worldmodel.text.names import (
    ENOUGH_PAIRS,
    TRIAL_PAIRS,
    Groups,
    MinPairs,
    interchangeable_names,
    missing_names,
    save_names,
    share_names,
    with_declared,
)
from worldmodel.text.tokenizer import TextTokenizer

MAX_TRIAL_SHARE = 0.25
"""Steps of a trial fit as a share of the fit's, at most: there are two of them."""
MIN_FALL = 0.1
"""By which share the loss on next states of dev tasks must fall where doubtful names
are exchanged."""
_TRIAL = "checkpoints/name_trial"
"""The folder of the fits that try doubtful names, until the stage ends."""


def body(run: Run) -> dict[str, Any]:
    """Fit the experience model; write experience/ and tokenizer/.

    If a chat server is the experience model, nothing is fitted: experience/ then holds
    the initial model, from which the policies start, and the numbers have no losses.
    """
    run.require("collect")
    c = run.config
    train, dev = read(run)
    model, tok = initial_model(run, train)
    if missing := missing_names(c.pretrain.names, train):
        print(
            f"pretrain: no text of the episodes holds the word {missing[0]!r} of "
            f"pretrain.names ({len(missing)} of its words are in none)",
            file=sys.stderr,
        )
    names = _find_names(run, train)
    written = {}
    if c.data.base_run or c.model not in MODELS:  # ours can write any text
        written = _check_tokenizer(tok, [*train, *dev])
    if c.server is not None:
        save_names(run.path(NAMES), names)
        save_model(run.path("experience"), model, tok)
        memory = replay_memory(run, train)
        numbers = {"fitted": "nothing, a server is asked", "remembered": len(memory)}
        return numbers | text_sizes(tok, train, dev) | written
    names, trial = _try_doubtful_names(run, model, tok, train, dev, names)
    save_names(run.path(NAMES), names)
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
    run.drop(_TRIAL)  # until here a kill repeats no trial
    return {
        **data.numbers,
        **trial,
        **written,
        "loss": curve[-1]["loss"],
        "dev_loss": curve[-1].get("held_out/loss"),
    }


def _find_names(
    run: Run, train: list[Episode], min_pairs: MinPairs = ENOUGH_PAIRS
) -> dict[str, Groups]:
    """Return the names of each family to exchange, by the settings and the episodes."""
    c = run.config.pretrain
    if not c.exchange_names:
        return {}
    return with_declared(interchangeable_names(train, min_pairs), c.names, train)


def _try_doubtful_names(
    run: Run,
    model: Model,
    tok: TextTokenizer,
    train: list[Episode],
    dev: list[Episode],
    names: dict[str, Groups],
) -> tuple[dict[str, Groups], dict[str, Any]]:
    """Return the names to exchange, and the numbers of a trial of doubtful ones.

    These are groups of too few pairs of steps to be sure of. Two short fits, with them
    and without, decide for the families that share names: where these stand for each
    other, a model that reads them exchanged predicts the next states of dev tasks much
    better, by MIN_FALL; where they do not, hardly better or worse. A family without dev
    transitions that the model can read has the `names` alone that need no trial.
    """
    c = run.config
    steps = c.pretrain.name_trial_steps
    affordable = 0 < steps <= MAX_TRIAL_SHARE * c.pretrain.fit.steps
    if not (affordable and c.pretrain.exchange_names):
        return names, {}
    doubtful = _find_names(run, train, TRIAL_PAIRS)
    held_out = [e for e in dev if e.transitions]
    held_out_families = {e.task.family for e in held_out}
    candidates = {
        family: groups
        for family, groups in doubtful.items()
        if groups != names.get(family) and family in held_out_families
    }
    if not candidates:
        return names, {}
    held_out = [e for e in held_out if e.task.family in candidates]
    sides = {"as_recorded": names, "exchanged": names | candidates}
    as_recorded, exchanged = (
        _trial_losses(run, model, tok, (train, held_out), fit_names, steps, side)
        for side, fit_names in sides.items()
    )
    candidates = {
        family: groups for family, groups in candidates.items() if family in as_recorded
    }
    helpful: dict[str, Groups] = {}
    for family, groups in candidates.items():
        alike = [f for f, g in candidates.items() if share_names(groups, g)]
        before, after = (
            sum(losses[f] for f in alike) / len(alike)
            for losses in (as_recorded, exchanged)
        )
        verb = "are not"
        if after <= (1 - MIN_FALL) * before:
            helpful[family], verb = groups, "are"
        sizes = " and ".join(str(len(group)) for group in groups)
        others = f" of {', '.join(alike)}, which share them," * (len(alike) > 1)
        print(
            f"pretrain: {sizes} names of family {family!r} may stand for each other. "
            f"After a trial fit with them exchanged, next states of dev tasks{others} "
            f"have a loss of {after:.3f}, and of {before:.3f} after one without, so "
            f"they {verb} exchanged",
            file=sys.stderr,
        )
    losses = {
        family: {"exchanged": exchanged[family], "as_recorded": as_recorded[family]}
        for family in candidates
    }
    return names | helpful, {"name_trial_losses": losses}


def _trial_losses(
    run: Run,
    model: Model,
    tok: TextTokenizer,
    episodes: tuple[list[Episode], list[Episode]],
    names: Mapping[str, Groups],
    steps: int,
    side: str,
) -> dict[str, float]:
    """Return the loss on next states of each family's dev tasks, after a short fit.

    `episodes` are (train, dev). A family whose dev transitions are all too long for
    the model has no loss. Interrupted, a fit that was finished is not repeated.
    """
    c, (train, dev) = run.config, episodes
    config = dataclasses.replace(c.pretrain.fit, steps=steps, eval_every=steps)
    data = fit_data(run, tok, train, names=names)
    with run.progress_report(f"name_trial/{side}", steps) as report:
        fitted, _ = supervised.fit(
            model,
            data.examples,
            config,
            seed=c.seed,
            progress=report,
            directory=run.path(f"{_TRIAL}/{side}"),
        )
    memory, losses = replay_memory(run, train), {}
    for family, held_out in held_out_by_family(run, tok, dev, memory).items():
        parts = supervised.held_out_losses(
            fitted, held_out[: c.fidelity.transitions], config
        )
        if parts:
            losses[family] = float(parts["held_out/loss/state"])
    return losses


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
    """Return what the fit takes; with a chat server only the initial model is saved.

    A trial of doubtful names, of which the episodes decide, is not counted.
    """
    if config.server is not None:
        return Cost(disk=workload.model_bytes)
    fit = workload.fit(config.pretrain.fit.steps)
    return fit._replace(compile_seconds=10)
