"""Stage: the policies before any reward: untrained, bc (the control), warmstart.

episodes -> a share of the experts -> branches -> reflections -> fits of equal budget.
All begin at the experience model's weights: it knows the words and what actions do, and
the control as much as the others. Untrained is that model, asked to act.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.agent import early_experience as early
from dreamgym.agent.branching import TRIES, Branched, branch, proposals
from dreamgym.agent.policy import Policy
from dreamgym.agent.reflection import Moment, RuleWriter, moments, reflections
from dreamgym.agent.writers import OwnWriter, TeacherWriter, own_examples
from dreamgym.envs import base
from dreamgym.pipeline import served
from dreamgym.pipeline.pretrain import episodes_of
from dreamgym.pipeline.run import Run, RunError, bar
from dreamgym.pipeline.warmstart_config import WarmstartConfig
from worldmodel import pretrain
from worldmodel.backbone.model import Model
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.fitting.batches import Example
from worldmodel.pretrain import FitConfig
from worldmodel.reasoning.teacher import TeacherConfig
from worldmodel.served.client import ChatClient
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


def share_of(episodes: Sequence[Episode], share: float, *, seed: int) -> list[Episode]:
    """A share of the episodes, at least one, in their order; nested by the seed."""
    count = max(round(share * len(episodes)), 1)
    drawn = np.random.default_rng(seed).permutation(len(episodes))[:count]
    return [episodes[i] for i in sorted(drawn)]


def stage(run: Run) -> dict[str, Any]:
    """BC to its best dev loss; the warm start's method within BC's updates."""
    run.require("pretrain")
    c = run.config.warmstart
    train, dev = episodes_of(run)
    experts = experts_of(train, c.experts)
    if not experts:
        raise RunError("no successful episode to imitate among the collected ones")
    experts = share_of(experts, c.share, seed=run.config.seed)
    held = experts_of(dev, c.experts)
    model, tok = load_model(run.path("experience"), mesh=run.mesh)
    policy = Policy(model, tok, run.config.policy)
    branched = _branches(run, experts, policy)
    branches = branched.branches
    save_policy(run, "untrained", policy)
    bc = early.bc_examples(policy, experts)
    dev_bc = early.bc_examples(policy, held)
    iwm = early.iwm_examples(policy, experts, branches) if _models(c) else []
    steps = c.fit.steps
    control = _fit(run, "bc", policy.model, bc, c.fit, dev_bc)
    save_policy(run, "bc", policy.replace(control))
    sr, told = _sr(run, policy, control, experts, branches)
    final, first = policy.model, 0
    if _models(c):
        first = max(int(c.iwm_share * steps), 1)
        final = _fit(run, "iwm", final, iwm, _steps(c.fit, first), ())
    if c.method == "bc":
        final = control
    else:
        rest = _steps(c.fit, steps - first)
        final = _fit(run, "warmstart", final, bc + sr, rest, dev_bc)
    save_policy(run, "warmstart", policy.replace(final))
    for name in ("bc", "writer", "iwm", "warmstart"):
        run.drop(f"checkpoints/{name}")
    expert_steps = sum(len(e.transitions) for e in [*experts, *held])
    return {
        "experts": len(experts),
        "expert_transitions": expert_steps,
        "branches": len(branches),
        "branch_transitions": branched.transitions,
        "drifted": len(branched.drifted),
        "duplicates": branched.duplicates,
        "replaced": branched.replaced,
        "errors_left_out": branched.errors,
        "bc_examples": len(bc),
        "iwm_examples": len(iwm),
        "sr_examples": len(sr),
        **told,
    }


def _models(c: WarmstartConfig) -> bool:
    return c.method in ("both", "iwm")


def _reflects(c: WarmstartConfig) -> bool:
    return c.method in ("both", "sr")


def _sr(
    run: Run,
    policy: Policy,
    control: Model,
    experts: list[Episode],
    branches: list[Branch],
) -> tuple[list[Example], dict[str, Any]]:
    """SR examples of the run's writer, and what writing them took."""
    c = run.config.warmstart
    if not _reflects(c):
        return [], {}
    found = moments(
        experts, branches, per_state=c.reflections, seed=run.config.seed
    )  # fmt: skip
    if c.writer == "teacher":
        spent = run.path("stages/warmstart.usage")
        client = ChatClient(c.teacher.chat(), run.path(served.ANSWERS), spent)
        writer = TeacherWriter(client, TeacherConfig(), seed=run.config.seed)
        with served.answering(client):
            thoughts, told = reflections(writer, found)
        told |= served.asked(client, "teacher")
    elif c.writer == "own":
        taught = _primed(run, policy, control, found)
        thoughts, told = reflections(
            OwnWriter(
                policy.replace(taught), samples=c.samples, temperature=c.temperature,
                seed=run.config.seed,
            ),
            found,
        )  # fmt: skip
    else:
        thoughts, told = reflections(RuleWriter(), found)
    return early.sr_examples(policy, found, thoughts), told


def _primed(run: Run, policy: Policy, control: Model, found: list[Moment]) -> Model:
    """The model that reflects: the control, shown some reflections of the rule."""
    c = run.config.warmstart
    count = round(c.primer * len(found))
    if not count:
        return control
    drawn = np.random.default_rng(run.config.seed).permutation(len(found))[:count]
    some = [found[i] for i in sorted(drawn)]
    thoughts, _ = reflections(RuleWriter(), some)
    steps = max(int(c.primer * c.fit.steps), 1)
    return _fit(
        run, "writer", control, own_examples(policy, some, thoughts),
        _steps(c.fit, steps), (),
    )  # fmt: skip


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


def _branches(run: Run, experts: list[Episode], policy: Policy) -> Branched:
    """Branches of the run; made once.

    None where no environment is at hand, nor where the method reads none.
    """
    c, path = run.config.warmstart, run.path("branches.jsonl")
    meta = run.path("branches.json")
    if meta.is_file():
        return Branched(read_branches(path), **run.read_json("branches.json"))
    if not run.config.env or not (_models(c) or _reflects(c)):
        return Branched([], 0, [], 0, 0, 0)
    proposed = None
    if c.source == "policy":
        proposed = proposals(
            policy, experts[: c.branched], number=TRIES * c.alternatives,
            temperature=c.temperature, seed=run.config.seed,
        )  # fmt: skip
    env = base.make(run.config.env)
    try:
        with bar(min(c.branched, len(experts)), "branch", "episode") as show:
            found = branch(
                env, experts, alternatives=c.alternatives, most=c.branched,
                seed=run.config.seed, errors=c.errors, proposed=proposed,
                progress=lambda done, _: show(done),
            )  # fmt: skip
    finally:
        env.close()
    write_branches(path, found.branches)
    told = found._asdict()
    del told["branches"]
    run.write_json("branches.json", told)
    return found
