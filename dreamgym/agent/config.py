"""Settings of policies: those that are trained, and those that collect."""

import dataclasses

FLOORS = ("random", "expert")
"""Actors that nobody trained, by the names of their rows (floors.py)."""

ACTIONS = ("text", "json")
"""What a policy may write as an action."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """What the policy reads, and how much it may write."""

    history: int = 6
    """Past actions that it reads."""
    action_tokens: int = 12
    """Tokens of an action, at most; more where won episodes have longer ones."""
    actions: str = "text"
    """What it may write as an action: any "text", or as "json" only calls of tools that
    the train tasks list, with arguments that fit their schemas, and answers."""
    admissible_actions: int = 0
    """Actions of the environment's list for the present state (`valid_actions`) that
    the policy reads, at most, in the environment's order; 0 reads none. Without effect
    in the dream, which has no list, and where the environment has none."""
    thought_tokens: int = 0
    """Tokens of thought before the action, at most; 0 writes no thought. Where it is
    above 0 a thought may still be empty: the policy thinks as its demonstrations do,
    which hold reflections (`warmstart.method` "sr") or recorded thoughts, or none."""
    shield: str = ""
    """What replaces an action before it is executed: "" nothing; "valid" the most
    similar of the actions that the environment lists as valid, where the action is none
    of them; "module:function" what a function of (task, state, action, valid actions or
    None) returns. A replaced action has the cost "shielded". A dream lists no valid
    actions, so that "valid" works in real environments alone."""
    max_redraws: int = 6
    """Draws, at most, that replace an action which the present state has refused before
    in the episode; the last one is taken whatever it is. 0 takes the first draw. Always
    0 in an environment that declares `deterministic = False`, where an action without
    effect may have one the next time."""

    def __post_init__(self):
        if self.history < 0 or self.thought_tokens < 0:
            raise ValueError(
                "history and thought_tokens must be >= 0, got "
                f"{self.history} and {self.thought_tokens}"
            )
        if self.actions not in ACTIONS:
            raise ValueError(f"actions must be one of {ACTIONS}, got {self.actions!r}")
        if self.admissible_actions < 0:
            raise ValueError(
                f"admissible_actions must be >= 0, got {self.admissible_actions}"
            )
        if self.max_redraws < 0:
            raise ValueError(f"max_redraws must be >= 0, got {self.max_redraws}")
        if self.action_tokens < 1:
            raise ValueError(f"action_tokens must be >= 1, got {self.action_tokens}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """How many real episodes are collected, and by which behavior policies.

    Weights need not sum to one. Few episodes are an expert's by default: demonstrations
    are expensive, and an expert knows more than the state says, so that a model fitted
    to its episodes expects luck everywhere.
    """

    train_tasks: int = 600
    """Train tasks that are played in turn, at most."""
    episodes: int = 1300
    """Episodes that are played on train tasks."""
    dev_tasks: int = 100
    """Dev tasks, at most; each is played twice."""
    expert_weight: float = 0.035
    """Weight of the expert in the draw of the behavior policy of an episode."""
    noisy_weight: float = 0.1
    """Weight of the expert with noise."""
    random_weight: float = 0.865
    """Weight of random actions."""
    expert_noise: float = 0.35
    """Probability that the noisy expert takes a random action."""
    other_task_action_prob: float = 0.3
    """Probability that a random action is an action of another task."""
    rewarded_action_prob: float = 0.2
    """Probability that a random action is one that earned a reward in another task. In
    the present task some condition of it is mostly missing, which is what an experience
    model learns last."""
    scrambled_action_prob: float = 0.05
    """Probability that a random action is made of scrambled words of two actions."""

    def __post_init__(self):
        if min(self.train_tasks, self.episodes, self.dev_tasks) < 1:
            raise ValueError("train_tasks, episodes and dev_tasks must be >= 1")
        if self.expert_weight + self.noisy_weight + self.random_weight <= 0:
            raise ValueError(
                "expert_weight, noisy_weight and random_weight must not all be 0"
            )
