"""The settings of a whole run: plain frozen data, hashed into the run's manifest."""

import dataclasses
from typing import Any

from dreamgym.agent.behavior import CollectConfig
from dreamgym.agent.policy import PolicyConfig
from dreamgym.config.overrides import digest_of
from dreamgym.config.shapes import MODELS
from dreamgym.config.stages import (
    RETRIEVALS,
    EvaluateConfig,
    ServerConfig,
    TrustConfig,
    WarmstartConfig,
)
from dreamgym.training import LoopConfig
from worldmodel.experience.ensemble import EnsembleConfig
from worldmodel.experience.grammar import ExperienceConfig
from worldmodel.fitting.supervised import FitConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run. Everything here enters the settings hash.

    `model` is a shape of MODELS or a Hugging Face directory; `env` a registered id,
    "module:Class", or "" where only `episodes` (a JSONL file) are at hand; `refit` is a
    run whose model, tokenizer and episodes this one goes on from; `share` of the
    episodes is what the experience model is fitted to and remembers; rewards and ends
    that are rarer than `balance` weigh as if they made up that share; `enrich` dreamed
    transitions enter the replay memory after each update. `retrieval` of demonstrations
    is "lexical", or "hidden": by what the model that the fit starts from (a directory's
    or a refit's) holds after state and action. With a `server` the dream is
    what it answers: nothing is fitted to the episodes, they are its demonstrations, and
    policies begin at the model as it is before any fit. `real` trains in the real
    environment, for as many updates, what is else trained in the dream: its control.
    """

    preset: str
    env: str = "textworld"
    model: str = "micro"
    episodes: str = ""
    refit: str = ""
    seed: int = 0
    max_steps: int = 16
    retrieval: str = "lexical"
    collect: CollectConfig = CollectConfig()
    experience: ExperienceConfig = ExperienceConfig()
    server: ServerConfig | None = None
    pretrain: FitConfig
    share: float = 1.0
    balance: float = 0.0
    ensemble: EnsembleConfig = EnsembleConfig()
    shuffled: bool = False
    policy: PolicyConfig = PolicyConfig()
    warmstart: WarmstartConfig
    dream: LoopConfig
    transfer: LoopConfig
    transfer_budget: int = 3000
    enrich: int = 64
    trust: TrustConfig = TrustConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    real: bool = False

    def __post_init__(self):
        if self.real and (not self.env or self.dream.forks):
            raise ValueError(
                "real = true needs an environment, and no dream.forks: it cannot go "
                f"back; got env {self.env!r} and forks {self.dream.forks}"
            )
        real = self.transfer
        if real.forks or real.watch.probe or real.limit:
            raise ValueError(
                "transfer.forks and transfer.watch.probe must be 0 (the real "
                "environment cannot go back, and its rollouts are real already), and "
                "transfer.limit too (transfer_budget is that); got "
                f"{real.forks}, {real.watch.probe} and {real.limit}"
            )
        if self.seed < 0:
            raise ValueError(f"--seed must be >= 0, got {self.seed}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {self.max_steps}")
        self._check_loops()
        if self.enrich < 0 or self.transfer_budget < 0:
            raise ValueError(
                "enrich and transfer_budget must be >= 0, got "
                f"{self.enrich} and {self.transfer_budget}"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        if self.server is not None and not self.server.chat.temperature:
            samples = self.dream.curriculum.feasibility.samples
            compared = ["trust.signal = agreement"] * (self.trust.signal == "agreement")
            compared += ["dream.curriculum.feasibility.samples"] * bool(samples)
            if compared:
                raise ValueError(
                    f"{compared[0]} compares answers under different noise: "
                    "server.chat.temperature must be > 0"
                )
        if self.trust.signal == "ensemble" and not self.ensemble.members:
            raise ValueError("trust.signal = ensemble needs ensemble.members > 0")
        if self.retrieval not in RETRIEVALS:
            got = self.retrieval
            raise ValueError(f"retrieval must be one of {RETRIEVALS}, got {got!r}")
        if self.retrieval == "hidden" and self.model in MODELS and not self.refit:
            raise ValueError(
                "retrieval = hidden goes by a model that has read something: give a "
                "model directory, or go on from a run"
            )
        if not 0 <= self.balance < 1:
            raise ValueError(f"balance must be in [0, 1), got {self.balance}")
        fitted = {
            "shuffled": self.shuffled, "refit": self.refit, "balance": self.balance,
            "ensemble": self.ensemble.members,
        }  # fmt: skip
        about = [name for name, set_ in fitted.items() if set_]
        if self.server is not None and about:
            raise ValueError(
                f"{about[0]} is about a fitted experience model, and the one of a "
                "server is not fitted: drop one of them"
            )

    def _check_loops(self):
        """What a loop, or the warm start, asks of the run it is part of."""
        for name, loop in (("dream", self.dream), ("transfer", self.transfer)):
            first = loop.curriculum.horizon.first
            if first > self.max_steps:
                raise ValueError(
                    f"{name}.curriculum.horizon.first must be at most max_steps = "
                    f"{self.max_steps}, got {first}"
                )
        if self.dream.watch.probe and not self.env:
            raise ValueError("dream.watch.probe plays real dev games: give --env")
        both = self.warmstart.method in ("both", "iwm")
        if both and self.warmstart.fit.steps < 2:
            raise ValueError(
                f"warmstart.method = {self.warmstart.method} is two fits: "
                "warmstart.fit.steps must be >= 2, got 1"
            )

    def check_new(self) -> None:
        """Refuse settings that nothing would come of, before a run begins with them.

        Raises:
          ValueError: such a setting, by its whole name. Runs that stand are not asked.
        """
        for name, loop in (("dream", self.dream), ("transfer", self.transfer)):
            if told := loop.dead():
                raise ValueError(f"{name}.{told}")
        update = self.dream.update
        if self.trust.pessimism and not update.reads_rewards:
            raise ValueError(
                "trust.pessimism takes from rewards, which dream.update.baseline = "
                f"{update.baseline} does not read"
            )

    def json(self) -> dict[str, Any]:
        """The settings as plain data."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """A hash of all settings, and of the episodes' content where given."""
        return digest_of(self.json(), self.episodes)
