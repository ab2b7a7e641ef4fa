"""What dreaming costs here, in real steps and in seconds, before the run begins.

settings, the timings of this machine, the estimate of the run -> steps a second in the
environment and in the dream, what each way costs -> sentences. What both come to in
success is not known before: what was measured in two games stands beside it.
"""

import math
from typing import NamedTuple

from dreamgym.build.costs import (
    DREAMED_STEP,
    REAL_STEP,
    UNCACHED,
    answers_per_query,
    dev_games,
    train_steps,
    uses_early_experience,
)
from dreamgym.commands.estimate import Estimate, time_of, workload_of
from dreamgym.config.budget import division
from dreamgym.config.settings import RunConfig
from dreamgym.envs import limits
from dreamgym.run.cost import Timings, Workload

MODEL_STAGES = ("pretrain", "ensemble", "fidelity", "dream_check")
"""Stages that only a dream needs."""


MEASURED = {
    2500: "won 72 % with as many, the run with a dream 83 %",
    5000: "won 79 % with as many, the run with a dream 93 %",
    10000: "had not won as much with 20,000",
    20000: "won 87 % with as many, the run with a dream 95 %",
}
"""What real play came to, by the real steps of a run with a dream (docs/RESULTS.md,
scripts/studies/sample_efficiency.toml, three seeds)."""


class Payoff(NamedTuple):
    """What training in the dream and in the environment cost, for as many steps.

    environment: steps a second of the environment alone; dream, real: those of training
    with the policy and its updates, in the dream and in the environment. steps: of
    training. dream_seconds, real_seconds: what they take, the fit of the experience
    model included. dream_real_steps: real steps of the dream's policy; budget: of the
    whole run, where that is bounded. break_even: seconds of a real step from which on
    the dream takes less time.
    """

    environment: float
    dream: float
    real: float
    steps: int
    dream_seconds: float
    real_seconds: float
    dream_real_steps: int
    break_even: float
    budget: int = 0

    @property
    def measured(self) -> str:
        """Return what real play came to where that was measured."""
        steps = max(self.budget or self.dream_real_steps, 1)
        budget = min(MEASURED, key=lambda n: abs(math.log(n / steps)))
        return (
            f"measured: in two games of TextWorldExpress, with {budget:,} "
            f"real steps in all, real play {MEASURED[budget]}; elsewhere it is not "
            "known before"
        )

    def lines(self) -> list[str]:
        """Return the sentences."""
        times = [time_of(s) for s in (self.dream_seconds, self.real_seconds)]
        faster = self.dream_seconds < self.real_seconds
        return [
            f"speed: the environment takes {self.environment:,.0f} steps/s; training "
            f"with its updates {self.dream:,.0f} steps/s in the dream and "
            f"{self.real:,.0f} in the environment (rough)",
            f"seconds: dreaming is {'faster' if faster else 'slower'} here: "
            f"{self.steps:,} steps take {times[0]} in the dream, its fit included, and "
            f"{times[1]} in the environment; both are equal where a real step takes "
            f"{_duration(self.break_even)} (here {_duration(1 / self.environment)})",
            f"real steps: the dream's policy costs about {self.dream_real_steps:,}; "
            f"to train for {self.steps:,} steps in the environment costs as many more "
            "than its warm start",
            self.measured,
        ]


def payoff(
    config: RunConfig, timings: Timings, estimate: Estimate, collected: int | None
) -> Payoff | None:
    """Return what both ways cost; None without an environment or without a dream.

    `collected` is the number of given transitions, None where the run collects them.
    """
    if not config.env.id or not timings.step or config.train.environment == "real":
        return None
    workload = workload_of(config, timings, collected)
    steps = train_steps(config, workload)
    answers = UNCACHED * answers_per_query(config)
    dream_step = DREAMED_STEP * timings.update + answers * timings.answer
    learn_step = REAL_STEP * timings.update
    fit = sum(estimate.seconds.get(name, 0.0) for name in MODEL_STAGES)
    dream_seconds = fit + steps * dream_step
    return Payoff(
        environment=1 / timings.step,
        dream=1 / dream_step,
        real=1 / (learn_step + timings.step),
        steps=steps,
        dream_seconds=dream_seconds,
        real_seconds=steps * (learn_step + timings.step),
        dream_real_steps=_dream_real_steps(config, workload),
        break_even=max(dream_seconds / max(steps, 1) - learn_step, 0.0),
        budget=config.budget.real_steps,
    )


def _dream_real_steps(c: RunConfig, workload: Workload) -> int:
    """Return the real steps that a policy trained in the dream costs, roughly."""
    collected = workload.transitions
    if c.budget.real_steps:
        return c.budget.real_steps - division(c.budget, collected)["fine_tune"]
    plan = workload.max_steps / (2 * limits.MARGIN)
    branches = c.branch.episodes * c.branch.alternatives * plan * (plan + 1) / 2
    branches = min(round(branches), c.branch.max_transitions or round(branches))
    every = max(c.train.monitor.real_eval_every, 1)
    early = 2 * uses_early_experience(c, workload)
    games = dev_games(c, workload) * (early - (-c.train.updates // every))
    selection = round(games * workload.episode_steps)
    return collected + branches * bool(early) + selection


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
