"""Guided play: the first actions of an episode are given, the policy then goes on.

won episodes -> the one of a task, or of the most similar one -> its first actions -> an
episode that begins with them. What the policy reads has no guidance in it but these
actions, as past ones: a turn that was given is one that it might have sampled.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dreamgym.agent.policy import Policy, Situation, Turn
from dreamgym.agent.recorded_turns import given_turn
from worldmodel.backbone.streams import bucket
from worldmodel.data.records import Episode, Task
from worldmodel.memory.encoders import Lexical


def guiding_actions(
    tasks: Sequence[Task], won: Sequence[Episode], share: float
) -> dict[str, tuple[str, ...]]:
    """Return the first actions of a won episode for each task, by the task's id.

    It is the shortest one of this task or, where it has none, that of the task whose
    instruction and first state are the most similar. A task whose episode has a single
    step is left out, because nothing would be left to the policy.

    Args:
      share: of the episode's actions, in (0, 1); at least one is given, and never all.
    """
    shortest: dict[str, Episode] = {}
    for e in sorted(won, key=lambda e: len(e.transitions)):
        shortest.setdefault(e.task.id, e)
    episodes = list(shortest.values())
    if not episodes or not tasks:
        return {}
    encoder = Lexical()

    def vectors(group: Sequence[Task]) -> np.ndarray:
        return encoder.encode([(t.initial_state, t.instruction) for t in group])

    nearest = np.argmax(vectors(tasks) @ vectors([e.task for e in episodes]).T, axis=1)
    out: dict[str, tuple[str, ...]] = {}
    for task, place in zip(tasks, nearest, strict=True):
        same_task = shortest.get(task.id)
        steps = (episodes[place] if same_task is None else same_task).transitions
        count = min(max(round(share * len(steps)), 1), len(steps) - 1)
        if count:
            out[task.id] = tuple(t.action for t in steps[:count])
    return out


class GuidedPolicy(Policy):
    """A policy to which the first actions are given in some tasks.

    Where it cannot write one of them, it acts itself.
    """

    def __init__(self, policy: Policy, actions: Mapping[str, Sequence[str]]):
        """Guide a policy by actions for each task, by the task's id."""
        super().__init__(
            policy.model, policy.tokenizer, policy.config, policy.strict, policy.memory
        )
        self._policy, self._actions = policy, actions
        self._grammar = policy.grammar(1.0)

    def _given(self, situation: Situation) -> Turn | None:
        actions = self._actions.get(situation.task.id, ())
        number = len(situation.past)
        if number >= len(actions):
            return None
        return given_turn(self._policy, self._grammar, situation, actions[number])

    def act(
        self,
        situations: Sequence[Situation],
        keys: jax.Array,
        *,
        temperature: float,
    ) -> list[Turn]:
        """Return the given turns, and those of the policy where none is given."""
        turns = [self._given(s) for s in situations]
        rows = [i for i, turn in enumerate(turns) if turn is None]
        if rows:
            index = np.zeros(bucket(len(rows)), np.int32)  # few shapes are compiled
            index[: len(rows)] = rows
            sampled = self._policy.act(
                [situations[i] for i in rows],
                keys[jnp.asarray(index)],
                temperature=temperature,
            )
            for i, turn in zip(rows, sampled, strict=True):
                turns[i] = turn
        return [turn for turn in turns if turn is not None]
