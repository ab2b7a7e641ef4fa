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


class BreakingLedger(Ledger):
    """The same, where some tasks cannot be begun and some steps raise.

    A reset takes no step, also one that raises; a step that raises is one.
    """

    def reset(self, *, seed=None, options=None):
        task = (options or {}).get("task")
        kind = -1 if task is None else sum(task.options.values()) % 5
        if kind == 0:
            raise OSError("it is locked")
        self.breaks = kind == 1
        return super().reset(seed=seed, options=options)

    def step(self, action):
        text, *rest = super().step(action)
        if self.breaks and self.steps == 2:
            raise OSError("no answer")
        return (text, *rest)
