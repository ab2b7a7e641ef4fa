"""Potentials of states: steps towards the goal pay, and steps away from it cost.

the states of an episode -> potentials phi -> discount phi(s') - phi(s) for each step

Added to the rewards, these differences change no optimal policy (Ng, Harada and
Russell, 1999), and no estimate from whole returns either: from any step on they add up
to minus the potential of its state, whatever the action. So they help where a critic
bootstraps (`shaping_rewards`). Where returns are compared, each turn is credited with
its own difference alone (`progress_rewards`), as by an oracle that verifies each step
(VPR); then the oracle must be right.

Two potentials are here: from the length of the expert's plan, and from how far a state
is like the end of a demonstration, fact by fact (StateFactory).
"""

from collections import Counter
from collections.abc import Sequence

from worldmodel.data.records import Episode, State, Task

COMPONENT = "potential"
"""The name of the reward component."""


def shaping_rewards(potentials: Sequence[float], discount: float | int) -> list[float]:
    """Return discount phi(s_{t+1}) - phi(s_t) for each step of an episode.

    `potentials` are those of the states in which its actions were taken. Where it has
    ended phi is 0, whatever the end is like: with another value an episode that is lost
    near the goal would be paid for the way there.
    """
    return _differences(potentials, discount, 0.0)


def progress_rewards(
    potentials: Sequence[float], discount: float | int, *, end: float | None
) -> list[float]:
    """Return rewards whose discounted return from a step on is its own difference.

    With d_t = discount phi(s_{t+1}) - phi(s_t) the reward is d_t - discount d_{t+1}.

    Args:
      potentials: those of the states in which the actions were taken.
      end: that of the state in which the episode ended; None where nobody knows it, and
        the last step has no difference.
    """
    steps = _differences(potentials, discount, 0.0 if end is None else end)
    if end is None:
        steps[-1:] = [0.0] * len(steps[-1:])
    return [x - discount * y for x, y in zip(steps, [*steps[1:], 0.0], strict=False)]


def _differences(
    potentials: Sequence[float], discount: float | int, end: float
) -> list[float]:
    following = (*potentials[1:], end)
    return [
        discount * after - before
        for before, after in zip(potentials, following, strict=False)
    ]


def plan_potential(plan_length: int | None, decay: float) -> float:
    """Return decay^n for a plan of n actions, 0 where there is no plan.

    With a decay below the discount a step along a shortest plan pays, and one that
    lengthens the plan costs.
    """
    return 0.0 if plan_length is None else decay**plan_length


class GoalPotential:
    """How far states are like the last states of won episodes of the same task.

    What matters are the lines that such an episode changed. A line is an object, its
    first word, with its other words as attributes. A line of the last state counts by
    the share of words that it has in common with the most similar line of this object
    (Jaccard index), a line of the first state that is gone at the end counts where it
    is gone. The potential is the mean over these lines, in [0, 1], and the largest of
    those of all won episodes; without one it is 0.
    """

    def __init__(self, episodes: Sequence[Episode]):
        self._goals: dict[str, list[tuple[frozenset[str], frozenset[str]]]] = {}
        for e in episodes:
            if not e.success or not e.transitions:
                continue
            first, last = set(e.transitions[0].state), set(e.transitions[-1].next_state)
            changes = frozenset(last - first), frozenset(first - last)
            goals = self._goals.setdefault(e.task.id, [])
            if any(changes) and changes not in goals:
                goals.append(changes)

    def __call__(self, task: Task, state: State) -> float:
        """Return the potential of a state of a task."""
        goals = self._goals.get(task.id, [])
        return max((_similarity(state, *goal) for goal in goals), default=0.0)


def _similarity(state: State, new: frozenset[str], removed: frozenset[str]) -> float:
    """Return the share of `new` facts that hold and of `removed` ones that do not."""
    objects: dict[str, list[str]] = {}
    for line in state:
        objects.setdefault(line.partition(" ")[0], []).append(line)
    shares = [
        max((_overlap(fact, line) for line in objects.get(name, ())), default=0.0)
        for fact in sorted(new)  # a sum of floats must not depend on hashes
        for name in [fact.partition(" ")[0]]
    ]
    shares += [float(line not in state) for line in sorted(removed)]
    return sum(shares) / len(shares)


def _overlap(fact: str, line: str) -> float:
    """Return the Jaccard index of the words of two lines, each as often as it stands.

    Two empty lines are equal.
    """
    one, two = Counter(fact.split()), Counter(line.split())
    union = (one | two).total()
    return (one & two).total() / union if union else 1.0
