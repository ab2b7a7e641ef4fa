"""Stage: early experience (arXiv:2510.08558), training before any reward is used.

demonstrations and branches -> reflections -> a fit from the same weights and with the
same number of updates as behaviour cloning.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamgym.agent.config import WarmstartConfig
from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.early_experience.reflection import (
    ReflectionCase,
    RuleWriter,
    reflection_cases,
    reflections,
)
from dreamgym.agent.early_experience.reflection_writers import (
    RejectionSamplingWriter,
    TeacherWriter,
    writer_examples,
)
from dreamgym.agent.policy import Policy
from dreamgym.build import chat as run_chat
from dreamgym.build import episodes as run_episodes
from dreamgym.build import models
from dreamgym.build.costs import dev_games, game_seconds, uses_early_experience
from dreamgym.build.models import fit_model, load_policy, save_policy
from dreamgym.build.real.dev_choice import (
    no_gain_text,
    nothing_to_gain,
    say_unchecked,
    warmstart_method,
)
from dreamgym.build.real.dev_play import (
    few_dev_tasks,
    paired_dev_games,
    plays_dev_games,
)
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.evaluation.statistics import success_change
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from dreamgym.training.selection import destroyed_families, is_better
from worldmodel.backbone.model import Model
from worldmodel.data.records import Branch, Episode, read_branches
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import FitConfig
from worldmodel.reasoning.teacher import TeacherConfig
from worldmodel.text.names import Groups


def body(run: Run) -> dict[str, Any]:
    """Warm-start the policy by early experience; write policies/warmstart."""
    c, policy = run.config.warmstart, models.initial_policy(run)
    method = warmstart_method(run)
    experts, dev_experts = run_episodes.demonstrations(run)
    branches = read_branches(run.path("branches.jsonl"))
    imitated = run_episodes.imitated_episodes(run)
    names = run_episodes.read_names(run)
    bc = early.bc_examples(policy, imitated)
    dev_bc = early.bc_examples(policy, dev_experts)
    fit, seed = run.config.bc.fit, run.config.warmstart_seed
    steps = fit.steps
    # The fitted control, for three uses: the result with method "bc", the comparison on
    # dev games, and the policy that writes reflections.
    control = load_policy(run, "bc").model
    draws = early.draws(fit, bc, names)
    if draws > 1:
        bc = early.bc_examples(policy, imitated, draws=draws, names=names)
    sr, numbers = [], {}
    if method in ("both", "sr"):
        sr, numbers = _sr(run, policy, control, experts, branches, draws, names)
    final, first, next_states = policy.model, 0, 0
    if _models(method):
        # Taken out of the same budget, or IWM would be compared with fewer updates.
        first = max(int(c.iwm_share * steps), 1) if c.iwm_share else 0
        if first:
            iwm_fit = _iwm_fit(c, fit, first)
            iwm, next_states = _iwm(run, policy, experts, branches, iwm_fit, names)
            final = fit_model(run, "iwm", final, iwm, iwm_fit, (), seed)
    if method == "bc":
        final = control
    else:
        rest = _steps(fit, steps - first)
        final = fit_model(run, "warmstart", final, bc + sr, rest, dev_bc, seed)
    selection, dev_games = _better_policy(run, policy, control, final)
    save_policy(run, "warmstart", policy.replace(selection))
    for name in ("writer", "iwm", "warmstart"):
        run.drop(f"checkpoints/{name}")
    expert_steps = sum(len(e.transitions) for e in [*experts, *dev_experts])
    return {
        "experts": len(experts),
        "expert_transitions": expert_steps,
        "branches": len(branches),
        "bc_examples": len(bc) // draws,
        "iwm_examples": next_states,
        "sr_examples": len(sr) // draws,
        **numbers,
        **dev_games,
    }


def _better_policy(
    run: Run, policy: Policy, control: Model, final: Model
) -> tuple[Model, dict[str, Any]]:
    """The better of the control and the warm start on real dev games, and its numbers.

    The warm start must win one standard error more often: kept for one game more of
    nine it lost games in two of three runs (docs/LOG.md, 2026-11-27). Without such
    games it is the warm start, where the settings name its method, else
    the control.
    """
    chosen = run.config.warmstart.method
    if chosen == "bc":
        return final, {}
    if final is control or not plays_dev_games(run, "bc", "warmstart"):
        if chosen != "auto":
            say_unchecked(run, "warmstart")
            return final, {}
        note = (
            "early experience is left out, so it is bc: no real dev games can tell "
            f"whether it helps (warmstart.method){few_dev_tasks(run)}"
        )
        print(f"warmstart: {note}", file=sys.stderr)
        return control, {"kept": "bc", "note": note, "by_rule": True}
    players = [
        (name, policy.replace(model))
        for name, model in (("bc", control), ("warmstart", final))
    ]
    games = paired_dev_games(run, *players)
    rows = {name: dev_metrics(g) for (name, _), g in zip(players, games, strict=True)}
    better = is_better(rows["warmstart"], rows["bc"], standard_errors=1.0)
    numbers = {f"dev_success_{k}": row.get("real_success") for k, row in rows.items()}
    if better:
        return final, numbers | {"kept": "warmstart"}
    destroyed = destroyed_families(rows["warmstart"], rows["bc"])
    change = success_change(
        numbers["dev_success_warmstart"], numbers["dev_success_bc"], destroyed
    )
    if is_better(rows["warmstart"], rows["bc"]):
        change += ", less than one standard error more"
    rates = numbers["dev_success_warmstart"], numbers["dev_success_bc"]
    verb = no_gain_text("early experience", *rates)
    note = f"{verb}: of the dev games {change}; it is bc"
    print(f"warmstart: {note}", file=sys.stderr)
    done = nothing_to_gain(run, rows["bc"], "bc", "early experience changed nothing")
    tie = {"by_rule": True} if rates == (1.0, 1.0) else {}
    return control, numbers | {"kept": "bc", "note": note} | tie | (done or {})


def _models(method: str) -> bool:
    return method in ("both", "iwm")


def _iwm(
    run: Run,
    policy: Policy,
    experts: list[Episode],
    branches: list[Branch],
    fit: FitConfig,
    names: Mapping[str, Groups],
) -> tuple[list[Example], int]:
    """IWM examples with the draws of names that their fit has, and how many in one."""
    traced = functools.partial(
        early.iwm_examples,
        policy,
        experts,
        branches,
        reasoning=run.config.warmstart.iwm_reasoning,
        style=run.config.experience.reasoning_style,
    )
    examples = traced()
    once, draws = len(examples), early.draws(fit, examples, names)
    return traced(draws=draws, names=names) if draws > 1 else examples, once


def _sr(
    run: Run,
    policy: Policy,
    control: Model,
    experts: list[Episode],
    branches: list[Branch],
    draws: int,
    names: Mapping[str, Groups],
) -> tuple[list[Example], dict[str, Any]]:
    """SR examples of the run's writer, and what writing them took."""
    c = run.config.warmstart
    cases = reflection_cases(
        experts,
        branches,
        per_state=c.reflections_per_state,
        alternatives=c.alternatives_per_reflection,
        seed=run.config.seed,
    )
    if c.writer == "teacher":
        client = run_chat.run_client(run, c.teacher, "warmstart", "teacher")
        writer = TeacherWriter(client, TeacherConfig(), seed=run.config.seed)
        with run_chat.client_session(client):
            thoughts, numbers = reflections(writer, cases)
        numbers |= run_chat.client_usage(client, "teacher")
    elif c.writer == "policy":
        writer_model = _fit_writer(run, policy, control, cases)
        thoughts, numbers = reflections(
            RejectionSamplingWriter(
                policy.replace(writer_model),
                samples=c.max_samples,
                temperature=c.temperature,
                seed=run.config.seed,
            ),
            cases,
        )
    else:
        thoughts, numbers = reflections(RuleWriter(), cases)
    if note := early.thought_length_note(policy, thoughts):
        print(f"warmstart: {note}", file=sys.stderr)
    sr = early.sr_examples(policy, cases, thoughts, draws=draws, names=names)
    return sr, numbers


def _fit_writer(
    run: Run, policy: Policy, control: Model, cases: list[ReflectionCase]
) -> Model:
    """Return the model that writes thoughts: the control, fitted to some by rule."""
    c = run.config.warmstart
    thoughts, _ = reflections(RuleWriter(), cases)
    explained = [i for i, thought in enumerate(thoughts) if thought is not None]
    count = round(c.bootstrap_share * len(explained))
    if not count:
        return control
    sample = sorted(
        np.random.default_rng(run.config.seed).permutation(explained)[:count]
    )
    selection, thoughts = [cases[i] for i in sample], [thoughts[i] for i in sample]
    fit = run.config.bc.fit
    steps = max(int(c.bootstrap_share * fit.steps), 1)
    return fit_model(
        run,
        "writer",
        control,
        writer_examples(policy, selection, thoughts),
        _steps(fit, steps),
        (),
        run.config.warmstart_seed,
    )


def _steps(fit: FitConfig, steps: int) -> FitConfig:
    return dataclasses.replace(fit, steps=steps)


def _iwm_fit(c: WarmstartConfig, fit: FitConfig, steps: int) -> FitConfig:
    return early.iwm_fit(
        fit,
        steps,
        learning_rate_factor=c.iwm_learning_rate_factor,
        warmup_steps=c.iwm_warmup_steps,
    )


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fit takes, and the dev games that compare it with bc.

    Those of bc are counted with a shield, which has to play them anew.
    """
    if not uses_early_experience(config, workload):
        return Cost(disk=workload.model_bytes)
    fit = workload.fit(1.1 * config.bc.fit.steps)
    seconds = fit.seconds + 2 * dev_games(config, workload) * game_seconds(workload)
    return fit._replace(seconds=seconds, compile_seconds=4)
