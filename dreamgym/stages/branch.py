"""Stage: what other actions lead to, at states of the demonstrations."""

from dreamgym.agent.branching import (
    SAMPLES_PER_ALTERNATIVE,
    BranchingResult,
    branch,
    policy_proposals,
)
from dreamgym.agent.policy import Policy
from dreamgym.envs import registry
from dreamgym.run.directory import Run
from dreamgym.run.display import bar
from dreamgym.stages.warmstart import _models, _reflects
from worldmodel.data.records import Episode, read_branches, write_branches


def _branches(run: Run, experts: list[Episode], policy: Policy) -> BranchingResult:
    """Branches of the run; made once.

    None where no environment is at hand, nor where the method reads none.
    """
    c, path = run.config.warmstart, run.path("branches.jsonl")
    meta = run.path("branches.json")
    if meta.is_file():
        return BranchingResult(read_branches(path), **run.read_json("branches.json"))
    if not run.config.env or not (_models(c) or _reflects(c)):
        return BranchingResult([], 0, [], 0, 0, 0, 0)
    proposed = None
    if c.source == "policy":
        proposed = policy_proposals(
            policy, experts[: c.branched],
            count=SAMPLES_PER_ALTERNATIVE * c.alternatives,
            temperature=c.temperature, seed=run.config.seed,
        )  # fmt: skip
    env = registry.make(run.config.env)
    try:
        with bar(min(c.branched, len(experts)), "branch", "episode") as show:
            found = branch(
                env, experts, alternatives=c.alternatives, max_episodes=c.branched,
                seed=run.config.seed, max_error_share=c.errors, proposals=proposed,
                progress=lambda done, _: show(done),
            )  # fmt: skip
    finally:
        env.close()
    write_branches(path, found.branches)
    told = found._asdict()
    del told["branches"]
    run.write_json("branches.json", told)
    return found
