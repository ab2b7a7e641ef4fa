"""Early experience: examples to learn from before any reward (arXiv:2510.08558).

expert episodes, branches, thoughts -> examples of behavior cloning (BC, Eq. 1),
implicit world modelling (IWM, Eq. 3) and self-reflection (SR, Eq. 4). Branches come
from branching.py, thoughts from reflection.py. Outcomes shape a thought when it is
written; the policy never sees them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from dreamgym.agent.early_experience.reflection import ReflectionCase
from dreamgym.agent.policy import Policy, Situation
from dreamgym.agent.rollout import Trajectory
from dreamgym.agent.subgoals import with_subgoals
from worldmodel.data.records import Branch, Episode, Task, Transition
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import FitConfig
from worldmodel.reasoning.rule import (
    explain_as_written,
    has_status_line,
    set_rule_traces,
)
from worldmodel.text import prompts
from worldmodel.text.names import MAX_DRAWS, Groups, with_exchanged_names


def draws(
    fit: FitConfig, examples: Sequence[Example], names: Mapping[str, Groups]
) -> int:
    """Return how many draws of names the examples of a fit should have.

    One where no names stand for each other, else as many as the fit reads once, at most
    MAX_DRAWS.
    """
    return min(supervised.epochs_read(fit, examples), MAX_DRAWS) if names else 1


def bc_examples(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    draws: int = 1,
    names: Mapping[str, Groups] | None = None,
) -> list[Example]:
    """Return the examples of -log p(expert action | state), Eq. 1.

    Equal examples of a task are one example: otherwise the first steps of a task that
    is demonstrated more than once would count more than its later ones. Of each
    there are as many `draws`: of the names that stand for each other (text/names.py),
    where there are any. A policy that thinks (`thought_tokens`)
    learns a step with the thought that was recorded, or with an empty one; one with
    subgoals learns those that hindsight gives the episodes. For a policy
    that reads valid actions, a step that has some is an example with them, and one
    without: the dream lists none.
    """
    examples: dict[tuple, Example] = {}
    episodes, limit = _labelled(policy, episodes), policy.config.subgoal_steps
    drawn = (
        (e, draw)
        for draw in range(draws)
        for e in with_exchanged_names(episodes, names or {}, draw=draw)
    )
    for e, draw in drawn:
        policy.recall([(e.task, t.state) for t in e.transitions])  # all at once
        for index, t in enumerate(e.transitions):
            situation = Situation.at_step(
                e.task, e.transitions, index, subgoal_steps=limit
            )
            visible = policy.visible_past(situation.past, situation.past_states)
            thought = t.thought if policy.config.thought_tokens else None
            table = policy.table(situation.past, situation.past_states, t.state)
            step = (visible, table, t.state, situation.subgoal, t.action, thought)
            for s in _with_and_without_valid_actions(policy, situation):
                examples.setdefault(
                    (e.task.id, *step, draw, s.valid_actions),
                    demonstration_example(policy, s, t.action, thought),
                )
    return list(examples.values())


def _labelled(policy: Policy, episodes: Sequence[Episode]) -> Sequence[Episode]:
    """Return demonstrations with subgoals, where the policy writes some."""
    limit = policy.config.subgoal_steps
    return [with_subgoals(e, limit) for e in episodes] if limit else episodes


def demonstration_example(
    policy: Policy,
    situation: Situation,
    action: str,
    thought: str | None = None,
) -> Example:
    """Return a given action (and thought) as a target, in the context of the policy.

    A policy that thinks without being given a thought learns an empty one. Where it
    does not think, a thought is an auxiliary target: it is never written at play.
    """
    context = policy.context(*situation[:6])
    tok = policy.tokenizer_in(*situation[:6])
    thinks = policy.config.thought_tokens > 0
    turn = prompts.turn_ids(tok, action, thought, thinks=thinks)
    ids = [*context, *turn]
    mask = [False] * len(context) + [True] * len(turn)
    if thinks or thought is None:
        mask[len(context)] = False  # `why` or `action` is forced when the policy acts
    return Example(ids, mask, [0] * len(ids))


def thought_length_note(policy: Policy, thoughts: Sequence[str | None]) -> str | None:
    """Return what to tell where a policy has no room for thoughts as it learns them."""
    limit = policy.config.thought_tokens
    lengths = [len(policy.tokenizer.encode(x)) for x in thoughts if x is not None]
    longest = max(lengths, default=0)
    if not limit or longest <= limit:
        return None
    return (
        f"policies have room for thoughts of {limit} tokens, and one that is learned "
        f"has {longest}: policy.thought_tokens gives more"
    )


def iwm_examples(
    policy: Policy,
    episodes: Sequence[Episode],
    branches: Sequence[Branch],
    *,
    reasoning: bool = False,
    style: str = "words",
    draws: int = 1,
    names: Mapping[str, Groups] | None = None,
) -> list[Example]:
    """Return the examples of -log p(next state | state, action), Eq. 3.

    The transitions are those of the experts and of the branches. With `reasoning` the
    target is -log p(reasoning, next state | state, action): a transition that has no
    trace gets one by rule, in this `style`. Of each transition there are as many
    `draws` of the names that stand for each other as of a demonstration
    (`bc_examples`), and, for a policy that reads valid actions, both forms: with them
    and without.
    """
    episodes, writing = _labelled(policy, episodes), policy.tokenizer.writing
    sources: list[tuple[Episode, Sequence[int]]] = []
    for e in episodes:
        traced = set_rule_traces(e, enabled=True, writing=writing, style=style)
        sources.append((traced if reasoning else e, range(len(e.transitions))))
    by_id = {e.id: e for e in episodes}
    for b in branches:
        e = by_id[b.episode]
        # In the state of the expert's step, and so with its list of actions.
        valid_actions = e.transitions[b.step].valid_actions
        t = dataclasses.replace(b.transition, valid_actions=valid_actions)
        if reasoning and not t.reasoning:
            status = has_status_line(e)
            trace = explain_as_written(t, writing, status=status, style=style)
            t = dataclasses.replace(t, reasoning=trace)
        steps = (*e.transitions[: b.step], t)
        sources.append((dataclasses.replace(e, transitions=steps), [b.step]))
    out: list[Example] = []
    for draw in range(draws):
        drawn = with_exchanged_names([e for e, _ in sources], names or {}, draw=draw)
        for e, (_, which) in zip(drawn, sources, strict=True):
            out += _next_states(
                policy, e.task, e.transitions, which, reasoning=reasoning
            )
    return out


def iwm_fit(
    fit: FitConfig, steps: int, *, learning_rate_factor: float, warmup_steps: int
) -> FitConfig:
    """Return the fit of implicit world modelling, from that of behaviour cloning.

    Its loss is on the targets alone, whatever the weight of the context: the context of
    a next state holds the alternative action, which must not be imitated. It takes few
    updates, which must not all lie in the warm-up of a longer fit.
    """
    optimizer = dataclasses.replace(
        fit.optimizer,
        learning_rate=learning_rate_factor * fit.optimizer.learning_rate,
        warmup_steps=warmup_steps,
    )
    return dataclasses.replace(
        fit, steps=steps, context_loss_weight=0.0, optimizer=optimizer
    )


def _next_states(
    policy: Policy,
    task: Task,
    steps: Sequence[Transition],
    which: Sequence[int],
    *,
    reasoning: bool = False,
) -> list[Example]:
    """Return the effects of the steps at indices `which` as examples.

    The effect stands behind the action, in the same context that the policy acts in, so
    that what it learns of consequences is learned where it decides: with the valid
    actions and without them. With `reasoning` the trace of a step stands before its
    effect, and is a target, too.
    """
    out = []
    policy.recall([(task, steps[i].state) for i in which])  # all at once
    for i in which:
        situation = Situation.at_step(
            task, steps, i, subgoal_steps=policy.config.subgoal_steps
        )
        out += [
            _next_state(policy, s, steps[i], reasoning=reasoning)
            for s in _with_and_without_valid_actions(policy, situation)
        ]
    return out


def _next_state(
    policy: Policy, situation: Situation, t: Transition, *, reasoning: bool
) -> Example:
    """Return the effect of a step, taken in this situation, as an example."""
    tok = policy.tokenizer_in(*situation[:6])
    context = policy.context(*situation[:6])
    thinks = policy.config.thought_tokens > 0
    context += prompts.turn_ids(tok, t.action, thinks=thinks)
    effect = [*prompts.effect_ids(tok, t.state, t.next_state), tok.control("end")]
    if reasoning:
        effect = [tok.control("think"), *tok.encode(t.reasoning or ""), *effect]
    # The token that opens a target is the same in all of them: nothing to learn.
    mask = [False] * (len(context) + 1) + [True] * (len(effect) - 1)
    return Example(context + effect, mask, [1] * len(mask))


def _with_and_without_valid_actions(
    policy: Policy, situation: Situation
) -> list[Situation]:
    """Return the situation without valid actions, and with those the policy reads.

    The dream lists none, the real environment does; where the policy reads none or
    there are none the two are one.
    """
    listed = tuple(situation.valid_actions[: policy.config.admissible_actions])
    return [situation._replace(valid_actions=x) for x in dict.fromkeys(((), listed))]


def rollout_iwm_examples(
    policy: Policy, trajectories: Sequence[Trajectory], *, max_examples: int, seed: int
) -> list[Example]:
    """Return the examples of Eq. 3 on the policy's rollouts, an auxiliary loss of RL.

    Equal transitions, of which a group of rollouts has many, are one example with the
    sum of their weights. Of the distinct ones `max_examples` are drawn by `seed`. A
    step at which the environment failed has no next state, and is left out.
    """
    distinct: dict[tuple[int, ...], Example] = {}
    for t in trajectories:
        steps = t.episode.transitions
        if t.error is not None:
            steps = steps[:-1]
        for e in _next_states(policy, t.episode.task, steps, range(len(steps))):
            key = tuple(e.ids)
            previous = distinct.get(key, e._replace(weight=0.0))
            assert isinstance(previous.weight, float)
            distinct[key] = previous._replace(weight=previous.weight + 1.0)
    examples = list(distinct.values())
    order = np.random.default_rng(seed).permutation(len(examples))[:max_examples]
    return [examples[i] for i in sorted(order)]


def sr_examples(
    policy: Policy,
    cases: Sequence[ReflectionCase],
    thoughts: Sequence[str | None],
    *,
    draws: int = 1,
    names: Mapping[str, Groups] | None = None,
) -> list[Example]:
    """Return the examples of -log p(thought, expert action | state), Eq. 4.

    Of each there are as many `draws` of the names that stand for each other as of a
    demonstration (`bc_examples`); a thought has the names of its state. Cases without a
    thought are left out. For a policy that acts without thoughts (`thought_tokens` 0)
    this is an auxiliary loss on the same weights. A policy that acts with thoughts
    learns here how to think; its action then depends on its thought. One that reads
    valid actions learns each with them and without.
    """
    explained = [
        _with_thought(case, thought, episode_id=str(i))
        for i, (case, thought) in enumerate(zip(cases, thoughts, strict=True))
        if thought is not None
    ]
    return [
        demonstration_example(
            policy, situation, e.transitions[-1].action, e.transitions[-1].thought
        )
        for draw in range(draws)
        for e in with_exchanged_names(explained, names or {}, draw=draw)
        for situation in _with_and_without_valid_actions(
            policy, Situation.at_step(e.task, e.transitions, len(e.transitions) - 1)
        )
    ]


def _with_thought(case: ReflectionCase, thought: str, *, episode_id: str) -> Episode:
    """Return a case as an episode that ends with the expert's step and a thought."""
    past = (
        Transition(state=state, action=action, next_state=())
        for state, action in zip(case.past_states, case.past, strict=True)
    )
    return Episode(
        id=episode_id,
        task=case.task,
        transitions=(*past, dataclasses.replace(case.expert, thought=thought)),
        source="reflection",
        success=None,
    )
