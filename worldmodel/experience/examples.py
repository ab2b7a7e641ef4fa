"""What the experience model learns from (papers.md Eq. 5 and 6), reward included.

episodes with reasoning traces -> leak-free demonstrations -> Examples; the control with
permuted outcomes; how many tokens the examples and their replies take.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from worldmodel.data.records import Episode, Task, Transition
from worldmodel.experience.grammar import ExperienceConfig
from worldmodel.fitting.batches import Example
from worldmodel.fitting.supervised import CONTEXT
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer


def texts_of(episodes: Sequence[Episode]) -> list[str]:
    """Every piece of text the models will read, for training a tokenizer."""
    out = []
    for e in episodes:
        out.append(e.task.instruction)
        out.extend(e.task.initial_state)
        for t in e.transitions:
            out += [t.action, t.reasoning or "", prompts.number_text(t.reward)]
            out.extend(t.next_state)
    return out


def _reply_example(ids: list[int], reply: list[int], parts: list[int]) -> Example:
    context = len(ids)
    return Example(
        ids + reply,
        [False] * context + [True] * len(reply),
        [0] * context + parts,
    )


def _reply_parts(tok: TextTokenizer, reply: Sequence[int]) -> list[int]:
    """The part each reply token belongs to; structure tokens open their part."""
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
    """Eq. 5 for every transition; exact repeats within a task are kept once.

    What led elsewhere the second time is no repeat: both are learned from.

    `balance`: rewards and ends, where they are rarer than this share of the
    transitions, weigh in the loss of their own tokens as if they were not.
    """
    unique: dict[tuple, tuple[Task, tuple[str, ...], Transition]] = {}
    for e in episodes:
        past: tuple[str, ...] = ()
        for t in e.transitions:
            history = prompts.last_actions(past, config.history)
            outcome = t.next_state, t.reward, prompts.outcome_of(t)
            key = (e.task.id, history, t.state, t.action, outcome)
            unique.setdefault(key, (e.task, history, t))
            past = (*past, t.action)
    rows = list(unique.values())
    demos = memory.search([(k.id, t.state, t.action) for k, _, t in rows], config.demos)
    reward_weight = _rare_event_weight([t.reward != 0 for _, _, t in rows], balance)
    end_weight = _rare_event_weight([t.terminated for _, _, t in rows], balance)
    out = []
    for (task, past, t), demonstrations in zip(rows, demos, strict=True):
        context = prompts.query_ids(
            tok, task, past, demonstrations, t.state, t.action,
            history=config.history, context_budget=config.room,
        )  # fmt: skip
        reply = prompts.reply_ids(tok, t, full=config.full_text)
        example = _reply_example(context, reply, _reply_parts(tok, reply))
        part_weights = {
            2: reward_weight if t.reward else 1.0,
            3: end_weight if t.terminated else 1.0,
        }
        if set(part_weights.values()) != {1.0}:
            part = np.where(example.mask, example.token_type, CONTEXT)
            weight = [part_weights.get(int(p), 1.0) for p in part]
            example = example._replace(weight=weight)
        out.append(example)
    return out


def _rare_event_weight(rare: Sequence[bool], share: float) -> float:
    """The weight under which the rare ones make up `share` of all; never below 1."""
    count = sum(rare)
    if not 0 < count < share * len(rare):
        return 1.0
    return share / (1 - share) * (len(rare) - count) / count


def variation_examples(
    tok: TextTokenizer, tasks: Sequence[Task], *, repeats: int, seed: int
) -> list[Example]:
    """Eq. 6 as supervised pairs: any two tasks of one family vary each other."""
    rng = np.random.default_rng(seed)
    families: dict[str, list[Task]] = {}
    for task in {t.id: t for t in tasks}.values():
        families.setdefault(task.family, []).append(task)
    out = []
    for family in families.values():
        for _ in range(repeats if len(family) > 1 else 0):
            order = rng.permutation(len(family))
            for i, j in zip(order, np.roll(order, 1), strict=True):
                reply = prompts.variation_reply_ids(tok, family[i])
                out.append(
                    _reply_example(
                        prompts.variation_ids(tok, family[j]), reply, [4] * len(reply)
                    )
                )
    return out


def mean_tokens(examples: Sequence[Example]) -> float:
    """Mean ids an example, context and target: what decides the cost."""
    return float(np.mean([len(e.ids) for e in examples]))


def reply_tokens(examples: Sequence[Example]) -> dict[str, int]:
    """Tokens that replies of these examples need: all of them but one in a thousand.

    Returns reasoning_tokens and state_tokens, as ExperienceConfig counts them, and
    reward_tokens.
    """
    longest = {}
    for part, name, marks in ((0, "reasoning", 0), (1, "state", 1), (2, "reward", 1)):
        counts = [
            int(np.sum(np.asarray(e.mask) & (np.asarray(e.token_type) == part)))
            for e in examples
        ]
        count = int(np.quantile(counts or [0], 0.999, method="higher")) - marks
        longest[f"{name}_tokens"] = max(count, 0)
    return longest


def permute_outcomes(episodes: Sequence[Episode], *, seed: int) -> list[Episode]:
    """The control: (next state, reward, done) permuted within each family.

    States no longer chain, so the result is only good for fitting.
    """
    rng = np.random.default_rng(seed)
    out = {id(e): list(e.transitions) for e in episodes}
    for family in sorted({e.task.family for e in episodes}):
        members = [e for e in episodes if e.task.family == family]
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
