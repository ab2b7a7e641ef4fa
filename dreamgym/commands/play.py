"""A person plays the dream of a run in the terminal.

task -> state -> action, typed -> reasoning, confidence, what was recalled -> next state
"""

import math
from collections.abc import Callable

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from dreamgym.agent.symbolic_memory import symbolic_memory
from dreamgym.build.chat import experience_session
from dreamgym.commands.inspection.show import run_readable_states
from dreamgym.envs.dream import Exchange
from dreamgym.evaluation.comparisons.episode_comparison import Recall, recalled_view
from dreamgym.evaluation.printable import printable
from dreamgym.evaluation.state_text import ReadableState, as_lines
from dreamgym.run.directory import Run
from dreamgym.serving.dream import Dream, load_dream
from dreamgym.serving.worlds import dream_world
from worldmodel.data.records import State, Task, lines

HELP = (
    "type an action; :memory prints what was seen and what each verb did, :new plays "
    "the next task, :quit ends"
)


def play(
    run: Run,
    console: Console,
    read_action: Callable[[], str | None],
    *,
    split: str = "",
    seed: int = 0,
    index: int | None = None,
) -> None:
    """Play tasks of a dream until there is no further action.

    Args:
      read_action: asks for an action; None ends.
      split: of the tasks; "" is the first that the dream has.
      seed: draws the task; the next one is drawn by the next seed.
      index: the number of the task in its split, in place of the seed.

    Raises:
      RunError: the run has no dream yet.
      ValueError: there is no such task.
    """
    dream = load_dream(run)
    world = dream_world(dream, dream.model)
    with experience_session(dream.model), run_readable_states(run) as read:
        console.print(Text(f"{world.description} {HELP}.", "dim"))
        while True:
            task = world.task(split or world.splits()[0], seed=seed, index=index)
            if not _play_task(dream, task, console, read, read_action):
                return
            if index is None:
                seed += 1
            else:
                index += 1


def _play_task(
    dream: Dream,
    task: Task,
    console: Console,
    read: ReadableState,
    read_action: Callable[[], str | None],
) -> bool:
    """Play one task; return whether another one follows."""
    env = dream.env()
    text, _ = env.reset(options={"task": task})
    console.print(Rule(style="dim"))
    console.print(Text(printable(task.instruction or task.id), "bold"))
    _print_state(console, read, lines(text), ())
    total, running = 0.0, True
    past: list[str] = []
    past_states: list[State] = []
    while True:
        action = read_action()
        if action is None or action == ":quit":
            return False
        if action == ":new":
            return True
        if action == ":memory":
            for line in symbolic_memory(past, past_states, lines(text)).lines():
                console.print(Text(f"  {printable(line)}"))
            continue
        if action.startswith(":"):
            console.print(Text(":new, :memory or :quit", "yellow"))
            continue
        if not running:
            console.print(Text("the episode has ended: :new or :quit", "yellow"))
            continue
        before = lines(text)
        past.append(action)
        past_states.append(before)
        text, reward, terminated, truncated, info = env.step(action)
        total += reward
        running = not (terminated or truncated)
        _print_answer(console, env.exchange, dream.recall)
        _print_state(console, read, lines(text), before)
        end = _end_text(info, terminated, truncated)
        console.print(Text(f"reward {reward:g}, return {total:g}: {end}", "bold"))


def _end_text(info: dict, terminated: bool, truncated: bool) -> str:
    if info["error"] is not None:
        return f"broken off, unscored: {printable(info['error'])}"
    if terminated:
        return "won" if info["success"] else "lost"
    return "the step limit ends the episode" if truncated else "the episode goes on"


def _print_state(
    console: Console, read: ReadableState, state: State, before: State
) -> None:
    """Print a state; lines that were not there before are marked."""
    old = read(before) if before else read(state)
    for line in read(state):
        console.print(Text(f"  {line}", "" if line in old else "yellow"))


def _print_answer(console: Console, exchange: Exchange | None, recall: Recall) -> None:
    """Print reasoning, confidence and recalled demonstrations of an answer."""
    assert exchange is not None, "a step was taken"
    answer = exchange.answer
    if answer.reasoning:
        label = ("Reasoning: ", "bold")
        console.print(Text.assemble(label, printable(answer.reasoning)))
    unknown = math.isnan(answer.confidence)
    sure = "not known" if unknown else f"{answer.confidence:.3f}"
    console.print(Text.assemble(("Confidence: ", "bold"), sure))
    for score, transition in recall(exchange.query):
        row = recalled_view(score, transition, as_lines)
        text = f"  recalled ({row['similarity']:.2f}) {row['action']}: "
        console.print(Text(text + f"{' / '.join(row['effect'])}; {row['end']}", "dim"))
