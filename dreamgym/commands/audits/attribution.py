"""Which lines of the state moved an action of a policy, in the terminal."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dreamgym.agent.attribution import Attribution, attribute_action
from dreamgym.agent.policy import Situation
from dreamgym.build.models import load_policy
from dreamgym.build.planning import PLANNER
from dreamgym.commands.results import raise_no_games
from dreamgym.evaluation.printable import printable
from dreamgym.run.directory import Run, RunError
from dreamgym.stages.table import POLICIES
from worldmodel.data.records import Episode, read_episodes

STRONG = 0.5
"""Nats from which a part is marked: the action is 1.6 times as likely with it."""


def explain_action(
    run: Run, *, policy: str = "", episode: str | None = None, step: int | None = None
) -> dict[str, Any]:
    """Return what moved an action that a policy took in a test game.

    Args:
      policy: its name (default: the last one that has played test games).
      episode: the id of its game, or of the task (default: its first game).
      step: the number of a step, from 1 (default: the last one of the game).

    Raises:
      RunError: there is no such policy, game or step; the message says which there are.
    """
    name = _policy_name(run, policy)
    record = _game(run, name, episode)
    count = len(record.transitions)
    number = count if step is None else step
    if not 1 <= number <= count:
        raise RunError(f"episode {record.id!r} has steps 1 to {count}, got {number}")
    t = record.transitions[number - 1]
    player = load_policy(run, name)
    situation = Situation.at_step(
        record.task,
        record.transitions,
        number - 1,
        subgoal_steps=player.config.subgoal_steps,
    )
    thought = t.thought if player.config.thought_tokens else None
    result = attribute_action(player, situation, t.action, thought)
    return {
        "policy": name,
        "episode": record.id,
        "task": record.task.instruction,
        "step": number,
        "of": count,
        "action": t.action,
        "table": player.table(situation.past, situation.past_states, t.state).lines(),
        "attribution": result,
    }


def _policy_name(run: Run, policy: str) -> str:
    played = [
        name
        for name in POLICIES
        if name != PLANNER and run.path(f"test/{name}.jsonl").is_file()
    ]
    if not played:
        raise_no_games(run)
    if policy == PLANNER and run.path(f"test/{PLANNER}.jsonl").is_file():
        raise RunError(
            f"{run.root}: what {policy!r} plays a search in the dream has chosen, not "
            f"the words of a state: ask for one that plays by itself, of {played}"
        )
    if policy and policy not in played:
        raise RunError(f"{run.root}: no test games of {policy!r}; have {played}")
    return policy or played[-1]


def _game(run: Run, policy: str, episode: str | None) -> Episode:
    path = run.path(f"test/{policy}.jsonl")
    games = [e for e in read_episodes(path) if e.transitions]
    matches = [e for e in games if episode in (None, e.id, e.task.id)]
    if not matches:
        ids = [e.id for e in games][:8]
        raise RunError(f"{path}: no game {episode!r} with a step; have {ids} ...")
    return matches[0]


def print_explanation(explained: dict[str, Any], console: Console) -> None:
    """Print an action, its probability, and the effect of each part in nats."""
    result: Attribution = explained["attribution"]
    lines = (
        f"{explained['policy']}, game {explained['episode']}, step "
        f"{explained['step']} of {explained['of']}",
        f"task: {explained['task']}",
        *(f"symbolic memory: {line}" for line in explained["table"]),
        f"action: {explained['action']}   (probability "
        f"{math.exp(result.log_prob):.3g} at temperature 1)",
    )
    for line in lines:
        console.print(Text(printable(line)), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("effect", justify="right")
    table.add_column("part")
    table.add_column("what the policy read")
    for part in result.parts:
        style = "bold" if abs(part.effect) >= STRONG else "dim"
        cells = (f"{part.effect:+.2f}", part.kind, printable(part.text))
        table.add_row(*(Text(cell, style) for cell in cells))
    console.print(table)
    console.print(
        Text(
            "effect: log-probability of the action minus that without this part, in "
            "nats; above 0 it spoke for the action",
            "dim",
        )
    )
