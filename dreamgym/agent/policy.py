"""The policy: a language model that writes its action token by token.

(task, past actions, state), remembered steps -> context ids -> sampled turn -> action
text. A turn keeps its token ids, their log-probabilities, and the grammar phase of each
token.
"""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.shield import shield_for
from dreamgym.agent.strict_actions import StrictActions
from dreamgym.agent.subgoals import present_subgoal, subgoal_ids
from dreamgym.agent.symbolic_memory import SymbolicMemory, symbolic_memory
from worldmodel.backbone.generate import generate
from worldmodel.backbone.grammar import Grammar
from worldmodel.backbone.model import Model
from worldmodel.data.records import State, Task, Transition
from worldmodel.fitting.batches import Example, Values
from worldmodel.memory.episodic import RememberedStep, StepMemory, remembered_ids
from worldmodel.text import prompts
from worldmodel.text.references import AnyTokenizer, with_references
from worldmodel.text.tokenizer import TextTokenizer


class Turn(NamedTuple):
    """One turn as it was sampled: the record from which the policy is trained.

    `context` holds the ids that the turn is conditioned on. The other tuples have one
    entry for each token of the turn: `ids`, `logp` (under the sampler), `sampled`
    (False where the grammar forced the token), and `part`, 2 * phase + (first token of
    its phase), which names the allowed-token mask that the learner must apply again. A
    turn that was `given` to the policy (guidance.py) has no `logp` yet: it is 0.
    """

    context: tuple[int, ...]
    ids: tuple[int, ...]
    logp: tuple[float, ...]
    sampled: tuple[bool, ...]
    part: tuple[int, ...]
    action: str
    thought: str | None
    strict: bool = False
    given: bool = False

    @property
    def void(self) -> bool:
        """Whether the turn has no complete action: an empty or a truncated one.

        A strict one is complete, also where the limit forced its last tokens.
        """
        return not self.action.strip() or not (self.strict or self.sampled[-1])

    def example(self, weight: float = 1.0, **columns: Values) -> Example:
        """Return the turn as a training example, in the context it was sampled in.

        Only sampled tokens are trained on. Their log-probabilities are the column
        `sampler_logp`, and `token_type` is the turn's `part`; both are 0 in the
        context. `columns` are further ones, such as the `advantage`.
        """
        context = len(self.context)
        return Example(
            ids=[*self.context, *self.ids],
            mask=[False] * context + list(self.sampled),
            token_type=[0] * context + list(self.part),
            weight=weight,
            columns=columns | {"sampler_logp": [0.0] * context + list(self.logp)},
        )


class Situation(NamedTuple):
    """What a policy acts in.

    `valid_actions` are those that the environment lists and the policy reads,
    `past_states` the states in which the past actions were taken, `subgoal` the one
    that it has written before and not yet reached ("" for none), `refused` the actions
    that were invalid in the present state before, `allowed` those that the policy
    keeps to, if there are any, and `return_counts` says how often each action was taken
    in this very state, left it, and the episode came back. What stands before `refused`
    is what it reads (Policy.context).
    """

    task: Task
    past: Sequence[str]
    state: State
    valid_actions: Sequence[str] = ()
    past_states: Sequence[State] = ()
    subgoal: str = ""
    refused: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    return_counts: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def at_step(
        cls,
        task: Task,
        transitions: Sequence[Transition],
        index: int,
        *,
        subgoal_steps: int = 0,
    ) -> "Situation":
        """Return the situation in which a step of an episode was taken.

        `subgoal_steps` is the setting of the policy that acts (PolicyConfig).
        """
        before, t = transitions[:index], transitions[index]
        return cls(
            task,
            tuple(x.action for x in before),
            t.state,
            t.valid_actions,
            tuple(x.state for x in before),
            present_subgoal(before, subgoal_steps),
        )

    def may_take(self, action: str) -> bool:
        """Whether the present state has not refused an action, and it is allowed."""
        if self.allowed and action not in self.allowed:
            return False
        return action not in self.refused


def _check_states(
    setting: str, past: Sequence[str], past_states: Sequence[State]
) -> None:
    if len(past_states) != len(past):
        raise ValueError(
            f"policy.{setting} needs a past state for each past action, got "
            f"{len(past_states)} for {len(past)}"
        )


class Policy:
    """A model, its tokenizer, and the configuration of its turns."""

    def __init__(
        self,
        model: Model,
        tokenizer: TextTokenizer,
        config: PolicyConfig,
        strict: StrictActions | None = None,
        memory: StepMemory | None = None,
    ):
        """See the class; with `strict` actions the policy writes no other ones.

        `memory` is what it remembers steps from, where its settings say how many.

        Raises:
          ValueError: there is no such shield as the configuration names.
        """
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.strict, self.memory = strict, memory
        self.shield = shield_for(config.shield)

    def replace(self, model: Model) -> "Policy":
        """Return the same policy with another model."""
        return Policy(model, self.tokenizer, self.config, self.strict, self.memory)

    def with_memory(self, memory: StepMemory | None) -> "Policy":
        """Return the same policy with another memory."""
        return Policy(self.model, self.tokenizer, self.config, self.strict, memory)

    def recall(
        self, situations: Sequence[tuple[Task, State]]
    ) -> list[tuple[RememberedStep, ...]]:
        """Return the steps that the policy remembers in each (task, state).

        Many at once take much less time than one by one; they are cached.
        """
        if self.memory is None or not self.config.memories:
            return [()] * len(situations)
        return self.memory.search(situations, self.config.memories)

    def grammar(self, temperature: float) -> Grammar:
        """Return the grammar of a turn: [`why` text] `action` text `end`.

        Strict actions have an automaton in place of the text of the action.
        """
        tok, think = self.tokenizer, self.config.thought_tokens > 0
        c, size = tok.control, tok.vocab_size
        text = tok.text_mask() | tok.reference_mask()
        openers = [c("why"), c("action")] if think else [c("action")]
        closers = [*openers, c("end")]
        limits = [self.config.thought_tokens] * think + [self.config.action_tokens]
        count = len(closers)
        allowed, first = np.zeros((count, size), bool), np.zeros((count, size), bool)
        close = np.zeros((count, size), bool)
        allowed[1:], first[1:] = text, text
        first[0] = text  # never sampled from: phase 0 only forces its closer
        for phase, token in enumerate(closers):
            allowed[phase, token] = close[phase, token] = True
        if think:
            first[1, c("action")] = True  # a thought may be empty, an action may not
        grammar = Grammar(
            allowed,
            first,
            close,
            np.array(closers, np.int32),
            np.array([0, *limits], np.int32),
            np.full(count, temperature, np.float32),
            np.zeros(count, np.float32),
        )
        if self.strict is None:
            return grammar
        return self.strict.extend(grammar, self.config.action_tokens)

    def tokenizer_in(
        self,
        task: Task,
        past: Sequence[str],
        state: State,
        valid_actions: Sequence[str] = (),
        past_states: Sequence[State] = (),
        subgoal: str = "",
    ) -> AnyTokenizer:
        """Return the tokenizer with references to the identifiers of a situation.

        They stand in the order of the state, so that the thing on a line has the same
        reference in every task: a few hundred demonstrations do not teach a small model
        to copy references that are drawn.
        """
        visible, seen = self.visible_past(past, past_states)
        listed = valid_actions[: self.config.admissible_actions]
        gone_lines = [
            line
            for pair in itertools.pairwise((*(seen or ()), state))
            for line in prompts.gone_lines(*pair)
        ]
        (steps,) = self.recall([(task, state)])
        step_texts = (text for step in steps[::-1] for text in step.texts)
        return with_references(
            self.tokenizer,
            task.instruction,
            (
                *(task.instruction, *state, *visible[::-1], *gone_lines[::-1]),
                *(*listed, *self.table(past, past_states, state).facts[::-1]),
                *(subgoal, *step_texts),
            ),
            literals=None if self.strict is None else self.strict.literals,
        )

    def context(
        self,
        task: Task,
        past: Sequence[str],
        state: State,
        valid_actions: Sequence[str] = (),
        past_states: Sequence[State] = (),
        subgoal: str = "",
    ) -> list[int]:
        """Return the ids that the next turn is conditioned on.

        Of the valid actions it holds as many as the policy reads. The steps that it
        remembers stand first, then the table that it keeps of the episode. The present
        subgoal, if there is one, stands last, where it is written, too.

        Raises:
          ValueError: the policy reads past states, and there is not one for each of the
            past actions.
        """
        where = (task, past, state, valid_actions, past_states, subgoal)
        return self._context_ids(self.tokenizer_in(*where), *where)

    def visible_past(
        self, past: Sequence[str], past_states: Sequence[State] = ()
    ) -> tuple[tuple[str, ...], tuple[State, ...] | None]:
        """Return the past actions that the policy reads, and their states if it does.

        Raises:
          ValueError: it reads past states, and there is not one for each past action.
        """
        actions = prompts.last_actions(past, self.config.history)
        if not self.config.history_states:
            return actions, None
        _check_states("history_states", past, past_states)
        return actions, tuple(past_states[len(past_states) - len(actions) :])

    def table(
        self, past: Sequence[str], past_states: Sequence[State], state: State
    ) -> SymbolicMemory:
        """Return the table that the policy keeps of an episode; empty if it keeps none.

        Raises:
          ValueError: it keeps one, and there is not a past state for each past action.
        """
        if not self.config.symbolic_memory:
            return SymbolicMemory((), ())
        _check_states("symbolic_memory", past, past_states)
        return symbolic_memory(past, past_states, state)

    def _context_ids(
        self,
        tokenizer: AnyTokenizer,
        task: Task,
        past: Sequence[str],
        state: State,
        valid_actions: Sequence[str],
        past_states: Sequence[State],
        subgoal: str,
    ) -> list[int]:
        visible, seen = self.visible_past(past, past_states)
        (steps,) = self.recall([(task, state)])
        context = prompts.policy_context_ids(
            tokenizer,
            task,
            visible,
            state,
            history=self.config.history,
            valid_actions=valid_actions[: self.config.admissible_actions],
            past_states=seen,
            context_budget=self.config.history_tokens,
        )
        budget = self.config.memory_tokens
        table = self.table(past, past_states, state)
        return [
            *remembered_ids(tokenizer, steps, task, state, budget=budget),
            *table.ids(tokenizer, self.config.symbolic_memory),
            *context,
            *subgoal_ids(tokenizer, subgoal),
        ]

    def act(
        self,
        situations: Sequence[Situation | tuple[Task, Sequence[str], State]],
        keys: jax.Array,
        *,
        temperature: float,
    ) -> list[Turn]:
        """Sample a turn for each situation with one PRNG key each."""
        texts: dict[tuple, tuple[list[int], AnyTokenizer]] = {}
        distinct = []
        recalled_steps = self.recall([(s[0], s[2]) for s in situations])
        for situation, steps in zip(situations, recalled_steps, strict=True):
            # Rollouts of a group, and redraws, are often in one situation.
            task, past, state = situation[:3]
            valid_actions = situation[3] if len(situation) > 3 else ()
            past_states = situation[4] if len(situation) > 4 else ()
            subgoal = situation[5] if len(situation) > 5 else ""
            where = (task, past, state, valid_actions, past_states, subgoal)
            visible = self.visible_past(past, past_states)
            table = self.table(past, past_states, state)
            read = (visible, state, tuple(valid_actions), steps, table, subgoal)
            distinct.append((task.instruction, *read))
            if distinct[-1] not in texts:
                tokenizer = self.tokenizer_in(*where)
                context = self._context_ids(tokenizer, *where)
                texts[distinct[-1]] = context, tokenizer
        contexts = [texts[x][0] for x in distinct]
        tokenizers = [texts[x][1] for x in distinct]
        return self.answer(contexts, tokenizers, keys, temperature=temperature)

    def answer(
        self,
        contexts: Sequence[list[int]],
        tokenizers: Sequence[AnyTokenizer],
        keys: jax.Array,
        *,
        temperature: float,
    ) -> list[Turn]:
        """Sample a turn for each context of ids, with its tokenizer and a PRNG key."""
        c = self.config
        action_tokens = c.action_tokens
        if self.strict is not None:
            action_tokens = self.strict.tokens(action_tokens)
        max_tokens = action_tokens + c.thought_tokens + 3
        out = []
        for context, tokenizer, s in zip(
            contexts,
            tokenizers,
            generate(
                self.model,
                contexts,
                self.grammar(temperature),
                keys,
                max_tokens=max_tokens,
            ),
            strict=True,
        ):
            n = int(s.length[0])
            action, thought = prompts.parse_turn(tokenizer, s.ids[0, :n].tolist())
            out.append(
                Turn(
                    tuple(context),
                    tuple(s.ids[0, :n].tolist()),
                    tuple(s.logp[0, :n].tolist()),
                    tuple(s.sampled[0, :n].tolist()),
                    tuple((2 * s.phase[0, :n] + s.first[0, :n]).tolist()),
                    action,
                    thought,
                    self.strict is not None,
                )
            )
        return out
