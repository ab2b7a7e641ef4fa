"""The scorecard of a run's experience model, with its calibration and threshold."""

from collections.abc import Sequence
from typing import Any

from dreamgym.build.episodes import read
from dreamgym.build.real.environments import open_env
from dreamgym.evaluation.fidelity import by_family
from dreamgym.evaluation.leading_numbers import FEW_ENDS
from dreamgym.run.directory import Run
from dreamgym.run.display import progress_bar
from worldmodel import fidelity
from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.fidelity.hidden_state import hidden_state

MAX_TRAINING_ENDS = 50
"""Ends of training episodes that the model is asked for, at most."""


def add_training_ends(
    scorecard: dict[str, Any], experience: ExperienceModel, train: Sequence[Episode]
) -> None:
    """Add how many ends of training episodes a model finds, where it was asked for few.

    Those are fewer than FEW_ENDS of dev episodes.
    """
    if scorecard["done"]["recall"]["count"] < FEW_ENDS:
        ends = fidelity.ends_recalled(experience, train, MAX_TRAINING_ENDS)
        scorecard["training_ends"] = ends


def measure(run: Run, experience: ExperienceModel, name: str) -> dict[str, Any]:
    """Return the scorecard of a model on the run's dev episodes; `name` is displayed.

    `hidden_state` says how often recorded steps contradict each other, by what the
    model reads. `training_ends` is the share of the ends of the training episodes that
    the model gives, where fewer than FEW_ENDS of dev episodes are scored. `calibration`
    and `threshold` are what the dream reads: how its probabilities are scaled, and the
    confidence below which a rollout ends.
    """
    train, dev = read(run)
    limit = run.config.fidelity.transitions
    with progress_bar(limit, name, "transition") as show, open_env(run) as env:
        scorecard = by_family(
            experience,
            dev,
            limit,
            lambda done, _: show(done),
            env=env,
            steps_left=lambda: run.real_steps.left,
            open_loop_steps=limit,
            recorded=train,
        )
    if run.config.server is None:
        add_training_ends(scorecard, experience, train)
    history = run.config.experience.history
    scorecard["hidden_state"] = hidden_state(train, history=history).json()
    scale = fidelity.fit_calibration(experience, dev, limit=limit, recorded=train)
    scorecard["calibration"] = scale.json()
    gate = run.config.uncertainty.false_abort_rate
    threshold = fidelity.confidence_threshold(
        experience, dev, limit=limit, gate=gate, recorded=train
    )
    # The gate reads calibrated chances: so its threshold is one. 0 believes all.
    scorecard["threshold"] = scale.confidence(threshold) if threshold else 0.0
    return scorecard
