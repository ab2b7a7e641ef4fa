"""The calibration and the threshold of confidences, from held-out transitions."""

from collections.abc import Sequence

import numpy as np

from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel, is_correct, states_read
from worldmodel.experience.calibration import Calibration, calibration
from worldmodel.fidelity import metrics
from worldmodel.fidelity.cases import sample_cases


def fit_calibration(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    *,
    limit: int,
    recorded: Sequence[Episode] = (),
) -> Calibration:
    """Return the calibration of the model's probabilities on held-out transitions.

    It is fitted to at most `limit` of them. Reveals and what is forgotten are left
    out, because no answer to them can be expected to be correct.
    """
    sampled = sample_cases(
        episodes, limit, recorded=recorded, states_read=states_read(model)
    )
    predictable = [c for c in sampled if c.predictable]
    answers = model.predict([c.query for c in predictable]) if predictable else []
    real = [c.transition for c in predictable]
    return calibration(answers, real, [c.weight for c in predictable])


def confidence_threshold(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    *,
    limit: int,
    gate: float,
    recorded: Sequence[Episode] = (),
) -> float:
    """Return the confidence below which a share `gate` of the acceptable answers lies.

    Acceptable are correct answers and all well-formed answers to others, because those
    cannot be predicted and exploration needs them. Returns 0 where gate is 0 or no
    answer is acceptable. An unknown confidence (NaN) counts as 0, as in the dream.

    Raises:
      ValueError: none of their confidences is known.
    """
    count = limit if gate else 0
    sampled = sample_cases(
        episodes, count, recorded=recorded, states_read=states_read(model)
    )
    answers = model.predict([c.query for c in sampled]) if sampled else []
    acceptable = [
        (a.confidence, c.weight)
        for c, a in zip(sampled, answers, strict=True)
        if (not c.predictable and a.error is None) or is_correct(a, c.transition)
    ]
    confidences, weights = np.array(acceptable, float).reshape(-1, 2).T
    if acceptable and np.isnan(confidences).all():
        raise ValueError(
            f"a gate of {gate:g} needs confidences, and none of the {len(acceptable)} "
            "acceptable answers has one: set the gate to 0"
        )
    if not acceptable:
        return 0.0
    return metrics.weighted_quantile(np.nan_to_num(confidences), weights, gate)
