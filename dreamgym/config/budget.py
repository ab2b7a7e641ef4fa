"""The budget of a run in real steps, and how it is divided among the stages.

settings, the steps that collection took -> the steps of each part. Everything that
steps the real environment counts, except test tasks. All are pure functions.
"""

import dataclasses
import math

from worldmodel.data.records import MIN_DEV_GAMES

ESTIMATE_STEPS = 40
"""Real steps that are set aside to time a step before the run."""
LONGEST_DEV_EPISODE = 50
"""Steps that the smallest budget leaves to a dev episode, at most: where episodes may
be longer than that, few are, and one that is gets truncated where its part ends."""
DEV_GAME_MARGIN = 1.25
"""Steps of a dev game of a policy, as a multiple of the mean dev episode's, as they are
planned: a policy that fails plays on where an expert is done."""
DEMONSTRATION_LIMIT = 0.4
"""The largest share of the train episodes that `demonstrations` may ask for. They are
shorter than those of random players, so that they take a smaller share of the steps."""

MAX_STEPS = 10**15
"""The largest budget, of which shares are still computed exactly."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """Real steps of a whole run, test tasks left out, and how they are divided.

    The shares are those of collection, of what follows it, and the rest is for
    fine-tuning. What a stage leaves over, later stages may use.
    """

    real_steps: int = 0
    """Real steps that the run may take; 0 sets no bound, and then nothing else here is
    used. With a bound, collection plays as many episodes as its share pays for, and the
    controls of fine-tuning are left out."""
    collect: float = 0.55
    """Share of collection: train and dev episodes, in (0, 1)."""
    dev: float = 0.12
    """Share of the collection that goes to dev episodes, in (0, 1)."""
    score: float = 0.02
    """Share of the scorecard's replays."""
    branch: float = 0.08
    """Share of the branches, with the ways that lead to them."""
    select: float = 0.15
    """Share of the dev tasks by which policies are selected before fine-tuning."""
    evaluations: int = 5
    """Evaluations on dev tasks that the share of selection pays for, with episodes a
    quarter longer than the collected ones: the fewer, the more tasks each plays."""
    demonstrations: int = 50
    """Expert episodes that collection aims at, as far as they are 40 % of the train
    episodes: the weight of the expert is raised where it is too low for that, and not
    0."""

    def __post_init__(self):
        if self.real_steps < 0 or self.demonstrations < 0 or self.evaluations < 1:
            raise ValueError(
                "real_steps and demonstrations must be >= 0 and evaluations >= 1, got "
                f"{self.real_steps}, {self.demonstrations} and {self.evaluations}"
            )
        if not (0 < self.collect < 1 and 0 < self.dev < 1):
            raise ValueError(
                f"collect and dev must be in (0, 1), got {self.collect} and {self.dev}"
            )
        if self.real_steps > MAX_STEPS:
            raise ValueError(
                f"real_steps must be at most {MAX_STEPS:,} (0 sets no bound), got "
                f"{self.real_steps!s:.40}"
            )
        shares = (self.score, self.branch, self.select)
        if min(shares) < 0 or self.collect + sum(shares) > 1 + 1e-9:
            raise ValueError(
                "collect, score, branch and select must be >= 0 and at most 1 in all, "
                f"got {(self.collect, *shares)}"
            )


def division(
    budget: BudgetConfig, collected: int | None = None, *, real_training: bool = False
) -> dict[str, int]:
    """Return the real steps of each part of a run, in its order.

    `collected` are the steps that collection took, or the transitions of given
    episodes; None before they are known. The parts after it divide what it left.

    Args:
      real_training: whether the policy trains in the real environment in place of the
        dream; that takes the part of fine-tuning.
    """
    steps = budget.real_steps - ESTIMATE_STEPS
    parts = {"collect": int(steps * budget.collect)}
    rest = max(steps - (parts["collect"] if collected is None else collected), 0)
    shares = {"score": budget.score, "branch": budget.branch, "select": budget.select}
    left = rest
    for name, share in shares.items():
        parts[name] = int(rest * share / (1 - budget.collect))
        left -= parts[name]
    parts["train"] = left * real_training
    parts["fine_tune"] = left * (not real_training)
    return parts


def minimum(budget: BudgetConfig, max_steps: int) -> int:
    """Return the smallest budget of a run whose episodes have up to `max_steps` steps.

    Its train episodes may be as long as that, and its dev episodes too, up to
    LONGEST_DEV_EPISODE.
    """
    dev = (min(max_steps, LONGEST_DEV_EPISODE) + 1) / budget.dev
    train = (max_steps + 1) / (1 - budget.dev)
    return math.ceil(max(dev, train) / budget.collect) + ESTIMATE_STEPS


def dev_tasks(steps: int, episode_steps: float, max_steps: int, limit: int) -> int:
    """Return how many dev tasks collection plays with so many `steps`, at most `limit`.

    Each is played about twice if the episodes are as long as the collected train
    episodes, which have `episode_steps` on average, and at least once if they are as
    long as they may be.
    """
    twice, once = math.ceil(steps / (2 * episode_steps)), steps // max_steps
    return max(min(max(twice, once), limit), 1)


def dev_game_steps(episode_steps: float, max_steps: int) -> float | int:
    """Return the steps that are planned for a dev game of a policy.

    `episode_steps` is the mean length of the collected dev episodes.
    """
    return min(DEV_GAME_MARGIN * episode_steps, max_steps)


def dev_games(
    budget: BudgetConfig,
    collected: int,
    game_steps: float | int,
    limit: int,
    listed: int | None = None,
) -> int:
    """Return the dev tasks of one evaluation, at most `limit`.

    Each is planned with `game_steps` steps. 0 where the share of selection pays for
    fewer than MIN_DEV_GAMES, or the environment has fewer: so few decide nothing.

    Args:
      listed: the dev tasks that the environment has; None: as many as are asked for.
    """
    steps = division(budget, collected)["select"]
    available = limit if listed is None else min(limit, listed)
    count = min(int(steps / (budget.evaluations * game_steps)), available)
    return enough_dev_games(count, limit)


def enough_dev_games(count: int, limit: int) -> int:
    """Return so many dev games where they can decide something, else 0.

    They can from MIN_DEV_GAMES on, or where the settings ask for no more (`limit`).
    """
    return count if count >= min(MIN_DEV_GAMES, limit) else 0


def expert_weight(
    budget: BudgetConfig, weight: float, others: float, episodes: int
) -> float:
    """Return the weight of the expert among behaviour policies.

    It is raised so that `demonstrations` of so many episodes are expected to be an
    expert's, or a share of DEMONSTRATION_LIMIT. `others` is the weight of the others.
    A weight of 0 stays 0: it leaves the expert out.
    """
    if not weight:
        return 0.0
    share = min(budget.demonstrations / max(episodes, 1), DEMONSTRATION_LIMIT)
    return max(weight, share * others / (1 - share))


def lines(
    budget: BudgetConfig,
    max_steps: int,
    dev_tasks: int,
    *,
    collected: int | None = None,
    real_training: bool = False,
) -> list[str]:
    """Return the division as lines of text, before the run begins."""
    parts = division(budget, collected, real_training=real_training)
    first = parts["collect"] if collected is None else collected
    games = dev_games(budget, first, max_steps, dev_tasks)
    selection = f"{games} dev tasks an evaluation" if games else "perhaps no dev tasks"
    if games and games < dev_tasks:
        selection = f"at least {selection}"
    texts = {
        "collect": "given episodes" if collected is not None else "train, dev episodes",
        "score": "replays of the scorecard",
        "branch": "branches, and the ways to them",
        "select": f"selection of policies ({selection})",
        "train": "training in the real environment",
        "fine_tune": "fine-tuning, and what the parts above leave over",
    }
    numbers = parts | {"collect": first}
    return [
        f"budget: {budget.real_steps:,} real steps, test tasks are free",
        *(f"  {n:>8,} {texts[name]}" for name, n in numbers.items() if n),
        f"  {ESTIMATE_STEPS:>8,} the estimate of the run's time, at most",
    ]
