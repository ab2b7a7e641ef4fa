"""Stage: offline DPO, a policy trained from preference pairs alone (arXiv:2305.18290).

pairs of a file, or won over lost collected episodes of a task -> DPO from the start
policy, which is the reference -> held-out pairs. Neither a reward model nor a rollout
is needed, and no real step is taken: it is the baseline on offline data.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.build.models import load_policy, save_policy
from dreamgym.build.rewards import preference_pairs
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.statistics import wilson_of
from dreamgym.rewards.preferences import Preference
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run, RunError
from dreamgym.training.preference_training import (
    PairTurns,
    pair_turns,
    train_preferences,
)
from worldmodel.data.hashing import content_hash

NAME = "dpo"


def body(run: Run) -> dict[str, Any]:
    """Train the start policy from the pairs of the settings; write policies/dpo.

    Raises:
      RunError: there are no pairs, or none of them can be learnt from.
      RecordError: a bad file of pairs; the message names file and line.
    """
    c = run.config.dpo
    if not c.pairs:
        raise RunError(
            f"{run.root}: no pairs to train from: dpo.pairs names a file of them, or "
            'is "collected" for the won and lost episodes of the run'
        )
    both = preference_pairs(
        run,
        c.file,
        max_pairs_per_task=c.max_pairs_per_task,
        held_out_share=c.held_out_share,
    )
    policy = load_policy(run, c.start)
    fitted, left_out = _turns(run, policy, both[0], "pairs")
    held_out, held_out_left_out = _turns(run, policy, both[1], "held_out")
    # By what it is trained from: an interrupted attempt may have been another one.
    rows = [[dataclasses.asdict(p) for p in pairs] for pairs in both]
    digest = content_hash([rows, dataclasses.asdict(c)])[:16]
    checkpoints = f"checkpoints/{NAME}-{digest}"
    with run.progress_report(NAME, c.updates) as report:
        trained, curve, result = train_preferences(
            policy,
            fitted,
            c,
            held_out=held_out,
            seed=run.config.seed,
            directory=run.path(checkpoints),
            progress=report,
        )
    save_policy(run, NAME, trained)
    run.write_curve(NAME, curve)
    run.drop(checkpoints)
    shorter = [len(pair.better) < len(pair.worse) for pair in held_out]
    return {
        # A command may have asked for other ones than the run's.
        "settings": dataclasses.asdict(c),
        "pairs": len(fitted),
        "held_out": len(held_out),
        "accuracy": result.accuracy,
        "interval": list(wilson_of(result.accuracy, len(held_out))),
        "margin": result.margin,
        "held_out_loss": result.loss,
        "better_is_shorter": float(np.mean(shorter)),
        **left_out,
        **held_out_left_out,
    }


def _turns(
    run: Run, policy: Policy, pairs: Sequence[Preference], what: str
) -> tuple[list[PairTurns], dict[str, int]]:
    """Return the turns of pairs, and counts of those that are left out by WHAT/REASON.

    Raises:
      RunError: all of them are left out.
    """
    turns, counts = pair_turns(policy, pairs, run.config.dpo)
    if counts:
        reasons = ", ".join(f"{n} {name}" for name, n in counts.items())
        line = f"{sum(counts.values())} of {len(pairs)} {what} are left out: {reasons}"
        if not turns:
            raise RunError(f"{run.root}: dpo.pairs: {line}")
        print(f"{NAME}: {line}", file=sys.stderr)
    return turns, {f"{what}/{name}": n for name, n in counts.items()}


PAIR_STEP = 0.13
"""Updates of the experience model's fit that a transition takes in one of DPO.

Not measured: eight passes through the model, where the fit of a reward model, whose
number was, takes three (stages/reward_model.py)."""


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the updates take; the lengths of attempts are those of episodes."""
    c = config.dpo
    if not c.pairs:
        return Cost()
    transitions = 2 * c.batch_pairs * workload.episode_steps
    fit = workload.fit(c.updates * transitions * PAIR_STEP)
    return fit._replace(compile_seconds=8)
