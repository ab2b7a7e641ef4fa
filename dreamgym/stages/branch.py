"""Stage: what other actions lead to, at states of the demonstrations."""

from typing import Any

from dreamgym.agent.branching import (
    SAMPLES_PER_ALTERNATIVE,
    BranchingResult,
    branch,
    policy_proposals,
)
from dreamgym.build import episodes as run_episodes
from dreamgym.build import models
from dreamgym.envs import registry
from dreamgym.run.directory import Run
from dreamgym.run.display import bar
from worldmodel.data.records import write_branches


def body(run: Run) -> dict[str, Any]:
    """Take real alternatives at states of the demonstrations; writes branches.jsonl.

    None are taken where no environment is at hand, nor where the warm start's method
    is behaviour cloning alone, which reads none.
    """
    c = run.config.warmstart
    result = BranchingResult([], 0, [], 0, 0, 0, 0)
    if run.config.env and c.method != "bc":
        result = _branches(run)
    write_branches(run.path("branches.jsonl"), result.branches)
    return {
        "branches": len(result.branches),
        "real_transitions": result.transitions,
        "drifted": len(result.drifted),
        "duplicates": result.duplicates,
        "replaced": result.replaced,
        "errors_left_out": result.errors,
        "broken": result.broken,
    }


def _branches(run: Run) -> BranchingResult:
    c = run.config.warmstart
    experts, _ = run_episodes.demonstrations(run)
    proposed = None
    if c.source == "policy":
        proposed = policy_proposals(
            models.initial_policy(run), experts[: c.branched],
            count=SAMPLES_PER_ALTERNATIVE * c.alternatives, temperature=c.temperature,
            seed=run.config.seed,
        )  # fmt: skip
    env = registry.make(run.config.env)
    try:
        with bar(min(c.branched, len(experts)), "branch", "episode") as show:
            return branch(
                env, experts, alternatives=c.alternatives, max_episodes=c.branched,
                seed=run.config.seed, max_error_share=c.errors, proposals=proposed,
                progress=lambda done, _: show(done),
            )  # fmt: skip
    finally:
        env.close()
