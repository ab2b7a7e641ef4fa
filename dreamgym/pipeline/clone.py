"""The first part of the warm start: untrained and bc, the controls of all that follows.

episodes -> a share of the experts -> BC to its best dev loss. Both begin at the
experience model's weights: it knows the words and what actions do; or, where
`warmstart.start` says so, at what that began at. Untrained is this, asked to act.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.pipeline.policies import roomy, save_policy
from dreamgym.pipeline.pretrain import blank_model, episodes_of
from dreamgym.pipeline.run import Run, RunError
from worldmodel.backbone.model import Model
from worldmodel.backbone.weights import load_model
from worldmodel.data.records import Episode
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.supervised import FitConfig


def experts_of(episodes: Sequence[Episode], most: int) -> list[Episode]:
    """Successful expert episodes, else any successful ones; one a task."""
    won = [e for e in episodes if e.success]
    chosen = [e for e in won if e.source == "expert"] or won
    return list({e.task.id: e for e in chosen}.values())[:most]


def share_of(episodes: Sequence[Episode], share: float, *, seed: int) -> list[Episode]:
    """A share of the episodes, at least one, in their order; nested by the seed."""
    count = max(round(share * len(episodes)), 1)
    drawn = np.random.default_rng(seed).permutation(len(episodes))[:count]
    return [episodes[i] for i in sorted(drawn)]


def taught(run: Run) -> tuple[list[Episode], list[Episode]]:
    """The experts that the run's policies imitate, and those of its dev episodes.

    Raises:
      RunError: none of the collected episodes was won.
    """
    c = run.config.warmstart
    train, dev = episodes_of(run)
    experts = experts_of(train, c.experts)
    if not experts:
        raise RunError("no successful episode to imitate among the collected ones")
    return (
        share_of(experts, c.share, seed=run.config.seed), experts_of(dev, c.experts)
    )  # fmt: skip


def untrained(run: Run) -> Policy:
    """The policy that all begin at: the start's model, asked to act."""
    if run.config.warmstart.start == "model":
        model, tok = blank_model(run)
    else:
        model, tok = load_model(run.path("experience"), mesh=run.mesh)
    return Policy(model, tok, roomy(run))


def stage(run: Run) -> dict[str, Any]:
    """Save the two policies; of the warm start's settings these count: fit, start,
    experts and share.

    Cells of a study whose warm starts differ share them.
    """
    run.require("pretrain")
    experts, held = taught(run)
    policy = untrained(run)
    save_policy(run, "untrained", policy)
    examples = early.bc_examples(policy, experts)
    dev = early.bc_examples(policy, held)
    fit = run.config.warmstart.fit
    save_policy(run, "bc", policy.replace(
        fitted(run, "bc", policy.model, examples, fit, dev)
    ))  # fmt: skip
    run.drop("checkpoints/bc")
    return {"experts": len(experts), "bc_examples": len(examples)}


def fitted(
    run: Run,
    name: str,
    model: Model,
    examples: list[Example],
    fit: FitConfig,
    held: Sequence[Example],
) -> Model:
    """A model fitted under a name: its checkpoints, display and curve."""
    directory = run.path(f"checkpoints/{name}")
    with run.following(name, fit.steps) as told:
        model, curve = supervised.fit(
            model, examples, fit, seed=run.config.seed, directory=directory,
            held_out=held, keep_best=bool(held), progress=told,
        )  # fmt: skip
    run.write_curve(name, curve)
    return model
