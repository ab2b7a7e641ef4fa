"""What cells of a study share: stages, what each reads of the settings, its files.

Collecting, pretraining and the warm start cost most of a run, and cells that ask about
what comes later agree on them. A stage of one version is the same function of the same
settings in every run, so its files are as good as computed anew.
"""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.config.settings import RunConfig
from dreamgym.config.stages import WarmstartConfig
from dreamgym.run.directory import VERSION, Run
from dreamgym.stages.table import STAGES

LATE = {
    "preset", "dream", "transfer", "transfer_budget", "enrich", "trust", "real",
}  # fmt: skip
"""Settings that no shared stage reads, but fidelity that of trust."""


POLICY = {"policy", "warmstart"}


MODEL = {"model", "experience", "retrieval", "pretrain", "share", "balance"}


ENSEMBLE = {"ensemble"}


UNCLONED = {
    f"warmstart.{f.name}"
    for f in dataclasses.fields(WarmstartConfig)
    if f.name not in ("fit", "start", "experts", "share")
}
"""Settings of the warm start that its control does not read (clone.py)."""


SHARED = {
    "collect": ((), LATE | POLICY | MODEL | ENSEMBLE, ("episodes.jsonl", "dev.jsonl")),
    "pretrain": (("collect",), LATE | POLICY | ENSEMBLE, (
        "tokenizer", "experience", "memory", "curves/pretrain.jsonl",
    )),
    "ensemble": (("pretrain",), LATE | POLICY, ("ensemble",)),
    "fidelity": (("ensemble",), (LATE - {"trust"}) | POLICY, (
        "fidelity.json", "plots/fidelity.png",
    )),
    "clone": (("pretrain",), LATE | ENSEMBLE | UNCLONED, (
        "policies/untrained", "policies/bc", "curves/bc.jsonl",
        "test/untrained.jsonl", "test/bc.jsonl",
    )),
    "warmstart": (("pretrain",), LATE | ENSEMBLE, (
        "branches.jsonl", "branches.json", "policies/untrained", "policies/bc",
        "policies/warmstart", "curves/bc.jsonl", "curves/iwm.jsonl",
        "curves/writer.jsonl", "curves/warmstart.jsonl", "test/untrained.jsonl",
        "test/bc.jsonl", "test/warmstart.jsonl",
    )),
}  # fmt: skip
"""Stages that cells share: what each goes on from, what it does not read, its files.

Test games that its policies have played are among them.
"""


ALL = (*STAGES, "clone")
"""The stages, and the one within the warm start that is shared by itself."""


def take_over(run: Run, others: Sequence[Run]) -> None:
    """Take over finished stages of runs whose settings they read are the same."""
    for stage, (before, _, files) in SHARED.items():
        if run.done(stage) or not all(run.done(b) for b in before):
            continue
        for other in others:
            if other.root == run.root or not computed(other, stage):
                continue
            if key(other.config, stage) != key(run.config, stage):
                continue
            print(f"{stage}: as in {other.root}", file=sys.stderr)
            for name in files:
                _copy(other.path(name), run.path(name))
            _copy(other.path(f"stages/{stage}.json"), run.path(f"stages/{stage}.json"))
            break


def computed(run: Run, stage: str) -> bool:
    """Whether this version has computed a stage of the run."""
    return version(run, stage) == VERSION


def version(run: Run, stage: str) -> str | None:
    """Which dreamgym computed a stage; None where none did. The first did not say."""
    marker = run.done(stage)
    return marker.get("dreamgym", VERSION) if marker is not None else None


def key(config: RunConfig, stage: str) -> tuple[str, str]:
    """Equal for runs in which a stage computes the same."""
    return stage, json.dumps(_read(config, stage), sort_keys=True)


def _read(config: RunConfig, stage: str) -> dict[str, Any]:
    """The settings that a shared stage reads, as plain data."""
    names = SHARED[stage][1]
    left = {k: v for k, v in config.json().items() if k not in names}
    for name in names:
        group, _, field = name.partition(".")
        if field and group in left:
            left[group] = {k: v for k, v in left[group].items() if k != field}
    return left


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.copy2(source, fresh)
        fresh.replace(target)  # at once: a marker cut short would stop every study
