"""The benchmarks run, with peers where those are installed."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dreamgym.config.presets import preset
from dreamgym.config.shapes import MODELS
from dreamgym.run.directory import Run
from dreamgym.stages import collect
from tests import chat_server
from tests.dreamgym.serving.runs import fitted_run
from worldmodel.backbone.model import create
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.data.records import read_episodes
from worldmodel.experience.examples import train_tokenizer

SCRIPTS = Path(__file__).parents[1] / "scripts"
CORRIDOR = "tests.doubles:Corridor"


def run(script: str, *args: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *args, "--rounds", "1", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["model"] == "1m"
    return result["rows"]


PEERS = ["--peers", ""]
if importlib.util.find_spec("torch") is not None:
    PEERS = ["--peers", "transformers"]


@pytest.mark.slow
def test_sampling_is_measured():
    options = ["--batches", "2,4", "--prompt", "16", "--new", "48", *PEERS]
    rows = run("bench_generation.py", *options)
    assert {row["batch"] for row in rows} == {2, 4}
    for row in rows:
        assert row["prefill/s"] > 0
        # One round on a busy machine may not tell a decode this short.
        assert row["decode/s"] is None or row["decode/s"] > 0
        assert 0 < row["of matrix"] < 2
        assert row["ratio"] > 0
    assert [r["ratio"] for r in rows if r["engine"] == "dreamgym"] == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("fastapi") is None, reason="the extra serve is not there"
)
def test_serving_is_measured(tmp_path):
    root = fitted_run(tmp_path / "a").root
    command = [sys.executable, SCRIPTS / "bench_serving.py", root, "--json"]
    done = subprocess.run(
        [*command, "--sessions", "4", "--steps", "3", "--rounds", "1"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS.parent)},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["sessions"] == 4
    assert result["ratio"] > 0


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("fastapi") is None, reason="the extra serve is not there"
)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="memory is read from /proc")
def test_a_served_dream_outlives_clients_that_vanish(tmp_path):
    root = fitted_run(tmp_path / "a").root
    command = [sys.executable, SCRIPTS / "soak_serving.py", root, "--json"]
    done = subprocess.run(
        [*command, "--sessions", "16", "--minutes", "0.3", "--vanish", "0.3"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS.parent)},
    )
    result = json.loads(done.stdout)
    assert result["vanished clients"] > 3
    assert result["messages without sense"] > 3
    assert result["episodes"] > result["vanished clients"]
    assert result["errors"] == 0, result["first error"]
    assert result["sessions at the end"] == 0


def measure_workers(*options, **variables):
    command = [sys.executable, SCRIPTS / "bench_workers.py", "--json"]
    env = ("--env", "tests.dreamgym.envs.workers.faults:Sleeping")
    done = subprocess.run(
        [*command, *env, "--workers", "0,4", "--copies", "4", *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS.parent)} | variables,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


@pytest.mark.slow
def test_workers_are_measured():
    here, workers = measure_workers("--rounds", "1")
    assert here["ratio"] == 1.0
    assert workers["ratio"] > 2.0  # they wait at the same time


@pytest.mark.slow
@pytest.mark.peer
def test_actors_of_ray_are_measured_beside_workers():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    options = ("--rounds", "1", "--steps", "4", "--fleet", "local,ray")
    # Not a cluster that another test has started on this machine, and will stop.
    rows = measure_workers(*options, RAY_ADDRESS="local")
    names = [(row["fleet"], row["workers"]) for row in rows]
    assert names == [("", 0), ("local", 4), ("ray", 4)]
    assert all(row["ratio"] > 2.0 for row in rows[1:])


@pytest.mark.slow
def test_training_is_measured_and_engines_agree():
    rows = run("bench_training.py", "--rows", "4", "--width", "32", *PEERS)
    losses = [row["loss"] for row in rows]
    # Equal weights, rows and first step: the second step's losses agree.
    assert max(losses) - min(losses) < 2e-3
    assert all(row["peak GB"] > 0.05 for row in rows)


@pytest.mark.slow
def test_a_conversation_is_measured():
    rows = run(
        "bench_rollout.py",
        "--batch",
        "2",
        "--turns",
        "3",
        "--append",
        "16",
        "--new",
        "2",
        *PEERS,
    )
    assert all(row["turn 3 s"] > 0 and row["growth"] > 0 for row in rows)


ITERATION = ["--tasks", "2", "--group", "4", "--turns", "3", "--tokens", "4"]


def measure_iterations(*options):
    return run("bench_iteration.py", *ITERATION, "--rows", "4", *options)


@pytest.mark.slow
def test_an_iteration_is_measured():
    (row,) = measure_iterations("--peers", "", "--warmup", "1")
    # Eight episodes, none of which ends before its third turn of four tokens.
    assert (row["turns"], row["sampled"]) == (24, 96)
    assert row["trained"] > 24 * 20
    assert row["whole s"] == pytest.approx(row["rollout s"] + row["update s"])
    assert 0 < row["environment s"] < row["rollout s"]
    assert row["tokens/s"] == pytest.approx(96 / row["whole s"])
    assert row["ratio whole"] == row["ratio update"] == 1.0
    assert row["first s"] > row["whole s"]  # it compiles


@pytest.mark.slow
@pytest.mark.peer
def test_an_iteration_of_trl_is_measured_beside_ours():
    pytest.importorskip("trl", reason="the package trl is not installed")
    ours, peer = measure_iterations("--peers", "trl")
    assert (ours["trainer"], peer["trainer"]) == ("dreamgym", "trl")
    for name in ("turns", "sampled"):
        assert ours[name] == peer[name] > 0
    assert peer["update s"] > 0
    assert peer["ratio whole"] == pytest.approx(peer["whole s"] / ours["whole s"])


def test_noise_plays_a_game_to_its_last_turn(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    bench = importlib.import_module("bench_iteration_engines")
    game = bench.Game(max_steps=3)

    def play(task):
        bench.begin(game, task)
        return [game.step(text) for text in ("a b", "take coin", "\ufffd")]

    for task in game.tasks("train")[:2]:  # a game of each family
        steps = play(task)
        assert [step[2:4] for step in steps] == [(False, False)] * 2 + [(False, True)]
        assert not any(step[4]["invalid"] for step in steps)
        rewards = [step[1] for step in steps]
        assert len(set(rewards)) == 3
        assert all(0 <= reward < 1 for reward in rewards)
        # Equal texts, equal games: groups differ by what was written alone.
        assert [step[:2] for step in play(task)] == [step[:2] for step in steps]


def test_ratios_of_iterations_are_those_of_their_rounds(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    bench = importlib.import_module("bench_iteration")
    columns = ("whole s", "rollout s", "environment s", "update s", "CPU s")

    def rows(*seconds):
        counts = {"turns": 2, "sampled": 8, "trained": 40}
        return [dict.fromkeys(columns, s) | counts for s in seconds]

    results = {"dreamgym": rows(1.0, 2.0, 4.0), "trl": rows(2.0, 6.0, 4.0)}
    row = bench.table_row("trl", results["trl"], results, 9.0)
    # Of the rounds 2, 3 and 1; the medians by themselves would say 4 / 2.
    assert (row["ratio whole"], row["range"]) == (2.0, "1.00 to 3.00")
    assert (row["whole s"], row["tokens/s"], row["first s"]) == (4.0, 2.0, 9.0)
    assert (row["turns"], row["sampled"], row["trained"]) == (2, 8, 40)


@pytest.mark.medium
@pytest.mark.peer
def test_the_memory_finds_what_faiss_finds():
    pytest.importorskip("faiss")
    command = [sys.executable, SCRIPTS / "bench_memory.py", "--entries", "40000"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["rows"]
    assert [row["queries"] for row in results] == [1, 16, 64, 256]
    assert all(row["agree"] > 0.999 for row in results)
    assert all(row["ratio"] > 0 for row in results)


@pytest.fixture
def unfitted(tmp_path) -> Run:
    """A run whose experience model has learned nothing, which is as fast."""
    run = Run(tmp_path / "r", preset("tiny", {"env.id": CORRIDOR}))
    run.stage("collect", lambda: collect.body(run))
    episodes = read_episodes(run.path("episodes.jsonl"))
    tok = train_tokenizer(episodes, 448, references=False)
    model = create(MODELS["nano"].model(tok.vocab_size), seed=0)
    save_model(run.path("experience"), model, tok)
    run.stage("pretrain", lambda: {"tokens_per_transition": 9.5})
    return run


@pytest.mark.slow
def test_the_dream_is_timed_beside_what_is_there(unfitted, tmp_path):
    state = ["at 0", "goal 1", "end 2", "said ok"]
    reply = {"reasoning": "", "next_state": state, "reward": 0, "outcome": "go"}
    file = tmp_path / "found.json"
    with chat_server.serving(chat_server.ok(json.dumps(reply))) as server:
        done = subprocess.run(
            [
                sys.executable,
                SCRIPTS / "bench_dream.py",
                str(unfitted.root),
                "--slots",
                "2,4",
                "--steps",
                "8",
                "--rounds",
                "1",
                "--seconds",
                "0.05",
                "--processes",
                "1",
                "--envs",
                f"{CORRIDOR},miniwob",
                "--python-for",
                "miniwob=/no/such/python",
                "--server",
                server.url,
                "--queries",
                "3",
                "--json",
                str(file),
            ],
            cwd=SCRIPTS.parent,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        assert len(server.posts) == 3
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    rows = {row["what"]: row for row in result["rows"]}
    assert all(line in done.stdout for line in result["sentences"])
    for slots in (2, 4):
        row = rows[f"dream, {slots} slots"]
        assert 0 < row["computed"] <= row["asked"] == 8
        assert 0 < row["least"] <= row["steps/s"]
    real = rows[f"real {CORRIDOR}"]
    assert real["steps alone/s"] > real["steps/s"] > 100
    best = max(rows[f"dream, {n} slots"]["steps/s"] for n in (2, 4))
    assert real["dream x"] == pytest.approx(best / real["steps/s"])
    assert rows["prompted, 4 at once"]["asked"] == 3
    # What is missing is blank, and how to get it is told.
    assert rows["real miniwob"].keys() == {"what"}
    assert rows["dream, 4 groups of 4"].keys() == {"what"}
    assert "pip install miniwob" in done.stdout
    assert "dreaming does not pay in time here" in done.stdout


@pytest.mark.slow
def test_the_loop_is_measured_by_part_and_against_a_checkout(unfitted):
    model, tok = load_model(unfitted.path("experience"))
    for name in ("warmstart", "expert_iteration"):
        save_model(unfitted.path(f"policies/{name}"), model, tok)
    options = ["--against", str(SCRIPTS.parent), "--warmup", "0", "--rounds", "3"]
    command = [sys.executable, SCRIPTS / "bench_loop.py", str(unfitted.root), *options]
    done = subprocess.run(
        [*command, "--json"],
        cwd=SCRIPTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Training has one update: what was timed by then is kept.
    assert "only 1 of 3 rounds were timed: no further update" in done.stderr
    result = json.loads(done.stdout)
    ours, theirs = result["ours"], result["theirs"]
    # The same update, part by part, of a copy of the run each.
    assert ours["steps"] == theirs["steps"] > 0
    assert ours["rollouts"] == 16
    names = {"policy sampling", "policy host", "dream sampling", "dream host"}
    assert ours["parts"].keys() == names | {"learning", "saving", "other"}
    for name in ("seconds", "CPU seconds"):
        total = sum(part[name] for part in ours["parts"].values())
        assert total == pytest.approx(ours[name], rel=1e-6)
        assert ours["parts"]["dream sampling"][name] > 0
    assert ours["steps/s"] == pytest.approx(ours["steps"] / ours["seconds"])
    ratio = result["ratio"]["steps/s"]
    assert ratio["median"] == pytest.approx(ours["steps/s"] / theirs["steps/s"])
    assert not (unfitted.root / "policies" / "dream").exists()


def _rows(*seconds):
    return [{"steps": 10, "rollouts": 2, "parts": {"other": [s, s]}} for s in seconds]


def test_ratios_of_a_loop_are_those_of_its_rounds(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    bench = importlib.import_module("bench_loop")
    result = bench.ratio(_rows(1.0, 2.0, 4.0), _rows(2.0, 6.0, 4.0))["steps/s"]
    assert result == {"median": 2.0, "least": 1.0, "largest": 3.0}
    row = bench.summary(_rows(1.0, 2.0, 4.0))
    assert (row["steps/s"], row["seconds"], row["updates"]) == (5.0, 2.0, 3)


def test_time_inside_a_part_is_not_of_the_part_around_it(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    bench = importlib.import_module("bench_loop")
    now = iter([(x, x) for x in (0.0, 1.0, 3.0, 6.0, 10.0, 15.0)])
    monkeypatch.setattr(bench.Clock, "_read_clocks", staticmethod(lambda: next(now)))
    clock = bench.Clock()
    with clock.part("dream"), clock.part("sampling"):
        pass
    assert {k: v[0] for k, v in clock.take().items()} == {
        "other": 1.0 + 5.0,
        "dream host": 2.0 + 4.0,
        "dream sampling": 3.0,
    }


@pytest.mark.slow
def test_an_update_is_measured_with_its_parts(unfitted):
    model, tok = load_model(unfitted.path("experience"))
    save_model(unfitted.path("policies/warmstart"), model, tok)
    done = subprocess.run(
        [
            sys.executable,
            SCRIPTS / "bench_update.py",
            str(unfitted.root),
            "--turns",
            "8,16",
            "--history",
            "0,2",
            "--rounds",
            "1",
            "--json",
        ],
        cwd=SCRIPTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(r["history"], r["turns"]) for r in rows] == [
        (0, 8),
        (0, 16),
        (2, 8),
        (2, 16),
    ]
    assert rows[2]["tokens a turn"] > rows[0]["tokens a turn"]
    for row in rows:
        assert 0 < row["guard"] < 1
        assert row["critic, shared"] > 0
        assert row["critic, separate"] > 0
        assert row["update s"] > 0
