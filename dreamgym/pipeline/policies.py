"""Policies of a run: model directories by name."""

from dreamgym.agent.policy import Policy
from dreamgym.pipeline.run import Run, RunError
from worldmodel.backbone.weights import load_model, save_model


def load_policy(run: Run, name: str) -> Policy:
    """A policy of the run by name.

    Raises:
      RunError: the stage that makes it has not been run.
    """
    path = run.path(f"policies/{name}")
    if not (path / "config.json").is_file():
        raise RunError(f"{path}: no policy {name!r} in this run yet")
    model, tok = load_model(path, mesh=run.mesh)
    return Policy(model, tok, run.config.policy)


def save_policy(run: Run, name: str, policy: Policy) -> None:
    """Write a policy as a model directory."""
    save_model(run.path(f"policies/{name}"), policy.model, policy.tokenizer)
