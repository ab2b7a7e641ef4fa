"""Evidence of a run without a fault, and what the tests of verdicts change in it."""

from dreamgym.evaluation.diagnosis.evidence import Evidence

SOUND = {
    "exact": {"predictable": {"mean": 0.95, "count": 200, "effective": 200.0}},
    "done": {"recall": {"mean": 1.0, "count": 40, "effective": 40.0}},
    "reward": {"recall": {"mean": 1.0, "count": 40, "effective": 40.0}},
}
STAGES = {
    "bc": {"imitated_episodes": 60},
    "collect": {"successes": 80, "episodes": 300},
    "dream_check": {"disagrees": False},
    "train": {"kl": 0.1},
}
CURVE = [{"informative_groups": 0.5, "rollouts": 96.0, "unscored_rollouts": 0.0}]


def row(success, games=120, invalid=0.05):
    return {
        "success": {"mean": success, "episodes": games},
        "invalid_action_rate": invalid,
    }


def evidence(*, fidelity=SOUND, stages=STAGES, curve=CURVE, paired=None, **rates):
    policies = {k: r if isinstance(r, dict) else row(r) for k, r in rates.items()}
    results = {"policies": policies, "paired": paired or {}, "fidelity": fidelity}
    return Evidence(results, stages, curve)


def gain(low, mean, high):
    pair = {"low": low, "mean": mean, "high": high, "episodes": 60}
    return {"dream_minus_warmstart": pair}


def with_stage(**changes):
    return evidence(bc=0.4, stages=STAGES | changes)
