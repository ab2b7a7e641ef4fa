"""Settings of experience models: a local one, a server, an ensemble."""

import dataclasses

from worldmodel.data.seed_tasks import MAX_SEEDS

SIGNALS = ("token_probability", "nearest_neighbor", "self_consistency", "ensemble")
"""What the confidence of an answer may be computed from.

token_probability: the probability of the reply's tokens. nearest_neighbor: the
similarity of the nearest stored transition of another task. self_consistency: the share
of SAMPLES further replies that say the same. ensemble: the least probability that a
member of an ensemble gives to the answer (fitted models only, local.py)."""

REASONING_STYLES = ("words", "sentences")
"""Forms of the reasoning traces by rule (reasoning/rule.py)."""


def _check_variation_seeds(count: int) -> None:
    if not 1 <= count <= MAX_SEEDS:
        raise ValueError(f"variation_seeds must be in 1 to {MAX_SEEDS}, got {count}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperienceConfig:
    """How a local experience model is prompted and sampled."""

    history: int = 2
    """Past actions in a prompt."""
    history_states: bool = False
    """Whether each of these actions stands with what was seen before it, as the lines
    of its state that were gone after it: the pairs of states and actions of the paper
    (Eq. 4) instead of actions alone. They are longer: see `context_budget`."""
    demonstrations: int = 1
    """Similar transitions of the replay memory in a prompt, at most."""
    demonstration_states: bool = False
    """Whether a demonstration stands with the state in which its action was taken, as
    in the paper (Eq. 4), instead of the action and its effect alone. It is longer then:
    see `context_budget`. Where it does not fit with its state, it stands without."""
    context_budget: int = 160
    """Tokens of past actions and demonstrations in a prompt, at most; task, state and
    action are never cut (prompts.query_ids)."""
    variation_seeds: int = 3
    """Tried tasks that a new one is written from, 1 to 4 (DreamGym, Eq. 6).
    All but the first have at most `context_budget` tokens together."""
    reasoning_tokens: int = 24
    """Tokens of the reasoning of a reply, at most; more where it was fitted to longer
    ones."""
    state_tokens: int = 72
    """Tokens of the next state of a reply, at most; more where it was fitted to longer
    ones. Whole states (`full_state`) need more than edits."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the most probable token."""
    reasoning_min_p: float = 0.1
    """Tokens of the reasoning, which decides whether something is revealed, are sampled
    from those at least this likely relative to the most likely one (min-p,
    arXiv:2407.01082), in [0, 1]."""
    state_min_p: float = 0.03
    """The same for the state. It is smaller because a revealed thing has many possible
    names, each of them rare, and a cut would leave only names that are known."""
    whole_quotes: bool = True
    """Whether a reasoning trace that has quoted two words of a line of the state has to
    quote the rest of it, where the traces of the task family do."""
    retries: int = 7
    """Times that a malformed reply (it moves a line that does not exist, breaks the
    format of the family's states, or has a reward that is no number) is sampled again.
    In the last attempt a line that did not exist has to be written, not moved."""
    keep_facts: bool = False
    """Whether a line or word that a reply removes is put back where no real transition
    of the family removes such a one. The dream contradicts itself less often then;
    policies won no more."""
    reasoning: bool = True
    """Whether the model is fitted to reasoning traces and writes them."""
    reasoning_style: str = "words"
    """"words" or "sentences": whether traces by rule are lists of words, or say the
    same in a sentence that a person can follow, which costs more tokens a step."""
    full_state: bool = False
    """Whether it writes whole next states in place of edits of the present one."""

    def __post_init__(self):
        if (
            min(self.history, self.demonstrations, self.context_budget, self.retries)
            < 0
        ):
            raise ValueError(
                "history, demonstrations, context_budget and retries must be >= 0, got "
                f"{self.history}, {self.demonstrations}, {self.context_budget} and "
                f"{self.retries}"
            )
        if self.demonstration_states and not self.demonstrations:
            raise ValueError(
                "demonstration_states adds to demonstrations, of which there are none: "
                "set demonstrations to 1 or more"
            )
        _check_variation_seeds(self.variation_seeds)
        if self.reasoning_style not in REASONING_STYLES:
            raise ValueError(
                f"reasoning_style must be one of {REASONING_STYLES}, got "
                f"{self.reasoning_style!r}"
            )
        if min(self.reasoning_tokens, self.state_tokens) < 1:
            raise ValueError("reasoning_tokens and state_tokens must be >= 1")
        if self.temperature < 0 or not (
            0 <= self.reasoning_min_p <= 1 and 0 <= self.state_min_p <= 1
        ):
            raise ValueError(
                "temperature must be >= 0, min_p and state_min_p in [0, 1], got "
                f"{self.temperature}, {self.reasoning_min_p} and {self.state_min_p}"
            )


SERVER_SIGNALS = ("token_probability", "nearest_neighbor", "self_consistency")
"""Those of SIGNALS that a server's answers have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptedConfig:
    """What a prompt of a chat server holds."""

    history: int = 8
    """Past actions."""
    demonstrations: int = 4
    """Similar transitions of the replay memory, at most."""
    state_chars: int = 2000
    """Characters of the states of a demonstration, at most."""
    variation_seeds: int = 4
    """Tried tasks that a new one is asked for with, 1 to 4."""
    retries: int = 2
    """Times that a malformed answer is asked for again with another seed."""

    def __post_init__(self):
        counts = (self.history, self.demonstrations, self.state_chars, self.retries)
        if min(counts) < 0:
            raise ValueError(
                "history, demonstrations, state_chars and retries must be >= 0, got "
                f"{counts}"
            )
        _check_variation_seeds(self.variation_seeds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsembleConfig:
    """How many members, and how far each is fitted from the experience model."""

    members: int = 0
    """Members of the ensemble; 0 makes none."""
    rank: int = 8
    """Rank of the low-rank additions in which members differ."""
    steps: int = 300
    """Optimiser steps of each member."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW."""

    def __post_init__(self):
        if self.members < 0 or min(self.rank, self.steps) < 1:
            raise ValueError(
                "members must be >= 0, rank and steps >= 1, got "
                f"{self.members}, {self.rank} and {self.steps}"
            )
