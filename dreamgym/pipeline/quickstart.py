"""All stages in order over one run directory; the same call resumes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from dreamgym.pipeline import (
    collect,
    evaluate,
    pretrain,
    train,
    transfer,
    warmstart,
)
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.run import Run

STAGES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "collect": collect.stage,
    "pretrain": pretrain.stage,
    "fidelity": pretrain.fidelity_stage,
    "warmstart": warmstart.stage,
    "train": train.stage,
    "evaluate": evaluate.stage,
    "transfer": transfer.stage,
}


def use_compilation_cache() -> None:
    """Keep compiled programs on disk: the second run starts at once."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        path = Path.home() / ".cache" / "dreamgym" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def quickstart(run_dir: str | Path, config: RunConfig) -> dict[str, Any]:
    """Run every stage that is not done yet; returns what results.json holds.

    Raises:
      RunError: a directory or setting that cannot be used.
      RecordError: bad episodes; the message names file and line.
    """
    use_compilation_cache()
    run = Run(run_dir, config)
    for name, body in STAGES.items():
        run.stage(name, lambda body=body: body(run))
    return transfer.write_results(run)
