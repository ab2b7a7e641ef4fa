"""The settings of a whole run: plain frozen data, hashed into the run's manifest."""

import dataclasses
import json
from typing import Any

from dreamgym.agent.config import (
    BranchConfig,
    CollectConfig,
    PlanConfig,
    PolicyConfig,
    WarmstartConfig,
)
from dreamgym.config.budget import BudgetConfig
from dreamgym.config.fine_tuning import TransferConfig
from dreamgym.config.overrides import digest_of
from dreamgym.config.shapes import MODELS
from dreamgym.config.stages import (
    BcConfig,
    DataConfig,
    DreamCheckConfig,
    EnvConfig,
    EvaluateConfig,
    ExpertIterationConfig,
    FidelityConfig,
    MemoryConfig,
    PretrainConfig,
    ServerConfig,
    TrainConfig,
    UncertaintyConfig,
)
from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.reward_model_config import RewardModelConfig
from dreamgym.rl.dpo_config import DPOConfig
from worldmodel.data.hashing import content_seed
from worldmodel.experience.config import EnsembleConfig, ExperienceConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run: a group for each stage or part, and the checks across groups.

    Everything here enters the settings hash. With a `server` the dream is what it
    answers: nothing is fitted to the episodes, they are its demonstrations, and
    policies begin at the model as it is before any fit.
    """

    preset: str
    """The preset that the settings began with."""
    seed: int = 0
    """The seed of everything."""
    model: str = "micro"
    """A model that is trained from scratch ("nano", "micro", "milli" or "mini"), or the
    directory of a Hugging Face model."""
    env: EnvConfig = EnvConfig()
    data: DataConfig = DataConfig()
    budget: BudgetConfig = BudgetConfig()
    collect: CollectConfig = CollectConfig()
    experience: ExperienceConfig = ExperienceConfig()
    server: ServerConfig | None = None
    memory: MemoryConfig = MemoryConfig()
    pretrain: PretrainConfig
    ensemble: EnsembleConfig = EnsembleConfig()
    uncertainty: UncertaintyConfig = UncertaintyConfig()
    fidelity: FidelityConfig = FidelityConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    policy: PolicyConfig = PolicyConfig()
    bc: BcConfig
    branch: BranchConfig = BranchConfig()
    warmstart: WarmstartConfig = WarmstartConfig()
    dpo: DPOConfig = DPOConfig()
    dream_check: DreamCheckConfig = DreamCheckConfig()
    expert_iteration: ExpertIterationConfig = ExpertIterationConfig()
    train: TrainConfig
    transfer: TransferConfig
    planner: PlanConfig = PlanConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def __post_init__(self):
        if self.train.environment == "real" and not self.env.id:
            raise ValueError("train.environment = real needs an environment: --env")
        if self.budget.real_steps and not self.env.id:
            raise ValueError(
                "budget.real_steps bounds the steps of an environment, and there is "
                "none: give --env as well, or no --budget"
            )
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"seed must be an int of at least 0, got {self.seed!r}")
        self._check_loops()
        self._check_server()
        if self.planner.world != "dream":
            raise ValueError(
                "planner.world is a control of test games (evaluate.plan.world): it "
                f"must be dream, got {self.planner.world!r}"
            )
        if self.uncertainty.signal == "ensemble" and not self.ensemble.members:
            raise ValueError("uncertainty.signal = ensemble needs ensemble.members > 0")
        scratch = self.model in MODELS and not self.data.base_run
        if self.memory.encoder == "hidden_state" and scratch:
            raise ValueError(
                "memory.encoder = hidden_state goes by a model that has read "
                "something: give a model directory, or go on from a run"
            )

    @property
    def warmstart_seed(self) -> int:
        """The seed of the fits of behaviour cloning and the warm start."""
        if not self.bc.seed:
            return self.seed
        return content_seed(self.seed, f"fit {self.bc.seed}")

    @property
    def policy_seed(self) -> int:
        """The seed of trainings after the warm start."""
        if not self.train.seed:
            return self.seed
        return content_seed(self.seed, f"training {self.train.seed}")

    def _check_server(self):
        """Check what a server, which is not fitted, can do."""
        if self.server is None:
            return
        if not self.server.chat.base_url:
            raise ValueError("server.chat.base_url must be set, got ''")
        if not self.server.chat.temperature:
            samples = self.train.curriculum.feasibility.samples
            compared = ["train.curriculum.feasibility.samples"] * bool(samples)
            if self.uncertainty.signal == "self_consistency":
                compared = ["uncertainty.signal = self_consistency"]
            if compared:
                raise ValueError(
                    f"{compared[0]} compares answers under different noise: "
                    "server.chat.temperature must be > 0"
                )
        fitted = {
            "pretrain.permute_outcomes": self.pretrain.permute_outcomes,
            "data.base_run": self.data.base_run,
            "pretrain.rare_event_share": self.pretrain.rare_event_share
            not in (0.0, PretrainConfig.rare_event_share),
            "ensemble.members": self.ensemble.members,
        }
        if names := [name for name, value in fitted.items() if value]:
            raise ValueError(
                f"{names[0]} is about a fitted experience model, and the one of a "
                "server is not fitted: drop one of them"
            )

    def _check_new_server(self):
        c, default = self.experience, ExperienceConfig
        fitted = {
            "history": c.history != default.history,
            "history_states": c.history_states,
            "keep_facts": c.keep_facts,
            "full_state": c.full_state,
        }
        names = [name for name, is_set in fitted.items() if is_set]
        if self.server is not None and names:
            raise ValueError(
                f"experience.{names[0]} is about a fitted experience model, and the "
                "one of a server is not fitted: leave it out"
            )

    def _check_loops(self):
        """Check what loops and the warm start need from the rest of the run."""
        for name, loop in (("train", self.train), ("transfer", self.transfer)):
            first = loop.curriculum.step_limit.initial
            if 0 < self.env.max_episode_steps < first:
                raise ValueError(
                    f"{name}.curriculum.step_limit.initial must be at most "
                    f"env.max_episode_steps = "
                    f"{self.env.max_episode_steps}, got {first}"
                )
        self._check_subgoals()
        both = self.warmstart.method in ("both", "iwm")
        if both and self.bc.fit.steps < 2:
            raise ValueError(
                f"warmstart.method = {self.warmstart.method} is two fits: "
                "bc.fit.steps must be >= 2, got 1"
            )

    def _check_subgoals(self):
        """Check what needs subgoals, and what does not go with them."""
        if not self.policy.subgoal_steps:
            for name, loop in (("train", self.train), ("transfer", self.transfer)):
                if loop.reward.subgoal_weight:
                    raise ValueError(
                        f"{name}.reward.subgoal_weight pays for subgoals, and "
                        "policy.subgoal_steps = 0 writes none: set it as well"
                    )
            return
        if self.warmstart.method not in ("bc", "iwm"):
            raise ValueError(
                "policy.subgoal_steps makes thoughts subgoals, and warmstart.method = "
                f"{self.warmstart.method} may teach reflections as thoughts: set it to "
                "bc or iwm as well"
            )

    def check_new(self) -> None:
        """Check a new run for settings with which it could not succeed.

        Existing runs are not checked.

        Raises:
          ValueError: there is such a setting; the message has its whole name.
        """
        for name, loop in (("train", self.train), ("transfer", self.transfer)):
            self._check_new_refit(f"{name}.reward", loop.reward)
            if problem := loop.dead():
                raise ValueError(f"{name}.{problem}")
            source = loop.reward.reward_model
            fits_shares = self.reward_model.objective == "progress" and (
                loop.reward.fits_reward_model
            )
            if fits_shares and (problem := source.progress_problem()):
                raise ValueError(f"{name}.reward.{problem}")
        if self.train.curriculum.generator == "train" and not self.env.id:
            raise ValueError(
                "train.curriculum.generator = train takes tasks of an environment: "
                "give --env"
            )
        self._check_new_server()
        if self.env.worker_memory_gb and not self.env.workers:
            raise ValueError(
                "env.worker_memory_gb limits worker processes, of which env.workers = "
                "0 starts none: set env.workers to 1 or more as well, got "
                f"{self.env.worker_memory_gb:g} GB"
            )
        matches = self._classifier_matches()
        if len(set(matches.values())) > 1:
            raise ValueError(
                "reward.tools.match must be the same in the loops where a classifier "
                f"labels the use of tools, got {matches}"
            )
        if problem := self.dpo.dead():
            raise ValueError(f"dpo.{problem}")
        tokens, default = self.policy.history_tokens, PolicyConfig.history_tokens
        if not self.policy.history_states and tokens != default:
            raise ValueError(
                "policy.history_tokens bounds what policy.history_states adds, which "
                f"is nothing: set it to true, or leave history_tokens at {default}, "
                f"got {tokens}"
            )
        for name, model in (("policy", self.policy), ("experience", self.experience)):
            if model.history_states and not model.history:
                raise ValueError(
                    f"{name}.history_states adds to past actions, of which there are "
                    f"none: set {name}.history to 1 or more"
                )
        update = self.train.update
        if self.uncertainty.penalty and not update.reads_rewards:
            raise ValueError(
                "uncertainty.penalty takes from rewards, which "
                "train.update.advantage_estimator = "
                f"{update.advantage_estimator} does not read"
            )

    def _check_new_refit(self, name: str, reward: RewardConfig):
        """Check that a reward model that is refitted scores something."""
        if reward.reward_model.refit.every and "reward_model" not in reward.sources:
            sources = json.dumps([*reward.sources, "reward_model"])
            raise ValueError(
                f"{name}.reward_model.refit.every refits what scores the process, and "
                f"{name}.sources does not name reward_model: add "
                f"--set '{name}.sources={sources}'"
            )

    def _classifier_matches(self) -> dict[str, str]:
        rewards = {"train": self.train.reward, "transfer": self.transfer.reward}
        return {name: r.tools.match for name, r in rewards.items() if r.fits_classifier}

    @property
    def classifier_match(self) -> str | None:
        """The rule of matching calls that a classifier of tool use learns, or None."""
        return next(iter(self._classifier_matches().values()), None)

    def json(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Return a hash of all settings, and of the content of an episodes file."""
        return digest_of(self.json(), self.data.episodes)
