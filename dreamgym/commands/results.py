"""The results of a run: results.json, table.md and the plots."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dreamgym.agent.config import FLOORS
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.experience import fidelity_file, remedy_folder
from dreamgym.build.real import environments
from dreamgym.build.real.dev_choice import original_policy
from dreamgym.config.budget import minimum
from dreamgym.config.overrides import changed_by
from dreamgym.config.presets import RUN_CONTROLS
from dreamgym.evaluation import evaluate, report
from dreamgym.evaluation.diagnosis.evidence import Evidence
from dreamgym.evaluation.diagnosis.verdict import verdict
from dreamgym.evaluation.results_form import check_results
from dreamgym.evaluation.tool_report import tool_report
from dreamgym.run.directory import SCHEMA, Run, RunError, versions
from dreamgym.stages.table import STAGES
from dreamgym.training.limits import cost_counters, worst_shares
from dreamgym.training.metrics import training_note
from worldmodel.data.json_reading import (
    RecordError,
    read_json_rows,
    read_json_value,
)
from worldmodel.data.records import Transition
from worldmodel.text.tokenizer import TextTokenizer


def policy_steps(run: Run, policy: str) -> int:
    """Return the real steps of all stages that a policy depends on."""
    return STAGES.real_transitions(run, policy_stages(run, policy))


def policy_stages(run: Run, policy: str) -> list[str]:
    """Return the stages that make a policy, without those that these need.

    Every policy depends on the stage that chose a shield, which it plays with.
    """
    shield = ["shield"] if run.numbers("shield").get("shield") else []
    return [STAGES.policies()[policy], *shield]


def policy_copies(run: Run) -> dict[str, str]:
    """Return the policy that each policy is a copy of, by name.

    A stage whose training did not help writes the policy that it began at under its
    own name, too.
    """
    originals = {name: original_policy(run, name) for name in STAGES.policies()}
    return {name: origin for name, origin in originals.items() if origin != name}


def results_of(run: Run) -> dict[str, Any]:
    """Return the content of results.json, of the stages that are done.

    The `real_transitions` of a policy are the real steps of all stages that it depends
    on, without test episodes.
    """
    played = {
        name: evaluate.trajectories(run.path(f"test/{name}.jsonl"))
        for name in (*FLOORS, *STAGES.policies())
        if run.path(f"test/{name}.jsonl").is_file()
    }
    cost = {
        policy: policy_steps(run, policy) + run.estimate_steps()
        for policy in STAGES.policies()
    } | dict.fromkeys(FLOORS, 0)  # nobody trained them
    parts: dict[str, dict[str, list[Trajectory]]] = {}
    for name, trajectories in played.items():
        for family, part in evaluate.by_family(trajectories).items():
            parts.setdefault(family, {})[name] = part
    rows = _rows(run, played, cost)
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "preset": run.config.preset,
        "seed": run.config.seed,
        "versions": versions(),
        "policies": {
            name: row | {"note": _note(run, name)} | _tool_use(run, played[name])
            for name, row in rows.items()
        },
        "families": {
            family: {"policies": _rows(run, part, cost)}
            for family, part in parts.items()
        },
        "copies": policy_copies(run),
        "paired": {},
        "fidelity": run.read_json(fidelity_file(remedy_folder(run))),
        "bound": read_json_value(run.path("bound.json"))
        if run.path("bound.json").is_file()
        else None,
        "seconds": {s: m["seconds"] for s in STAGES if (m := run.done(s)) is not None},
    }
    if played:
        results["paired"] = paired_differences(run, played)
        for family, row in results["families"].items():
            row["paired"] = paired_differences(run, parts[family])
    elif not run.config.env.id:
        results["skipped"] = environments.NO_ENV
    results["real_transitions"] = {
        name: count
        for name in STAGES
        if (count := run.numbers(name).get("real_transitions"))
    } | ({"estimate": run.estimate_steps()} if run.estimate_steps() else {})
    results["rounds"] = {  # expert iteration in the dream has only their number
        name: rows
        for name in STAGES
        if isinstance(rows := run.numbers(name).get("rounds"), list)
    }
    if run.config.budget.real_steps:
        results["budget"] = {
            "real_steps": run.config.budget.real_steps,
            "spent": sum(results["real_transitions"].values()),
            "control_minimum": _control_minimum(run),
        }
    if run.path("off_policy.json").is_file():
        results["off_policy"] = run.read_json("off_policy.json")
    results["verdict"] = verdict(evidence_of(run, results))
    return results


def _control_minimum(run: Run) -> int:
    """Return the smallest budget with which the control without a dream can run."""
    changes = {
        name.removeprefix("budget."): value
        for name, value in RUN_CONTROLS["real-play"].items()
        if name.startswith("budget.")
    }
    limit = run.numbers("collect").get("max_episode_steps", 0)
    return minimum(changed_by(run.config.budget, changes), limit)


def write_results(run: Run) -> dict[str, Any]:
    """Write results.json, table.md and the plots; return what results.json holds."""
    results = results_of(run)
    run.write_json("results.json", results)
    report.write(run.root, results)
    return results


def raise_no_games(run: Run, cure: str = "") -> NoReturn:
    """Raise an error that says why no policy of a run has played test games.

    Args:
      cure: what to do where the run has an environment.

    Raises:
      RunError: always.
    """
    if not run.config.env.id:
        raise RunError(f"{run.root}: a run without an environment has no games to play")
    cure = f": {cure}" if cure else " yet"
    raise RunError(f"{run.root}: no policy has played test games{cure}")


def token_counter(run: Run) -> Callable[[str], int] | None:
    """Return a function that counts the tokens of a text; None without a tokenizer."""
    for name in ("tokenizer", "experience", "policies/untrained"):
        if (run.path(name) / "tokenizer.json").is_file():
            tokenizer = TextTokenizer.load(run.path(name))
            return lambda text: len(tokenizer.encode(text))
    return None


def limited_costs(run: Run) -> dict[str, Callable[[Sequence[Transition]], float]]:
    """Return a counter of each cost that the training loops limit."""
    return cost_counters((*run.config.train.limits, *run.config.transfer.limits))


def limited_shares(run: Run) -> dict[str, float]:
    """Return the costliest share of games that a limit is of, by name of the cost."""
    return worst_shares((*run.config.train.limits, *run.config.transfer.limits))


def _rows(
    run: Run, played: Mapping[str, Sequence[Trajectory]], cost: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return the results of each policy, with the costs that any of them has paid."""
    counters = evaluate.reported_costs(t for games in played.values() for t in games)
    return {
        name: evaluate.summary(
            trajectories,
            real_transitions=cost[name],
            counters={**counters, **limited_costs(run)},
            worst_shares=limited_shares(run),
        )
        for name, trajectories in played.items()
    }


def _tool_use(run: Run, played: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the part of a policy's results on tools; empty without any."""
    tools = tool_report(
        played,
        seed=run.config.seed,
        count_tokens=token_counter(run),
        match=run.config.train.reward.tools.match,
    )
    return {} if tools is None else {"tools": tools}


def read_results(run: Run) -> dict[str, Any]:
    """Return the content of results.json; earlier versions wrote no `copies` there.

    Raises:
      RunError: the run is not finished, or the file does not hold results; the message
        names the field.
    """
    if not run.path("results.json").is_file():
        raise RunError(
            f"{run.root}: no results.json yet; finish it: dreamgym quickstart "
            f"--run-dir {run.root}"
        )
    try:
        results = run.read_json("results.json")
        check_results(results, run.path("results.json"))
    except RecordError as error:
        raise RunError(
            f"{error}; remove it, and `dreamgym quickstart --run-dir {run.root}` "
            "writes it again"
        ) from None
    results.setdefault("copies", policy_copies(run))
    return results


def evidence_of(run: Run, results: dict[str, Any]) -> Evidence:
    """Return the evidence for a verdict on a run."""
    path, curve = run.path("curves/dream.jsonl"), []
    if path.is_file():
        curve = read_json_rows(path)
    numbers = {name: run.numbers(name) for name in STAGES if run.done(name)}
    retries = None if run.config.server else run.config.experience.retries
    env = run.config.env
    return Evidence(
        results, numbers, curve, retries, env.id or "ENV", env.worker_memory_gb
    )


def _note(run: Run, policy: str) -> str | None:
    """Return a note about a policy's training loop, if it had one."""
    note = run.numbers(STAGES.policies().get(policy, "")).get("note")
    if note is not None and policy not in ("untrained", "bc"):
        return note
    path = run.path(f"curves/{policy}.jsonl")
    if not path.is_file():
        return None
    curve = read_json_rows(path)
    # A loop's rows count rollouts; those of a fit do not.
    return training_note(curve) if all("rollouts" in row for row in curve) else None


def paired_differences(
    run: Run, played: Mapping[str, Sequence[Trajectory]]
) -> dict[str, Any]:
    """Return the differences of success between policies, paired by game.

    Those that a reader asks for: of each trained policy to where it began, and of the
    run with the dream to play without one.
    """
    pairs = [
        ("dream", "warmstart"),
        ("dream", "bc"),
        ("dream", "expert_iteration"),
        ("expert_iteration", "warmstart"),
        ("warmstart", "bc"),
        ("dpo", "warmstart"),
        ("dpo", "bc"),
        ("dream", "dpo"),
        ("s2r", "real_only"),
        ("s2r", "real_only_total"),
        ("s2r", "dream"),
        ("planner", "s2r"),
        ("planner", "bc"),
        ("planner", "warmstart"),
        ("planner", "real_only"),
        ("planner", "real_only_total"),
    ]
    return {
        f"{a}_minus_{b}": evaluate.paired(played[a], played[b], seed=run.config.seed)
        for a, b in pairs
        if a in played and b in played
    }
