"""Early experience: what the policy learns from before any reward (arXiv 2510.08558).

expert episodes, branches, thoughts -> BC, IWM and SR examples: equations 1, 3 and 4 of
papers.md section 2.1. `branching` makes the branches, `reflection` the thoughts. The
outcomes shape a thought when it is written; the policy never sees them.
"""

from collections.abc import Sequence

import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.agent.reflection import Moment
from dreamgym.agent.rollout import Trajectory
from worldmodel.data.records import Branch, Episode, State, Task, Transition
from worldmodel.fitting.batches import Example
from worldmodel.text import prompts


def bc_examples(
    policy: Policy, episodes: Sequence[Episode], thoughts: bool = False
) -> list[Example]:
    """-log p(expert action | state), equation 1; repeats within a task once."""
    rows: dict[tuple, Example] = {}
    for e in episodes:
        past: tuple[str, ...] = ()
        for t in e.transitions:
            thought = t.thought if thoughts else None
            shown = prompts.last(past, policy.config.history)
            rows.setdefault(
                (e.task.id, shown, t.state, t.action),
                demonstration_example(policy, e.task, past, t.state, t.action, thought),
            )
            past = (*past, t.action)
    return list(rows.values())


def demonstration_example(
    policy: Policy,
    task: Task,
    past: Sequence[str],
    state: State,
    action: str,
    thought: str | None = None,
) -> Example:
    """Return an expert's turn as a target, in the context that the policy sees."""
    context = policy.context(task, past, state)
    turn = prompts.turn_ids(policy.tokenizer, action, thought)
    ids = [*context, *turn]
    mask = [False] * len(context) + [True] * len(turn)
    if thought is None:
        mask[len(context)] = False  # `action` is forced when the policy acts
    return Example(ids, mask, [0] * len(ids))


def iwm_examples(
    policy: Policy,
    episodes: Sequence[Episode],
    branches: Sequence[Branch],
) -> list[Example]:
    """-log p(next state | state, action), equation 3, expert transitions included."""
    out: list[Example] = []
    for e in episodes:
        steps = e.transitions
        out += _next_states(policy, e.task, steps, range(len(steps)))
    by_id = {e.id: e for e in episodes}
    for b in branches:
        e = by_id[b.episode]
        steps = (*e.transitions[: b.step], b.transition)
        out += _next_states(policy, e.task, steps, [b.step])
    return out


def _next_states(
    policy: Policy,
    task: Task,
    steps: Sequence[Transition],
    which: Sequence[int],
) -> list[Example]:
    """Each of `which` steps as action and effect in the context it was acted in."""
    tok, out = policy.tokenizer, []
    for i in which:
        t, past = steps[i], [x.action for x in steps[:i]]
        context = policy.context(task, past, t.state)
        context += prompts.turn_ids(tok, t.action)
        effect = [*prompts.effect_ids(tok, t.state, t.next_state), tok.control("end")]
        mask = [False] * (len(context) + 1) + [True] * (len(effect) - 1)
        out.append(Example(context + effect, mask, [1] * len(mask)))
    return out


def own_iwm_examples(
    policy: Policy, trajectories: Sequence[Trajectory], *, most: int, seed: int
) -> list[Example]:
    """Equation 3 on what the policy itself did: an auxiliary loss beside RL.

    Equal transitions are one example of their summed weight: a group of rollouts mostly
    does the same. Of different ones at most `most` are drawn, by seed. A step that
    broke has no next state, and is left out.
    """
    equal: dict[tuple[int, ...], Example] = {}
    for t in trajectories:
        whole = t.episode.transitions
        steps = whole if t.error is None else whole[:-1]
        for e in _next_states(policy, t.episode.task, steps, range(len(steps))):
            key = tuple(e.ids)
            known = equal.get(key, e._replace(weight=0.0))
            assert isinstance(known.weight, float)
            equal[key] = known._replace(weight=known.weight + 1.0)
    found = list(equal.values())
    order = np.random.default_rng(seed).permutation(len(found))[:most]
    return [found[i] for i in sorted(order)]


def sr_examples(
    policy: Policy, moments: Sequence[Moment], thoughts: Sequence[str | None]
) -> list[Example]:
    """-log p(thought, expert action | state), equation 4, of moments with a thought.

    A policy without thoughts (`thought_tokens` 0) is never asked for one: for it this
    is an auxiliary loss on the same weights. One with them thinks so when it acts, and
    then acts no better than its thought decides; BC alone never taught it to think.
    """
    return [
        demonstration_example(
            policy, m.task, m.past, m.expert.state, m.expert.action, thought
        )
        for m, thought in zip(moments, thoughts, strict=True)
        if thought is not None
    ]
