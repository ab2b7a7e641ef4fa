"""Records the invalid actions of an episode, so that a policy can avoid them."""

from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import State, Transition


class RefusedActions:
    """The actions of one episode that were invalid, by the state they were tried in.

    In a deterministic environment an invalid action stays invalid until the state
    changes. A state may report the error in one of its lines, so that it is another
    text afterwards: all actions since the last valid one count as refused, too.
    """

    def __init__(self):
        self._by_state: dict[State, set[str]] = {}
        self._since_valid: set[str] = set()

    def record(self, transition: Transition) -> None:
        """Add a transition, in the order of the episode."""
        t = transition
        if not is_invalid(t):
            self._since_valid = set()
            return
        self._since_valid.add(t.action)
        for state in (t.state, t.next_state):
            self._by_state.setdefault(state, set()).add(t.action)

    def at(self, state: State) -> frozenset[str]:
        """Return the actions that are known to be refused in the present state."""
        return frozenset(self._since_valid | self._by_state.get(state, set()))
