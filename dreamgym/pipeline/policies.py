"""Policies of a run: model directories by name."""

import dataclasses

from dreamgym.agent.policy import Policy, PolicyConfig
from dreamgym.pipeline.run import Run, RunError
from worldmodel.backbone.weights import load_model, save_model

MOST = 64
"""Tokens of an action that policies have room for without being asked to: what they
write costs as much as the room where they do not know when to stop."""


def room(config: PolicyConfig, longest: int) -> int:
    """Tokens of an action, where the `longest` that won has so many.

    A quarter more, for names that the episodes do not hold, and one token to end it; no
    more than MOST, and no less than the settings say.
    """
    return max(config.action_tokens, min(longest + longest // 4 + 1, MOST))


def roomy(run: Run) -> PolicyConfig:
    """How the run's policies act, with room for actions as long as those that won.

    Runs of older versions did not count them: theirs have the room of the settings.
    """
    config, longest = run.config.policy, run.numbers("pretrain").get("action_tokens", 0)
    return dataclasses.replace(config, action_tokens=room(config, longest))


def load_policy(run: Run, name: str) -> Policy:
    """A policy of the run by name.

    Raises:
      RunError: the stage that makes it has not been run.
    """
    path = run.path(f"policies/{name}")
    if not (path / "config.json").is_file():
        raise RunError(f"{path}: no policy {name!r} in this run yet")
    model, tok = load_model(path, mesh=run.mesh)
    return Policy(model, tok, roomy(run))


def save_policy(run: Run, name: str, policy: Policy) -> None:
    """Write a policy as a model directory."""
    save_model(run.path(f"policies/{name}"), policy.model, policy.tokenizer)
