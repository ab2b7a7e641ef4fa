"""The evaluation cards of a run's policies: card.json, and tables."""

from typing import Any

from dreamgym.agent.config import FLOORS
from dreamgym.commands.audits.robustness import FILE as ROBUSTNESS
from dreamgym.commands.results import (
    limited_costs,
    limited_shares,
    raise_no_games,
    token_counter,
)
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.card import CardRow, card, card_lines
from dreamgym.run.directory import Run
from dreamgym.stages.table import POLICIES
from worldmodel.data.json_reading import read_json_rows

FILE = "card.json"


def cards(run: Run) -> dict[str, list[CardRow]]:
    """Return the card of each policy that has played; write card.json.

    Raises:
      RunError: none has played test games yet.
    """
    names = [n for n in (*FLOORS, *POLICIES) if run.path(f"test/{n}.jsonl").is_file()]
    if not names:
        raise_no_games(run)
    robust: dict[str, Any] | None = None
    if run.path(ROBUSTNESS).is_file():
        robust = run.read_json(ROBUSTNESS)
    count_tokens, out = token_counter(run), {}
    played = {n: evaluate.trajectories(run.path(f"test/{n}.jsonl")) for n in names}
    reported = evaluate.reported_costs(t for games in played.values() for t in games)
    for name, trajectories in played.items():
        # Those of its rounds, where it was fine-tuned in several.
        curves = [run.path(f"curves/{name}.jsonl")]
        curves += sorted(run.path(f"curves/{name}").glob("round-*.jsonl"))
        rows = [row for c in curves if c.is_file() for row in read_json_rows(c)]
        out[name] = card(
            trajectories,
            count_tokens=count_tokens,
            robustness=robust,
            policy=name,
            # A fit's rows count no rollouts: it has none to keep.
            updates=sum("rollouts" in row for row in rows),
            kept_updates=len(list(run.path(f"rollouts/{name}").glob("**/*.jsonl"))),
            counters={**reported, **limited_costs(run)},
            worst_shares=limited_shares(run),
        )
    content = {name: [row._asdict() for row in rows] for name, rows in out.items()}
    run.write_json(FILE, {"policies": content})
    return out


def table(cards_by_policy: dict[str, list[CardRow]]) -> str:
    """Return the cards as Markdown."""
    lines = [x for n, rows in cards_by_policy.items() for x in card_lines(n, rows)]
    return "\n".join(lines)
