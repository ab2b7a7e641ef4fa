"""What a stage takes: seconds, memory, disk and answers of a chat server.

`Stage.cost(config, workload)` returns a Cost. `config` are the settings that the stage
reads, and `workload` is what does not stand in them: how fast the machine is and how
many steps there are.
"""

from typing import NamedTuple

EPISODE_SHARE = 0.84
"""Mean length of a collected or played episode as a share of the step limit."""


class Cost(NamedTuple):
    """What a stage takes.

    `compile_seconds` is added where nothing was compiled before. `memory` are bytes on
    top of those of the process and its episodes; `disk` are bytes that stay after the
    stage. `answers` are those of a chat server; their seconds are part of `seconds`.
    """

    seconds: float | int = 0
    compile_seconds: float | int = 0
    memory: float | int = 0
    disk: float | int = 0
    answers: float | int = 0


class Timings(NamedTuple):
    """Timings of this machine.

    update: seconds of a fit's update; step: of a real transition (0 without an
    environment); parameters: of the model; vocabulary; scratch: bytes of a gradient
    beside parameters and gradient. Of a server: seconds of an answer, as many at a
    time as its settings say; requests (some are repeated), tokens and cost of one.
    real_steps: taken by this measurement, 0 where it was read from the cache.
    """

    update: float
    step: float
    parameters: int
    vocabulary: int
    scratch: int
    answer: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0
    real_steps: int = 0


class Workload(NamedTuple):
    """What the cost of a stage depends on besides its settings.

    `transitions` are those that the stage `collect` writes, `max_steps` is the step
    limit of an episode, and `batch_tokens` are the tokens of the batch that
    `timings.update` and `timings.scratch` were measured with.
    """

    timings: Timings
    transitions: int
    max_steps: int
    batch_tokens: int

    @property
    def episode_steps(self) -> float:
        """The steps of an episode, as a mean."""
        return EPISODE_SHARE * self.max_steps

    @property
    def model_bytes(self) -> float:
        """The size of a model, in memory and on disk (float32)."""
        return 4.0 * self.timings.parameters

    def fit(self, updates: float | int) -> Cost:
        """Return the cost of a fit, with a model on disk.

        `updates` are in units of those of the experience model's fit. In memory there
        are parameters, two moments, the best parameters and a gradient.
        """
        return Cost(
            seconds=updates * self.timings.update,
            memory=5 * self.model_bytes + self.timings.scratch,
            disk=self.model_bytes,
        )
