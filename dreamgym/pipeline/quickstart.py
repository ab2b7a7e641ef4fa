"""All stages in order over one run directory; the same call resumes."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from dreamgym.pipeline import (
    collect,
    ensemble,
    evaluate,
    fidelity,
    pretrain,
    served,
    train,
    transfer,
    warmstart,
)
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.run import Run, RunError
from worldmodel.backbone.mesh import MeshConfig, make_mesh

STAGES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "collect": collect.stage,
    "pretrain": pretrain.stage,
    "ensemble": ensemble.stage,
    "fidelity": fidelity.stage,
    "warmstart": warmstart.stage,
    "train": train.stage,
    "evaluate": evaluate.stage,
    "transfer": transfer.stage,
}


# Of malloc.h: no buffer by mmap (M_MMAP_MAX), less than 2 GiB free is kept
# (M_TRIM_THRESHOLD), threads share one heap (M_ARENA_MAX).
_KEEP_MEMORY = ((-4, 0), (-1, 2**31 - 1), (-8, 1))


def tune_process() -> None:
    """Keep compiled programs on disk, and freed memory in the process.

    glibc hands every large buffer back to the kernel, which clears it page by page
    when the next update asks for it: half as long again (docs/LOG.md, 2026-11-21).
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # not in every C library
            for option, value in _KEEP_MEMORY:
                libc.mallopt(option, value)
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        path = Path.home() / ".cache" / "dreamgym" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def quickstart(
    run_dir: str | Path,
    config: RunConfig,
    *,
    fine_tune: bool = True,
    mesh: MeshConfig | None = None,
    track: Sequence[str] = (),
) -> dict[str, Any]:
    """Run every stage that is not done yet; returns what results.json holds.

    Without `fine_tune` it ends before the transfer stage, whose real fine-tuning the
    comparison of dream, warmstart and bc does not need; a later call makes up for it.
    Models are spread over the devices of `mesh`. Metrics go to metrics.jsonl while it
    runs, and to the trackers that `track` names (tracking.TRACKERS).

    Raises:
      TrackerError: a tracker that is not known, not installed or cannot begin.
      RunError: a directory or setting that cannot be used.
      RecordError: bad episodes; the message names file and line.
      ServerLost: the server that is the dream does not answer.
    """
    served.check_server(config)
    tune_process()
    with Run(run_dir, config, None if mesh is None else make_mesh(mesh), track) as run:
        for name, body in STAGES.items():
            if name == "transfer" and not fine_tune:
                break
            told = run.stage(name, lambda body=body: body(run))["numbers"]
            if name == "collect" and not told.get("successes", 1):
                raise RunError(  # the warm start would, after all of the fit
                    f"{run.root}: no successful episode to imitate among the collected "
                    f"{told['episodes']}"
                )
        return transfer.write_results(run)
