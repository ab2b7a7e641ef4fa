"""Stage: behaviour cloning."""

from typing import Any

from dreamgym.agent import early_experience as early
from dreamgym.build.episodes import demonstrations
from dreamgym.build.models import fit_model, initial_policy, save_policy
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Save the two policies; of the warm start's settings these count: fit, start,
    experts and share.

    Cells of a study whose warm starts differ share them.
    """
    run.require("pretrain")
    experts, held = demonstrations(run)
    policy = initial_policy(run)
    save_policy(run, "untrained", policy)
    examples = early.bc_examples(policy, experts)
    dev = early.bc_examples(policy, held)
    fit = run.config.warmstart.fit
    save_policy(run, "bc", policy.replace(
        fit_model(run, "bc", policy.model, examples, fit, dev)
    ))  # fmt: skip
    run.drop("checkpoints/bc")
    return {"experts": len(experts), "bc_examples": len(examples)}
