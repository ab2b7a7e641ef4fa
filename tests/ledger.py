"""The corridor with a ledger: what an environment saw, whoever asked for it."""

from tests import doubles

SPEC = "tests.ledger:Ledger"


class Ledger(doubles.Corridor):
    """Counts the steps of all of its copies, and can be interrupted at one."""

    taken = 0
    stop_at = 0
    """The number of the step that is interrupted, as by Ctrl-C; 0: none."""

    def step(self, action):
        Ledger.taken += 1
        if Ledger.taken == Ledger.stop_at:
            raise KeyboardInterrupt
        return super().step(action)


class ForkingLedger(Ledger):
    """The same, which can be copied in the middle of an episode."""

    def fork(self):
        other = ForkingLedger(self.max_steps)
        other.state, other.begin = self.state, self.begin
        other.steps, other.open = self.steps, self.open
        return other
