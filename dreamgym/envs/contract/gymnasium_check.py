"""Gymnasium's own check, its messages translated for text environments."""

import inspect
import warnings
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from dreamgym.envs import base, limits
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.failures import EnvironmentTimeout

_CURES = (
    (
        "within the observation space",
        "derive from dreamgym.TextEnv, whose spaces take any text; Gymnasium's `Text` "
        "takes letters and digits only, no blank and no newline, unless its charset "
        "says so",
    ),
    (
        "call `super().reset(seed=seed)`",
        "begin reset() with super().reset(seed=seed), and draw from self.np_random",
    ),
    (
        "does not provide",
        "write def reset(self, *, seed=None, options=None)",
    ),
    (
        "share an object",
        "return a new dict as info at every call",
    ),
    (
        "must inherit",
        "derive from dreamgym.TextEnv",
    ),
    (
        "observation_space",
        "derive from dreamgym.TextEnv and call super().__init__(), which sets the "
        "spaces",
    ),
    (
        "action_space",
        "derive from dreamgym.TextEnv and call super().__init__(), which sets the "
        "spaces",
    ),
)
_DRAWS = ("not equivalent", "non-deterministic", "properly been updated")
"""Messages about an environment that draws lots."""

_ONE_STEP = "truncates after 1 step"


def check_gymnasium(
    env: gymnasium.Env, findings: Findings, seconds: float = 0.0
) -> None:
    """Add what Gymnasium's check finds, without its check of rendering.

    Advice on spaces that are not text is left out, what the other checks have found,
    and what an environment says of itself: that it draws lots, or that its episodes
    have one step.

    Args:
      seconds: the deadline of the whole check, 0 for none.
    """
    checked = env
    if (rest := _other_keywords(env)) is not None:
        findings.warn(
            f"reset takes its arguments as **{rest}, which Gymnasium's tools refuse",
            "reset()",
            "write def reset(self, *, seed=None, options=None)",
        )
        checked = _NamedArguments(env)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = guarded(
            env,
            lambda: check_env(checked, skip_render_check=True),
            seconds=seconds,
        )
    if not isinstance(result, EnvironmentFailure):
        return
    message = str(result.error)
    if isinstance(result.error, EnvironmentTimeout):
        findings.fault(
            f"Gymnasium's own check took more than {seconds:g} s",
            "its resets and steps together",
            "answer sooner, or declare `reset_seconds` and `step_seconds` in the class",
        )
        return
    if _is_known(message, result.reason, findings):
        return
    if not isinstance(result.error, AssertionError | gymnasium.error.Error):
        findings.fault(
            f"reset() without seed and options, then a step, raised {result.reason} "
            f"({result.place})",
            "Gymnasium's own check",
            "begin some train task where options hold none, and let step() take any "
            "text: Gymnasium's tools do both",
        )
        return
    if not base.is_deterministic(env) and any(part in message for part in _DRAWS):
        return
    if _ONE_STEP in message:
        guarded(env, lambda: _check_one_step(env, findings), seconds=seconds)
        return
    cures = (cure for part, cure in _CURES if part in message)
    if any(part in message for part in _DRAWS):
        cure = (
            "draw from self.np_random after super().reset(seed=seed), or declare "
            "`deterministic = False` in the class"
        )
    else:
        cure = next(cures, "see gymnasium.utils.env_checker")
    findings.fault(f"Gymnasium's check: {message}", "Gymnasium's own check", cure)


class _NamedArguments(gymnasium.Wrapper):
    """Names the arguments of a reset that takes any."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)


def _other_keywords(env: gymnasium.Env) -> str | None:
    """The name of `**rest` where reset takes its arguments by it; None otherwise.

    Gymnasium knows `**kwargs` alone.
    """
    parameters = inspect.signature(env.reset).parameters
    if {"seed", "options"} <= parameters.keys() or "kwargs" in parameters:
        return None
    kinds = {p.kind: name for name, p in parameters.items()}
    return kinds.get(inspect.Parameter.VAR_KEYWORD)


_CONSEQUENCES = (
    ("does not provide", ("reset raised TypeError",)),
    ("by `env.reset()` was not a tuple", ("reset must return",)),
    ("step result to be a tuple", ("step must return",)),
    ("within the observation space", ("must return text", "returned a text")),
    (_ONE_STEP, ("truncated must be a bool",)),
    ("to unpack", ("must return (obs",)),
    ("is not iterable", ("expert() must return a list",)),  # in a ToolEnv's reset
    ("rewards are not equivalent", ("a reward must be",)),
    *((part, ("two plays of the same",)) for part in _DRAWS[:2]),
)
"""Parts of Gymnasium's messages, and the faults that they are consequences of."""


def _is_known(message: str, reason: str, findings: Findings) -> bool:
    """Whether a fault says already what Gymnasium's check stopped at."""
    faults = list(findings.faults)
    if any(f"raised {reason}" in what for what in faults):
        return True
    causes = [c for part, names in _CONSEQUENCES if part in message for c in names]
    return any(cause in what for cause in causes for what in faults)


def _check_one_step(env: gymnasium.Env, findings: Findings) -> None:
    """Gymnasium asks `truncated is False`, which a numpy boolean never is."""
    env.reset(seed=123)
    truncated = env.step(env.action_space.sample())[3]
    if (
        isinstance(truncated, bool)
        and truncated
        and limits.declared_step_limit(env) != 1
    ):
        findings.fault(
            "an episode is truncated after its first step",
            "Gymnasium's own check",
            "declare `max_episode_steps = 1` where one step is all",
        )
