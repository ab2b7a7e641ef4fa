"""Stage: the policies before any reward: untrained, bc (the control), warmstart.

All begin at the experience model's weights: it knows the words and what actions do, and
the control as much as the others. Untrained is that model, asked to act.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.envs import base
from dreamgym.pipeline.pretrain import episodes_of
from dreamgym.pipeline.run import Run, RunError, bar
from worldmodel import pretrain
from worldmodel.backbone.model import Model
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.fitting.batches import Example
from worldmodel.pretrain import FitConfig
from worldmodel.text.records import (
    Branch,
    Episode,
    read_branches,
    write_branches,
)


def load_policy(run: Run, name: str) -> Policy:
    """A policy of the run by name.

    Raises:
      RunError: the stage that makes it has not been run.
    """
    path = run.path(f"policies/{name}")
    if not (path / "config.json").is_file():
        raise RunError(f"{path}: no policy {name!r} in this run yet")
    model, tok = load_model(path, mesh=run.mesh)
    return Policy(model, tok, run.config.policy)


def save_policy(run: Run, name: str, policy: Policy) -> None:
    """Write a policy as a model directory."""
    save_model(run.path(f"policies/{name}"), policy.model, policy.tokenizer)


def experts_of(episodes: Sequence[Episode], most: int) -> list[Episode]:
    """Successful expert episodes, else any successful ones; one a task."""
    won = [e for e in episodes if e.success]
    chosen = [e for e in won if e.source == "expert"] or won
    return list({e.task.id: e for e in chosen}.values())[:most]


def stage(run: Run) -> dict[str, Any]:
    """BC to its best dev loss; IWM, then SR with BC, within BC's updates."""
    run.require("pretrain")
    c = run.config.warmstart
    train, dev = episodes_of(run)
    experts = experts_of(train, c.experts)
    if not experts:
        raise RunError("no successful episode to imitate among the collected ones")
    held = experts_of(dev, c.experts)
    branches, spent, drifted = _branches(run, experts)
    model, tok = load_model(run.path("experience"), mesh=run.mesh)
    policy = Policy(model, tok, run.config.policy)
    save_policy(run, "untrained", policy)
    bc = early.bc_examples(policy, experts)
    dev_bc = early.bc_examples(policy, held)
    iwm = early.iwm_examples(policy, experts, branches)
    sr = early.sr_examples(
        policy, experts, branches, per_state=c.reflections, seed=run.config.seed
    )
    control = _fit(run, "bc", policy.model, bc, c.fit, dev_bc)
    first = max(int(c.iwm_share * c.fit.steps), 1)
    middle = _fit(run, "iwm", policy.model, iwm, _steps(c.fit, first), ())
    rest = _steps(c.fit, c.fit.steps - first)
    final = _fit(run, "warmstart", middle, bc + sr, rest, dev_bc)
    save_policy(run, "bc", policy.replace(control))
    save_policy(run, "warmstart", policy.replace(final))
    for name in ("bc", "iwm", "warmstart"):
        run.drop(f"checkpoints/{name}")
    expert_steps = sum(len(e.transitions) for e in [*experts, *held])
    return {
        "experts": len(experts),
        "expert_transitions": expert_steps,
        "branches": len(branches),
        "branch_transitions": spent,
        "drifted": len(drifted),
        "bc_examples": len(bc),
        "iwm_examples": len(iwm),
        "sr_examples": len(sr),
    }


def _steps(fit: FitConfig, steps: int) -> FitConfig:
    return dataclasses.replace(fit, steps=steps)


def _fit(
    run: Run,
    name: str,
    model: Model,
    examples: list[Example],
    fit: FitConfig,
    held: Sequence[Example],
) -> Model:
    directory = Path(run.path(f"checkpoints/{name}"))
    with run.following(name, fit.steps) as told:
        model, curve = pretrain.fit(
            model, examples, fit, seed=run.config.seed, directory=directory,
            held_out=held, keep_best=bool(held), progress=told,
        )  # fmt: skip
    run.write_curve(name, curve)
    return model


def _branches(run: Run, experts: list[Episode]) -> tuple[list[Branch], int, list[str]]:
    """Branches of the run; made once, and none where no environment is at hand."""
    c, path = run.config.warmstart, run.path("branches.jsonl")
    meta = run.path("branches.json")
    if meta.is_file():
        told = run.read_json("branches.json")
        return read_branches(path), told["transitions"], told["drifted"]
    if not run.config.env:
        return [], 0, []
    env = base.make(run.config.env)
    try:
        with bar(min(c.branched, len(experts)), "branch", "episode") as show:
            found, spent, drifted = early.branch(
                env, experts, alternatives=c.alternatives, most=c.branched,
                seed=run.config.seed, progress=lambda done, _: show(done),
            )  # fmt: skip
    finally:
        env.close()
    write_branches(path, found)
    run.write_json("branches.json", {"transitions": spent, "drifted": drifted})
    return found, spent, drifted
