"""Gymnasium's own check, its messages translated for text environments."""

import warnings

import gymnasium
from gymnasium.utils.env_checker import check_env

from dreamgym.envs import base, limits
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract_findings import Findings

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


def check_gymnasium(env: gymnasium.Env, findings: Findings) -> None:
    """Add what Gymnasium's check finds, without its check of rendering.

    Advice on spaces that are not text is left out, what the other checks have found,
    and what an environment says of itself: that it draws lots, or that its episodes
    have one step.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = guarded(env, lambda: check_env(env, skip_render_check=True))
    if not isinstance(result, EnvironmentFailure):
        return
    message = str(result.error)
    if _is_known(message, result.reason, findings):
        return
    if not isinstance(result.error, AssertionError | gymnasium.error.Error):
        findings.fault(
            f"reset() without seed and options, then a step, raised {result.reason} "
            f"({result.place})",
            "Gymnasium's own check",
            "begin some train task where options hold none: Gymnasium's tools do that",
        )
        return
    if not base.is_deterministic(env) and any(part in message for part in _DRAWS):
        return
    if _ONE_STEP in message:
        _check_one_step(env, findings)
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


_CONSEQUENCES = (
    ("within the observation space", ("must return text", "returned a text")),
    (_ONE_STEP, ("truncated must be a bool",)),
    ("to unpack", ("must return (obs",)),
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
