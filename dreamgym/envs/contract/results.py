"""The part of the contract checker that looks at what reset and step return."""

import math
import numbers
import re
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.spaces import MAX_CHARACTERS

_TERMINAL_CODE = re.compile(r"\x1b\[|[\x00\x07\x08]")


def read_text(
    findings: Findings, env: gymnasium.Env, obs: Any, call: str, where: str
) -> str | None:
    """Return the text that `call` returned; None, with a fault, if no run can hold it.

    Bytes are a fault, and are decoded, so that they hide no other one.
    """
    if not isinstance(obs, str):
        findings.fault(
            f"{call} must return text, got {type(obs).__name__}",
            where,
            "return one str, lines separated by \\n",
        )
        if not isinstance(obs, bytes):
            return None
        obs = obs.decode(errors="replace")
    if len(obs) > MAX_CHARACTERS:
        findings.fault(
            f"{call} returned a text that is too long",
            f"{where}: {len(obs):,} characters",
            f"return at most {MAX_CHARACTERS:,}: the episode would end there",
        )
        return None
    if _TERMINAL_CODE.search(obs):
        findings.warn(
            f"{call} returned codes of a terminal",
            f"{where}: {obs!r:.60}",
            "leave colours and control characters out: each is a word to learn",
        )
    failure = guarded(env, obs.encode)
    if isinstance(failure, EnvironmentFailure):
        findings.fault(
            f"{call} returned a text that UTF-8 cannot hold: {failure.reason}",
            where,
            "decode with errors='replace'",
        )
    return None if isinstance(failure, EnvironmentFailure) else obs


def warn_of_empty_state(findings: Findings, obs: str, where: str) -> None:
    """Warn of a state without a line after a step."""
    if not obs.strip():
        findings.warn(
            "a state is empty after a step",
            where,
            "return what is there now, at least one line: an agent sees no more",
        )


def can_be_read(findings: Findings, where: str, values: tuple) -> bool:
    """Return whether the values of a step after its text can be read; add all faults.

    They are reward, terminated, truncated and info. What no later step depends on, as a
    cost that is no number, is a fault that ends no episode.
    """
    reward, terminated, truncated, info = values
    readable = _check_ends(findings, where, terminated, truncated)
    if not (finite := _is_finite(reward)):
        findings.fault(
            f"a reward must be a finite number, got {reward!r:.40}",
            where,
            "return a float that is neither NaN nor infinite",
        )
    if not isinstance(info, dict):
        findings.fault("info must be a dict", where, f"it is {info!r:.60}")
        return False
    readable &= _check_flags(findings, where, info)
    parts_named = _check_parts(findings, where, info)
    parts = info.get("rewards")
    if finite and parts_named and parts is not None:
        if not math.isclose(
            sum(parts.values()), float(reward), rel_tol=1e-6, abs_tol=1e-6
        ):
            findings.fault(
                "info['rewards'] must sum to the reward",
                where,
                f"it holds {parts}, and the reward is {float(reward)}",
            )
    return readable and finite


def _check_ends(
    findings: Findings, where: str, terminated: Any, truncated: Any
) -> bool:
    """Return whether the flags of the end can be read; add their faults."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool):
            kind = f"{type(flag).__module__}.{type(flag).__name__}"
            # A run takes it, and a trainer that asks `is False` does not.
            add = findings.warn if isinstance(flag, np.bool_) else findings.fault
            add(
                f"{name} must be a bool, got {kind.removeprefix('builtins.')}",
                where,
                f"return bool({name}): a numpy boolean is not Python's False",
            )
    if not all(map(_is_flag, (terminated, truncated))):
        return False
    if terminated and truncated:
        findings.fault(
            "terminated and truncated must not merge",
            where,
            "terminated: the task itself ended; truncated: only a limit was hit",
        )
    return True


def _check_flags(findings: Findings, where: str, info: dict) -> bool:
    """Return whether the flags of `info` can be read; add their faults."""
    readable = True
    for name in ("success", "invalid", "reveals"):
        flag = info.get(name)
        # Any text is true, `no` as well.
        if flag is not None and not _is_flag(flag):
            findings.fault(
                f"info[{name!r}] must be a bool", where, f"it is {flag!r:.60}"
            )
            readable = False
        elif flag is not None and not isinstance(flag, numbers.Real | np.bool_):
            findings.fault(
                f"info[{name!r}] must be a bool, got {flag!r:.40}",
                where,
                f"return bool(...), or leave {name!r} out",
            )
    return readable


def _check_parts(findings: Findings, where: str, info: dict) -> bool:
    """Return whether costs and rewards of `info` are numbers by name; add faults."""
    sound = True
    for name in ("costs", "rewards"):
        parts = info.get(name, {})
        named = isinstance(parts, dict) and all(isinstance(k, str) for k in parts)
        if not named or not all(map(_is_finite, parts.values())):
            findings.fault(
                f"info[{name!r}] must be a dict of finite numbers by name",
                where,
                f"it is {parts!r:.60}",
            )
            sound = False
    return sound


def _is_flag(value: Any) -> bool:
    """Return whether a value is true or false; an array of two is neither."""
    try:
        bool(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_finite(value: Any) -> bool:
    if not isinstance(value, numbers.Real | np.integer | np.floating):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number of hundreds of digits
        return False
