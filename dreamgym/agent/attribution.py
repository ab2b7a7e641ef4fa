"""What moved an action: how much less likely it is without a part of what was read.

a policy, a situation, an action -> the log-probability of the action with all that the
policy reads, and its change where one line of the state, one past action, one step of
its memory, the subgoal or the instruction is left out (leave-one-out).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from dreamgym.agent.early_experience.examples import demonstration_example
from dreamgym.agent.policy import Policy, Situation
from worldmodel.completion import score
from worldmodel.memory.episodic import SameSteps
from worldmodel.text import prompts


class PartEffect(NamedTuple):
    """One part of what the policy read, and what it did to the action.

    `effect` is the log-probability of the action with everything minus that without the
    part, in nats: above 0 where the part spoke for the action.
    """

    kind: str
    text: str
    effect: float


class Attribution(NamedTuple):
    """The log-probability of an action in its situation, and the effect of each part.

    It is of the tokens of the action and its end, after the thought of the turn, if it
    had one, at temperature 1, before anything that redraws actions (shields, refused
    actions).
    """

    log_prob: float
    parts: tuple[PartEffect, ...]


def _last(ids: Sequence[int], token: int) -> int:
    """Return the last place of a token, which is there."""
    return len(ids) - 1 - list(ids)[::-1].index(token)


def attribute_action(
    policy: Policy, situation: Situation, action: str, thought: str | None = None
) -> Attribution:
    """Return what each part of a situation did to the probability of an action.

    Parts are the instruction, the past actions that the policy reads, the steps that it
    remembers, its subgoal, and the lines of the state. What it remembers is the same
    without another part. A policy refers to identifiers by their place among those that
    it reads: without the only line that names one, it has to spell it. Where it reads
    the columns of a grid, a row is left out of these, too.
    """
    task, past, state = situation[:3]
    visible = list(prompts.last_actions(past, policy.config.history))
    states = list(situation.past_states[len(past) - len(visible) :])
    parts = [("instruction", task.instruction)] if task.instruction else []
    situations, (steps,) = [situation], policy.recall([(task, state)])
    if task.instruction:
        without = dataclasses.replace(task, instruction="")
        situations.append(situation._replace(task=without))
    for i, text in enumerate(visible):
        parts.append(("past action", text))
        shorter = [*visible[:i], *visible[i + 1 :]]
        states_left = [*states[:i], *states[i + 1 :]]
        situations.append(situation._replace(past=shorter, past_states=states_left))
    for i, line in enumerate(state):
        parts.append(("state", line))
        # Nor was it seen before: else it would stand among what is gone.
        earlier = [tuple(x for x in s if x != line) for s in situation.past_states]
        rest = (*state[:i], *state[i + 1 :])
        situations.append(situation._replace(state=rest, past_states=earlier))
    if situation.subgoal:
        parts.append(("subgoal", situation.subgoal))
        situations.append(situation._replace(subgoal=""))
    memories = [steps] * len(situations)
    for i, step in enumerate(steps):
        parts.append(("memory", str(step)))
        situations.append(situation)
        memories.append((*steps[:i], *steps[i + 1 :]))
    examples = [
        demonstration_example(policy.with_memory(SameSteps(m)), s, action, thought)
        for m, s in zip(memories, situations, strict=True)
    ]
    scores = score(policy.model, [e.ids for e in examples])
    opener = policy.tokenizer.control("action")
    log_probs = [
        sum(s.logp[_last(e.ids, opener) + 1 :])  # a thought is given, not judged
        for s, e in zip(scores, examples, strict=True)
    ]
    effects = [
        PartEffect(kind, text, float(log_probs[0] - without))
        for (kind, text), without in zip(parts, log_probs[1:], strict=True)
    ]
    return Attribution(float(log_probs[0]), tuple(effects))
