"""Policies of a run: model directories by name."""

import dataclasses

from dreamgym.agent.policy import Policy, PolicyConfig
from dreamgym.pipeline.run import Run, RunError
from worldmodel.backbone.weights import load_model, save_model


def roomy(run: Run) -> PolicyConfig:
    """How the run's policies act, with room for actions as long as those that won.

    A quarter more than the longest one of the collected episodes, for names that these
    do not hold, and one token to end it. Runs of older versions did not count them:
    theirs have the room of the settings.
    """
    config, longest = run.config.policy, run.numbers("pretrain").get("action_tokens", 0)
    room = max(config.action_tokens, longest + longest // 4 + 1)
    return dataclasses.replace(config, action_tokens=room)


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
