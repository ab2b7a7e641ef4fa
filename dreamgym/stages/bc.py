"""Stage: behaviour cloning, the baseline for every later policy.

Both policies start from the weights of the experience model, which has learned the
vocabulary and the effects of actions; or, if `bc.init` says so, from its initial model.
`untrained` is this model prompted to act; `bc` is fitted to demonstrations. Whether
policies keep to the valid actions that the environment lists is decided here, too.
"""

import sys
from typing import Any

import numpy as np

from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.agent.shield import AUTO
from dreamgym.build.environments import play_dev_games, plays_dev_games
from dreamgym.build.episodes import demonstrations, imitated_episodes, read_names
from dreamgym.build.models import fit_model, initial_policy, save_policy
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.statistics import percent
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run

MANY_INVALID = 0.3
"""Share of invalid actions from which on policies keep to the valid ones."""
LISTED = 0.99
"""Share of the accepted actions that must stand in the list for that."""
ENOUGH_LISTED = 20
"""Accepted actions below which this share says little."""


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
    save_policy(run, "untrained", policy)
    examples = early.bc_examples(policy, imitated)
    dev = early.bc_examples(policy, dev_experts)
    fit = run.config.bc.fit
    # Copies of the examples with other names, as for the experience model.
    names = read_names(run)
    draws = early.draws(fit, examples, names)
    if draws > 1:
        examples = early.bc_examples(policy, imitated, draws=draws, names=names)
    fitted = policy.replace(fit_model(run, "bc", policy.model, examples, fit, dev))
    save_policy(run, "bc", fitted)
    run.drop("checkpoints/bc")
    return {
        "experts": len(experts),
        "imitated_episodes": len(imitated),
        "bc_examples": len(examples) // draws,
        **_shield(run, fitted),
    }


def _shield(run: Run, policy: Policy) -> dict[str, Any]:
    """Return the shield of the run's policies, where the settings leave it open.

    They keep to the valid actions of the environment where MANY_INVALID of the actions
    of `policy` in real dev games are invalid, and the list holds LISTED of the accepted
    actions that other players found without it: a list of mere proposals would forbid
    what a task needs.
    """
    collected = run.numbers("collect")
    if (
        run.config.policy.shield != AUTO
        or collected.get("listed_actions_of", 0) < ENOUGH_LISTED
        or collected["listed_actions"] < LISTED
        or not plays_dev_games(run, "bc")
    ):
        return {}
    games = play_dev_games(run, "bc", policy)
    invalid = [t.invalid or False for g in games for t in g.episode.transitions]
    share = float(np.mean(invalid)) if invalid else 0.0
    if share < MANY_INVALID:
        return {"dev_invalid_actions": share}
    # The shielded policies play these games anew.
    games_of_bc = run.path("dev_games/bc.jsonl")
    games_of_bc.rename(games_of_bc.with_name("bc-unshielded.jsonl"))
    print(
        f"bc: {percent(share)} of the actions in real dev games are invalid, so that "
        "the policies keep to the actions that the environment lists as valid "
        '(policy.shield="" lets them take any)',
        file=sys.stderr,
    )
    return {"dev_invalid_actions": share, "shield": "valid"}


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fit takes; its dev losses are taken more often than others.

    Its dev games are in the cost of the stage `warmstart`, which reads them.
    """
    fit = workload.fit(1.1 * config.bc.fit.steps)
    return fit._replace(compile_seconds=4, disk=2 * workload.model_bytes)
