"""What a verdict on a run is made from: the evidence, and the causes that it shows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.agent.config import FLOORS

EXPERT_SETTINGS = ("collect.expert_weight", "collect.noisy_weight")
"""Settings without effect where the environment has no expert."""


class Cause(NamedTuple):
    """A likely cause of a disappointing run: what is the case, what to change."""

    name: str
    sentence: str
    advice: str

    def text(self) -> str:
        """Return the cause with its advice."""
        return f"{self.sentence} {self.advice}"


class Evidence(NamedTuple):
    """The evidence for a verdict: results.json, numbers by stage, the dream's curve.

    `retries` is how often the run samples a malformed answer of its dream again; None
    where a chat server is its dream, which has a setting of its own. `env` is the id of
    its environment, and `memory_gb` the limit of a worker's memory, 0 without one.
    """

    results: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    curve: Sequence[Mapping[str, Any]] = ()
    retries: int | None = 0
    env: str = "ENV"
    memory_gb: float = 0.0

    def success(self, policy: str) -> float | None:
        """Return a policy's success on the test tasks, None if it is unknown."""
        row = self.results.get("policies", {}).get(policy)
        return None if row is None else row["success"]["mean"]

    def trained(self) -> dict[str, float]:
        """Return the success of each trained policy by name."""
        names = [n for n in self.results["policies"] if n not in (*FLOORS, "untrained")]
        rates = {name: self.success(name) for name in names}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def returns(self) -> dict[str, float]:
        """Return the mean return of each policy at the test games, if it is known."""
        rows = self.results["policies"].items()
        returns = {name: row.get("mean_return") for name, row in rows}
        return {name: x for name, x in returns.items() if x is not None}

    def number(self, stage: str, name: str) -> Any:
        """Return a number of a stage, None if it has none of that name."""
        return self.stages.get(stage, {}).get(name)

    def asks_dream(self) -> bool:
        """Return whether the run trained in a dream, as far as is known."""
        check = self.stages.get("dream_check", {})
        return "real" not in check or "forced" in check

    def has_expert(self) -> bool:
        """Return whether the environment has an expert, as far as is known."""
        status = self.number("evaluate/expert", "status")
        return status is None or "no expert" not in status

    def is_recorded(self) -> bool:
        """Return whether there are recordings alone: nothing can be played."""
        return "no environment" in (self.results.get("skipped") or "")

    def figure(self, *path: str) -> Mapping[str, Any]:
        """Return the mean (None: unknown) and count of a figure of the scorecard."""
        part: Any = self.results.get("fidelity") or {}
        for name in path:
            part = part.get(name) or {}
        return part if "mean" in part else {"mean": None, "count": 0}


def broken_advice(env: str, error: str, memory_gb: float) -> str:
    """Return what to do about episodes that an environment broke, without a full stop.

    Args:
      env: the id of the environment.
      error: the commonest type of error.
      memory_gb: the limit of a worker's memory (env.worker_memory_gb), 0 without one.
    """
    if error == MemoryError.__name__ and memory_gb:
        return f"Raise env.worker_memory_gb, which is {memory_gb:g}"
    return f"`dreamgym check --env {env} --tasks 30` may find the cause"


def collect_more(evidence: Evidence, *settings: str) -> str:
    """Return the advice to collect more by these settings, as far as they have effect.

    Where nothing can be played, more has to be recorded. A budget decides how many
    episodes are played. Without an expert its weight changes nothing.
    """
    what = "Collect more"
    if evidence.is_recorded():
        return "Record more episodes (--episodes)"
    if not evidence.has_expert():
        what = "Give the environment an expert(), if only for some tasks; collect more"
        settings = tuple(s for s in settings if s not in EXPERT_SETTINGS)
    if evidence.results.get("budget"):
        others = (s for s in settings if s != "collect.episodes")
        settings = ("a larger --budget", *others)
    return f"{what} ({', '.join(settings)})" if settings else what


def fit_more(evidence: Evidence) -> str:
    """Return the advice to fit the dream better: longer, to more, or larger."""
    source = "collect.episodes"
    if evidence.is_recorded():
        source = "--episodes"
    elif evidence.results.get("budget"):
        source = "a larger --budget"
    return (
        f"Fit it longer (pretrain.fit.steps), to more episodes ({source}), or take a "
        "larger --model."
    )
