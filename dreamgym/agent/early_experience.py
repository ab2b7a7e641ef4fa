"""Early experience: what the policy learns from before any reward (arXiv 2510.08558).

expert episodes -> branches (real alternatives, prefix replay) -> IWM and SR examples.
BC is equation 1, IWM equation 3, SR equation 4 of papers.md section 2.1. The outcomes
shape a thought when it is written; the policy never sees them.
"""

from collections.abc import Callable, Sequence

import gymnasium
import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.envs.base import begin, take
from worldmodel.fitting.batches import Example
from worldmodel.text import prompts
from worldmodel.text.records import Branch, Episode, State, Task, Transition


def branch(
    env: gymnasium.Env,
    episodes: Sequence[Episode],
    *,
    alternatives: int,
    most: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Branch], int, list[str]]:
    """Real alternatives at every step of at most `most` expert episodes.

    Alternatives come from the environment's valid actions where it declares them, else
    from actions seen on other tasks. Each is reached by replaying the prefix from a
    reset; where the replay does not arrive at the recorded state the episode is left,
    and its id returned. Returns (branches, real transitions spent, drifted ids).
    """
    rng = np.random.default_rng(seed)
    seen = sorted({t.action for e in episodes for t in e.transitions})
    out: list[Branch] = []
    drifted: list[str] = []
    spent = 0
    chosen = list(episodes)[:most]
    for number, episode in enumerate(chosen):
        for step, t in enumerate(episode.transitions):
            _, used, aligned = _at(env, episode, step, [])
            spent += used
            valid = getattr(env, "valid_actions", None)
            pool = list(valid()) if aligned and valid is not None else seen
            others = [a for a in pool if a != t.action]
            for i in rng.permutation(len(others))[:alternatives]:
                if not aligned:
                    break
                found, used, aligned = _at(env, episode, step, [others[i]])
                spent += used
                out += [
                    Branch(episode=episode.id, step=step, transition=x) for x in found
                ]
            if not aligned:
                drifted.append(episode.id)
                break
        if progress is not None:
            progress(number + 1, len(chosen))
    return out, spent, sorted(set(drifted))


def _at(
    env: gymnasium.Env, episode: Episode, step: int, then: Sequence[str]
) -> tuple[list[Transition], int, bool]:
    """Replay to `step`, verify the state, take the actions `then`."""
    _, state = begin(env, episode.task)
    earned, used = 0.0, 0
    for t in episode.transitions[:step]:
        result = take(env, t.action, earned)
        used, state = used + 1, result.state
        earned += sum(result.rewards.values())
        if result.terminated or result.truncated:
            return [], used, False
    if state != episode.transitions[step].state:
        return [], used, False
    out = []
    for action in then:
        result = take(env, action, earned)
        used += 1
        out.append(
            Transition(
                state=state, action=action, next_state=result.state,
                rewards=result.rewards, terminated=result.terminated,
                truncated=result.truncated, success=result.success,
                invalid=result.invalid, reveals=result.reveals,
            )
        )  # fmt: skip
    return out, used, True


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
                turn_example(policy, e.task, past, t.state, t.action, thought),
            )
            past = (*past, t.action)
    return list(rows.values())


def turn_example(
    policy: Policy,
    task: Task,
    past: Sequence[str],
    state: State,
    action: str,
    thought: str | None = None,
) -> Example:
    """A policy turn as a target in the context it is acted in."""
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
    tok, out = policy.tokenizer, []
    by_id = {e.id: e for e in episodes}
    rows = [(e, i, t) for e in episodes for i, t in enumerate(e.transitions)]
    rows += [(by_id[b.episode], b.step, b.transition) for b in branches]
    for episode, step, t in rows:
        past = [x.action for x in episode.transitions[:step]]
        context = policy.context(episode.task, past, t.state)
        context += prompts.turn_ids(tok, t.action)
        effect = [*prompts.effect_ids(tok, t.state, t.next_state), tok.control("end")]
        mask = [False] * (len(context) + 1) + [True] * (len(effect) - 1)
        out.append(Example(context + effect, mask, [1] * len(mask)))
    return out


def reflect(expert: Transition, others: Sequence[Transition]) -> str:
    """A thought why the first action beats the others, from their real outcomes.

    The writer knows the outcomes; the words anticipate, since the policy will not.
    """
    gain = _effect(expert)
    if not others:
        return f"{expert.action} {gain}"
    worse = others[0]
    return f"{worse.action} {_effect(worse)} so {expert.action} {gain}"


def _effect(t: Transition) -> str:
    if t.success:
        return "would finish the task"
    if t.reward > 0:
        return "would make progress"
    if t.terminated:
        return "would fail"
    if t.state == t.next_state:
        return "would change nothing"
    if len(t.next_state) > len(t.state):
        return "would show something new"
    return "would lead on"


def sr_examples(
    policy: Policy,
    episodes: Sequence[Episode],
    branches: Sequence[Branch],
    *,
    per_state: int,
    seed: int,
) -> list[Example]:
    """-log p(thought, expert action | state), equation 4; `per_state` at most."""
    rng = np.random.default_rng(seed)
    at: dict[tuple[str, int], list[Transition]] = {}
    for b in branches:
        at.setdefault((b.episode, b.step), []).append(b.transition)
    out = []
    for e in episodes:
        for step, t in enumerate(e.transitions):
            others = at.get((e.id, step), [])
            past = [x.action for x in e.transitions[:step]]
            for i in rng.permutation(len(others))[:per_state]:
                thought = reflect(t, [others[i]])
                out.append(
                    turn_example(policy, e.task, past, t.state, t.action, thought)
                )
    return out
