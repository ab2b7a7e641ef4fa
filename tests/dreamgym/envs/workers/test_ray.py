"""Environments as actors of a Ray cluster of two nodes, one of which is lost."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from dreamgym.build.real.instances import instance_maker
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, restarting, vector
from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.workers.env import ray_env
from tests import corridor

ray = pytest.importorskip("ray", reason="the extra ray is not installed")

FAULTS = "tests.dreamgym.envs.workers.faults"
FAULTY = f"{FAULTS}:Faulty"
ROOT = Path(__file__).parents[4]
PLAN = ("go right", "go right", "go left", "take coin")
pytestmark = [pytest.mark.peer, pytest.mark.slow]  # a cluster takes seconds to start


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose head node has no processor, so that actors are on the others."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the nodes, and of their workers
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()


def task():
    return base.tasks_of(corridor.Corridor(), "corridor", "train", 1)[0]


def episode(env):
    _, state = base.begin(env, task())
    return [state, *(base.take(env, action) for action in PLAN)]


def open_env(spec):
    make = instance_maker(EnvConfig(workers=1, fleet="ray"))
    return restarting.open_env(spec, make=make)


def test_an_episode_is_that_of_the_environment_in_this_process(cluster):
    cluster.add_node(num_cpus=2)
    env = open_env("tests.corridor:Corridor")
    assert episode(env) == episode(corridor.Corridor())
    env.close()


def test_faults_have_their_types(cluster):
    cluster.add_node(num_cpus=2)
    env = ray_env(FAULTY, start_seconds=60.0)
    base.begin(env, task())
    with pytest.raises(ZeroDivisionError):
        base.take(env, "divide")
    with pytest.raises(EnvironmentTimeout, match="2 s"):
        base.take(env, "hang")
    with pytest.raises(ConnectionError):
        base.take(env, "look")
    env = ray_env(FAULTY, start_seconds=60.0)
    base.begin(env, task())
    with pytest.raises(ConnectionError, match=r"has ended.*before .* worker process"):
        base.take(env, "exit")


def refusal(**needs):
    """What an actor raises that finds no place within seconds."""
    with pytest.raises(EnvironmentTimeout, match="started no worker") as error:
        ray_env("tests.corridor:Corridor", start_seconds=3.0, **needs)
    return str(error.value)


def test_a_cluster_without_room_says_what_is_missing(cluster):
    cluster.add_node(num_cpus=1)
    text = refusal(cpus=2.0)
    assert "within 3 s: it needs 2 processors and 0 GB" in text
    assert "the cluster has 1 and" in text
    assert "1 processors and 4096 GB" in refusal(memory_gb=4096.0)
    # Those that found no place hold none.
    env = ray_env("tests.corridor:Corridor", start_seconds=60.0)
    assert episode(env) == episode(corridor.Corridor())
    assert "the cluster has 0 and" in refusal()
    env.close()


def test_a_start_that_hangs_is_no_lack_of_room(cluster):
    cluster.add_node(num_cpus=1)
    with pytest.raises(EnvironmentTimeout, match=r"did not start within 20 s.*faults"):
        ray_env(f"{FAULTS}:StuckStart", start_seconds=20.0)


def test_a_worker_waits_until_there_is_room(cluster):
    cluster.add_node(num_cpus=1)
    first = ray_env("tests.corridor:Corridor", start_seconds=60.0)
    threading.Timer(2.0, first.close).start()
    second = ray_env("tests.corridor:Corridor", start_seconds=60.0)
    assert episode(second) == episode(corridor.Corridor())
    second.close()


def test_a_batch_outlives_the_loss_of_a_node(cluster):
    lost, _ = cluster.add_node(num_cpus=2), cluster.add_node(num_cpus=4)
    envs = [open_env(f"{FAULTS}:Placed") for _ in range(4)]
    nodes = {env.reset(seed=0)[1]["node"] for env in envs}
    assert len(nodes) == 2  # Ray spreads them, so some are lost below
    batch = vector.RealVectorEnv(envs, max_steps=16)
    states = [batch.reset(options={"tasks": [task()] * 4})]
    for number, action in enumerate(PLAN):
        if number == 2:
            cluster.remove_node(lost)
        states.append(batch.step([action] * 4))
    batch.close()
    expected = episode(corridor.Corridor())
    for slot in range(4):
        assert [row[slot] for row in states] == expected


def test_a_whole_run_outlives_the_loss_of_a_node(cluster, tmp_path):
    lost, _ = cluster.add_node(num_cpus=3), cluster.add_node(num_cpus=4)
    cache = Path(tempfile.gettempdir()) / "dreamgym-tests-jax"
    command = [sys.executable, "-m", "dreamgym.cli", "quickstart", "--preset", "tiny"]
    options = ("--env", "tests.corridor:Corridor", "--no-transfer")
    fleet = ("--env.workers", "3", "--env.fleet", "ray")
    run = subprocess.Popen(
        [*command, "--run-dir", str(tmp_path), *options, *fleet],
        cwd=ROOT,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stderr is not None
    for line in run.stderr:  # in the middle: the dream is being fitted
        if line.startswith("pretrain"):
            cluster.remove_node(lost)
            break
    _, error = run.communicate(timeout=900)
    assert run.returncode == 0, error[-2000:]
    rows = json.loads((tmp_path / "results.json").read_text())["policies"]
    assert rows["bc"]["success"]["episodes"] > 0
    assert all(row["success"]["unscored"] == 0 for row in rows.values())
