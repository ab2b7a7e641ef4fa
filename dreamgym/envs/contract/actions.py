"""The part of the contract checker about lists of actions and about refused ones."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base
from dreamgym.envs.actions import has_sampler, make_action
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import NONSENSE, Played, Player, Trace
from dreamgym.envs.tools.tool_env import ToolEnv
from worldmodel.data.hashing import content_seed
from worldmodel.data.invalid_actions import error_only_change
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import read_action

MAX_VALID_ACTIONS = 500
"""Valid actions above which a warning is given."""
MANY_REFUSED = 0.6
"""The share of refused valid actions above which a warning is given."""
MANY_GUESSES_REFUSED = 0.95
"""The same for guesses, where no valid actions are listed."""
MANY_SILENT = 0.5
"""The share of nonsense that is not told from a valid action, for a warning."""
FEW_TRIED = 20
"""Actions of random play below which this share says little."""


def checked_actions(
    findings: Findings, name: str, value: Any, where: str
) -> list[str] | None:
    """Return a list of non-empty texts, or None with a fault.

    None is returned as it is: the player has said that nothing came.
    """
    if value is None:
        return None
    if isinstance(value, str | bytes):
        findings.fault(
            f"{name} must return a list of actions, got a string",
            where,
            f"return [{value!r:.60}]: a string would be read letter by letter",
        )
        return None
    try:
        actions = list(value)
    except TypeError:
        actions = [value]
    wrong = [a for a in actions if not (isinstance(a, str) and a.strip())]
    if wrong:
        findings.fault(
            f"{name} must return texts, none empty, got {wrong[0]!r:.60}",
            where,
            "write every action as the text that step() takes",
        )
        return None
    if len(actions) > MAX_VALID_ACTIONS:
        findings.warn(
            f"{name} returns {len(actions)} actions",
            where,
            "return some tens of different kinds: every one may be tried",
        )
    return actions


def random_chooser(
    player: Player, task: Task, taken: Sequence[str]
) -> Callable[[], str | None]:
    """Return a function that chooses a random action of the moment.

    It is one of the valid actions. Where the environment lists none, it is drawn from
    its action space, or made of words of the task, the state and the actions `taken`
    (as random players of a run do). The function returns None after a fault.
    """
    lister, where = base.as_valid_actions(player.env), f"task {task.id!r}"
    rng = np.random.default_rng(content_seed(0, "check", task.id))

    def choose() -> str | None:
        if lister is None:
            if has_sampler(player.env):
                space = player.env.action_space
                space.seed(int(rng.integers(2**31)))
                return player.call("action_space.sample", where, space.sample)
            state = tuple(player.observation.splitlines())
            return make_action(rng, player.instruction, state, taken)
        valid = player.call("valid_actions", where, lister.valid_actions)
        valid = checked_actions(player.findings, "valid_actions()", valid, where)
        if valid is None:
            return None
        player.listed.update(valid)
        if not valid:
            check_choice(player.findings, where)
            return NONSENSE
        return valid[int(rng.integers(len(valid)))]

    return choose


def taken_actions(traces: Sequence[Trace]) -> list[str]:
    """Return the distinct actions of episodes that the environment has taken."""
    steps = (
        (step, before.observation.splitlines())
        for trace in traces
        for before, step in itertools.pairwise(trace.steps)
    )
    return list(
        dict.fromkeys(
            step.action for step, before in steps if not _is_refused(step, before)
        )
    )


def _is_refused(step: Played, before: list[str]) -> bool:
    """Return whether an action was refused, by its flag or by what it changed."""
    if step.invalid is not None:
        return step.invalid
    return error_only_change(tuple(before), tuple(step.observation.splitlines()))


NOTHING_AT_START = "valid_actions() lists nothing at the start"


def check_valid_actions(player: Player, task: Task) -> list[str]:
    """Fault valid actions that are no texts; return them where they are."""
    lister, where = base.as_valid_actions(player.env), f"task {task.id!r}"
    if lister is None:
        player.findings.warn(
            "there is no valid_actions()",
            type(player.env.unwrapped).__name__,
            "list actions that would be taken now, some where there are thousands: "
            "without it random players try words of the instruction and the state, "
            "most of which cannot work, and without an expert little is won to learn "
            "from",
        )
        return []
    actions = player.call("valid_actions", where, lister.valid_actions)
    actions = checked_actions(player.findings, "valid_actions()", actions, where)
    if actions == []:
        player.findings.warn(
            NOTHING_AT_START,
            where,
            "list actions that would be taken now: random players have nothing to "
            "choose from",
        )
    return actions or []


def check_choice(findings: Findings, where: str) -> None:
    """Warn of a state in the middle of an episode in which nothing is listed.

    Where that is so at the start, it is said already.
    """
    if NOTHING_AT_START in findings.warnings:
        return
    findings.warn(
        "valid_actions() lists nothing in the middle of an episode",
        where,
        "list actions that would be taken now, or end the episode where there are none",
    )


def check_random_refused(
    findings: Findings, traces: Sequence[Trace], *, listed: bool
) -> None:
    """Warn where most actions of random play are refused as invalid.

    They are `listed` by the environment, or guesses, which may fail more often.
    """
    steps = [step for trace in traces for step in trace.steps[1:]]
    steps = [step for step in steps if step.action != NONSENSE]  # nothing was listed
    refused = [step.action for step in steps if step.invalid]
    many = MANY_REFUSED if listed else MANY_GUESSES_REFUSED
    if len(steps) < FEW_TRIED or len(refused) <= many * len(steps):
        return
    action, count = Counter(refused).most_common(1)[0]
    if not listed:
        findings.warn(
            f"{len(refused)} of {len(steps)} guessed actions were refused",
            f"random play, which has no valid_actions(); such as {action!r:.80}",
            "define valid_actions(): random players guess from the words in sight, or "
            "from the action space, and hardly ever guess several values at once; "
            "episodes of refusals teach neither the dream nor the policy",
        )
        return
    findings.warn(
        f"{len(refused)} of {len(steps)} actions of valid_actions() were refused",
        f"random play; most often, {count} times, {action!r:.80}",
        "list only what step() would take now: random players and branches learn "
        "little from refusals (a ToolEnv may define valid_actions() itself)",
    )


def check_nonsense(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn where a run would take nonsense for valid actions.

    It does where there is no `info["invalid"]`, and the state changes by more than
    lines that name an error (worldmodel/data/invalid_actions.py). Steps that end an
    episode are left out, because any text may be an answer there.
    """
    steps = [
        (before.observation.splitlines(), step)
        for trace in traces
        for before, step in itertools.pairwise(trace.steps)
        if not (step.terminated or step.truncated)
    ]
    silent = [
        step
        for before, step in steps
        if step.invalid is None
        and not error_only_change(tuple(before), tuple(step.observation.splitlines()))
    ]
    if len(silent) <= MANY_SILENT * len(steps):
        return
    findings.warn(
        "a run would take nonsense for valid actions",
        f"{len(silent)} of {len(steps)} steps; info has no 'invalid', and the state "
        f"became {silent[0].observation:.100}",
        "set info['invalid'] (False where any text may be said), and say in the next "
        "state why: invalid actions are counted, and policies learn to avoid them",
    )


def check_refused(findings: Findings, trace: Trace) -> None:
    """Warn of an action of the expert's plan that `info["invalid"]` refuses."""
    for number, step in enumerate(trace.steps[1:], start=1):
        if not step.invalid:
            continue
        before = trace.steps[number - 1].observation.splitlines()
        answer = [x for x in step.observation.splitlines() if x not in before]
        findings.warn(
            f"an action of the expert's plan was refused: {step.action!r:.80}",
            f"task {trace.task.id!r}, step {number}: "
            f"{'; '.join(answer) or 'the state stays as it is':.160}",
            "leave it out, or write it as step() reads it: policies imitate the plan",
        )
        return


def check_tools(player: Player) -> None:
    """Fault an environment of tools in which no action can do anything."""
    env = player.env.unwrapped
    if (
        isinstance(env, ToolEnv)
        and not env.tools
        and type(env).answer is ToolEnv.answer
    ):
        player.findings.fault(
            "there are no tools, and no answer is graded: no action can do anything",
            type(env).__name__,
            "mark methods as tools with @tool, or define answer(text)",
        )
    if not isinstance(env, ToolEnv) or not proposes_calls(env):
        return
    for name, signature in env.tools.items():
        if never := signature.never_tried():
            player.findings.warn(
                f"valid_actions() never lists the tool {name!r}",
                f"its argument {never[0]!r} is an object: no values in sight are one",
                "define valid_actions() with calls of it: random players and branches "
                "never take it",
            )


def proposes_calls(env: gymnasium.Env) -> bool:
    """Return whether `valid_actions()` is that of ToolEnv, which proposes some calls.

    It makes them of the values in sight, so that a call of a plan may be missing.
    """
    base = env.unwrapped
    return (
        isinstance(base, ToolEnv) and type(base).valid_actions == ToolEnv.valid_actions
    )


def check_tools_listed(player: Player) -> None:
    """Warn of tools that no list of valid actions called, in all states of the check.

    Those with an object as an argument are named before (check_tools).
    """
    env = player.env.unwrapped
    if not isinstance(env, ToolEnv) or not proposes_calls(env) or not player.listed:
        return
    called = {c.tool for action in player.listed for c in read_action(action).calls}
    for name, signature in env.tools.items():
        if name not in called and not signature.never_tried():
            player.findings.warn(
                f"valid_actions() never lists the tool {name!r}",
                f"no state of the check shows values for {signature}",
                "show values that its arguments may have, in the state or the "
                "instruction, or define valid_actions() with calls of it: random "
                "players and branches never take it",
            )


def check_tool_results(player: Player, trace: Trace) -> None:
    """Warn of a tool that forgets to return its message: the state says None."""
    if not isinstance(player.env.unwrapped, ToolEnv):
        return
    for step in trace.steps:
        if "result None" in step.observation.splitlines():
            player.findings.warn(
                "a tool returned None: the state says `result None`",
                f"task {trace.task.id!r}, action {step.action!r:.80}"
                if step.action
                else f"task {trace.task.id!r}, start()",
                "return what the agent shall read, as a text",
            )
            return
