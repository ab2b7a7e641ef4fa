"""The groups of settings that belong to one stage or part of a run.

A group stands with the part that it configures where there is one (`CollectConfig` with
the behaviour policies, `UpdateConfig` with the update); the others stand here.
"""

import dataclasses
import math

from dreamgym.agent.config import DemonstrationMixtureConfig, PlanConfig
from dreamgym.training.config import LoopConfig
from worldmodel.chat.config import ChatConfig
from worldmodel.experience.config import SIGNALS, PromptedConfig
from worldmodel.fitting.config import FitConfig

ENCODERS = ("lexical", "hidden_state")
"""By what demonstrations are retrieved (worldmodel.memory.encoders)."""

INITS = ("experience_model", "base_model")
IMITATED = ("experts", "won_episodes", "corrected")
ENVIRONMENTS = ("dream", "real")
FLEETS = ("local", "ray")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The real environment."""

    id: str = "textworld"
    """A registered id, one with its task ("miniwob:login-user"), "module:Class",
    "gym:Taxi-v4", several of these ("mix:textcraft,textworld*2"), "mcp:tasks.toml", the
    URL of an OpenEnv server, or "" where only episodes are at hand."""
    max_episode_steps: int = 0
    """Steps after which an episode is truncated, real or dreamed; 0: what the
    environment declares or the expert's plans need (dreamgym.envs.limits)."""
    num_envs: int = 64
    """Copies of the real environment that are stepped together, at most: an environment
    may declare fewer (`max_copies`), and copies that start slowly are fewer."""
    workers: int = 0
    """Worker processes for the real environment; each has one copy of it, and they work
    at the same time. 0: all copies are in this process, which is faster where a step
    takes less than a millisecond. A copy that crashes is started again in the same
    place; one that hangs or takes too much memory ends one episode."""
    worker_memory_gb: float = 0.0
    """Gigabytes of memory that a worker process may use together with what it starts (a
    browser, a Java machine); 0 sets no limit. With Ray: what Ray reserves for it."""
    worker_cpus: float = 1.0
    """Processors that Ray reserves for a worker."""
    fleet: str = "local"
    """Where workers run: "local", as processes of this machine, or "ray", as actors of
    the Ray cluster that RAY_ADDRESS names (else of one on this machine)."""
    start_seconds: float = 300.0
    """Seconds in which a copy of the environment must have started, wherever it runs,
    and in which Ray must have found a place for a worker; 0 sets no deadline. The class
    itself declares those of its calls (`reset_seconds`, `step_seconds`)."""

    def __post_init__(self):
        if self.max_episode_steps < 0 or self.num_envs < 1:
            raise ValueError(
                "max_episode_steps must be >= 0 and num_envs >= 1, got "
                f"{self.max_episode_steps} and {self.num_envs}"
            )
        sizes = self.worker_memory_gb, self.worker_cpus, self.start_seconds
        if self.workers < 0 or not all(0 <= size < math.inf for size in sizes):
            raise ValueError(
                "workers must be >= 0, worker_memory_gb, worker_cpus and start_seconds "
                f"finite and >= 0, got {self.workers}, {sizes[0]}, {sizes[1]} and "
                f"{sizes[2]}"
            )
        if self.fleet not in FLEETS or (self.fleet == "ray" and not self.workers):
            raise ValueError(
                f"fleet must be one of {FLEETS}, and ray needs workers >= 1, got "
                f"{self.fleet!r} and {self.workers}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Episodes and models that a run begins with."""

    episodes: str = ""
    """A JSONL file of episodes that replaces collecting; "" collects them."""
    base_run: str = ""
    """A run whose experience model, tokenizer and episodes this run goes on from (a
    refit); "" starts anew."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """The replay memory, from which demonstrations are retrieved."""

    encoder: str = "lexical"
    """What similarity is computed from: "lexical" (character n-grams) or
    "hidden_state" (hidden states of the model that the fit starts from)."""
    additions_per_update: int = 64
    """Dreamed transitions that are added after each policy update; 0 adds none."""
    min_confidence: float = 0.0
    """The confidence below which a dreamed transition is not added, in [0, 1]."""

    def __post_init__(self):
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of {ENCODERS}, got {self.encoder!r}")
        if self.additions_per_update < 0 or not 0 <= self.min_confidence <= 1:
            raise ValueError(
                "additions_per_update must be >= 0 and min_confidence in [0, 1], got "
                f"{self.additions_per_update} and {self.min_confidence}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """The fit of the experience model: its data and its optimization."""

    fit: FitConfig
    data_share: float = 1.0
    """Share of the training episodes that is fitted to and remembered, in (0, 1]."""
    rare_event_share: float = 0.1
    """Rewards and ends that are rarer than this share of the transitions are weighted
    as if they made it up, in [0, 1); 0 weights nothing."""
    permute_outcomes: bool = False
    """The control that must not help: outcomes are permuted among the actions."""
    argument_markers: bool = True
    """Whether words of a state that the instruction or the action of a query names as
    its arguments are marked, and the lines that hold those of the action."""
    references: bool = True
    """Whether tokens stand for the identifiers of a context (names, codes, numbers) by
    their places in it, so that models copy them rather than remember them. A tokenizer
    that is trained here has such tokens where most tasks hold identifiers."""
    number_changes: bool = True
    """Whether numbers of a next state are written as what they change by, where in the
    training episodes more of the changes than of the numbers stand in the action, the
    task or the state, or are 1. A tokenizer that is trained here knows it."""
    grid_columns: bool = True
    """Whether a state with a grid is read with its columns as further lines, and a step
    that changes fewer columns than rows, as one up or down does, is written in these.
    Only where the training episodes have steps that change one column in several rows,
    and rows are not numbered. A tokenizer that is trained here knows it."""
    exchange_names: bool = True
    """Whether the copies of the examples, of this model's fit and of policies', also
    exchange the names that stand for each other (rooms, people), consistently in an
    episode. A group of names counts only where the episodes show that nothing depends
    on which of them stands where."""
    names: tuple[tuple[str, ...], ...] = ()
    """Groups of words that stand for each other, as you know of your environment, such
    as `[["red", "green", "blue"]]`. They are exchanged in all families, whatever the
    episodes show. Of the groups that the episodes show, those without a word of these
    are exchanged as well."""
    name_trial_steps: int = 300
    """Optimiser steps of each of two trial fits, where the episodes are too few to be
    sure of names: one with the names exchanged and one without. They are exchanged if
    that lowers the loss on next states of dev tasks by a tenth. 0 never tries, nor does
    a fit of less than four times as many steps."""

    def __post_init__(self):
        if not 0 < self.data_share <= 1:
            raise ValueError(f"data_share must be in (0, 1], got {self.data_share}")
        if not 0 <= self.rare_event_share < 1:
            raise ValueError(
                f"rare_event_share must be in [0, 1), got {self.rare_event_share}"
            )
        if self.name_trial_steps < 0:
            raise ValueError(
                f"name_trial_steps must be >= 0, got {self.name_trial_steps}"
            )
        words = [word for group in self.names for word in group]
        if min(map(len, self.names), default=2) < 2 or len(set(words)) < len(words):
            raise ValueError(
                "names must be groups of two words or more, each word in one group, "
                f"got {self.names}"
            )
        if self.names and not self.exchange_names:
            raise ValueError("names has no effect with exchange_names = False")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertaintyConfig:
    """The treatment of low-confidence predictions in training."""

    false_abort_rate: float = 0.0
    """Share of good dev answers (right, or of a reveal, which nobody can predict) that
    may be aborted, in [0, 1). It decides the confidence below which a rollout ends
    without an outcome. 0 aborts none."""
    penalty: float = 0.0
    """Reward that is taken off for each unit of missing confidence (MOPO,
    arXiv:2005.13239); 0 takes none."""
    signal: str = "token_probability"
    """What the confidence of an answer is computed from. "token_probability" is the
    probability of the reply's tokens; "nearest_neighbor" the similarity of the nearest
    stored transition of another task; "self_consistency" the share of three further
    replies that say the same; "ensemble" the least probability that a member of the
    ensemble gives to the answer (not with a chat server)."""

    def __post_init__(self):
        if not 0 <= self.false_abort_rate < 1 or self.penalty < 0:
            raise ValueError(
                "false_abort_rate must be in [0, 1) and penalty >= 0, got "
                f"{self.false_abort_rate} and {self.penalty}"
            )
        if self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {SIGNALS}, got {self.signal!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DreamCheckConfig:
    """When a policy is not trained in a dream, and when its training is not kept.

    The warm start plays the same dev tasks in the dream and in the real environment.
    Where both disagree, or the scorecard is poor, the experience model is fitted again
    once, weighted for what it gets wrong (build/refit.py), and asked again. If the
    reasons remain, the policy stays the warm start.
    """

    max_success_gap: float = 0.25
    """The largest difference between success in the dream and real success, in [0, 1],
    that is tolerated where 0 lies outside its interval. Success in the dream of less
    than a quarter of the real one never is."""
    min_predictable: float = 0.2
    """The share of the predictable next states that must be right in the scorecard."""
    min_ends: float = 0.2
    """The share of the ends that must be found in the scorecard."""
    margin: float = 0.05
    """By how much success in the dream must have risen for the trained policy to be
    kept, where there is no environment; else real dev tasks decide."""
    remedy_share: float = 0.3
    """Optimiser steps of the remedy's fit, as a share of `pretrain.fit.steps`; 0 tries
    none. Nor does a run with a chat server, an ensemble or `force`."""
    remedy_tasks: int = 32
    """Train tasks that the warm start plays in the real environment for that fit; these
    real steps are counted."""
    force: bool = False
    """Whether the policy is trained in the dream in any case."""

    def __post_init__(self):
        shares = ("max_success_gap", "min_predictable", "min_ends", "margin")
        for name in (*shares, "remedy_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.remedy_tasks < 0:
            raise ValueError(f"remedy_tasks must be >= 0, got {self.remedy_tasks}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertIterationConfig:
    """Imitation of what the policy wins in the dream, before reinforcement learning.

    Expert iteration (arXiv:1705.08439; STaR, arXiv:2203.14465). Its only real steps are
    those of the dev games that choose between its policy and the warm start.
    """

    rounds: int = 0
    """Rounds of rollouts in the dream and a fit to what was won so far; 0 leaves the
    policy as it is. Without effect in an environment that is not deterministic, where
    what was won may have been lucky."""
    tasks: int = 600
    """Tasks without a won episode that are drawn for each round, at most."""
    rollouts_per_task: int = 2
    """Episodes that are dreamed of each of these tasks; the shortest of those that are
    won is imitated. To stop at the first that is won saved a fifth of them, and no
    gain was seen (docs/LOG.md, 2026-11-27)."""
    fresh_tasks: int = 600
    """Train tasks, at most, of which nothing was collected, and which are dreamed of
    next to the collected ones; each costs a reset of the real environment, for its
    first state. 0 takes none."""
    invented_tasks: int = 0
    """Tasks, at most, that the experience model writes (DreamGym, Eq. 6) where there
    are fewer real ones than `tasks`, to be dreamed of as these are. 0 writes none."""
    search_steps: int = 0
    """Steps that an A* search takes in the dream, at most, in each task that these
    rollouts did not win; its win is imitated as well. It tries actions that the policy
    never draws, where the environment has few. 0 searches none."""
    temperature: float = 1.0
    """Sampling temperature of the policy in these rollouts."""
    epochs: int = 4
    """How often a fit reads each imitated step; more often where that would make fewer
    updates than behaviour cloning makes (`bc.fit.steps`)."""
    explore: bool = False
    """Whether a policy that imitates random play, without its invalid actions, plays in
    the dream as well where the policy wins fewer tasks there than random players won
    episodes in the collection. No real environment is known yet where it helps
    (docs/LOG.md, 2026-11-25)."""

    def __post_init__(self):
        counts = self.rounds, self.fresh_tasks, self.invented_tasks, self.search_steps
        if min(counts) < 0:
            raise ValueError(
                "rounds, fresh_tasks, invented_tasks and search_steps must be >= 0, "
                f"got {counts}"
            )
        if min(self.tasks, self.rollouts_per_task, self.epochs) < 1:
            raise ValueError(
                "tasks, rollouts_per_task and epochs must be >= 1, got "
                f"{self.tasks}, {self.rollouts_per_task} and {self.epochs}"
            )
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """The scorecard of the experience model."""

    transitions: int = 400
    """Maximal number of held-out real transitions that it predicts; open-loop episodes
    get as many steps."""

    def __post_init__(self):
        if self.transitions < 1:
            raise ValueError(f"transitions must be >= 1, got {self.transitions}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """The real test tasks that a policy plays, and how it decodes there."""

    tasks: int = 120
    """Test tasks, each played once; the same for every policy."""
    temperature: float = 0.5
    """Sampling temperature; 0 takes the most probable token."""
    plan: PlanConfig = PlanConfig()

    def __post_init__(self):
        if self.tasks < 1 or self.temperature < 0:
            raise ValueError(
                "tasks must be >= 1 and temperature >= 0, got "
                f"{self.tasks} and {self.temperature}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A chat server as the experience model: nothing is fitted."""

    chat: ChatConfig
    prompt: PromptedConfig = PromptedConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BcConfig:
    """Behaviour cloning: where policies begin, and the demonstrations they imitate."""

    fit: FitConfig
    """Also the budget of the warm start, which is fitted within the same updates."""
    init: str = "experience_model"
    """Where all policies begin: at the "experience_model", which knows what actions
    do, or, as in the papers, at the "base_model" which that itself began at."""
    imitate: str = "won_episodes"
    """What is imitated: "experts" (in the papers), or "won_episodes": these and, in
    tasks without one, the shortest episode that another actor won, without its invalid
    actions and loops. In an environment that is not deterministic these may have been
    won by luck: there they are left out. "corrected": "won_episodes", with the experts'
    without invalid actions and loops, too, so that a correction stands in the place of
    what failed (CLEANER, arXiv:2601.15141). Where no expert won an episode, one that
    was won in each task is imitated in any case: as it is with "experts", and where the
    environment is not known to be deterministic."""
    min_wins: int = 20
    """Won tasks below which parts of other episodes are imitated, too: in each task
    that was not won the part that earned the most reward, if that is above 0 and above
    what every episode earned. For environments that pay for progress and are rarely
    won. Of collected episodes only where wins of others are imitated, too, or where
    nothing was won; 0 imitates wins alone."""
    max_demonstrations: int = 1200
    """Expert episodes that are learned from, at most."""
    demonstration_share: float = 1.0
    """Share of these that is used, in (0, 1]; a smaller share is part of a larger one.
    The held-out loss is of all dev demonstrations whatever the share."""
    mixture: DemonstrationMixtureConfig = DemonstrationMixtureConfig()
    seed: int = 0
    """Which fit to the demonstrations this is: behaviour cloning and the warm start
    read their examples in another order with another number, from the same
    demonstrations and experience model. Branches are taken again, drawn by the run's
    seed. Fits that differ in it alone show how much of a result is chance
    (`scripts/studies/iwm.toml`)."""

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        if self.init not in INITS:
            raise ValueError(f"init must be one of {INITS}, got {self.init!r}")
        if self.imitate not in IMITATED:
            raise ValueError(f"imitate must be one of {IMITATED}, got {self.imitate!r}")
        if self.min_wins < 0:
            raise ValueError(f"min_wins must be >= 0, got {self.min_wins}")
        if self.max_demonstrations < 1:
            raise ValueError(
                f"max_demonstrations must be >= 1, got {self.max_demonstrations}"
            )
        if not 0 < self.demonstration_share <= 1:
            raise ValueError(
                f"demonstration_share must be in (0, 1], got {self.demonstration_share}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """Training in the dream, or in the real environment as its control."""

    environment: str = "dream"
    """Where the policy trains: in the "dream", or for as many updates in the "real"
    environment, the control."""
    rollout_lag: int = 0
    """Updates that the policy of the rollouts is behind: 0 rolls out and learns in
    turns; 1 rolls out the next batch in a thread while an update is computed, with the
    policy before it. The importance ratio of the surrogate corrects for that, and the
    metric `sampler_kl` says how far the policies are apart. 1 needs the dream, and one
    device or some of its own for the rollouts (--rollout-mesh)."""
    seed: int = 0
    """Which training of a warm start this is: expert iteration, updates and fine-tuning
    draw other noise with another number. Trainings that differ in it alone show how
    much of a result is chance (`scripts/studies/trainings.toml`)."""

    def __post_init__(self):
        super().__post_init__()
        self._check_lag()
        if self.environment not in ENVIRONMENTS:
            raise ValueError(
                f"environment must be one of {ENVIRONMENTS}, got {self.environment!r}"
            )
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        problem = self.reward.dream_problem()
        if self.environment == "dream" and problem is not None:
            raise ValueError(f"environment = dream: reward.{problem}")
        if self.environment == "real" and self.goes_back:
            raise ValueError(
                "environment = real cannot go back to a state: forks_per_update and "
                "curriculum.demonstration_starts.share must be 0, got "
                f"{self.forks_per_update} and "
                f"{self.curriculum.demonstration_starts.share}"
            )

    def _check_lag(self):
        """Refuse a lag that no ratio corrects for, or that real steps would pay for."""
        if self.rollout_lag not in (0, 1):
            raise ValueError(f"rollout_lag must be 0 or 1, got {self.rollout_lag}")
        if self.rollout_lag and self.environment == "real":
            raise ValueError(
                "environment = real takes rollouts of the present policy: rollout_lag "
                f"must be 0, got {self.rollout_lag}"
            )
        if self.rollout_lag and self.update.surrogate.importance_level == "none":
            raise ValueError(
                "rollout_lag learns from rollouts of the policy before, which only an "
                "importance ratio corrects for: update.surrogate.importance_level must "
                f"be token or turn, got none and rollout_lag {self.rollout_lag}"
            )
