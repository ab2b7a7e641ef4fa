"""The stages of a run."""

from collections.abc import Callable
from typing import Any

from dreamgym.run.directory import Run
from dreamgym.stages import (
    collect,
    ensemble,
    fidelity,
    pretrain,
    train,
    transfer,
    warmstart,
)
from dreamgym.stages import evaluate as evaluate_stage

STAGES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "collect": collect.body,
    "pretrain": pretrain.body,
    "ensemble": ensemble.body,
    "fidelity": fidelity.body,
    "warmstart": warmstart.body,
    "train": train.body,
    "evaluate": evaluate_stage.body,
    "transfer": transfer.body,
}
