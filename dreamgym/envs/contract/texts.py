"""The part of the checker that is about texts, what is written, and time."""

import dataclasses
import functools
import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dreamgym.envs import base, spaces
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Player, Trace, instruction_of, is_json
from worldmodel.data.records import Episode, Task, Transition, lines, write_episodes
from worldmodel.text.tools.tool_schemas import complete_options

MAX_CHARACTERS = 4000
"""Characters of a state or an instruction above which a warning is given."""

MAX_LINES = 60
"""Lines of a state or an instruction above which a warning is given."""

SHORTER = (
    "; ShortPages of dreamgym.envs.wrappers leaves out lines that stay as they were"
)

MIN_STATES, MIN_WORDS = 5, 20
"""States, and words of them on average, from which on one line each is too little."""

MIN_NAMES, MIN_NAME_TASKS = 3, 3
"""Names of two words for a warning, and tasks in whose states each stands."""

MIN_NAME_SHARE = 0.3
"""The share of the actions that were taken in which such a name stands."""

LINKING_WORDS = frozenset(
    "a all an and any are as at behind by down for from go has have in inside into is "
    "it its no not of off on one or out over that the then this through to under up "
    "use with".split()
)
"""Words that are no part of a name."""

_STEP = Transition(state=("state",), action="wait", next_state=("state",))
"""A sound step, by which a task is written."""

SLOW_STEP, SLOW_RESET = 0.5, 1.0
"""Seconds of a step, and of a reset, above which a warning is given."""


def check_options(player: Player, task: Task, observation: str, info: dict) -> None:
    """Fault a task that does not survive being written: a run reads tasks back.

    Its tools and expected calls, in its options or in the info of its reset, must have
    their form, because every run reads them; warn of a seed that is not an integer.
    """
    if not is_json(task.options):
        return  # said already
    where = f"task {task.id!r}"
    try:
        complete_options(task, info)
    except ValueError as error:
        what, _, cure = str(error).removeprefix(f"{where}: ").rpartition("; ")
        player.findings.fault(what, where, cure)
    seed = task.options.get("seed")
    if seed is not None and base.seed_of(task) is None:
        player.findings.warn(
            f"a task's option 'seed' is no integer, so that no reset gets it: {seed!r}",
            where,
            "write an integer, with which each reset of the task is then seeded, or "
            "give an option of another meaning another name",
        )
    if (reason := _why_unreadable(task)) is not None:
        player.findings.fault(
            "a task cannot be written to a file and read back",
            f"task {task.id!r:.60}: {reason}",
            "a Task holds texts that UTF-8 can hold, a list of texts as lineage, and "
            "options of JSON",
        )
        return
    options = json.loads(json.dumps(task.options))
    if options == task.options:
        return
    again = player.reset(dataclasses.replace(task, options=options))
    if again is None or again[0] != observation:
        player.findings.fault(
            "a task begins otherwise when its options were written as JSON",
            f"task {task.id!r}: {dict(task.options)!r:.80} and then {options!r:.80}",
            "take lists for tuples and texts as keys: a run writes tasks to a file "
            "and reads them back",
        )


def check_records(findings: Findings, traces: Sequence[Trace]) -> None:
    """Fault an episode that does not survive being written: a run would leave it out.

    Its rewards may be finite, and their sum not.
    """
    if "a task cannot be written to a file and read back" in findings.faults:
        return
    for trace in traces:
        steps = [
            Transition(
                state=lines(before.observation),
                action=step.action,
                next_state=lines(step.observation),
                rewards={"reward": step.reward},
                terminated=step.terminated,
                truncated=step.truncated,
                success=step.success,
                invalid=step.invalid,
                reveals=step.reveals,
            )
            for before, step in itertools.pairwise(trace.steps)
        ]
        reason = _why_unreadable(trace.task, steps) if steps else None
        if reason is not None:
            findings.fault(
                "an episode cannot be written to a file and read back",
                f"task {trace.task.id!r:.60}: {reason:.160}",
                "return rewards whose sum is finite: a run leaves such episodes out",
            )


def _why_unreadable(task: Task, steps: Sequence[Transition] = (_STEP,)) -> str | None:
    """Return why an episode of the task could not be read back, or None."""
    episode = Episode(
        id="check", task=task, transitions=tuple(steps), source="check", success=None
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "episodes.jsonl")
        try:
            write_episodes(path, [episode])
        except (TypeError, ValueError) as error:
            return str(error).removeprefix(f"{path}:1: ")
    return None


def check_texts(findings: Findings, task: Task, obs: str, info: dict) -> None:
    """Warn of a task without an instruction, and of a long one or a long state."""
    where, warn = f"task {task.id!r}", findings.warn
    instruction = instruction_of(task, info)
    if not instruction:
        addition = " beside its tools" if info.get("tools") else ""
        warn(
            f"a task has no instruction{addition}",
            where,
            "give Task.instruction, or info['instruction'] at reset: the policy "
            "reads it before every action",
        )
    _check_length(findings, "state", obs, where)
    if len(instruction) > spaces.MAX_CHARACTERS:
        findings.fault(
            "an instruction is too long",
            f"{where}: {len(instruction):,} characters",
            f"write at most {spaces.MAX_CHARACTERS:,}: no episode of it would begin",
        )
    else:
        _check_length(findings, "instruction", instruction, where)


def check_growth(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn of the longest state of episodes whose first states are not too long."""
    states = [
        (len(step.observation), step.observation, f"task {t.task.id!r}, step {i}")
        for t in traces
        if not _is_long(t.steps[0].observation)
        for i, step in enumerate(t.steps)
        if _is_long(step.observation)
    ]
    if states:
        _, longest, where = max(states)
        _check_length(findings, "state", longest, where)


def _is_long(text: str) -> bool:
    return len(text) > MAX_CHARACTERS or len(text.splitlines()) > MAX_LINES


def check_rendering(player: Player, trace: Trace) -> None:
    """Fault a render_state() that fails at the first or last state of an episode."""
    renderer = base.as_render(player.env)
    if renderer is None:
        return
    where = f"task {trace.task.id!r}"
    for step in (trace.steps[0], trace.last):
        state = lines(step.observation)
        text = player.call(
            "render_state", where, functools.partial(renderer.render_state, state)
        )
        if text is None:
            return
        if not isinstance(text, str):
            player.findings.fault(
                f"render_state() must return a text, got a {type(text).__name__}",
                where,
                "return the text that a person reads, its lines joined",
            )
            return


def _check_length(findings: Findings, what: str, text: str, where: str) -> None:
    """Warn of a text that is long."""
    if not _is_long(text):
        return
    wrapper = SHORTER * (what == "state")
    findings.warn(
        f"a long {what} makes every step slow and every prompt long",
        f"{where}: {len(text)} characters, {len(text.splitlines())} lines",
        f"leave out what no action touches{wrapper}; up to {MAX_CHARACTERS} "
        f"characters and {MAX_LINES} lines are usual",
    )


def check_lines(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn of states that are one long line each."""
    states = {step.observation for trace in traces for step in trace.steps}
    words = sum(len(state.split()) for state in states)
    if len(states) < MIN_STATES or words < MIN_WORDS * len(states):
        return
    if any(len(state.splitlines()) > 1 for state in states):
        return
    findings.warn(
        "every state is one long line",
        f"{len(states)} states of {words / len(states):.0f} words",
        "write one fact a line: models write the lines that change, and copy the "
        "others; SplitLines of dreamgym.envs.wrappers splits prose and JSON",
    )


def check_word_pairs(findings: Findings, traces: Sequence[Trace]) -> None:
    """Warn of names of two words, which models would copy word by word.

    A name is a pair of words behind the first word of actions that were taken. Its
    first word stands before no other word, and its second one behind no word but first
    words of such names, in no state, action or instruction.
    """
    taken = {
        step.action
        for trace in traces
        for before, step in itertools.pairwise(trace.steps)
        if step.observation != before.observation and not step.invalid
    }
    states = {(t.task.id, step.observation) for t in traces for step in t.steps}
    instructions = {trace.instruction or trace.task.instruction for trace in traces}
    in_actions = {pair for a in taken for pair in _word_pairs(a)[2:]}
    in_states = {(task, pair) for task, text in states for pair in _word_pairs(text)}
    tasks = Counter(pair for _, pair in in_states)
    pairs = {p for text in taken | instructions for p in _word_pairs(text)} | {*tasks}
    names = {
        pair
        for pair in in_actions
        if tasks[pair] >= MIN_NAME_TASKS
        and all(word.isalpha() and len(word) > 1 for word in pair)
        and not LINKING_WORDS & {word.lower() for word in pair}
    }
    separable = True
    while separable:
        firsts, seconds = ({pair[i] for pair in pairs - names} for i in (0, 1))
        separable = {name for name in names if name[0] in firsts or name[1] in seconds}
        names -= separable
    named = [a for a in taken if names.intersection(_word_pairs(a))]
    if len(names) >= MIN_NAMES and len(named) >= MIN_NAME_SHARE * len(taken):
        listed = sorted(" ".join(pair) for pair in names)
        findings.warn(
            "names are written as two words",
            f"{len(names)} in states and actions: {', '.join(listed[:8])}",
            "write each as one word, which models copy as one: JoinedNames(env, "
            f"{listed[:8]}) of dreamgym.envs.wrappers does",
        )


def _word_pairs(text: str) -> list[tuple[str, str]]:
    """Return each word of a text with the next one, the first one with "" before it.

    Where more than a space is between two words, "" stands there.
    """
    parts = re.findall(r"\w+|[^\w\s]+|\s\s+|[^\S ]", text)
    words = [part if re.match(r"\w", part) else "" for part in parts]
    return list(itertools.pairwise(["", *words, ""]))


def check_speed(player: Player) -> None:
    """Warn of steps and of resets that are slow."""
    for what, seconds, count, slow in (
        ("step", player.seconds, player.steps, SLOW_STEP),
        ("reset", player.reset_seconds, player.resets, SLOW_RESET),
    ):
        if seconds <= slow * max(count, 1):
            continue
        player.findings.warn(
            f"a {what} takes {seconds / count:.1f} s",
            f"{count} {what}s",
            "a run takes thousands: `dreamgym estimate` says how many, and smaller "
            "collect.episodes, branch.episodes and evaluate.tasks take fewer",
        )
