"""The whole pipeline by its command: results, episodes alone, and kill -9."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dreamgym.config.presets import preset
from dreamgym.stages.table import STAGES, is_in_run
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

ROOT = Path(__file__).parents[3]
CORRIDOR = "tests.doubles:Corridor"
# With both fits of the warm start: more files, and one moment more to be killed at.
CORRIDOR_RUN = ("--env", CORRIDOR, "--set", "warmstart.method=both")
ZERO_SHOT = ("untrained", "bc", "warmstart", "expert_iteration", "dream")
POLICIES = (*ZERO_SHOT, "s2r", "real_only", "real_only_total")
ROWS = ("random", "expert", *POLICIES)
WHOLE = [name for name in STAGES if is_in_run(name, preset("tiny"))]
pytestmark = pytest.mark.slow  # each test runs every stage at least once: minutes


def begin(root, *args, command="quickstart"):
    """The command as a user gives it, in a process of its own."""
    cache = Path(tempfile.gettempdir()) / "dreamgym-tests-jax"
    command = [sys.executable, "-m", "dreamgym.cli", command, "--preset", "tiny"]
    return subprocess.Popen(
        [*command, "--run-dir", str(root), *args],
        cwd=ROOT,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process):
    out, error = process.communicate(timeout=900)
    assert process.returncode == 0, error
    return out


def results(root):
    return json.loads((root / "results.json").read_text())


def check_policy(row, limit):
    s = row["success"]
    assert s.keys() == {"mean", "low", "high", "episodes", "unscored"}
    assert 0.0 <= s["low"] <= s["mean"] <= s["high"] <= 1.0
    assert math.isclose(s["mean"] * s["episodes"], round(s["mean"] * s["episodes"]))
    assert row.keys() == {
        "success",
        "mean_return",
        "mean_steps",
        "invalid_action_rate",
        "real_transitions",
        "errors",
        "costs",
        *(["note"] if "note" in row else []),
    }
    assert 1.0 <= row["mean_steps"] <= limit
    assert 0.0 <= row["invalid_action_rate"] <= 1.0
    return s["episodes"] + s["unscored"]


def check_results(root, seed=0, *, killed=False):
    result = results(root)
    assert result["schema"] == "dreamgym.run/2"
    assert (result["preset"], result["seed"]) == ("tiny", seed)
    assert {"python", "jax", "dreamgym"} <= result["versions"].keys()
    assert list(result["seconds"]) == WHOLE
    assert all(s >= 0 for s in result["seconds"].values())
    assert result["seconds"]["pretrain"] > 0
    assert tuple(result["policies"]) == ROWS
    collected = json.loads((root / "stages/collect.json").read_text())["numbers"]
    limit = collected["max_episode_steps"]
    assert {check_policy(row, limit) for row in result["policies"].values()} == {8}
    assert "dream_minus_warmstart" in result["paired"]
    assert "dream_minus_bc" in result["paired"]
    for name, d in result["paired"].items():
        a, b = (result["policies"][n]["success"] for n in name.split("_minus_"))
        assert d["low"] <= d["mean"] <= d["high"]
        if d["episodes"] == 8:
            assert math.isclose(d["mean"], a["mean"] - b["mean"], abs_tol=1e-9)
    for family in result["families"].values():
        assert tuple(family["policies"]) == ROWS
        assert "dream_minus_warmstart" in family["paired"]
        for row in family["policies"].values():
            check_policy(row, limit)
    for name in ROWS:
        games = sum(
            check_policy(f["policies"][name], limit)
            for f in result["families"].values()
        )
        assert games == 8
    assert 0.0 <= result["fidelity"]["exact"]["all"]["mean"] <= 1.0
    check_costs(root, result["policies"], killed=killed)
    return result


def check_costs(root, policies, *, killed):
    """Every real step is counted where it was used, test games aside."""
    marks = {
        s: json.loads((root / f"stages/{s}.json").read_text())["numbers"] for s in WHOLE
    }
    cost = {n: row["real_transitions"] for n, row in policies.items()}
    branches = marks["branch"]["real_transitions"]
    replays = marks["fidelity"].get("real_transitions", 0)
    collected = marks["collect"]["real_transitions"]
    kept = sum(
        len(e.transitions)
        for n in ("episodes", "dev")
        for e in read_episodes(root / f"{n}.jsonl")
    )
    # A killed attempt's steps count, too, though its episodes are lost.
    assert collected >= kept if killed else collected == kept
    # All begin at the experience model, which has seen all that was collected.
    steps = root / "stages/estimate.steps"
    collected += int(steps.read_text()) if steps.is_file() else 0
    # A shield was chosen by real games of bc, before the warm start. All play with it.
    shield = marks["shield"].get("real_transitions", 0)
    chosen = collected + (shield if marks["shield"].get("shield") else 0)
    assert cost["untrained"] == cost["bc"] == chosen
    warm = branches + shield + marks["warmstart"]["real_transitions"]
    assert cost["warmstart"] == collected + warm
    # Replays of the scorecard and the check of the dream come before it is used.
    dreamed = replays + marks["dream_check"].get("real_transitions", 0)
    dreamed += marks["expert_iteration"].get("real_transitions", 0)
    assert cost["expert_iteration"] == cost["warmstart"] + dreamed
    watched = marks["train"]["real_transitions"]
    assert cost["dream"] == cost["expert_iteration"] + watched
    for name, before in (
        ("s2r", "dream"),
        ("real_only", "warmstart"),
        ("real_only_total", "warmstart"),
    ):
        spent = cost[name] - cost[before]
        assert spent == marks[name]["real_transitions"] > 0


def check_games(root):
    """All policies played the same test games, which nothing was trained on."""
    played = {n: read_episodes(root / f"test/{n}.jsonl") for n in ROWS}
    games = [[e.task.id for e in episodes] for episodes in played.values()]
    assert all(g == games[0] for g in games)
    assert len(set(games[0])) == 8
    trained = {
        e.task.id
        for n in ("episodes", "dev")
        for e in read_episodes(root / f"{n}.jsonl")
    }
    assert not trained & set(games[0])


def check_report(root):
    """The page of a run has its numbers, curves, and three episodes, dreamed."""
    page = (root / "report.html").read_text()
    for name, row in results(root)["policies"].items():
        assert f"<b>{name}</b>" in page
        assert f"{row['real_transitions']:,}" in page
    assert page.count('<details class="episode"') == 3
    assert "Reasoning of the dream" in page
    assert page.count("data:image/svg+xml;base64,") >= 4
    assert "dreamgym quickstart --preset tiny" in page


@pytest.fixture(scope="module")
def corridor(tmp_path_factory):
    """One run that was never interrupted."""
    root = tmp_path_factory.mktemp("whole") / "run"
    return root, finish(begin(root, *CORRIDOR_RUN))


def test_the_whole_pipeline_on_an_environment_of_ones_own(corridor):
    root, out = corridor
    result = check_results(root)
    check_games(root)
    assert result["families"].keys() == {"long", "short"}
    table = (root / "table.md").read_text()
    assert table.strip() in out
    assert out.splitlines()[-3:] == [
        f"report:  {root / 'report.html'}",
        f"next:    dreamgym show {root}   dreamgym doctor {root}",
        f"plan:    dreamgym evaluate {root} --plan mpc   (no real step but test games)",
    ]
    check_report(root)
    for name in POLICIES:
        assert f"| {name} |" in table
    for name in ("curves", "success", "fidelity"):
        assert (root / f"plots/{name}.png").stat().st_size > 1000
    for name in (*POLICIES,):
        assert (root / f"policies/{name}/model.safetensors").is_file()
    start, dreamer = (
        (root / f"{n}/model.safetensors").read_bytes()
        for n in ("policies/untrained", "experience")
    )
    assert start == dreamer  # all policies begin there
    assert (root / "policies/bc/model.safetensors").read_bytes() != start
    assert not any((root / "checkpoints").glob("*/*"))


def test_every_file_of_a_run_is_declared_by_a_stage(corridor):
    root, _ = corridor
    files = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    declared = [name for stage in STAGES.values() for name in stage.writes]
    left = {
        f for f in files if not any(f == d or f.startswith(f"{d}/") for d in declared)
    }
    markers = {f"stages/{name}.json" for name in WHOLE}
    left = {f for f in left if not f.endswith(".steps")}  # counts of real steps
    report = {
        ".lock",
        "manifest.json",
        "metrics.jsonl",
        "results.json",
        "table.md",
        "plots/curves.png",
        "plots/success.png",
        "report.html",
        "report/episodes.json",
    }
    assert left == markers | report


def test_the_whole_pipeline_on_the_real_environment(tmp_path):
    start = time.monotonic()
    finish(begin(tmp_path / "run"))
    assert time.monotonic() - start < 300  # 90 s on an idle machine
    result = check_results(tmp_path / "run")
    check_games(tmp_path / "run")
    assert result["families"].keys() == {"coin", "mapreader"}


def test_the_same_command_again_does_nothing_and_says_the_same(corridor):
    root, _ = corridor
    before = results(root)
    process = begin(root, *CORRIDOR_RUN)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0
    assert error.count("done before") == len(WHOLE)
    assert results(root) == before


def test_another_seed_is_another_run_and_fine_tuning_can_wait(corridor, tmp_path):
    command = (tmp_path / "run", "--env", CORRIDOR, "--seed", "1")
    out = finish(begin(*command, "--no-transfer"))
    assert "| dream |" in out
    early = results(tmp_path / "run")
    assert early["policies"].keys() == {
        "random",
        "expert",
        "untrained",
        "bc",
        "warmstart",
        "expert_iteration",
        "dream",
    }
    finish(begin(*command))
    other = check_results(tmp_path / "run", seed=1)
    for name, row in early["policies"].items():
        assert other["policies"][name] == row
    assert other["fidelity"] != results(corridor[0])["fidelity"]


def test_episodes_alone_give_a_dream_policy_and_no_claim_about_the_real(tmp_path):
    some = [doubles.expert(t) for t in doubles.tasks("train")[:40]]
    lost = [
        doubles.episode(t, ["go right", "fly", "go left"], source="random")
        for t in doubles.tasks("train")[:40]
    ]
    write_episodes(tmp_path / "mine.jsonl", some + lost)
    root = tmp_path / "run"
    out = finish(begin(root, "--episodes", str(tmp_path / "mine.jsonl")))
    result = results(root)
    assert "skipped: no environment" in result["skipped"]
    assert "skipped: no environment" in out
    assert "skipped" in (root / "table.md").read_text()
    assert result["policies"] == result["families"] == result["paired"] == {}
    assert result["fidelity"]["transitions"] > 0
    assert (root / "policies/dream/model.safetensors").is_file()
    assert not (root / "test").exists()
    assert not (root / "policies/s2r").exists()
    page = (root / "report.html").read_text()
    assert "Nothing was played in a real environment" in page
    assert "Held-out dev episodes." in page


# What to wait for before each kill: the middle of every stage, and its very end. A
# process that is past a moment before its signal arrives is killed at the next one.
MOMENTS = (
    "manifest.json",
    "episodes.jsonl",
    "checkpoints/pretrain/step_*",
    "experience/config.json",
    "stages/bc.json",
    "checkpoints/iwm/step_*",
    "checkpoints/warmstart/step_*",
    "checkpoints/dream/*step_*",
    "policies/dream/config.json",
    "checkpoints/s2r/*step_*",
    "test/s2r.jsonl",
)


def stop_when(process, root, pattern, way=signal.SIGKILL):
    """Send a signal as soon as the file is there; return the exit status and stderr."""
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if any(root.glob(pattern)):
            process.send_signal(way)
            break
        time.sleep(0.002)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


def without_cost(part):
    """Results without what a policy has cost, which a kill adds to."""
    if not isinstance(part, dict):
        return part
    return {k: without_cost(v) for k, v in part.items() if k != "real_transitions"}


def test_killed_at_many_moments_the_same_command_ends_as_if_never_killed(
    corridor, tmp_path
):
    root, killed = tmp_path / "run", 0
    for moment in MOMENTS:
        if any(root.glob(moment)):
            continue
        status, _ = stop_when(begin(root, *CORRIDOR_RUN), root, moment)
        killed += status == -signal.SIGKILL
    assert killed >= 3 * len(MOMENTS) // 4
    finish(begin(root, *CORRIDOR_RUN))
    check_same_run(root, corridor[0])


def check_same_run(root, uninterrupted):
    """Check that an interrupted run ended as the one that was not."""
    one, two = results(uninterrupted), check_results(root, killed=True)
    for name in ("families", "policies"):
        assert without_cost(two[name]) == without_cost(one[name])
    # Steps of broken attempts count, too. A run that was killed before its first stage
    # was not estimated again, so that it lacks the steps of an estimate.
    estimates = [x["real_transitions"].get("estimate", 0) for x in (one, two)]
    for name, row in one["policies"].items():
        taken = two["policies"][name]["real_transitions"] - estimates[1]
        trained = row["real_transitions"] - estimates[0]
        assert taken >= trained
    for name in ("paired", "fidelity"):
        assert two[name] == one[name]
    for name in POLICIES:
        path = f"policies/{name}/model.safetensors"
        assert (root / path).read_bytes() == (uninterrupted / path).read_bytes()


def test_ctrl_c_ends_with_a_sentence_and_the_same_command_goes_on(corridor, tmp_path):
    root = tmp_path / "run"
    for moment in ("episodes.jsonl", "stages/bc.json", "policies/dream/config.json"):
        status, error = stop_when(
            begin(root, *CORRIDOR_RUN), root, moment, signal.SIGINT
        )
        assert status == 130, error
        assert "Traceback" not in error
    finish(begin(root, *CORRIDOR_RUN))
    check_same_run(root, corridor[0])


def java_children(process):
    """The Java machines that a process has started, by their numbers."""
    out = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            name, _, fields = (entry / "stat").read_text().rpartition(")")
            if int(fields.split()[1]) == process.pid and name.endswith("java"):
                out.append(int(entry.name))
    return out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_java_machines_that_are_killed_leave_no_trace_in_the_episodes(tmp_path):
    plain, drilled = tmp_path / "plain", tmp_path / "drilled"
    finish(begin(plain, command="collect"))
    process, killed, steps = begin(drilled, command="collect"), 0, 0
    counted = drilled / "stages/collect.steps"
    while process.poll() is None and killed < 3:
        time.sleep(0.02)
        count = int(counted.read_text() or 0) if counted.exists() else 0
        if count < steps + 100:  # a machine lives for some episodes
            continue
        steps = count
        for number in java_children(process):
            os.kill(number, signal.SIGKILL)
            killed += 1
    finish(process)
    assert killed >= 2
    for name in ("episodes.jsonl", "dev.jsonl"):
        assert (drilled / name).read_bytes() == (plain / name).read_bytes()
