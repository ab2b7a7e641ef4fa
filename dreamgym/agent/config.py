"""Settings of policies: those that are trained, that collect, and early experience."""

import dataclasses
import math

from worldmodel.chat.config import ChatConfig

METHODS = ("auto", "sr", "iwm", "both", "bc")
PROPOSERS = ("valid_actions", "policy")
WRITERS = ("rule", "teacher", "policy")

FLOORS = ("random", "expert")
"""Actors that nobody trained, by the names of their rows (floors.py)."""

PLANS = ("none", "best-of-n", "mpc", "puct", "a_star", "auto")
"""How a policy plans at play (planning.py)."""
WORLDS = ("dream", "permuted", "real")
"""What a plan's sequences are tried in."""
ACTIONS = ("text", "json")
"""What a policy may write as an action."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """What the policy reads, and how much it may write."""

    history: int = 6
    """Past actions that it reads."""
    history_states: bool = False
    """Whether each of these actions stands with what was seen before it: the lines of
    its state that were gone after it. For environments in which something is shown once
    and needed later; where a state holds all that matters, it only adds text."""
    history_tokens: int = 160
    """Tokens of past actions and what was seen, at most, with `history_states`: the
    newest that fit. An action stands alone where what was seen does not fit."""
    memories: int = 0
    """Steps of other tasks' collected episodes that it reads, at most: those with the
    most similar state and instruction (`memory.encoder`), each with its action and what
    came of it. 0 reads none. For environments in which one task tells something about
    another that no state shows."""
    memory_tokens: int = 96
    """Tokens of these steps, at most, with `memories`: the most similar that fit."""
    symbolic_memory: int = 0
    """Tokens of a table of the episode so far that it reads, at most; 0 reads none. The
    table has the lines seen before for which, by their first word, no line of the
    state stands, and how often each tool or verb was taken and refused. What was seen
    longest ago is left out first."""
    action_tokens: int = 12
    """Tokens of an action, at most; more where won episodes have longer ones."""
    actions: str = "text"
    """What it may write as an action: any "text", or as "json" only calls of tools that
    the train tasks list, with arguments that fit their schemas, and answers. Each task
    must list its tools then; one that needs none lists none."""
    admissible_actions: int = 0
    """Actions of the environment's list for the present state (`valid_actions`) that
    the policy reads, at most, in the environment's order; 0 reads none. Without effect
    in the dream, which has no list, and where the environment has none."""
    thought_tokens: int = 0
    """Tokens of thought before the action, at most; 0 writes no thought. Where it is
    above 0 a thought may still be empty: the policy thinks as its demonstrations do,
    which hold reflections (`warmstart.method` "sr") or recorded thoughts, or none."""
    subgoal_steps: int = 0
    """Steps, at most, that are taken for a subgoal; 0 writes none. With it a thought is
    a subgoal, a line that a state shall have soon. The policy reads its present subgoal
    with each state, until the line is there, it writes another one, or so many steps
    were taken. Demonstrations get subgoals by hindsight. Needs `thought_tokens` for a
    whole line; an episode that begins on the way begins without a subgoal."""
    shield: str = "auto"
    """What replaces an action before it is executed: "" nothing; "valid" keeps to the
    actions that the environment lists as valid: another one is drawn again, up to
    `max_redraws` times, and then replaced by the most similar of the list;
    "module:function" what a function of (task, state, action, valid actions or None)
    returns. A replaced action has the cost "shielded". A dream lists no valid actions,
    so that "valid" works in real environments alone. "auto" is "valid" where it is
    needed and harmless, which real dev games of `bc` tell: many of its actions are
    invalid, or taken but not in a complete list, or it wins less than random play
    (stage `shield`)."""
    max_redraws: int = 6
    """Draws, at most, that replace an action which the present state has refused before
    in the episode, or which the shield "valid" would replace; the last one is taken
    whatever it is. 0 takes the first draw. Always 0 in an environment that declares
    `deterministic = False`, where an action without effect may have one the next
    time."""
    avoid_loops: bool = True
    """Whether an action is drawn again, too, that was taken before in this very state
    of the episode and from which the episode has come back to it. Of up to
    `max_redraws` draws the one counts that was taken there least often: another way is
    preferred, none is forbidden."""

    def __post_init__(self):
        if self.history < 0 or self.thought_tokens < 0:
            raise ValueError(
                "history and thought_tokens must be >= 0, got "
                f"{self.history} and {self.thought_tokens}"
            )
        if self.shield not in ("", "auto", "valid") and ":" not in self.shield:
            raise ValueError(
                'shield must be "auto", "valid", "module:function" or "", got '
                f"{self.shield!r}"
            )
        if self.subgoal_steps < 0:
            raise ValueError(f"subgoal_steps must be >= 0, got {self.subgoal_steps}")
        if self.subgoal_steps and not self.thought_tokens:
            raise ValueError(
                "subgoal_steps makes thoughts subgoals, and thought_tokens is 0: set "
                "it to what a line of a state takes, such as 12"
            )
        if self.history_tokens < 1:
            raise ValueError(f"history_tokens must be >= 1, got {self.history_tokens}")
        if self.memories < 0 or self.memory_tokens < 1:
            raise ValueError(
                "memories must be >= 0 and memory_tokens >= 1, got "
                f"{self.memories} and {self.memory_tokens}"
            )
        if not self.memories and self.memory_tokens != type(self).memory_tokens:
            raise ValueError(
                "memory_tokens bounds what memories adds, which is nothing: set "
                "memories above 0, or leave memory_tokens out"
            )
        if self.symbolic_memory < 0:
            raise ValueError(
                f"symbolic_memory must be >= 0, got {self.symbolic_memory}"
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
class PlanConfig:
    """Planning in the dream at play: the policy tries actions before it takes one."""

    method: str = "none"
    """How test games are played: as the policy acts ("none"); its distinct candidate
    actions are each continued by the policy in the dream, and the one with the highest
    return is taken ("best-of-n"); the first action of the best of several sampled
    sequences is taken ("mpc", model predictive control); the most visited action of a
    tree search with the policy as prior is taken ("puct"); the first action of the
    cheapest win that A* finds is taken ("a_star"), where a step costs 1 minus the
    policy's log-probability of its action, minus the log of the dream's confidence in
    its answer. "auto" is "a_star", with half of the simulations and twice the depth,
    where at most a tenth of the scorecard's transitions reveal something and the
    policy's draws are one action in two thirds of the recorded moments, else "mpc":
    where a step shows what nothing has said before, a search finds the dream's
    inventions, and where draws differ, sequences can be compared. So it is where no
    collected episode was won: A* looks for a win."""
    world: str = "dream"
    """What the sequences are tried in: the "dream", or a control at test games. In
    "permuted" the dream answers with what another recorded action would lead to, so
    that planning must gain nothing. "real" replays each sequence in the real
    environment, which must be deterministic: a ceiling, whose real steps no budget
    counts."""
    depth: int = 4
    """Dreamed steps of a sequence, at most; the step limit of an episode ends it too.
    Errors of the dream add up over them."""
    simulations: int = 8
    """Candidates that are drawn of the policy for each step, and for "puct" also the
    paths of its tree search; "a_star" dreams up to `depth` times as many steps."""
    discount: float = 1.0
    """What a reward is worth a step later. Below 1 an early reward is worth more, and
    the policy's own action is overruled more often."""
    backup_rate: float = 0.0
    """eta of "puct": with each visit the value of an action becomes (1 - eta) times
    itself plus eta times the discounted sum of the rewards of the path, in (0, 1]. 0
    takes the mean of all visits."""
    estimate_weight: float = 1.0
    """Weight, in "a_star", of the estimated number of steps that are left, which is
    read from the most similar of the run's won episodes. 0 searches by the cost so far
    alone; above 1 the search goes deeper and may miss the cheapest win."""

    def __post_init__(self):
        if self.method not in PLANS:
            raise ValueError(f"method must be one of {PLANS}, got {self.method!r}")
        if self.world not in WORLDS:
            raise ValueError(f"world must be one of {WORLDS}, got {self.world!r}")
        if self.world != "dream" and self.method == "none":
            raise ValueError(
                f'world = "{self.world}" has no effect without a plan: set method'
            )
        self._check_searches()
        if self.depth < 1 or self.simulations < 2:
            raise ValueError(
                "depth must be >= 1 and simulations >= 2, got "
                f"{self.depth} and {self.simulations}"
            )
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount must be in (0, 1], got {self.discount}")

    def _check_searches(self):
        """Check the settings that one method alone reads."""
        if not 0 <= self.backup_rate <= 1:
            raise ValueError(f"backup_rate must be in [0, 1], got {self.backup_rate}")
        if not 0 <= self.estimate_weight < math.inf:
            raise ValueError(
                f"estimate_weight must be >= 0 and finite, got {self.estimate_weight}"
            )
        if self.backup_rate and self.method != "puct":
            raise ValueError(
                'backup_rate is about method "puct": it must be 0, got '
                f"{self.backup_rate} and method {self.method!r}"
            )
        if self.estimate_weight != 1.0 and self.method != "a_star":
            raise ValueError(
                'estimate_weight is about method "a_star": it must be 1, got '
                f"{self.estimate_weight} and method {self.method!r}"
            )


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
    """Weight of the expert in the draw of the behavior policy of an episode. With 0 it
    plays no dev task either, as if the environment had none."""
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
    valid_only: float = 0.5
    """Share of the random episodes that choose among valid actions only, where neither
    an expert nor a noisy one plays: what random players win is then all there is to
    imitate, and actions of other tasks win less. In [0, 1]."""

    def __post_init__(self):
        if min(self.train_tasks, self.episodes, self.dev_tasks) < 1:
            raise ValueError("train_tasks, episodes and dev_tasks must be >= 1")
        if self.expert_weight + self.noisy_weight + self.random_weight <= 0:
            raise ValueError(
                "expert_weight, noisy_weight and random_weight must not all be 0"
            )
        if not 0 <= self.valid_only <= 1:
            raise ValueError(f"valid_only must be in [0, 1], got {self.valid_only}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemonstrationMixtureConfig:
    """The shares of kinds of demonstrations in tasks with tools, relative to their sum.

    A demonstration is of one kind. As many are drawn as these shares allow; where all
    are 0, all are taken. In tasks without tools all are taken in any case.
    """

    no_call: float = 0.0
    """Share of demonstrations without a call: calls are forbidden."""
    call: float = 0.0
    """Share of those that call one tool, with one argument at most: a call is due."""
    tool: float = 0.0
    """Share of those that call several tools so: which one is the question."""
    arguments: float = 0.0
    """Share of those with a call of several arguments: these have to be valid."""

    def __post_init__(self):
        for name, share in self.shares.items():
            if not (share >= 0 and math.isfinite(share)):
                raise ValueError(f"{name} must be >= 0 and finite, got {share}")

    @property
    def shares(self) -> dict[str, float]:
        """The shares by kind (demonstrations.KINDS), as they were set."""
        return {
            "no_call": self.no_call,
            "call": self.call,
            "tool": self.tool,
            "arguments": self.arguments,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BranchConfig:
    """Alternative actions, taken for real at states of the demonstrations."""

    episodes: int = 60
    """Demonstrations that are branched; 0 branches none."""
    alternatives: int = 4
    """K: other actions that are taken at each state."""
    max_transitions: int = 10_000
    """Real steps that are taken, at most, those that bring the environment to a state
    included; the cheapest states come first, or, where the environment can fork,
    one episode after the other. 0 sets no bound."""
    proposer: str = "valid_actions"
    """The source of alternatives: the environment's "valid_actions", or the initial
    "policy"."""
    temperature: float = 1.0
    """Sampling temperature of the policy that proposes."""
    max_error_share: float = 0.25
    """Share of the alternatives that may be error transitions, in [0, 1]."""

    def __post_init__(self):
        if self.proposer not in PROPOSERS:
            raise ValueError(
                f"proposer must be one of {PROPOSERS}, got {self.proposer!r}"
            )
        counts = (
            self.episodes,
            self.alternatives,
            self.max_transitions,
            self.temperature,
        )
        if min(counts) < 0:
            raise ValueError(
                "episodes, alternatives, max_transitions and temperature must be >= 0, "
                f"got {counts}"
            )
        if not 0 <= self.max_error_share <= 1:
            raise ValueError(
                f"max_error_share must be in [0, 1], got {self.max_error_share}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmstartConfig:
    """The warm start by early experience, within the updates of `bc.fit`."""

    method: str = "auto"
    """"sr": self-reflection with BC; "iwm": implicit world modelling, then BC; "both":
    IWM, then SR with BC; "bc": the control itself; "auto": "sr" where real dev games
    can tell whether it helps, else "bc". SR was chosen by success on test games, and
    on others its lead is not shown: with the preset `default` dev games left it out on
    three seeds of three. IWM was then measured with a loss that trained the alternative
    actions, too (docs/RESULTS.md)."""
    iwm_share: float = 0.1
    """Share of the updates that goes to implicit world modelling, first; in [0, 1)."""
    iwm_learning_rate_factor: float = 0.25
    """Its largest learning rate, in units of `bc.fit.optimizer.learning_rate`. Its loss
    is on the next state alone, whatever `bc.fit.context_loss_weight` is."""
    iwm_warmup_steps: int = 2
    """Updates over which that rate rises."""
    iwm_reasoning: bool = False
    """Whether it predicts a reasoning trace before the next state; transitions without
    one get it by rule."""
    reflections_per_state: int = 4
    """Reflections at each state, at most."""
    alternatives_per_reflection: int = 1
    """Alternative actions that one reflection weighs, at most; several as in the
    paper's prompt."""
    writer: str = "rule"
    """The writer of reflections: a "rule"; a "teacher" behind a chat server; or the
    "policy": a clone of the demonstrations that rejection sampling makes explain them
    (STaR, arXiv:2203.14465)."""
    teacher: ChatConfig = ChatConfig(max_tokens=512, read_timeout=600.0)
    """The chat server of the writer "teacher"."""
    max_samples: int = 4
    """Attempts of the writer "policy" at a reflection, at most."""
    temperature: float = 1.0
    """Sampling temperature of the writer "policy"."""
    bootstrap_share: float = 0.25
    """Share of the reflection cases on which the writer "policy" is first fitted to the
    reflections of the rule, and share of the fit's updates that this takes in addition
    to the budget, in [0, 1]; 0 takes the writer as it is."""

    def method_with(self, dev_games: int) -> str:
        """Return the method of a run with so many real dev games an evaluation.

        "auto" needs some to tell whether self-reflection helped.
        """
        if self.method != "auto":
            return self.method
        return "sr" if dev_games else "bc"

    def __post_init__(self):
        for name, choices in (("method", METHODS), ("writer", WRITERS)):
            if getattr(self, name) not in choices:
                value = getattr(self, name)
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")
        if not 0.0 <= self.iwm_share < 1.0:
            raise ValueError(f"iwm_share must be in [0, 1), got {self.iwm_share}")
        if self.iwm_learning_rate_factor <= 0 or self.iwm_warmup_steps < 0:
            raise ValueError(
                "iwm_learning_rate_factor must be > 0 and iwm_warmup_steps >= 0, got "
                f"{self.iwm_learning_rate_factor} and {self.iwm_warmup_steps}"
            )
        if not 0 <= self.bootstrap_share <= 1:
            raise ValueError(
                f"bootstrap_share must be in [0, 1], got {self.bootstrap_share}"
            )
        for name in ("max_samples", "alternatives_per_reflection"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if min(self.reflections_per_state, self.temperature) < 0:
            raise ValueError(
                "reflections_per_state and temperature must be >= 0, got "
                f"{self.reflections_per_state} and {self.temperature}"
            )
        if self.writer == "teacher" and not self.teacher.base_url:
            raise ValueError(
                "writer = teacher needs teacher.base_url, a chat server's, set as well"
            )
