"""Numbers of a check that say what the states are like, by which wrappers are chosen.

episodes of the check -> words a state, and the shares of reveals, of lines that repeat,
and of situations with different outcomes
"""

import dataclasses
import itertools
from collections.abc import Sequence

from dreamgym.envs.contract.findings import StateNumbers
from dreamgym.envs.contract.memory import answers_of
from dreamgym.envs.contract.player import Trace
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, Transition, lines
from worldmodel.text.identifiers import common_words
from worldmodel.text.novelty import is_reveal


def state_numbers(
    played: Sequence[Trace], nonsense: Sequence[Trace]
) -> StateNumbers | None:
    """Return the numbers of episodes; None where there is no step.

    Args:
      played: sound play, on which all numbers are computed.
      nonsense: plays that only say whether equal situations had different outcomes.
    """
    sizes = [len(step.observation.split()) for trace in played for step in trace.steps]
    repeated, different = Rate(), Rate()
    for trace in played:
        for before, after in itertools.pairwise(trace.steps):
            previous_lines = set(lines(before.observation))
            for line in lines(after.observation):
                repeated.add(line in previous_lines)
    for answers in answers_of([*played, *nonsense]).values():
        if len(answers) > 1:
            different.add(len(set(answers)) > 1)
    reveals = _reveals([_episode(trace) for trace in played])
    if not reveals.count:
        return None
    return StateNumbers(
        words=sum(sizes) / len(sizes),
        largest=max(sizes),
        states=len(sizes),
        tasks=len({trace.task.id for trace in played}),
        reveals=reveals,
        repeated_lines=repeated,
        different_outcomes=different,
    )


def _reveals(episodes: Sequence[Episode]) -> Rate:
    """Return the share of steps that reveal something, as the scorecard sees them.

    The words of many tasks tell nothing new where an episode first shows them.
    """
    vocabulary, rate = common_words(episodes), Rate()
    for e in episodes:
        history = [vocabulary.get(e.task.family, "")]
        for t in e.transitions:
            reveals = t.next_state != t.state and is_reveal(
                t, e.task.instruction, history
            )
            rate.add(reveals)
            history += t.state
    return rate


def _episode(trace: Trace) -> Episode:
    transitions = tuple(
        Transition(
            state=lines(before.observation),
            action=after.action,
            next_state=lines(after.observation),
            reveals=after.reveals,
        )
        for before, after in itertools.pairwise(trace.steps)
    )
    task = dataclasses.replace(trace.task, instruction=trace.instruction)
    return Episode(
        id=trace.task.id,
        task=task,
        transitions=transitions,
        source="check",
        success=trace.won,
    )
