"""Settings of the curriculum: values, samplers, filters, lessons."""

import dataclasses
import math

ESTIMATORS = ("group", "posterior")


POOLINGS = ("task", "family", "lexical")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """How the value of a task is estimated, and from which outcomes."""

    estimator: str = "group"
    """"group" is the variance of the last group (DreamGym, Eq. 7); "posterior" is the
    expected variance under Beta(`beta_prior` + won, `beta_prior` + lost), plus
    `optimism` times its standard deviation, at most 1/4."""
    beta_prior: float = 1.0
    """Both parameters of the Beta prior of a task's success."""
    optimism: float = 1.0
    """Standard deviations of the variance that are added to its mean. With 0 an untried
    task has half of the largest value where groups are the estimator."""
    decay: float = 1.0
    """Outcomes of k updates ago have the weight `decay`**k, so that an old value drifts
    back to that of an untried task, in (0, 1]; 1 forgets nothing."""
    pooling: str = "task"
    """Tasks that share their outcomes: each "task" alone, all of a "family", or
    "lexical" clusters by their wording. PPO's single rollout a task has no variance;
    the DreamGym paper pools over such clusters."""
    clusters: int = 8
    """Lexical clusters."""

    def __post_init__(self):
        if self.estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator must be one of {ESTIMATORS}, got {self.estimator!r}"
            )
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {POOLINGS}, got {self.pooling!r}")
        if not 0 < self.beta_prior < math.inf or not 0 <= self.optimism < math.inf:
            raise ValueError(
                "beta_prior must be > 0 and optimism >= 0, both finite, got "
                f"{self.beta_prior} and {self.optimism}"
            )
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {self.decay}")
        if self.clusters < 1:
            raise ValueError(f"clusters must be >= 1, got {self.clusters}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeasibilityConfig:
    """How proposals are tested before they enter the pool."""

    rollouts: int = 0
    """Rollouts of the current policy that look for a plan: one of them must win; 0
    disables the test."""
    max_distance: float = 0.5
    """Largest distance from 1/2 of the share of these rollouts that are won, in
    [0, 0.5]: at 0.25 one to three of four must be won, so that a task is neither too
    easy nor too hard. 0.5 refuses no task that one of them wins."""
    samples: int = 0
    """Answers to the first actions of which at least `agreement` must agree; 0 disables
    the test."""
    actions: int = 3
    """First actions that are asked about."""
    agreement: float = 0.5
    """Smallest share of all pairs of samples that agree, in [0, 1]."""

    def __post_init__(self):
        if self.rollouts < 0 or self.samples < 0 or self.samples == 1:
            raise ValueError(
                "rollouts must be >= 0 and samples 0 or >= 2 (one agrees with "
                f"itself), got {self.rollouts} and {self.samples}"
            )
        if not 0.0 <= self.max_distance <= 0.5:
            raise ValueError(
                f"max_distance must be in [0, 0.5], got {self.max_distance}"
            )
        wins = range(1, self.rollouts + 1)
        nearest = min((abs(n / self.rollouts - 0.5) for n in wins), default=1.0)
        if self.max_distance < 0.5 and nearest > self.max_distance:
            raise ValueError(
                f"max_distance = {self.max_distance} refuses every task: no share of "
                f"{self.rollouts} rollouts is as near to 1/2; set rollouts to an even "
                "number, or leave max_distance out"
            )
        if self.actions < 1 or not 0.0 <= self.agreement <= 1.0:
            raise ValueError(
                "actions must be >= 1 and agreement in [0, 1], got "
                f"{self.actions} and {self.agreement}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLimitConfig:
    """How many steps an episode may take while training goes on."""

    initial: int = 0
    """The step limit of the first update, which rises to the run's; 0 takes the run's
    limit from the start."""
    updates: int = 10
    """Updates after which the run's limit is reached."""
    increments: int = 0
    """Equal steps in which the limit rises; 0 lets it rise at every update."""

    def __post_init__(self):
        if min(self.initial, self.increments) < 0 or self.updates < 1:
            raise ValueError(
                "initial and increments must be >= 0 and updates >= 1, got "
                f"{self.initial}, {self.increments} and {self.updates}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemonstrationStartsConfig:
    """Groups of rollouts that begin on the way of a won demonstration.

    They take the place of groups that begin at a task's start. The first ones begin
    near the end of their demonstration; as the policy wins from there, later ones begin
    further from it (arXiv:1812.03381).
    """

    share: float = 0.0
    """Share of the groups of an update, in [0, 1): at least one of them where it is
    above 0, and never all. Only a dream can begin on the way. 0 begins none there."""
    distance: int = 1
    """Steps between the first starts and the end of their demonstrations. A shorter
    demonstration is begun at its start."""
    grow_above: float = 0.5
    """Success of these rollouts, in [0, 1], from which on the next update begins one
    step further from the end."""
    shrink_below: float = 0.1
    """Success below which the next update begins one step nearer to the end."""

    def __post_init__(self):
        if not 0 <= self.share < 1:
            raise ValueError(f"share must be in [0, 1), got {self.share}")
        if self.distance < 1:
            raise ValueError(f"distance must be >= 1, got {self.distance}")
        if not 0 <= self.shrink_below <= self.grow_above <= 1:
            raise ValueError(
                "expected 0 <= shrink_below <= grow_above <= 1, got "
                f"{self.shrink_below} and {self.grow_above}"
            )

    def groups(self, count: int) -> int:
        """Return how many of `count` groups begin in demonstrations."""
        if not self.share:
            return 0
        return min(max(round(self.share * count), 1), count - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuidedRetriesConfig:
    """Retries of tasks that no rollout of their group won, with guidance.

    The first actions of a won episode are given, of this task or else of the most
    similar one, and the policy goes on from there (Agent-RLVR, arXiv:2506.11425). What
    is won so takes the place of failed rollouts in the update, as if the policy had
    chosen all of it.
    """

    groups: int = 0
    """Groups of an update that are tried again, at most, with as many rollouts each,
    whose steps are counted. 0 tries none again."""
    share: float = 0.5
    """Share of the actions of the won episode that are given, in (0, 1): at least one,
    and never all."""

    def __post_init__(self):
        if self.groups < 0 or not 0 < self.share < 1:
            raise ValueError(
                "groups must be >= 0 and share in (0, 1), got "
                f"{self.groups} and {self.share}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LessonConfig:
    """How lessons follow each other."""

    consecutive_checks: int = 2
    """Checks in a row after which a lesson is left, in either direction."""
    regression_margin: float = 0.1
    """How far a measure that a lesson was passed with must fall for a return to it."""
    advance_on_budget: bool = True
    """Whether a lesson is passed at the end of its budget, whatever was reached."""
    weakness_boost: float = 0.0
    """How far the mixture shifts towards weak skills (`mixture_shares`); 0 does not
    shift it."""
    collapse_drop: float = 0.2
    """How far a skill must fall from its best to count as collapsed, in (0, 1]."""

    def __post_init__(self):
        if self.consecutive_checks < 1:
            raise ValueError(
                f"consecutive_checks must be >= 1, got {self.consecutive_checks}"
            )
        margins = (self.regression_margin, self.weakness_boost)
        if min(margins) < 0 or not 0 < self.collapse_drop <= 1:
            raise ValueError(
                "regression_margin and weakness_boost must be >= 0 and collapse_drop "
                f"in (0, 1], got {margins} and {self.collapse_drop}"
            )


GENERATORS = ("model", "rule", "train", "none")


LESSONS = ("none", "tools", "games")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """How tasks are sampled and generated."""

    generated_share: float = 0.125
    """lambda (DreamGym): share of a batch that may be generated tasks, in [0, 1]."""
    uniform_share: float = 0.2
    """Share of the probability that is spread evenly over tasks, so that none is
    forgotten, in [0, 1]."""
    proposals_per_update: int = 4
    """Variations of tasks that are proposed at each update; 0 proposes none."""
    retire_after: int = 2
    """Uninformative groups in a row after which a task is retired."""
    target_success: float = 0.0
    """Success in [0, 1) by the proximity to which tasks are weighted, in place of their
    value; 0 weights by value."""
    target_width: float = 0.2
    """The distance from `target_success` that has weight exp(-1/2)."""
    generator: str = "model"
    """Who writes variations: "model", the experience model; "rule", the environment or
    a renaming of words in the texts; "none", nobody. "train" takes train tasks of the
    environment that nobody has played: a control for what invented tasks are worth."""
    value: ValueConfig = ValueConfig()
    feasibility: FeasibilityConfig = FeasibilityConfig()
    step_limit: StepLimitConfig = StepLimitConfig()
    demonstration_starts: DemonstrationStartsConfig = DemonstrationStartsConfig()
    guided_retries: GuidedRetriesConfig = GuidedRetriesConfig()
    lessons: str = "none"
    """A preset of lessons: "tools", "games" or "none"."""
    lesson: LessonConfig = LessonConfig()

    @property
    def reads_demonstrations(self) -> bool:
        """Whether rollouts begin in won episodes, or are guided by them."""
        return self.demonstration_starts.share > 0 or self.guided_retries.groups > 0

    def __post_init__(self):
        for name in ("generated_share", "uniform_share"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        if self.proposals_per_update < 0 or self.retire_after < 1:
            raise ValueError(
                "proposals_per_update must be >= 0 and retire_after >= 1, got "
                f"{self.proposals_per_update} and {self.retire_after}"
            )
        if not 0.0 <= self.target_success < 1.0 or not self.target_width > 0.0:
            raise ValueError(
                "target_success must be in [0, 1) and target_width > 0, got "
                f"{self.target_success} and {self.target_width}"
            )
        for name, choices in (("generator", GENERATORS), ("lessons", LESSONS)):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")
        if not self.guided_retries.groups and (
            self.guided_retries != GuidedRetriesConfig()
        ):
            raise ValueError(
                "guided_retries.groups is 0, so that nothing is tried again: set it to "
                ">= 1, or leave guided_retries out"
            )
