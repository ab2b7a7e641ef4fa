"""The part of the contract checker that is about ends: limits, rules, steps after."""

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import error

from dreamgym.envs import limits
from dreamgym.envs.base import EnvironmentFailure, guarded
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import NONSENSE, Player, Trace
from dreamgym.envs.failures import (
    EnvironmentTimeout,
    declared_copies,
)

STEP_AFTER_END_ERRORS = (RuntimeError, ValueError, AssertionError, error.Error)
"""What a step after the end may raise; another error is a mistake in the code."""

_RAISE = "keep a flag that reset sets, and raise RuntimeError where it is not set"


def check_step_after_end(player: Player, trace: Trace, what: str) -> str | None:
    """Fault a step after the end that raises none of STEP_AFTER_END_ERRORS.

    The episode is the one that the environment has just ended. Where nothing is raised,
    it is returned where that was: how much it matters, all episodes together show.
    """
    seconds = player.deadlines.step
    result = guarded(player.env, lambda: player.env.step("look"), seconds=seconds)
    where = f"task {trace.task.id!r}, {what}, after step {trace.length}"
    if isinstance(result, EnvironmentFailure) and isinstance(
        result.error, EnvironmentTimeout
    ):
        player.timeouts += 1
        player.findings.fault(
            f"a step after the end must raise, and did not answer within {seconds:g} s",
            where,
            _RAISE,
        )
        return None
    if not isinstance(result, EnvironmentFailure):
        return where
    if not isinstance(result.error, STEP_AFTER_END_ERRORS):
        names = ", ".join(kind.__name__ for kind in STEP_AFTER_END_ERRORS)
        player.findings.fault(
            f"a step after the end must raise one of {names}, got {result.reason} "
            f"({result.place})",
            where,
            _RAISE,
        )
    return None


def add_steps_after_end(
    findings: Findings, nonsense: Sequence[str], sound: Sequence[str]
) -> None:
    """Add the steps after an end at which nothing was raised.

    A step limit or a rule that ends episodes is code that should hold a flag: a fault.
    A small environment may know no other end than to be solved: a warning.

    Args:
      nonsense: where they were, after episodes of nonsense.
      sound: where they were, after plans of the expert and valid actions.
    """
    add = findings.fault if nonsense else findings.warn
    for where in (*nonsense, *sound):
        add("a step after the end must raise", where, _RAISE)


LIMIT = "max_episode_steps"
STEP_LIMITS = frozenset(
    "_max_episode_steps episode_length horizon max_episode_length max_length max_moves "
    "max_num_steps max_steps max_turns step_limit".split()
)
"""Attributes of other libraries and of usual code that hold a step limit."""
LISTS_OF_ACTIONS = frozenset(
    "admissible_actions admissible_commands allowed_actions available_actions "
    "get_valid_actions legal_actions legal_moves possible_actions valid_moves".split()
)
"""Methods of other libraries and of usual code that list valid actions."""
SIMILAR = 0.85
"""From here on two names differ by a letter or two (difflib's ratio)."""
METHODS = ("tasks", "expert", "valid_actions", "variations", "fork", "render_state")
"""Methods that an environment may have, or may set to None to have none."""
FLAGS = ("deterministic", "plans_from_any_state")
"""What an environment may declare, true or false; None where it does not know."""


def check_declarations(player: Player) -> None:
    """Add faults for what an environment declares as something else than it is.

    Its step limit is a number of steps, its capabilities are methods, its flags bools
    or None.
    """
    for name in METHODS:
        value = getattr(player.env.unwrapped, name, None)
        if value is not None and not callable(value):
            player.findings.fault(
                f"{name} must be a method, got {value!r:.40}",
                name,
                f"write def {name}(self, ...), or leave it out: it counts as missing",
            )
    for name in FLAGS:
        flag = getattr(player.env.unwrapped, name, True)
        if flag is not None and not isinstance(flag, bool | np.bool_):
            player.findings.fault(
                f"{name} must be a bool, got {flag!r:.40}",
                name,
                f"write {name} = True or {name} = False in the class",
            )
    try:
        declared_copies(player.env)
    except ValueError as error:
        cure = "declare how many copies a run may make, or None for any number"
        player.findings.fault(str(error), "max_copies", cure)
    _check_limit_value(player)
    _check_misnamed(player)


def _check_misnamed(player: Player) -> None:
    """Warn of attributes that nothing reads, where one with a similar name is missing.

    `max_steps = 30` declares no step limit, and `admissible_actions` lists no actions.
    """
    if player.env.spec is not None:  # made by others, who do not know these names
        return
    env = player.env.unwrapped
    attributes = _own_attributes(env)
    for name, meant in _misnamed(env, attributes):
        value = attributes[name]
        text = f"{name}()" if callable(value) else f"{name} = {value!r:.40}"
        cure = "or leave it if it is something else"
        if meant == LIMIT:
            cure = f"or episodes of a run have {limits.DEFAULT} steps"
        player.findings.warn(
            f"{text} is not read: is it meant as {meant}?",
            type(env).__name__,
            f"rename it to {meant}, {cure}",
        )


def _misnamed(env: Any, attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield attributes that nothing reads, each with the name that is probably meant.

    `attributes` are those that a user has written.
    """
    missing = [name for name in METHODS if getattr(env, name, None) is None]
    for name, value in attributes.items():
        if name.startswith("_") and name not in STEP_LIMITS:
            continue
        is_tool = getattr(value, "_is_tool", False)
        if callable(value) and not is_tool and not isinstance(value, type):
            near = difflib.get_close_matches(name, missing, 1, cutoff=SIMILAR)
            if not near and "valid_actions" in missing and name in LISTS_OF_ACTIONS:
                near = ["valid_actions"]
            yield from ((name, meant) for meant in near)
        elif (
            name in STEP_LIMITS
            and limits.is_step_limit(value)
            and attributes.get(LIMIT) is None
            and "expert" in missing  # else its plans say how long an episode is
        ):
            yield name, LIMIT


def _own_attributes(env: Any) -> dict[str, Any]:
    """Return what a user's classes and the instance itself define, by name."""
    classes = [
        c
        for c in type(env).__mro__
        if c.__module__.partition(".")[0] not in ("builtins", "dreamgym", "gymnasium")
    ]
    names = {name for c in classes for name in vars(c)} | vars(env).keys()
    # Static: a property is not run.
    return {name: inspect.getattr_static(env, name) for name in sorted(names)}


def _check_limit_value(player: Player) -> None:
    limit = limits.declared_value(player.env)
    if limit is None or limits.is_step_limit(limit):
        return
    player.findings.fault(
        "max_episode_steps must be a whole number of at least 1, and of 64 bits, got "
        f"{limit!r:.40}",
        "max_episode_steps",
        "declare the number of steps at which step() returns truncated=True, or None",
    )


def check_declared_limit(player: Player, trace: Trace, what: str) -> None:
    """Warn of an episode that goes on after the step limit that is declared."""
    declared = limits.step_limit_of(player.env, trace.task)
    if declared and trace.length > declared:
        player.findings.warn(
            f"max_episode_steps = {declared} is declared, and an episode goes on after "
            "it",
            f"task {trace.task.id!r}, {what}: {trace.length} steps",
            f"count the steps in step(), and return truncated=True at step {declared} "
            "(a ToolEnv counts them for you)",
        )


def check_early_limits(player: Player, traces: Sequence[Trace], limit: int) -> None:
    """Warn of episodes that are truncated before any limit.

    The limit is the one that is declared for the task; where none is, the longest
    episode of the same task that was truncated shows it. `limit` is that of the check.
    """
    cut = [t for t in traces if t.last.truncated]
    longest: dict[str, int] = {}
    for t in cut:
        declared = limits.step_limit_of(player.env, t.task)
        longest[t.task.id] = declared or max(t.length, longest.get(t.task.id, 0))
    early = [t for t in cut if t.length < min(longest[t.task.id], limit)]
    if not early:
        return
    first, steps = early[0], longest[early[0].task.id]
    comparison = (
        f"max_episode_steps = {steps} is declared"
        if limits.step_limit_of(player.env, first.task)
        else f"another only after {steps}"
    )
    player.findings.warn(
        "an episode is truncated before its limit",
        f"task {first.task.id!r}: after {first.length} steps, and {comparison}; "
        f"{len(early)} of {len(traces)} episodes",
        "return terminated=True where the rules end it, won or lost: truncated says "
        "that it could have gone on; or declare the limit that holds",
    )


def check_nonsense_ends(
    player: Player,
    ends: Sequence[tuple[Trace, Sequence[str]]],
    taken: Sequence[str],
    limit: int,
    *,
    single_turn: bool,
) -> None:
    """Warn of nonsense that ends episodes: of a limit that terminates, or else of each.

    Args:
      ends: episodes that nonsense ended, each with sound actions of its start.
      taken: actions that the environment takes, where there are no sound ones.
    """
    if any(_is_limit(player, trace, sound or taken, limit) for trace, sound in ends):
        return
    for trace, _ in ends:
        _warn_of_end(player, trace, single_turn=single_turn)


def _is_limit(player: Player, trace: Trace, others: Sequence[str], limit: int) -> bool:
    """Warn of a limit that terminates, which comes whatever the actions are.

    Rules that end on bad moves come later where one sound action is among them. A
    deadline is a rule as well, which cannot be told from a limit.
    """
    for action in others[:5] if trace.length > 1 else ():
        mixed = [action, *[NONSENSE] * limit]
        other = player.play(trace.task, mixed, limit, trace.seed)
        if other is None or other.broken or not other.last.terminated:
            continue
        first, start = other.steps[1], other.steps[0]
        same = first.observation == start.observation
        if same if first.invalid is None else first.invalid:
            continue  # no sound action
        if other.length == trace.length and not other.won:
            player.findings.warn(
                "the number of steps alone ends an episode, as lost",
                f"task {trace.task.id!r}: terminated after {trace.length} nonsense "
                "actions, and after as many others",
                "return terminated=False, truncated=True where it is a step limit; "
                "leave it where a deadline is part of the task and the state shows it",
            )
            return True
    return False


def _warn_of_end(player: Player, trace: Trace, *, single_turn: bool) -> None:
    """Warn of nonsense that ends an episode."""
    plural = "s" * (trace.length > 1)
    where = f"task {trace.task.id!r}: {trace.length} nonsense action{plural}"
    if trace.length > 1:
        player.findings.warn(
            "actions that cannot be taken end the episode",
            where,
            "leave it where the rules of the game say so; where it is a step "
            "limit, return truncated=True instead",
        )
    elif not single_turn:
        player.findings.warn(
            "an action that cannot be taken ends the episode",
            where,
            "tell the agent in the next state, and set info['invalid']; leave it "
            "where the rules of the game say so",
        )
