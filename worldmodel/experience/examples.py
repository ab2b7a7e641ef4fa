"""Examples that the experience model is fitted to (DreamGym, Eq. 5 and 6).

episodes with reasoning traces -> demonstrations of other tasks -> Examples, with
rewards and outcomes; a control with permuted outcomes; token counts of examples and
replies.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from worldmodel.data import outcomes, processes
from worldmodel.data.records import Episode, State, Task, Transition
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import Query
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.contexts import query_context
from worldmodel.fitting.batches import Example
from worldmodel.fitting.supervised import CONTEXT
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.names import MAX_DRAWS, Groups, with_exchanged_names
from worldmodel.text.references import reference_rule
from worldmodel.text.task_variations import (
    nearest_tasks,
    variation_ids,
    variation_reply_ids,
)
from worldmodel.text.tokenizer import MAX_LINES, TextTokenizer
from worldmodel.text.writing.states import StateWriting, with_written_states


def train_tokenizer(
    episodes: Sequence[Episode],
    vocab_size: int,
    *,
    references: bool = True,
    markers: bool = True,
    changes: bool = True,
    columns: bool = True,
    directory: Path | None = None,
) -> TextTokenizer:
    """Train a tokenizer for episodes; write it to `directory`, if given.

    It has references if the episodes have identifiers, and markers if their
    instructions have arguments (text/references.py), unless these are off. It writes
    numbers as `changes` in the lines where that is easier, and reads the `columns` of
    a grid where steps change them (text/writing/).

    Raises:
      ValueError: `vocab_size` is too small (TextTokenizer.train).
    """
    rule = reference_rule(
        episodes,
        references=references,
        markers=markers,
        changes=changes,
        columns=columns,
    )
    if rule is not None:
        writing = StateWriting(rule.columns, rule.changes, MAX_LINES)
        episodes = with_written_states(episodes, writing)
    tokenizer = TextTokenizer.train(texts_of(episodes), vocab_size, references=rule)
    if directory is not None:
        with processes.first_process_writes("tokenizer") as writes:
            if writes:
                tokenizer.save(directory)
    return tokenizer


def texts_of(episodes: Sequence[Episode]) -> list[str]:
    """Return every piece of text that the models will read, to train a tokenizer."""
    out = []
    for e in episodes:
        out.append(e.task.instruction)
        out.extend(e.task.initial_state)
        for t in e.transitions:
            out += [t.action, t.reasoning or "", outcomes.number_text(t.reward)]
            out.extend(t.next_state)
    return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransitionSource:
    """The episodes whose transitions a model is fitted to, in copies of them.

    A copy, or draw, has other names (text/names.py), if some stand for each other. Draw
    0 has the names as they were recorded.
    """

    tok: TextTokenizer
    episodes: Sequence[Episode]
    memory: ReplayMemory
    config: ExperienceConfig
    names: Mapping[str, Groups]
    rare_event_share: float = 0.0
    """As `balance` of transition_examples."""

    @property
    def max_draws(self) -> int:
        """The copies of a transition that can differ, at most."""
        return MAX_DRAWS if self.names else 1

    def examples(self, draw: int) -> list[Example]:
        """Return an Example of Eq. 5 for each distinct transition of a draw."""
        return transition_examples(
            self.tok,
            with_exchanged_names(self.episodes, self.names, draw=draw),
            self.memory,
            self.config,
            balance=self.rare_event_share,
        )


def _reply_example(ids: list[int], reply: list[int], parts: list[int]) -> Example:
    context = len(ids)
    return Example(
        ids + reply,
        [False] * context + [True] * len(reply),
        [0] * context + parts,
    )


def _reply_parts(tok: TextTokenizer, reply: Sequence[int]) -> list[int]:
    """Return the part of each reply token; structure tokens open their part."""
    part, out = 0, []
    opens = {tok.control(n): i for i, n in ((1, "next"), (2, "reward"), (3, "outcome"))}
    for token in reply:
        part = opens.get(token, part)
        out.append(part)
    return out


def transition_examples(
    tok: TextTokenizer,
    episodes: Sequence[Episode],
    memory: ReplayMemory,
    config: ExperienceConfig,
    *,
    balance: float = 0.0,
) -> list[Example]:
    """Return an Example of Eq. 5 for every transition, repeats within a task left out.

    A transition with another result than an equal query before is no repeat: both are
    learned.

    `balance`: where transitions with a reward other than the usual one of a step, or
    with an end, make up a smaller share than this, the loss of their reward or outcome
    tokens is weighted as if they made up this share.
    """
    rows = _distinct_rows(episodes, config)
    demos = memory.search(
        [(r.task.id, r.transition.state, r.transition.action) for r in rows],
        config.demonstrations,
    )
    usual = outcomes.number_text(outcomes.commonest_reward(episodes))
    rewarded = [outcomes.number_text(r.transition.reward) != usual for r in rows]
    reward_weight = _rare_event_weight(rewarded, balance)
    ended = [r.transition.terminated for r in rows]
    end_weight = _rare_event_weight(ended, balance)
    out = []
    for row, is_rewarded, demonstrations in zip(rows, rewarded, demos, strict=True):
        task, past, past_states, t = row
        query = Query(task, past, t.state, t.action)
        query_tok, context = query_context(
            tok, config, query, demonstrations, past_states
        )
        reply = prompts.reply_ids(query_tok, t, full=config.full_state)
        example = _reply_example(context, reply, _reply_parts(tok, reply))
        part_weights = {
            2: reward_weight if is_rewarded else 1.0,
            3: end_weight if t.terminated else 1.0,
        }
        if set(part_weights.values()) != {1.0}:
            part = np.where(example.mask, example.token_type, CONTEXT)
            weight = [part_weights.get(int(p), 1.0) for p in part]
            example = example._replace(weight=weight)
        out.append(example)
    return out


class _Row(NamedTuple):
    """A transition with the history that a prompt holds; states None: actions alone."""

    task: Task
    past: tuple[str, ...]
    past_states: tuple[State, ...] | None
    transition: Transition


def _distinct_rows(episodes: Sequence[Episode], config: ExperienceConfig) -> list[_Row]:
    """Return the transitions with their history, repeats within a task left out."""
    unique: dict[tuple, _Row] = {}
    for e in episodes:
        for i, t in enumerate(e.transitions):
            steps = e.transitions[max(i - config.history, 0) : i]
            past = tuple(x.action for x in steps)
            states = tuple(x.state for x in steps) if config.history_states else None
            outcome = t.next_state, t.reward, outcomes.outcome_of(t)
            # The outcome is part of the key: a random environment answers one query in
            # several ways, and all of them are to be learned.
            key = (e.task.id, past, states, t.state, t.action, outcome)
            unique.setdefault(key, _Row(e.task, past, states, t))
    return list(unique.values())


def _rare_event_weight(rare: Sequence[bool], share: float) -> float:
    """Return the weight by which rare events make up `share` of all; at least 1."""
    count = sum(rare)
    if not 0 < count < share * len(rare):
        return 1.0
    return share / (1 - share) * (len(rare) - count) / count


OUTCOME_SHARE = 0.5
"""The share of a new task's seeds that stand with their outcome: of the tasks that a
policy has not tried there is none when the model is asked."""


def variation_examples(
    tok: TextTokenizer,
    episodes: Sequence[Episode],
    config: ExperienceConfig,
    *,
    repeats: int,
    seed: int,
    names: Mapping[str, Groups] = MappingProxyType({}),
) -> list[Example]:
    """Return Examples of Eq. 6: a task is written from tasks that are similar to it.

    Each task is asked for `repeats` times, after the first time with `names` exchanged,
    so that tasks are not learnt by heart. Its seeds are drawn from the NEAREST tasks of
    its family, OUTCOME_SHARE of them with the share of their episodes that were won. A
    task without another one in its family is left out.
    """
    rng = np.random.default_rng(seed)
    outcomes_by_task: dict[str, list[bool]] = {}
    for e in episodes:
        if e.success is not None:
            outcomes_by_task.setdefault(e.task.id, []).append(e.success)
    success = {name: float(np.mean(won)) for name, won in outcomes_by_task.items()}
    first_episodes = list({e.task.id: e for e in reversed(episodes)}.values())[::-1]
    out = []
    for draw in range(repeats):
        families: dict[str, list[Task]] = {}
        for e in with_exchanged_names(first_episodes, names, draw=draw):
            families.setdefault(e.task.family, []).append(e.task)
        for family in families.values():
            seeds = [
                SeedTask(t, success.get(t.id) if rng.random() < OUTCOME_SHARE else None)
                for t in family
            ]
            for task, near in zip(family, nearest_tasks(family), strict=True):
                if near:
                    chosen = rng.permutation(near)[: config.variation_seeds]
                    reply = variation_reply_ids(tok, task)
                    context = variation_ids(
                        tok, [seeds[i] for i in chosen], config.context_budget
                    )
                    out.append(_reply_example(context, reply, [4] * len(reply)))
    return out


def text_sizes(
    tok: TextTokenizer, train: Sequence[Episode], dev: Sequence[Episode]
) -> dict[str, float]:
    """Return the mean tokens and lines of a state, and tokens of the longest action.

    Only actions of won episodes count; without any, those of episodes in which a step
    was rewarded, and without these the number is 0.
    """
    episodes = [*train, *dev]
    imitable = [e for e in episodes if e.success] or [
        e for e in episodes if any(t.reward > 0 for t in e.transitions)
    ]
    actions = {t.action for e in imitable for t in e.transitions}
    return {
        "tokens_per_state": _tokens_per_state(tok, train),
        "tokens_per_state_dev": _tokens_per_state(tok, dev),
        "lines_per_state": _lines_per_state(train),
        "action_tokens": max(
            (len(tok.encode(action)) for action in actions), default=0
        ),
    }


def unwritable_texts(
    tok: TextTokenizer, episodes: Sequence[Episode]
) -> tuple[float, str]:
    """Return the share of texts that a tokenizer does not give back, and one of them.

    The texts are lines of states, and actions, each once. A tokenizer without the bytes
    of all texts writes `<unk>` for a word that it does not have, or lower case for
    upper.
    """
    steps = [t for e in episodes for t in e.transitions]
    states = {state for t in steps for state in (t.state, t.next_state)}
    texts = {line for state in states for line in state} | {t.action for t in steps}
    wrong = sorted(x for x in texts if tok.decode(tok.encode(x)) != x)
    return len(wrong) / max(len(texts), 1), min(wrong, key=len, default="")


def _lines_per_state(episodes: Sequence[Episode]) -> float:
    states = {t.state for e in episodes for t in e.transitions}
    return round(float(np.mean([len(s) for s in states])), 2) if states else 0.0


def _tokens_per_state(tok: TextTokenizer, episodes: Sequence[Episode]) -> float:
    states = {t.state for e in episodes for t in e.transitions}
    counts = [len(prompts.state_ids(tok, s)) for s in states]
    return round(float(np.mean(counts)), 1) if counts else 0.0


def mean_tokens(examples: Sequence[Example]) -> float:
    """Return the mean number of ids of an example, context and target together."""
    return float(np.mean([len(e.ids) for e in examples]))


def reply_tokens(examples: Sequence[Example]) -> dict[str, int]:
    """Return the numbers of tokens that 99.9 % of these examples' replies need.

    The keys are reasoning_tokens and state_tokens, as in ExperienceConfig, and
    reward_tokens.
    """
    longest = {}
    # `marks` are the tokens that open a part; the limits of the grammar do not count
    # them.
    for part, name, marks in ((0, "reasoning", 0), (1, "state", 1), (2, "reward", 1)):
        counts = [
            int(np.sum(np.asarray(e.mask) & (np.asarray(e.token_type) == part)))
            for e in examples
        ]
        count = int(np.quantile(counts or [0], 0.999, method="higher")) - marks
        longest[f"{name}_tokens"] = max(count, 0)
    return longest


def permute_outcomes(episodes: Sequence[Episode], *, seed: int) -> list[Episode]:
    """Return the control: (next state, reward, end) permuted within each family.

    States no longer chain, so the episodes can only be used for fitting.
    """
    rng = np.random.default_rng(seed)
    out = {id(e): list(e.transitions) for e in episodes}
    for family in sorted({e.task.family for e in episodes}):
        members = [e for e in episodes if e.task.family == family]
        # Within a family: outcomes of another one would be recognised by their words.
        flat = [t for e in members for t in e.transitions]
        order = iter(rng.permutation(len(flat)))
        for e in members:
            out[id(e)] = [
                dataclasses.replace(
                    flat[i], state=t.state, action=t.action, reasoning=None
                )
                for t, i in zip(e.transitions, order, strict=False)
            ]
    return [dataclasses.replace(e, transitions=tuple(out[id(e)])) for e in episodes]
