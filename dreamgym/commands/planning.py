"""What planning in the dream brings: the test games of a run, played with a plan.

the policies of a finished run -> their test games again, planned -> success with and
without, the difference paired by game, and what a real step costs. No real step is
spent besides those of the test games.
"""

from collections.abc import Sequence
from typing import Any

from dreamgym.agent.config import FLOORS
from dreamgym.build.planning import PLANNER
from dreamgym.commands.results import raise_no_games
from dreamgym.evaluation import evaluate
from dreamgym.run.directory import Run, RunError
from dreamgym.stages.table import POLICIES, is_in_run

FILE = "plan.json"
NUMBERS = ("dreamed_per_step", "overruled", "seconds_per_step")


def stages(source: Run, chosen: Sequence[str] = ()) -> list[str]:
    """Return the evaluations of the policies that a run has trained and tested.

    Args:
      chosen: those that are meant; by default all of them.

    Raises:
      RunError: there are none, or not the chosen ones.
    """
    policies = _policies(source)
    if unknown := [p for p in chosen if p not in policies]:
        raise RunError(
            f"{source.root}: no policy {unknown[0]!r} has played test games; have "
            f"{policies}"
        )
    if not policies:
        raise_no_games(source, "run dreamgym evaluate without --plan first")
    return [f"evaluate/{name}" for name in policies if name in (chosen or policies)]


def gains(run: Run, source: Run) -> dict[str, Any]:
    """Compare planned test games with those of the source; write plan.json.

    Returns a row for each policy: success with its interval, the `difference` to the
    games without a plan, paired by game, and what planning cost. `dreamed_per_step`
    also counts the steps that a control took in the real environment.
    """
    rows = {}
    for name in _policies(source):
        if not run.path(f"test/{name}.jsonl").is_file():
            continue
        path = f"test/{name}.jsonl"
        planned, plain = (evaluate.trajectories(r.path(path)) for r in (run, source))
        numbers = run.numbers(f"evaluate/{name}")
        rows[name] = {
            "success": evaluate.summary(planned, real_transitions=0)["success"],
            "without": evaluate.summary(plain, real_transitions=0)["success"],
            "difference": evaluate.paired(planned, plain, seed=run.config.seed),
            **{k: numbers.get(k) for k in NUMBERS},
        }
    plan = run.config.evaluate.plan
    control = "" if plan.world == "dream" else f" ({plan.world})"
    result = {"plan": f"{plan.method}{control}", "policies": rows}
    run.write_json(FILE, result)
    return result


def table(result: dict[str, Any]) -> str:
    """Return the gains as a Markdown table."""
    head = (
        "policy",
        "without a plan",
        result["plan"],
        "difference",
        "dreamed steps per step",
        "overruled",
        "s per step",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += [_line(name, row) for name, row in result["policies"].items()]
    idle = [n for n, row in result["policies"].items() if row[NUMBERS[0]] == 0.0]
    lines += [
        f"\n{name} took no dreamed step: it proposed one action at a time, and the "
        "difference is that of other draws."
        for name in idle
    ]
    return "\n".join(lines)


def _line(name: str, row: dict[str, Any]) -> str:
    def rate(success: dict[str, Any]) -> str:
        return "-" if success["mean"] is None else f"{100 * success['mean']:.1f} %"

    d = row["difference"]
    difference = "none"
    if d["mean"] is not None:
        difference = f"{d['mean']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]"
    dreamed, overruled, seconds = (row[k] for k in NUMBERS)
    costs = (
        "-" if dreamed is None else f"{dreamed:.1f}",
        "-" if overruled is None else f"{100 * overruled:.0f} %",
        "-" if seconds is None else f"{seconds:.2g}",
    )
    cells = (name, rate(row["without"]), rate(row["success"]), difference, *costs)
    return "| " + " | ".join(cells) + " |"


def _policies(source: Run) -> list[str]:
    return [
        name
        for name in POLICIES
        if name not in (*FLOORS, "untrained", PLANNER)
        # A policy of `dreamgym dpo` is none of the settings that the plan's run has.
        and is_in_run(name, source.config)
        and source.path(f"policies/{name}/config.json").is_file()
        and source.path(f"test/{name}.jsonl").is_file()
    ]
