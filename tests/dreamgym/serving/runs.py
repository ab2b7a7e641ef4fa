"""A run that is fitted, without a fit: a model of one layer that says anything."""

from pathlib import Path
from typing import Any

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import write_episodes


def fitted_run(root: Path, **settings: Any) -> Run:
    """Return a run whose stages up to `fidelity` are done."""
    changes = {
        "env.id": "tests.doubles:Corridor",
        "uncertainty.false_abort_rate": 0.0,
        "experience.reasoning_tokens": 12,
        "experience.state_tokens": 16,
        "experience.retries": 0,
    }
    run = Run(root, preset("tiny", changes | settings))
    train, dev = doubles.tasks("train")[:6], doubles.tasks("dev")[:2]
    write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in train])
    write_episodes(run.path("dev.jsonl"), [doubles.expert(t) for t in dev])
    save_model(run.path("experience"), doubles.model(), doubles.tokenizer())
    run.write_json("fidelity.json", {"calibration": None})
    for name in ("collect", "pretrain", "fidelity"):
        numbers = {"max_episode_steps": 4} if name == "collect" else {}
        run.write_json(f"stages/{name}.json", {"numbers": numbers, "seconds": 1.0})
    return run
