"""Stage: outcomes of alternative actions at states of the demonstrations."""

import sys
from typing import Any

from dreamgym.agent.early_experience.branching import (
    SAMPLES_PER_ALTERNATIVE,
    BranchingResult,
    branch,
    branch_cost,
    policy_proposals,
)
from dreamgym.build import episodes as run_episodes
from dreamgym.build import models
from dreamgym.build.costs import uses_early_experience
from dreamgym.build.real.dev_choice import warmstart_method
from dreamgym.build.real.environments import make_env
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from dreamgym.run.display import progress_bar
from worldmodel.data.records import write_branches


def body(run: Run) -> dict[str, Any]:
    """Take alternative actions at states of demonstrations; write branches.jsonl.

    Nothing is done without an environment, or if the warm start only uses behaviour
    cloning (`warmstart_method`), which does not read branches.
    """
    result = BranchingResult([], 0, [], 0, 0, 0, 0)
    has_steps = run.real_steps.left != 0
    if run.config.env.id and has_steps and warmstart_method(run) != "bc":
        result = _branches(run)
    write_branches(run.path("branches.jsonl"), result.branches)
    return {
        "branches": len(result.branches),
        "real_transitions": 0,  # counted as taken
        "states": result.states,
        "states_planned": result.planned,
        "unreachable_episodes": len(result.unreachable_episodes),
        "duplicates": result.duplicates,
        "invalid_proposals": result.invalid_proposals,
        "errors_left_out": result.errors,
        "crashed": result.crashed,
    }


def _branches(run: Run) -> BranchingResult:
    c = run.config.branch
    experts, _ = run_episodes.demonstrations(run)
    proposed = None
    if c.proposer == "policy":
        proposed = policy_proposals(
            models.initial_policy(run),
            experts[: c.episodes],
            count=SAMPLES_PER_ALTERNATIVE * c.alternatives,
            temperature=c.temperature,
            seed=run.config.seed,
        )
    env = make_env(run)
    try:
        selection = experts[: c.episodes]
        # Printed before the first step: in a slow environment it is hours.
        cost = branch_cost(env, selection, c.alternatives)
        bounds = (c.max_transitions or None, run.real_steps.left)
        budget = min((b for b in bounds if b is not None), default=0)
        limit = f", of {cost:,} for all states" if 0 < budget < cost else ""
        print(
            f"branch: {min(cost, budget) if budget else cost:,} real steps at most"
            f"{limit}",
            file=sys.stderr,
        )
        states = sum(len(e.transitions) for e in selection)
        with progress_bar(states, "branch", "state") as show:
            return branch(
                env,
                experts,
                alternatives=c.alternatives,
                max_episodes=c.episodes,
                seed=run.config.seed,
                max_error_share=c.max_error_share,
                max_transitions=budget,
                proposals=proposed,
                progress=lambda done, _: show(done),
            )
    finally:
        env.close()


EXPERT_SHARE = 0.18
"""Length of a demonstration as a share of the step limit. With it the estimates of the
presets `tiny` and `small` are 89 and 2,235 real steps; 102 and 1,822 were taken."""


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the real steps take, as if every state were reached anew.

    An environment that can be forked takes fewer.
    """
    c = config.branch
    if not config.env.id or not uses_early_experience(config, workload):
        return Cost()
    length = EXPERT_SHARE * workload.max_steps
    steps = c.episodes * c.alternatives * length * (length + 1) / 2
    if c.max_transitions:
        steps = min(steps, c.max_transitions)
    return Cost(steps * workload.timings.step)
