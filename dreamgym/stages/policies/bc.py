"""Stage: behaviour cloning, the baseline for every later policy.

Both policies start from the weights of the experience model, which has learned the
vocabulary and the effects of actions; or, if `bc.init` says so, from its initial model.
`untrained` is this model prompted to act; `bc` is fitted to demonstrations.
"""

import sys
from typing import Any

from dreamgym.agent.early_experience import examples as early
from dreamgym.agent.subgoals import with_subgoals
from dreamgym.build.episodes import demonstrations, imitated_episodes, read_names
from dreamgym.build.models import fit_model, initial_policy, save_policy
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Fit a policy to the demonstrations; write policies/untrained and policies/bc."""
    experts, dev_experts = demonstrations(run)
    imitated = imitated_episodes(run)
    policy = initial_policy(run)
    longest = run.numbers("pretrain").get("action_tokens", 0)
    if longest >= policy.config.action_tokens:
        print(
            f"policies have room for actions of {policy.config.action_tokens} tokens, "
            f"and one that won has {longest}: policy.action_tokens gives more",
            file=sys.stderr,
        )
    if limit := policy.config.subgoal_steps:
        labelled = [with_subgoals(e, limit) for e in imitated]
        thoughts = [t.thought for e in labelled for t in e.transitions]
        if note := early.thought_length_note(policy, thoughts):
            print(f"bc: {note}", file=sys.stderr)
    parts = sum(not e.success for e in imitated)
    if parts:
        print(
            f"bc: {len(imitated) - parts} tasks were won, fewer than bc.min_wins "
            f"({run.config.bc.min_wins}): the parts of {parts} other episodes that "
            "earned most are imitated as well",
            file=sys.stderr,
        )
    save_policy(run, "untrained", policy)
    examples = early.bc_examples(policy, imitated)
    dev = early.bc_examples(policy, dev_experts)
    fit = run.config.bc.fit
    # Copies of the examples with other names, as for the experience model.
    names = read_names(run)
    draws = early.draws(fit, examples, names)
    if draws > 1:
        examples = early.bc_examples(policy, imitated, draws=draws, names=names)
    seed = run.config.warmstart_seed
    fitted = fit_model(run, "bc", policy.model, examples, fit, dev, seed)
    save_policy(run, "bc", policy.replace(fitted))
    run.drop("checkpoints/bc")
    return {
        "experts": len(experts),
        "imitated_episodes": len(imitated),
        **({"imitated_parts": parts} if parts else {}),
        "bc_examples": len(examples) // draws,
    }


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fit takes; its dev losses are taken more often than others."""
    fit = workload.fit(1.1 * config.bc.fit.steps)
    return fit._replace(compile_seconds=4, disk=2 * workload.model_bytes)
