"""Stage: early experience, the policy before any reward.

demonstrations and branches -> reflections -> fits within the updates of behaviour
cloning, from the same weights.
"""

import dataclasses
from typing import Any

import numpy as np

from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.agent.reflection import (
    ReflectionCase,
    RuleWriter,
    reflection_cases,
    reflections,
)
from dreamgym.agent.reflection_writers import (
    RejectionSamplingWriter,
    TeacherWriter,
    writer_examples,
)
from dreamgym.build import chat as run_chat
from dreamgym.build import episodes as run_episodes
from dreamgym.build import models
from dreamgym.build.models import fit_model, load_policy, save_policy
from dreamgym.config.stages import WarmstartConfig
from dreamgym.run.directory import Run
from worldmodel.backbone.model import Model
from worldmodel.chat.client import ChatClient
from worldmodel.data.records import Branch, Episode, read_branches
from worldmodel.fitting.batches import Example
from worldmodel.fitting.supervised import FitConfig
from worldmodel.reasoning.teacher import TeacherConfig


def body(run: Run) -> dict[str, Any]:
    """Warm-start the policy by early experience; writes policies/warmstart."""
    c, policy = run.config.warmstart, models.initial_policy(run)
    experts, held = run_episodes.demonstrations(run)
    branches = read_branches(run.path("branches.jsonl"))
    bc = early.bc_examples(policy, experts)
    dev_bc = early.bc_examples(policy, held)
    iwm = early.iwm_examples(policy, experts, branches) if _models(c) else []
    steps = c.fit.steps
    control = load_policy(run, "bc").model
    sr, told = _sr(run, policy, control, experts, branches)
    final, first = policy.model, 0
    if _models(c):
        first = max(int(c.iwm_share * steps), 1)
        final = fit_model(run, "iwm", final, iwm, _steps(c.fit, first), ())
    if c.method == "bc":
        final = control
    else:
        rest = _steps(c.fit, steps - first)
        final = fit_model(run, "warmstart", final, bc + sr, rest, dev_bc)
    save_policy(run, "warmstart", policy.replace(final))
    for name in ("writer", "iwm", "warmstart"):
        run.drop(f"checkpoints/{name}")
    expert_steps = sum(len(e.transitions) for e in [*experts, *held])
    return {
        "experts": len(experts),
        "expert_transitions": expert_steps,
        "branches": len(branches),
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
    found = reflection_cases(
        experts, branches, per_state=c.reflections, seed=run.config.seed
    )  # fmt: skip
    if c.writer == "teacher":
        spent = run.path("stages/warmstart.usage")
        client = ChatClient(c.teacher.chat(), run.path(run_chat.ANSWERS), spent)
        writer = TeacherWriter(client, TeacherConfig(), seed=run.config.seed)
        with run_chat.answering(client):
            thoughts, told = reflections(writer, found)
        told |= run_chat.asked(client, "teacher")
    elif c.writer == "own":
        taught = _primed(run, policy, control, found)
        thoughts, told = reflections(
            RejectionSamplingWriter(
                policy.replace(taught), samples=c.samples, temperature=c.temperature,
                seed=run.config.seed,
            ),
            found,
        )  # fmt: skip
    else:
        thoughts, told = reflections(RuleWriter(), found)
    return early.sr_examples(policy, found, thoughts), told


def _primed(
    run: Run, policy: Policy, control: Model, found: list[ReflectionCase]
) -> Model:
    """The model that reflects: the control, shown some reflections of the rule."""
    c = run.config.warmstart
    thoughts, _ = reflections(RuleWriter(), found)
    told = [i for i, thought in enumerate(thoughts) if thought is not None]
    count = round(c.primer * len(told))
    if not count:
        return control
    drawn = sorted(np.random.default_rng(run.config.seed).permutation(told)[:count])
    some, thoughts = [found[i] for i in drawn], [thoughts[i] for i in drawn]
    steps = max(int(c.primer * c.fit.steps), 1)
    return fit_model(
        run, "writer", control, writer_examples(policy, some, thoughts),
        _steps(c.fit, steps), (),
    )  # fmt: skip


def _steps(fit: FitConfig, steps: int) -> FitConfig:
    return dataclasses.replace(fit, steps=steps)
